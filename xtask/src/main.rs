//! Development tasks: `cargo xtask` lists them.

mod bugs;
mod install;
mod mutants;
mod programs;

use std::process::{Command, ExitCode};

/// What the tests are, behind the test programs.
const TEST: &[&[&str]] = &[
    &["test", "--workspace", "--all-features", "--doc"],
    // What users build: without the features that only tests turn on.
    &["check", "--workspace", "--exclude", "onetake-sim"],
    &["check", "--package", "onetake", "--no-default-features"],
    &["check", "--package", "onetake-cli", "--no-default-features"],
];

/// Formatting, clippy with warnings as errors, and documentation whose links lead somewhere.
const LINT: &[&[&str]] = &[
    &["fmt", "--all", "--check"],
    &["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"],
    &["doc", "--workspace", "--lib", "--no-deps", "--all-features"],
];

/// Runs the simulator; what is behind `sim` on the command line is handed to it.
const SIMULATE: &[&str] = &[
    "run",
    "--quiet",
    "--profile",
    "sim",
    "--package",
    "onetake-sim",
    "--bin",
    "onetake-simulate",
    "--",
];

const USAGE: &str = "\
cargo xtask test    install what the tests need, run all tests
cargo xtask lint    check formatting, run clippy, build the documentation
cargo xtask sim     simulate whole systems: --seeds N, --minutes M, or --seed S --trace
cargo xtask bugs    put deliberate bugs into the engine, and see whether the simulation finds them";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let steps = match task.as_deref() {
        Some("sim") => {
            let given: Vec<&str> =
                SIMULATE.iter().copied().chain(rest.iter().map(String::as_str)).collect();
            return match cargo(&given) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => {
                    eprintln!("cargo could not be started: {error}");
                    ExitCode::FAILURE
                }
            };
        }
        Some("test") => {
            if let Err(error) = install::servers().and_then(|()| programs::run()) {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            TEST
        }
        Some("lint") => LINT,
        Some("bugs") => {
            return match bugs::run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                }
            };
        }
        Some("mutants") => return mutants::run(std::env::args().skip(2)),
        _ => {
            eprintln!("{USAGE}\n{}", mutants::USAGE);
            return ExitCode::from(2);
        }
    };
    for step in steps {
        eprintln!("$ cargo {}", step.join(" "));
        match cargo(step) {
            Ok(true) => {}
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => {
                eprintln!("cargo could not be started: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn cargo(arguments: &[&str]) -> std::io::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Ok(Command::new(cargo).args(arguments).status()?.success())
}
