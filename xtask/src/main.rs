//! Development tasks: `cargo xtask test`, `cargo xtask lint`, `cargo xtask mutants`.

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

fn main() -> ExitCode {
    let task = std::env::args().nth(1);
    let steps = match task.as_deref() {
        Some("test") => {
            if let Err(error) =
                install::servers().and_then(|()| programs::run()).and_then(|()| mutants::check())
            {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            TEST
        }
        Some("lint") => LINT,
        Some("mutants") => return mutants::run(std::env::args().skip(2)),
        _ => {
            eprintln!(
                "cargo xtask test    install what the tests need, run all tests\ncargo xtask lint    check formatting, run clippy, build the documentation\n{}",
                mutants::USAGE
            );
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
