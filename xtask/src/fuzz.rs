//! `cargo xtask fuzz`: coverage-guided fuzzing of parsers and codecs with libFuzzer.
//!
//! The targets are programs of `fuzz/`, a workspace of its own. They are built by the stable
//! compiler: its LLVM instruments the code for coverage.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const USAGE: &str = "\
cargo xtask fuzz [--seconds N] [TARGET...]
                        fuzz all targets or some of them, 60 s each (docs/TESTING.md)
cargo xtask fuzz [--seconds N] raw_http1|raw_http2
                        compare the gateway with nginx and HAProxy on raw HTTP";

/// Default of `--seconds`, for each target.
const SECONDS_DEFAULT: u64 = 60;

/// Targets that are not libFuzzer's: they compare the gateway with nginx and HAProxy.
const RAW: [&str; 2] = ["raw_http1", "raw_http2"];

/// Instrumentation for libFuzzer, and the functions that only fuzzing needs.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code";

/// A fuzz target: a program of `fuzz/`, and a function of the module `fuzzing` of a crate.
#[derive(Debug)]
struct Target {
    name: &'static str,
    /// True if it needs the feature `gateway`, which takes much longer to build.
    is_large: bool,
    /// Maximum size of an input, in bytes.
    input_bytes_max: usize,
}

const fn target(name: &'static str, is_large: bool, input_bytes_max: usize) -> Target {
    Target { name, is_large, input_bytes_max }
}

const TARGETS: &[Target] = &[
    target("key_header", false, 300),
    target("key_lines", false, 200),
    target("json_fingerprint", false, 200),
    target("record_codec", false, 400),
    target("recording", false, 400),
    target("issued_key", false, 80),
    target("handle", false, 80),
    target("route_path", false, 80),
    target("journal_file", true, 400),
    target("redis_reply", true, 400),
    target("postgres_row", true, 300),
    target("configuration", true, 1_000),
];

/// The figures of one target.
#[derive(Debug, Default)]
struct Figures {
    executions: u64,
    coverage: u64,
    features: u64,
}

/// Builds and runs targets, and prints their figures.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let (seconds, targets) = match parse(arguments)? {
        Wanted::Raw(seconds, name) => return raw(seconds, name),
        Wanted::Targets(seconds, targets) => (seconds, targets),
    };
    build(targets.iter().any(|target| target.is_large))?;
    println!("| target | executions | seconds | branches | features |");
    println!("| --- | --- | --- | --- | --- |");
    let mut all = 0;
    for target in targets {
        let Figures { executions, coverage, features } = fuzz(target, seconds)?;
        all += executions;
        println!("| `{}` | {executions} | {seconds} | {coverage} | {features} |", target.name);
    }
    println!("\n{all} executions in all, no finding");
    Ok(())
}

/// Sends raw HTTP to the gateway and to other proxies, and compares the requests that they pass on.
fn raw(seconds: u64, name: &str) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--all-features", "--test", "spellings", name]);
    let variable = format!("ONETAKE_{}_SECONDS", name.to_uppercase());
    cargo.args(["--", "--nocapture"]).env(variable, seconds.to_string());
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("cargo could not be started: {error}")),
    }
}

/// The seconds and the targets of a command.
#[derive(Debug)]
enum Wanted {
    Targets(u64, Vec<&'static Target>),
    /// A comparison of raw HTTP.
    Raw(u64, &'static str),
}

fn parse(arguments: &[String]) -> Result<Wanted, String> {
    let (mut seconds, mut targets, mut raw) = (SECONDS_DEFAULT, Vec::new(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--seconds" {
            let number = arguments.next().and_then(|number| number.parse().ok());
            seconds = number.filter(|n| *n > 0).ok_or("--seconds: write a number above zero")?;
            continue;
        }
        if let Some(name) = RAW.iter().find(|name| *name == argument) {
            raw.push(*name);
            continue;
        }
        let found = TARGETS.iter().find(|target| target.name == argument);
        let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
        targets.push(found.ok_or_else(|| format!("{argument}: write one of {}", names()))?);
    }
    match (&*raw, targets.is_empty()) {
        ([name], true) => Ok(Wanted::Raw(seconds, name)),
        ([name, ..], _) => Err(format!("{name} runs alone: it needs servers")),
        ([], true) => Ok(Wanted::Targets(seconds, TARGETS.iter().collect())),
        ([], false) => Ok(Wanted::Targets(seconds, targets)),
    }
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz"))
}

/// The platform of the programs. It is named, so that build scripts and macros are not
/// instrumented.
fn platform() -> Result<String, String> {
    let version = Command::new("rustc").arg("-vV").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its platform".to_owned())
}

fn build(is_large: bool) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--target", &platform()?]);
    if is_large {
        cargo.args(["--features", "gateway"]);
    }
    cargo.current_dir(folder()).env("RUSTFLAGS", RUSTFLAGS).env_remove("CARGO_TARGET_DIR");
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the fuzz targets could not be built: {status}")),
        Err(error) => Err(format!("cargo could not be started: {error}")),
    }
}

/// Runs a target for some seconds. New inputs go to `fuzz/found`, findings to `fuzz/artifacts`.
fn fuzz(target: &Target, seconds: u64) -> Result<Figures, String> {
    let folder = folder();
    let found = folder.join("found").join(target.name);
    let artifacts = folder.join("artifacts");
    for folder in [&found, &artifacts] {
        std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    }
    let program = folder.join("target").join(platform()?).join("release").join(target.name);
    let mut command = Command::new(program);
    command.arg(&found).arg(folder.join("corpus").join(target.name));
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-max_len={}", target.input_bytes_max));
    command.arg(format!("-artifact_prefix={}-", artifacts.join(target.name).display()));
    // A slow input and one that takes much memory are findings too.
    command.args(["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=64"]);
    command.args(["-print_final_stats=1", "-reload=0"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.as_mut().map_err(|error| format!("{}: {error}", target.name))?;
    let (mut figures, mut last) = (Figures::default(), Vec::new());
    for line in child.stderr.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let line = line.map_err(|error| error.to_string())?;
        figures.read(&line);
        last.push(line);
        let more = last.len().saturating_sub(60);
        last.drain(..more);
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(figures),
        false => Err(format!(
            "{}\n{}: a finding ({status}). The input is in {}. Fix it, and keep the input in \
             fuzz/corpus/{}",
            last.join("\n"),
            target.name,
            shown(&artifacts),
            target.name
        )),
    }
}

fn shown(path: &Path) -> String {
    path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string()
}

impl Figures {
    /// Reads a line of libFuzzer: `#123 NEW cov: 45 ft: 67 …`, or a final statistic.
    fn read(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = count.trim().parse().unwrap_or(self.executions);
        }
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let figure = match word {
                "cov:" => &mut self.coverage,
                "ft:" => &mut self.features,
                _ => continue,
            };
            *figure = words.next().and_then(|number| number.parse().ok()).unwrap_or(*figure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_program_and_a_corpus() {
        for target in TARGETS {
            let source = folder().join(format!("src/bin/{}.rs", target.name));
            assert!(source.is_file(), "{}", source.display());
            let corpus = std::fs::read_dir(folder().join("corpus").join(target.name)).unwrap();
            let sizes = corpus.map(|file| file.unwrap().metadata().unwrap().len());
            let sizes: Vec<u64> = sizes.collect();
            assert!(sizes.len() > 4 && sizes.iter().all(|size| *size < 20_000), "{target:?}");
        }
        let programs = std::fs::read_dir(folder().join("src/bin")).unwrap().count();
        assert_eq!(programs, TARGETS.len());
    }

    #[test]
    fn figures_are_read() {
        let mut figures = Figures::default();
        figures.read("#1048576\tpulse  cov: 214 ft: 601 corp: 120/9Kb exec/s: 174762");
        figures.read("stat::number_of_executed_units: 1234567");
        let Figures { executions, coverage, features } = figures;
        assert_eq!((executions, coverage, features), (1_234_567, 214, 601));
    }

    #[test]
    fn arguments_are_checked() {
        let parse = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
            super::parse(&arguments).map(|wanted| match wanted {
                Wanted::Targets(seconds, targets) => (seconds, targets.len()),
                Wanted::Raw(seconds, _) => (seconds, 0),
            })
        };
        assert_eq!(parse(&[]), Ok((60, TARGETS.len())));
        assert_eq!(parse(&["--seconds", "5", "handle", "key_header"]), Ok((5, 2)));
        assert_eq!(parse(&["raw_http1"]), Ok((60, 0)));
        assert_eq!(parse(&["raw_http2", "--seconds", "5"]), Ok((5, 0)));
        for wrong in [
            &["raw_http1", "handle"][..],
            &["raw_http1", "raw_http2"],
            &["--seconds"],
            &["--seconds", "0"],
            &["nothing"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
