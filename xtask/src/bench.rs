//! `cargo xtask bench`: builds the gateway and its benchmark as they are shipped, and runs it.

use crate::cargo;

/// The packages of the gateway and of its benchmark.
const BUILD: &[&str] =
    &["build", "--profile", "dist", "--package", "onetake-cli", "--package", "onetake-bench"];
const RUN: &[&str] = &["run", "--profile", "dist", "--package", "onetake-bench", "--"];
/// The result of a whole run.
const RESULT: &[&str] = &["--json", "docs/benchmarks/gateway.json"];

/// Runs the benchmark with these arguments. A whole run replaces the result in the repository.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let mut all: Vec<&str> = RUN.to_vec();
    if arguments.is_empty() {
        std::fs::create_dir_all("docs/benchmarks").map_err(|error| error.to_string())?;
        all.extend(RESULT);
    }
    all.extend(arguments.iter().map(String::as_str));
    for step in [BUILD, &all] {
        match cargo(step) {
            Ok(true) => {}
            Ok(false) => return Err("the benchmark failed".to_owned()),
            Err(error) => return Err(format!("cargo could not be started: {error}")),
        }
    }
    Ok(())
}
