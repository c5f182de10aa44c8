//! `cargo xtask bench`: builds the gateway and its benchmark as they are shipped, and runs it.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo;

/// The packages of the gateway and of its benchmark, with every store and `onetake ext-proc`.
const BUILD: &[&str] = &[
    "build",
    "--profile",
    "dist",
    "--package",
    "onetake-cli",
    "--package",
    "onetake-bench",
    "--features",
    "onetake-cli/full",
];
/// The program in the target folder.
const PROGRAM: &str = "dist/onetake-bench";
/// The result of a whole run.
const RESULT: &[&str] = &["--json", "docs/benchmarks/gateway.json"];

/// Runs the benchmark with these arguments. A whole run replaces the result in the repository.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if all.is_empty() {
        std::fs::create_dir_all("docs/benchmarks").map_err(|error| error.to_string())?;
        all.extend(RESULT);
    }
    match cargo(BUILD) {
        Ok(true) => {}
        Ok(false) => return Err("the benchmark could not be built".to_owned()),
        Err(error) => return Err(format!("cargo could not be started: {error}")),
    }
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    match Command::new(folder.join(PROGRAM)).args(all).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("the benchmark failed".to_owned()),
        Err(error) => Err(format!("the benchmark could not be started: {error}")),
    }
}
