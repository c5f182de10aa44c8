//! `cargo xtask bench`: builds the gateway and its benchmark as they are shipped, and runs it. With
//! `--parts`, it runs the benches of parts of the gateway.

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

/// Measures all parts, also if one fails.
const PARTS: &[&str] = &["bench", "--package", "onetake-bench", "--no-fail-fast"];
/// Runs the parts for a moment each, to see that they run.
const PARTS_QUICK: &[&str] =
    &["test", "--profile", "bench", "--package", "onetake-bench", "--no-fail-fast"];

/// Runs the benchmark with these arguments. A whole run replaces the result in the repository.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--parts", parts @ ..] = all.as_slice() {
        return run_parts(parts);
    }
    if all.is_empty() {
        std::fs::create_dir_all("docs/benchmarks").map_err(|error| error.to_string())?;
        all.extend(RESULT);
    }
    match Command::new(build()?).args(all).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("the benchmark failed".to_owned()),
        Err(error) => Err(format!("the benchmark could not be started: {error}")),
    }
}

/// Builds the gateway and its benchmark. Returns the program of the benchmark.
pub(crate) fn build() -> Result<PathBuf, String> {
    match cargo(BUILD) {
        Ok(true) => {}
        Ok(false) => return Err("the benchmark could not be built".to_owned()),
        Err(error) => return Err(format!("cargo could not be started: {error}")),
    }
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(folder.join(PROGRAM))
}

/// Runs the benches of these names, or all, one after the other.
fn run_parts(arguments: &[&str]) -> Result<(), String> {
    match cargo(&parts_command(arguments)?) {
        Ok(true) => Ok(()),
        Ok(false) => Err("a part failed".to_owned()),
        Err(error) => Err(format!("cargo could not be started: {error}")),
    }
}

/// Returns the arguments of cargo.
fn parts_command<'a>(arguments: &[&'a str]) -> Result<Vec<&'a str>, String> {
    let (options, names): (Vec<&str>, Vec<&str>) =
        arguments.iter().copied().partition(|argument| argument.starts_with('-'));
    let mut command = match options.as_slice() {
        [] => PARTS.to_vec(),
        ["--quick"] => PARTS_QUICK.to_vec(),
        _ => return Err("--parts takes --quick and names: `--list` prints them".to_owned()),
    };
    if names.is_empty() {
        command.push("--benches");
    }
    command.extend(names.into_iter().flat_map(|name| ["--bench", name]));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::parts_command;

    #[test]
    fn parts_are_benches() {
        let command = |arguments: &[&str]| parts_command(arguments).map(|all| all.join(" "));
        assert_eq!(
            command(&["engine", "layer"]).unwrap(),
            "bench --package onetake-bench --no-fail-fast --bench engine --bench layer"
        );
        assert_eq!(
            command(&["--quick"]).unwrap(),
            "test --profile bench --package onetake-bench --no-fail-fast --benches"
        );
        command(&["--slow"]).unwrap_err();
    }
}
