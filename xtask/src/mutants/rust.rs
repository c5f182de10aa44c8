//! Mutants of Rust code, created and tested by cargo-mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::argued::{Argued, names};
use super::scope::{Scope, Stage};
use super::table::Score;
use super::{Options, switch, tree};

/// The version of cargo-mutants. The names of mutants depend on it.
const VERSION: &str = "27.1.0";

/// The shortest time after which the tests of a mutant count as hanging, in seconds. It is longer
/// if the tests themselves take long.
const HANGS_AFTER_SECONDS: &str = "60";

/// The result of one mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Caught,
    Missed,
    Timeout,
    Unviable,
}

/// Returns the path of cargo-mutants, if it is installed.
pub(crate) fn installed(tools: &Path) -> Option<PathBuf> {
    Some(tools.join("bin/cargo-mutants")).filter(|program| program.is_file())
}

/// Installs cargo-mutants if it is missing.
pub(crate) fn install(tools: &Path) -> Result<PathBuf, String> {
    if let Some(program) = installed(tools) {
        return Ok(program);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut install = Command::new(cargo);
    install.args(["install", "cargo-mutants", "--locked", "--version", VERSION, "--root"]);
    install.arg(tools).env("CARGO_TARGET_DIR", tools.join("build")).env_remove("RUSTFLAGS");
    eprintln!("$ {install:?}");
    match install.status() {
        Ok(status) if status.success() => {}
        _ => return Err("cargo-mutants could not be installed".to_owned()),
    }
    let _left_alone = std::fs::remove_dir_all(tools.join("build"));
    installed(tools).ok_or_else(|| "cargo-mutants is not where it was installed".to_owned())
}

/// Returns the mutants of some files: cargo-mutants' name for each, with its position, and the name
/// without it.
pub(crate) fn list(
    program: &Path,
    root: &Path,
    files: &[&str],
    except: &[&str],
) -> Result<BTreeMap<String, String>, String> {
    Ok(named(&entries(program, root, files, except)?))
}

/// The same with all fields that cargo-mutants lists.
fn entries(
    program: &Path,
    root: &Path,
    files: &[&str],
    except: &[&str],
) -> Result<Vec<Value>, String> {
    let mut command = Command::new(program);
    command.args(["mutants", "--workspace", "--list", "--json", "--dir"]).arg(root);
    selected(&mut command, files, except);
    let listed = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !listed.status.success() {
        return Err(String::from_utf8_lossy(&listed.stderr).into_owned());
    }
    serde_json::from_slice(&listed.stdout).map_err(|error| error.to_string())
}

fn named(entries: &[Value]) -> BTreeMap<String, String> {
    let listed: Vec<&str> = entries.iter().filter_map(name).collect();
    let listed = in_order(&listed);
    let ours = names(listed.iter().copied());
    listed.into_iter().map(str::to_owned).zip(ours).collect()
}

fn name(entry: &Value) -> Option<&str> {
    entry.get("name")?.as_str()
}

/// Tests the mutants of a scope, stage by stage: first all that can be switched, then the others,
/// each with its own build.
pub(crate) fn run(
    scope: &Scope,
    (files, except, stages): (&[&str], &[&str], &[Stage]),
    options: &Options,
    argued: &Argued,
) -> Result<Score, String> {
    let program = install(&options.tools)?;
    let mut wanted = entries(&program, &options.root, files, except)?;
    let listed = named(&wanted);
    wanted.retain(|entry| name(entry).is_some_and(|name| options.is_chosen(name)));
    let shard = options.shard.as_deref().and_then(super::text::part);
    let mut number = 0;
    wanted.retain(|_| {
        number += 1;
        shard.is_none_or(|(part, parts)| (number - 1) % parts == part)
    });
    let is_argued = |name: &str| is_argued(&listed, argued, name);
    let tested = switch::run(&options.root, &options.tools, &wanted, stages, is_argued)?;
    let mut outcomes = tested.outcomes;
    println!("{} mutants have to be built one at a time", tested.left_out.len());
    let mut left = tested.left_out;
    for (number, stage) in stages.iter().enumerate() {
        if left.is_empty() {
            break;
        }
        let output = options.root.join(format!("target/mutants/{}-{number}", scope.name));
        let found = build_each(&program, options, stage, &left, &output)?;
        outcomes.extend(found.into_iter().filter(|(name, _)| left.contains(name)));
        left.retain(|name| outcomes.get(name) == Some(&Outcome::Missed) && !is_argued(name));
    }
    Ok(score(scope, &listed, &outcomes, argued))
}

/// Builds and tests these mutants one at a time with cargo-mutants.
fn build_each(
    program: &Path,
    options: &Options,
    stage: &Stage,
    mutants: &BTreeSet<String>,
    output: &Path,
) -> Result<BTreeMap<String, Outcome>, String> {
    let tree = tree::copy(&options.root, "tree")?;
    let mut command = Command::new(program);
    command.args(["mutants", "--in-place", "--workspace", "--all-features", "--no-times"]);
    command.args(["--minimum-test-timeout", HANGS_AFTER_SECONDS]);
    command.args(["--annotations", "none", "--caught"]);
    command.arg("--dir").arg(&tree);
    let files: BTreeSet<&str> = mutants.iter().filter_map(|name| name.split(':').next()).collect();
    command.args(files.iter().flat_map(|file| ["--file", file]));
    command.args(mutants.iter().flat_map(|name| ["--re".to_owned(), exactly(name)]));
    command.args(stage.packages.iter().flat_map(|package| ["--test-package", package]));
    std::fs::create_dir_all(output).map_err(|error| error.to_string())?;
    command.arg("--output").arg(output);
    // After `--` they would only select the tests that run, and all other tests would be built as
    // well.
    command.args(stage.arguments.iter().map(|argument| format!("--cargo-arg={argument}")));
    if !stage.tests.is_empty() {
        let names = std::iter::once("--").chain(stage.tests.iter().copied());
        command.args(names.map(|name| format!("--cargo-test-arg={name}")));
    }
    command.env("CARGO_TARGET_DIR", options.root.join("target/mutants/build"));
    command.env("CARGO_PROFILE_DEV_DEBUG", "false").env("ONETAKE_TOOLS", &options.tools);
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
    command.stdin(Stdio::null());
    eprintln!("$ {command:?}");
    command.status().map_err(|error| format!("cargo-mutants could not be started: {error}"))?;
    read(&output.join("mutants.out/outcomes.json"))
}

/// Chooses files by globs.
fn selected(command: &mut Command, files: &[&str], except: &[&str]) {
    command.args(files.iter().flat_map(|file| ["--file", file]));
    command.args(except.iter().flat_map(|file| ["--exclude", file]));
}

/// Reads the results that cargo-mutants wrote. Fails if the tests fail without a mutant.
fn read(file: &Path) -> Result<BTreeMap<String, Outcome>, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let found: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    parse(&found)
}

fn parse(found: &Value) -> Result<BTreeMap<String, Outcome>, String> {
    let outcomes = found.get("outcomes").and_then(Value::as_array);
    let outcomes = outcomes.ok_or("cargo-mutants wrote no outcomes")?;
    let mut read = BTreeMap::new();
    for outcome in outcomes {
        let summary = outcome.get("summary").and_then(Value::as_str).unwrap_or_default();
        let Some(name) = outcome.pointer("/scenario/Mutant/name").and_then(Value::as_str) else {
            if summary != "Success" {
                return Err(format!("the tests end with {summary} without any mutant"));
            }
            continue;
        };
        let outcome = match summary {
            "CaughtMutant" => Outcome::Caught,
            "MissedMutant" => Outcome::Missed,
            "Timeout" => Outcome::Timeout,
            "Unviable" => Outcome::Unviable,
            other => return Err(format!("cargo-mutants says {other} of {name}")),
        };
        read.insert(name.to_owned(), outcome);
    }
    Ok(read)
}

/// Returns a regular expression that matches this text alone.
fn exactly(text: &str) -> String {
    format!("^{}$", escaped(text))
}

/// Returns a regular expression that matches this text anywhere.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for sign in text.chars() {
        if r"\.+*?()|[]{}^$".contains(sign) {
            escaped.push('\\');
        }
        escaped.push(sign);
    }
    escaped
}

/// Returns the mutants of a listing in the order of their files and lines. cargo-mutants lists
/// those of a function by kind.
fn in_order<'a>(listed: &[&'a str]) -> Vec<&'a str> {
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
    let position = |mutant: &&'a str| {
        let mut parts = mutant.splitn(4, ':');
        (parts.next(), number(parts.next()), number(parts.next()))
    };
    let mut ordered = listed.to_vec();
    ordered.sort_by(|one, other| position(one).cmp(&position(other)));
    ordered
}

fn is_argued(listed: &BTreeMap<String, String>, argued: &Argued, name: &str) -> bool {
    listed.get(name).is_some_and(|ours| argued.has(ours))
}

/// Counts the outcomes.
fn score(
    scope: &Scope,
    listed: &BTreeMap<String, String>,
    outcomes: &BTreeMap<String, Outcome>,
    argued: &Argued,
) -> Score {
    let mut score = Score { scope: scope.name, is_strict: scope.is_strict, ..Score::default() };
    for (name, outcome) in outcomes {
        match outcome {
            Outcome::Caught => score.caught += 1,
            Outcome::Timeout => score.timeout += 1,
            Outcome::Unviable => score.unviable += 1,
            Outcome::Missed if is_argued(listed, argued, name) => score.argued += 1,
            Outcome::Missed => score.survivors.push(name.clone()),
        }
    }
    score.stale = stale(listed, argued);
    score
}

/// Returns arguments for mutants of the listed files that no longer exist.
pub(crate) fn stale(listed: &BTreeMap<String, String>, argued: &Argued) -> Vec<String> {
    let file = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    let files: BTreeSet<String> = listed.values().map(|name| file(name)).collect();
    let existing: BTreeSet<String> = listed.values().cloned().collect();
    let stale = argued.stale(&existing, |file| files.contains(file));
    // SQL statements in the same files have their own mutants.
    stale.into_iter().filter(|name| !super::text::is_text(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read() {
        let mutant = |name: &str, summary: &str| serde_json::json!({ "scenario": { "Mutant": { "name": name } }, "summary": summary });
        let baseline =
            |summary: &str| serde_json::json!({ "scenario": "Baseline", "summary": summary });
        let good = serde_json::json!({ "outcomes": [
            baseline("Success"), mutant("a", "CaughtMutant"), mutant("b", "MissedMutant"),
        ] });
        let read = parse(&good).unwrap();
        assert_eq!(read.get("a"), Some(&Outcome::Caught));
        assert_eq!(read.get("b"), Some(&Outcome::Missed));
        let bad = serde_json::json!({ "outcomes": [baseline("Failure")] });
        assert!(parse(&bad).is_err(), "tests that fail by themselves catch nothing");
    }

    #[test]
    fn mutants_are_ordered_by_position() {
        let listed = ["a.rs:10:1: x", "a.rs:9:12: x", "a.rs:9:3: y"];
        assert_eq!(in_order(&listed), ["a.rs:9:3: y", "a.rs:9:12: x", "a.rs:10:1: x"]);
    }

    #[test]
    fn a_name_is_a_regular_expression_of_its_own() {
        assert_eq!(exactly("a.rs:1:2: replace || with &&"), r"^a\.rs:1:2: replace \|\| with &&$");
    }
}
