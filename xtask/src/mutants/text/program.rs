//! The test programs, in which mutants replace the original text.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::Options;
use super::super::argued::Argued;
use super::super::table::Score;
use super::source::Mutant;
use super::{Language, Which};

/// The longest time for one test run.
const RUN_MAX: Duration = Duration::from_secs(300);
/// The pause between two checks of a test run.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The program of the crate's unit tests.
const UNIT_TESTS: &str = "onetake_stores";

/// A copy of a test program.
#[derive(Debug)]
struct Program {
    name: String,
    file: PathBuf,
    bytes: Vec<u8>,
}

/// The end of a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed,
    TooLate,
}

/// One test run: a program, and the tests of it that run.
type Run = (&'static str, &'static [&'static str]);

/// Returns the test runs for a language, the fastest first.
fn runs(language: Language, which: Which) -> &'static [Run] {
    match (language, which) {
        (Language::Sqlite, Which::All) => &[
            (UNIT_TESTS, &["sqlite::"]),
            ("sqlite", &["sqlite_store"]),
            ("sqlite", &["transactions::", "outbox::"]),
            ("sqlite", &[]),
        ],
        (Language::Postgres, Which::All) => &[
            ("postgres", &["--exact", "postgres_store"]),
            ("differential", &["--exact", "postgres"]),
            ("postgres", &["outbox::"]),
            ("postgres", &[]),
        ],
        (Language::Lua, Which::All) => &[
            ("redis", &["--exact", "conformance::redis"]),
            ("differential", &["--exact", "redis"]),
            ("redis", &["velocity::", "operators::"]),
            ("redis", &[]),
        ],
        (Language::Sqlite, Which::Sample) => &[("sqlite", &["--exact", "store::sqlite_store"])],
        (Language::Postgres | Language::Lua, Which::Sample) => &[],
    }
}

/// Tests mutants one after the other and counts the results.
pub(super) fn test(
    language: Language,
    mutants: Vec<Mutant>,
    options: &Options,
    argued: &Argued,
    which: Which,
    score: &mut Score,
) -> Result<(), String> {
    let runs = runs(language, which);
    let programs = build(&options.root, runs)?;
    for run in runs {
        let program = find(&programs, run.0)?;
        if ended(program, run, options)? != Ended::Passed {
            return Err(format!("the tests of {} fail without any mutant", program.name));
        }
    }
    let count = mutants.len();
    for (at, mutant) in mutants.into_iter().enumerate() {
        let began = now();
        let outcome = match &mutant.new {
            Some(new) => outcome(&programs, runs, &mutant.old, new, options)?,
            None => None,
        };
        let word = match outcome {
            None => {
                score.unviable += 1;
                "no room"
            }
            Some(Ended::Failed) => {
                score.caught += 1;
                "caught"
            }
            Some(Ended::TooLate) => {
                score.timeout += 1;
                "timeout"
            }
            Some(Ended::Passed) if argued.has(&mutant.name) => {
                score.argued += 1;
                "argued"
            }
            Some(Ended::Passed) => {
                score.survivors.push(mutant.name.clone());
                "SURVIVED"
            }
        };
        let seconds = began.elapsed().as_secs();
        eprintln!("{}/{count} {word} ({seconds} s)  {}", at + 1, mutant.name);
    }
    Ok(())
}

/// Runs the tests on one mutant. Returns `None` if no program contains its text.
fn outcome(
    programs: &[Program],
    runs: &[Run],
    old: &str,
    new: &str,
    options: &Options,
) -> Result<Option<Ended>, String> {
    let (from, to) = difference(old, new);
    let (old_part, new_part) = (old.as_bytes().get(from..to), new.as_bytes().get(from..to));
    let (Some(old_part), Some(new_part)) = (old_part, new_part) else { return Ok(None) };
    let mut is_anywhere = false;
    for run in runs {
        let program = find(programs, run.0)?;
        let places: Vec<usize> =
            places(&program.bytes, old.as_bytes()).into_iter().map(|place| place + from).collect();
        if places.is_empty() {
            continue;
        }
        is_anywhere = true;
        write(&program.file, &places, new_part)?;
        let ended = ended(program, run, options);
        write(&program.file, &places, old_part)?;
        match ended? {
            Ended::Passed => {}
            other => return Ok(Some(other)),
        }
    }
    Ok(is_anywhere.then_some(Ended::Passed))
}

/// Returns the range of bytes in which two texts of the same length differ.
fn difference(old: &str, new: &str) -> (usize, usize) {
    let differs = |(one, other): (u8, u8)| one != other;
    let from = old.bytes().zip(new.bytes()).position(differs).unwrap_or(0);
    let same_at_end = old.bytes().rev().zip(new.bytes().rev()).position(differs).unwrap_or(0);
    (from, old.len().saturating_sub(same_at_end).max(from))
}

/// Builds the test programs and copies those that are needed.
fn build(root: &Path, runs: &[Run]) -> Result<Vec<Program>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let targets = runs.iter().flat_map(|(name, _)| match *name {
        UNIT_TESTS => vec!["--lib"],
        name => vec!["--test", name],
    });
    let built = Command::new(cargo)
        // Built with the workspace, as `cargo xtask test` does, so that nothing is built twice.
        .args(["test", "--workspace", "--all-features", "--no-run"])
        .args(targets)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !built.status.success() {
        return Err("the tests could not be built".to_owned());
    }
    let folder = root.join("target/mutants/programs");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let Some((name, file)) = program(line) else { continue };
        let is_built = programs.iter().any(|program: &Program| program.name == name);
        if !is_built && runs.iter().any(|(wanted, _)| *wanted == name) {
            let copy = folder.join(&name);
            let _left_over = std::fs::remove_file(&copy);
            std::fs::copy(&file, &copy).map_err(|error| format!("{file}: {error}"))?;
            let bytes = std::fs::read(&copy).map_err(|error| error.to_string())?;
            programs.push(Program { name, file: copy, bytes });
        }
    }
    Ok(programs)
}

/// Returns the name and file of the stores' test program that a line of cargo's output names.
fn program(line: &str) -> Option<(String, String)> {
    let said: Value = serde_json::from_str(line).ok()?;
    let is_test = said.pointer("/profile/test")?.as_bool()?;
    let file = said.get("executable")?.as_str()?.to_owned();
    let name = said.pointer("/target/name")?.as_str()?.to_owned();
    let is_of_stores = said.get("manifest_path")?.as_str()?.ends_with("onetake-stores/Cargo.toml");
    (is_test && is_of_stores).then_some((name.replace('-', "_"), file))
}

fn find<'a>(programs: &'a [Program], name: &str) -> Result<&'a Program, String> {
    let found = programs.iter().find(|program| program.name == name);
    found.ok_or_else(|| format!("there is no test program `{name}`"))
}

/// Runs some tests of a program.
fn ended(program: &Program, run: &Run, options: &Options) -> Result<Ended, String> {
    let folder = options.root.join("crates/onetake-stores");
    let log = program.file.with_extension("log");
    let output = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let mut child = Command::new(&program.file)
        .args(run.1)
        .current_dir(folder)
        .env("ONETAKE_TOOLS", &options.tools)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{} could not be started: {error}", program.file.display()))?;
    let began = now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(Ended::Passed),
            Some(_) => return Ok(Ended::Failed),
            // The servers that it started end with it. One failed test is enough.
            None if began.elapsed() > RUN_MAX || has_failed(&log) => {
                let _gone = child.kill().and_then(|()| child.wait());
                return Ok(if has_failed(&log) { Ended::Failed } else { Ended::TooLate });
            }
            None => pause(),
        }
    }
}

/// Returns true if the output of a test run contains a failed test.
fn has_failed(log: &Path) -> bool {
    std::fs::read_to_string(log).is_ok_and(|text| text.contains("... FAILED"))
}

#[expect(clippy::disallowed_methods, reason = "test runs are bounded in real time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a process is waited for in real time")]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}

fn write(file: &Path, places: &[usize], bytes: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let mut open: File = OpenOptions::new().write(true).open(file).map_err(failed)?;
    for &place in places {
        let place = u64::try_from(place).unwrap_or(u64::MAX);
        open.seek(SeekFrom::Start(place)).and_then(|_| open.write_all(bytes)).map_err(failed)?;
    }
    Ok(())
}

/// Returns all positions of a text in a program (Horspool's algorithm).
fn places(bytes: &[u8], text: &[u8]) -> Vec<usize> {
    let Some(last) = text.len().checked_sub(1) else { return Vec::new() };
    let mut steps = [text.len(); 256];
    for (at, &byte) in text.iter().take(last).enumerate() {
        if let Some(step) = steps.get_mut(usize::from(byte)) {
            *step = last - at;
        }
    }
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(window) = bytes.get(at..at + text.len()) {
        if window == text {
            found.push(at);
        }
        let end = window.last().copied().unwrap_or_default();
        at += steps.get(usize::from(end)).copied().unwrap_or(1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_everywhere() {
        assert_eq!(places(b"a SELECT b SELECT SELECT", b"SELECT"), [2, 11, 18]);
        assert_eq!(places(b"SELEC", b"SELECT"), Vec::<usize>::new());
    }

    #[test]
    fn only_what_differs_is_written() {
        assert_eq!(difference("a <= b", "a <  b"), (3, 4));
        assert_eq!(difference("a AND b;", "a      ;"), (2, 7));
    }
}
