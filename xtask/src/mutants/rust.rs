//! Mutants of Rust code, found by cargo-mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::argued::{Argued, names};
use super::scope::{Scope, Stage};
use super::table::Score;
use super::{Options, switch};

/// The version of cargo-mutants. The names of mutants depend on it.
const VERSION: &str = "27.1.0";

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

/// Tests the mutants of a scope, stage by stage.
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
    let outcomes = switch::run(&options.root, &options.tools, &wanted, stages, is_argued)?;
    Ok(score(scope, &listed, &outcomes, argued))
}

/// Chooses files by globs.
fn selected(command: &mut Command, files: &[&str], except: &[&str]) {
    command.args(files.iter().flat_map(|file| ["--file", file]));
    command.args(except.iter().flat_map(|file| ["--exclude", file]));
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
    fn mutants_are_ordered_by_position() {
        let listed = ["a.rs:10:1: x", "a.rs:9:12: x", "a.rs:9:3: y"];
        assert_eq!(in_order(&listed), ["a.rs:9:3: y", "a.rs:9:12: x", "a.rs:10:1: x"]);
    }
}
