//! Development tasks: `cargo xtask` lists them.

mod bench;
mod bugs;
mod catalogue;
mod clients;
mod dist;
mod fuzz;
mod install;
mod long_forms;
mod mutants;
mod programs;

use std::process::{Command, ExitCode};

use programs::Which;

/// The tests that run after the test programs.
const TEST: &[&[&str]] = &[
    &["test", "--workspace", "--all-features", "--doc"],
    // The builds of users: without the features that only tests enable.
    &["check", "--workspace", "--exclude", "onetake-sim"],
    &["check", "--package", "onetake", "--no-default-features"],
    &["check", "--package", "onetake-cli", "--no-default-features"],
];

/// Formatting, clippy with warnings as errors, and documentation with valid links.
const LINT: &[&[&str]] = &[
    &["fmt", "--all", "--check"],
    &["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"],
    &["doc", "--workspace", "--lib", "--no-deps", "--all-features"],
    // The fuzz targets have a lock file of their own, which `cargo xtask fuzz` does not change.
    &["tree", "--locked", "--depth", "0", "--manifest-path", "fuzz/Cargo.toml"],
];

const USAGE: &str = "\
cargo xtask test        install what the tests need, run all tests
cargo xtask test --fast run the tests that need no servers
cargo xtask lint        check formatting, run clippy, build the documentation
cargo xtask bench       measure the gateway beside other programs (docs/PERFORMANCE.md)
cargo xtask dist        build the gateway as it is shipped: target/shipped/onetake";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let steps = match task.as_deref() {
        Some("clients") => return ended(clients::run(clients::BUILD)),
        Some("sim") => return ended(long_forms::simulate(&rest)),
        Some("bench") => return ended(bench::run(&rest)),
        Some("dist") => return ended(dist::dist(&rest)),
        Some("bugs") => return ended(bugs::run(&rest)),
        Some("coverage") => return ended(long_forms::coverage(&rest)),
        Some("fuzz") => return ended(fuzz::run(&rest)),
        Some("model") => return ended(long_forms::model()),
        Some("histories") => return ended(long_forms::histories(&rest)),
        Some("differential") => return ended(long_forms::differential(&rest)),
        Some("rolling-restart") => return ended(long_forms::rolling_restart(&rest)),
        Some("attack") => return ended(long_forms::attack(&rest)),
        Some("power-loss") => return ended(long_forms::power_loss(&rest)),
        Some("mutants") => return mutants::run(rest.into_iter()),
        Some("test") if rest == ["--fast"] => return ended(programs::run(Which::Fast)),
        Some("test") if rest.is_empty() => {
            if let Err(error) = install::servers()
                .and_then(|()| programs::run(Which::All))
                .and_then(|()| mutants::check())
                .and_then(|()| clients::run(&programs::BUILD))
            {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            TEST
        }
        Some("lint") => LINT,
        _ => {
            let parts = [USAGE, clients::USAGE, fuzz::USAGE, long_forms::USAGE, mutants::USAGE];
            eprintln!("{}", parts.join("\n"));
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

fn ended(task: Result<(), String>) -> ExitCode {
    match task {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn cargo(arguments: &[&str]) -> std::io::Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Ok(Command::new(cargo).args(arguments).status()?.success())
}
