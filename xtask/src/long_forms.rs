//! The long forms of the tests: each is one command that prints its figures. docs/TESTING.md
//! explains them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub(crate) const USAGE: &str = "\
cargo xtask sim         simulate whole systems: --seeds N, --minutes M, or --seed S --trace
cargo xtask bugs        put deliberate bugs into the engine, and see whether the simulation finds them
cargo xtask coverage    measure how much of the engine the simulation alone covers: [SEEDS]
cargo xtask model       visit every state of the larger models
cargo xtask histories   check histories of concurrent clients on real servers: [SECONDS] [CYCLES]
cargo xtask differential  compare every store with `decide` by random steps: [STEPS] [SEED]
cargo xtask rolling-restart  restart gateways behind nginx and HAProxy, under load: [RESTARTS]
cargo xtask attack      flood a gateway with HTTP/2 streams while an honest client uses it: [SECONDS]
cargo xtask power-loss  lose power at every moment, flip bits, kill the store again and again: [CYCLES]";

/// Runs the simulator with the arguments of the command line.
pub(crate) fn simulate(arguments: &[String]) -> Result<(), String> {
    let mut command = program("onetake-simulate");
    run(command.arg("--").args(arguments))
}

/// Runs the exhaustive models with larger bounds.
pub(crate) fn model() -> Result<(), String> {
    run(program("onetake-model").args(["--", "--long"]))
}

/// Runs concurrent clients against real servers for longer than the tests do.
pub(crate) fn histories(arguments: &[String]) -> Result<(), String> {
    crate::install::servers()?;
    let (seconds, cycles) = (number(arguments, 0, 60)?, number(arguments, 1, 500)?);
    let mut command = cargo();
    command.args(["test", "--package", "onetake-cli", "--all-features", "--test", "histories"]);
    command.args(["--", "--nocapture", "--test-threads", "2"]);
    command.env("ONETAKE_HISTORIES_SECONDS", seconds.to_string());
    run(command.env("ONETAKE_HISTORIES_CYCLES", cycles.to_string()))
}

/// Runs random steps on every store, and compares each answer with the decision functions.
pub(crate) fn differential(arguments: &[String]) -> Result<(), String> {
    crate::install::servers()?;
    let (steps, seed) = (number(arguments, 0, 100_000)?, number(arguments, 1, 1)?);
    let mut command = cargo();
    // Built with the workspace, as `cargo xtask test` does, so that nothing is built twice.
    command.args(["test", "--workspace", "--all-features", "--test", "differential"]);
    command.args(["--", "--nocapture", "--test-threads", "2"]);
    command.env("ONETAKE_STEPS", steps.to_string());
    run(command.env("ONETAKE_SEED", seed.to_string()))
}

/// Restarts two gateways in turn, behind nginx and behind HAProxy, while clients send requests.
pub(crate) fn rolling_restart(arguments: &[String]) -> Result<(), String> {
    crate::install::servers()?;
    let restarts = number(arguments, 0, 10)?;
    let mut command = cargo();
    command.args(["test", "--package", "onetake-cli", "--all-features", "--test", "edge"]);
    command.args(["--", "--nocapture", "rolling_restart"]);
    run(command.env("ONETAKE_ROLLING_RESTARTS", restarts.to_string()))
}

/// Rebuilds folders for every moment of a power loss, and kills the embedded store many times.
pub(crate) fn power_loss(arguments: &[String]) -> Result<(), String> {
    let cycles = number(arguments, 0, 2_000)?;
    let mut command = cargo();
    command.args(["test", "--package", "onetake-stores", "--all-features", "--test", "power_loss"]);
    command.args(["--", "--nocapture", "--test-threads", "2"]);
    command.env("ONETAKE_POWER_CYCLES", cycles.to_string());
    run(command.env("ONETAKE_POWER_LOSS", "long"))
}

/// Floods a gateway with hostile connections, and prints the figures of an honest client.
pub(crate) fn attack(arguments: &[String]) -> Result<(), String> {
    let seconds = number(arguments, 0, 60)?;
    let mut command = cargo();
    // Built with the workspace, as `cargo xtask test` does, so that nothing is built twice.
    command.args(["test", "--workspace", "--all-features", "--test", "gateway"]);
    command.args(["--", "--nocapture", "an_honest_client_is_served_under_both_attacks"]);
    run(command.env("ONETAKE_ATTACK_SECONDS", seconds.to_string()))
}

/// Measures the branches and lines of the engine that the simulation alone runs through.
pub(crate) fn coverage(arguments: &[String]) -> Result<(), String> {
    let seeds = number(arguments, 0, 20_000)?;
    let tools = crate::install::tools();
    if !tools.join("bin/cargo-llvm-cov").is_file() {
        let mut install = cargo();
        install.args(["install", "cargo-llvm-cov", "--locked", "--version", "0.9.1", "--root"]);
        run(install.arg(&tools))?;
    }
    let (cov, profdata) =
        (llvm_tool("LLVM_COV", "llvm-cov")?, llvm_tool("LLVM_PROFDATA", "llvm-profdata")?);
    let build = root().join("target/llvm-cov-target");
    let mut command = Command::new(tools.join("bin/cargo-llvm-cov"));
    command.args(["llvm-cov", "run", "--branch", "--profile", "sim", "--package", "onetake-sim"]);
    // A report of cargo-llvm-cov contains the files of one package only, and the engine is in
    // another one.
    command.args(["--bin", "onetake-simulate", "--summary-only"]);
    command.args(["--", "--no-shrink", "--seeds", &seeds.to_string()]);
    // Branch coverage needs an unstable option of the compiler.
    command.env("RUSTC_BOOTSTRAP", "1").env("LLVM_COV", &cov).env("LLVM_PROFDATA", profdata);
    run(command.env("CARGO_LLVM_COV_TARGET_DIR", &build).stdout(std::process::Stdio::null()))?;
    let merged = std::fs::read_dir(&build).map_err(|error| error.to_string())?;
    let merged = merged.flatten().map(|entry| entry.path());
    let merged = merged.filter(|path| path.extension().is_some_and(|end| end == "profdata"));
    let profile = merged.last().ok_or("cargo-llvm-cov left no profile")?;
    let core = root().join("crates/onetake-core/src");
    let core = core.canonicalize().map_err(|error| error.to_string())?;
    let export = Command::new(&cov)
        .args(["export", "--summary-only", "--instr-profile"])
        .arg(profile)
        .arg(build.join("sim/onetake-simulate"))
        // The files of the engine alone: llvm-cov 22 crashes on functions of some others.
        .arg("-sources")
        .arg(core)
        .output()
        .map_err(|error| format!("llvm-cov could not be started: {error}"))?;
    let report: Value =
        serde_json::from_slice(&export.stdout).map_err(|error| error.to_string())?;
    print_coverage(&report)
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns a tool of the compiler's LLVM: the one that a variable names, or the one in `PATH`.
pub(crate) fn llvm_tool(variable: &str, name: &str) -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os(variable) {
        return Ok(given.into());
    }
    let version = Command::new("rustc").arg("-vV").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    let llvm = text.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let major = llvm.and_then(|llvm| llvm.split('.').next()).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = [format!("{name}-{major}"), name.to_owned()];
    let mut places = std::env::split_paths(&path)
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)).collect::<Vec<_>>());
    places.find(|place| place.is_file()).ok_or_else(|| {
        format!(
            "{name} is missing: install the package llvm-{major}, or set LLVM_COV and LLVM_PROFDATA"
        )
    })
}

/// Prints the coverage of each file of the engine, and of all together.
fn print_coverage(report: &Value) -> Result<(), String> {
    let files = report.pointer("/data/0/files").and_then(Value::as_array);
    let files = files.ok_or("the coverage report has no files")?;
    let mut totals = [0_u64; 4];
    println!("| file | branches | covered | lines | covered |\n| --- | --- | --- | --- | --- |");
    for file in files {
        let name = file.get("filename").and_then(Value::as_str).unwrap_or_default();
        let is_engine = name.contains("onetake-core/src/engine/");
        if !is_engine && !name.ends_with("onetake-core/src/decide.rs") {
            continue;
        }
        let count = |what: &str| file.pointer(what).and_then(Value::as_u64).unwrap_or(0);
        let counts = [
            count("/summary/branches/count"),
            count("/summary/branches/covered"),
            count("/summary/lines/count"),
            count("/summary/lines/covered"),
        ];
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
        let short = Path::new(name).file_name().map(|name| name.to_string_lossy().into_owned());
        print_row(&short.unwrap_or_default(), counts);
    }
    print_row("all", totals);
    Ok(())
}

fn print_row(name: &str, [branches, branches_hit, lines, lines_hit]: [u64; 4]) {
    let share = |hit: u64, all: u64| 100.0 * hit as f64 / all.max(1) as f64;
    println!(
        "| {name} | {branches} | {:.1} % | {lines} | {:.1} % |",
        share(branches_hit, branches),
        share(lines_hit, lines)
    );
}

pub(crate) fn number(arguments: &[String], at: usize, otherwise: u64) -> Result<u64, String> {
    let Some(text) = arguments.get(at) else { return Ok(otherwise) };
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

/// A program of the simulation crate, built fast and with every assertion.
fn program(name: &str) -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--profile", "sim", "--package", "onetake-sim", "--bin", name]);
    command
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?} could not be started: {error}")),
    }
}
