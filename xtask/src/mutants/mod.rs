//! Mutation testing: `cargo xtask mutants`.
//!
//! A mutant is the program with one small change. If no test fails on a mutant, the tests do not
//! check something. cargo-mutants mutates Rust, in a copy of the sources under `target/mutants`.
//! [`text`] mutates SQL and Lua, inside the compiled test programs. Survivors that no test can
//! catch are listed in `xtask/mutants.argued`, one line each with the reason.

mod argued;
mod rust;
mod scope;
pub(crate) mod switch;
mod table;
mod text;
pub(crate) mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use argued::Argued;
use scope::{MutantKind, SCOPES, Scope};
use table::Score;

/// The usage message.
pub(crate) const USAGE: &str =
    "cargo xtask mutants [--scope NAME]... [--only TEXT]... [--shard K/N] [--short | --list]
    --scope     decide, journal, engine, jobs, http, stores, sql or lua; all of them if none is named
    --only      the mutants whose names have this text, or one of several texts
    --shard     every N-th mutant alone, from the K-th on: 0/4, 1/4, 2/4, 3/4
    --short     check the arguments, and test a fixed sample of SQL mutants
    --list      print the mutants of the scopes";

/// The options of a run.
#[derive(Debug)]
pub(crate) struct Options {
    root: PathBuf,
    tools: PathBuf,
    scopes: Vec<&'static Scope>,
    only: Vec<String>,
    shard: Option<String>,
    form: Form,
}

impl Options {
    /// True if the mutant of this name is selected by `--only`.
    fn is_chosen(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text))
    }
}

/// The forms of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Long,
    Short,
    List,
}

/// Runs the short form, as a part of `cargo xtask test`. Every mutant of its sample must be caught.
pub(crate) fn check() -> Result<(), String> {
    let options = options(["--short".to_owned()].into_iter())?;
    let scores = short(&options)?;
    println!("{}", table::show(&scores));
    let is_good = |score: &Score| score.is_good() && score.survivors.is_empty();
    if scores.iter().all(is_good) { Ok(()) } else { Err("mutants survived".to_owned()) }
}

/// Runs the task with the arguments after its name.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match options(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let scores = match options.form {
        Form::Long => long(&options),
        Form::Short => short(&options),
        Form::List => list(&options).map(|()| Vec::new()),
    };
    match scores {
        Ok(scores) if scores.is_empty() => ExitCode::SUCCESS,
        Ok(scores) => {
            println!("{}", table::show(&scores));
            if scores.iter().all(Score::is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let mut options = Options {
        root: root.to_owned(),
        tools: crate::install::tools(),
        scopes: Vec::new(),
        only: Vec::new(),
        shard: None,
        form: Form::Long,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--short" => options.form = Form::Short,
            "--list" => options.form = Form::List,
            "--only" => options.only.push(arguments.next().ok_or("--only needs a text")?),
            "--shard" => {
                let shard = arguments.next().filter(|shard| text::part(shard).is_some());
                options.shard = Some(shard.ok_or("--shard needs K/N with K below N")?);
            }
            "--scope" => {
                let name = arguments.next().unwrap_or_default();
                let scope = SCOPES.iter().find(|scope| scope.name == name);
                options.scopes.push(scope.ok_or(format!("there is no scope `{name}`"))?);
            }
            other => return Err(format!("`{other}` is not an option")),
        }
    }
    if options.scopes.is_empty() {
        options.scopes = SCOPES.iter().collect();
    }
    Ok(options)
}

/// Prints the names of all mutants, as in `xtask/mutants.argued`.
fn list(options: &Options) -> Result<(), String> {
    for scope in &options.scopes {
        let names: Vec<String> = match &scope.kind {
            MutantKind::Rust { files, except, .. } => {
                let program = rust::install(&options.tools)?;
                rust::list(&program, &options.root, files, except)?.into_values().collect()
            }
            MutantKind::Text { languages } => text::list(languages, &options.root)?,
        };
        println!("{}", names.join("\n"));
    }
    Ok(())
}

/// Tests all mutants of the scopes.
fn long(options: &Options) -> Result<Vec<Score>, String> {
    let argued = Argued::read(&options.root)?;
    let mut scores = Vec::new();
    for scope in &options.scopes {
        let score = match &scope.kind {
            MutantKind::Rust { files, except, stages } => {
                rust::run(scope, (files, except, stages), options, &argued)
            }
            MutantKind::Text { languages } => {
                text::run(scope, languages, options, &argued, text::Which::All)
            }
        };
        scores.push(score?);
    }
    Ok(scores)
}

/// Checks that each argument names a mutant, and tests a fixed sample of SQL mutants. Mutants of
/// Rust are not tested, because each needs its own build. If cargo-mutants is not installed, the
/// arguments for Rust are not checked either, because its installation takes minutes.
fn short(options: &Options) -> Result<Vec<Score>, String> {
    let argued = Argued::read(&options.root)?;
    let mut scores = Vec::new();
    for scope in &options.scopes {
        match (&scope.kind, rust::installed(&options.tools)) {
            (MutantKind::Rust { files, except, .. }, Some(program)) => {
                let listed = rust::list(&program, &options.root, files, except)?;
                let stale = rust::stale(&listed, &argued);
                if !stale.is_empty() {
                    scores.push(Score { scope: scope.name, stale, ..Score::default() });
                }
            }
            (MutantKind::Rust { .. }, None) => {}
            (MutantKind::Text { languages }, _) => {
                scores.push(text::run(scope, languages, options, &argued, text::Which::Sample)?);
            }
        }
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Options, String> {
        options(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read() {
        let all = asked("").unwrap();
        assert_eq!(all.scopes.len(), SCOPES.len());
        let some = asked("--scope lua --scope decide --shard 1/4").unwrap();
        let names: Vec<_> = some.scopes.iter().map(|scope| scope.name).collect();
        assert_eq!((names, some.shard.as_deref()), (vec!["lua", "decide"], Some("1/4")));
        let some = asked("--only batch.rs --only lease.rs").unwrap();
        let chosen = ["a/batch.rs: x", "a/lease.rs: x", "a/run.rs: x"].map(|it| some.is_chosen(it));
        assert_eq!((chosen, all.is_chosen("a/run.rs: x")), ([true, true, false], true));
        for bad in ["--scope cobol", "--shard 4/4", "--shard", "--fast"] {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }
}
