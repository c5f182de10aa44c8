//! `cargo xtask dist`: builds the gateway as it is shipped, with profile-guided optimisation.
//!
//! An instrumented gateway serves cases of the benchmark and counts which branches it takes. The
//! second build lays out its code by these counts. The result is `target/shipped/onetake`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::long_forms::{llvm_tool, number, root, run};

/// The cases of the benchmark that the instrumented gateway serves, a short round of each.
const TRAINING: &[&str] = &[
    "pass-through",
    "fresh",
    "replay",
    "replay-10",
    "pass-64k",
    "fresh-64k",
    "tls",
    "http2",
    "tls-http2",
    "encrypted",
];
/// The rounds of each case.
const ROUNDS: u64 = 2;
/// The file that each instrumented process writes when it ends.
const COUNTS: &str = "onetake-%p.profraw";
/// Starts the instrumented gateway in place of the benchmark. The benchmark kills this script: then
/// the gateway gets SIGTERM, ends in order, and writes its counts.
const WRAPPER: &str = r#"#!/bin/sh
"$INSTRUMENTED" "$@" &
gateway=$!
( while kill -0 $$ 2>/dev/null; do sleep 0.1; done; kill -TERM $gateway ) &
wait $gateway
"#;
/// Waits until all processes have written their counts. A file is empty before that. A gateway ends
/// within half a minute.
const WAIT: &str = r#"while [ -n "$(find "$1" -name '*.profraw' -size 0)" ]; do sleep 0.5; done"#;
const WAIT_SECONDS: &str = "60";
/// Between two flags in `CARGO_ENCODED_RUSTFLAGS`.
const SEPARATOR: &str = "\x1f";

/// Builds the gateway. The argument is the number of rounds of each training case.
pub(crate) fn dist(arguments: &[String]) -> Result<(), String> {
    let rounds = number(arguments, 0, ROUNDS)?;
    let profdata = llvm_tool("LLVM_PROFDATA", "llvm-profdata")?;
    let (folder, host) = (root().join("target"), host()?);
    let (training, shipped) = (folder.join("dist-training"), folder.join("shipped"));
    let counts = training.join("counts");
    let _not_there = std::fs::remove_dir_all(&counts);
    std::fs::create_dir_all(&counts).map_err(|error| error.to_string())?;
    let bench = crate::bench::build()?;
    let generate = format!("-Cprofile-generate={}", counts.display());
    let instrumented = gateway(&training, &host, &generate)?;
    let mut train = Command::new(bench);
    train.arg("--binary").arg(wrapper(&training)?).args(["--seconds", "1"]);
    train.args(["--rounds", &rounds.to_string()]).env("INSTRUMENTED", &instrumented);
    train.env("LLVM_PROFILE_FILE", counts.join(COUNTS));
    run(train.args(TRAINING.iter().flat_map(|case| ["--case", case])))?;
    run(Command::new("timeout").args([WAIT_SECONDS, "sh", "-c", WAIT, "sh"]).arg(&counts))?;
    let profile = training.join("onetake.profdata");
    let mut merge = Command::new(profdata);
    run(merge.arg("merge").arg("-o").arg(&profile).arg(&counts))?;
    let used = gateway(&shipped, &host, &format!("-Cprofile-use={}", profile.display()))?;
    let result = shipped.join("onetake");
    std::fs::copy(used, &result).map_err(|error| error.to_string())?;
    println!("{}", result.display());
    Ok(())
}

/// Writes the script that starts the instrumented gateway.
fn wrapper(folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("gateway.sh");
    std::fs::write(&path, WRAPPER).map_err(|error| error.to_string())?;
    run(Command::new("chmod").arg("+x").arg(&path))?;
    Ok(path)
}

/// Builds the gateway with all features and these flags of the compiler. A named target keeps the
/// flags away from build scripts and macros.
fn gateway(folder: &Path, host: &str, flags: &str) -> Result<PathBuf, String> {
    let mut build = cargo();
    build.args(["build", "--profile", "dist", "--package", "onetake-cli", "--features"]);
    build.args(["onetake-cli/full", "--target", host]).env("CARGO_TARGET_DIR", folder);
    // Flags of the caller stay. They are separated by a character that no path has.
    let encoded = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_else(|_| {
        let given = std::env::var("RUSTFLAGS").unwrap_or_default();
        given.split_whitespace().collect::<Vec<_>>().join(SEPARATOR)
    });
    let all = [encoded.as_str(), flags].into_iter().filter(|flags| !flags.is_empty());
    run(build.env("CARGO_ENCODED_RUSTFLAGS", all.collect::<Vec<_>>().join(SEPARATOR)))?;
    Ok(folder.join(host).join("dist/onetake"))
}

/// Returns the name of the compiler's host.
fn host() -> Result<String, String> {
    let version = Command::new("rustc").arg("-vV").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its host".to_owned())
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
