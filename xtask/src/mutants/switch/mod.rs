//! Mutants of Rust code behind switches: one build for all of them.
//!
//! A mutant takes as long as its tests, without a build of its own. cargo-mutants finds the
//! mutants. [`rewrite`] puts them into a copy of the sources. Mutants that do not compile are
//! removed again. The few that no switch can select are built one at a time, in the same folder.

mod process;
mod programs;
mod rewrite;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use self::programs::{Ended, Program};
pub(crate) use self::rewrite::{IS, QUIET, SWITCH, VARIABLE};
use self::rewrite::{Mutant, Rewritten};
use super::rust::Outcome;
use super::scope::Stage;
use super::tree;

/// The number of mutants that are tested at once. Hanging tests use no processor.
const AT_ONCE: usize = 6;

/// The number of times that mutants are removed because they do not compile, before that is an
/// error.
const CHECKS_MAX: usize = 20;

/// The assumed duration of a test program whose mutant has a build of its own.
const ALONE_TAKES: Duration = Duration::from_secs(60);

/// Packages that are built together. Cargo builds the dependencies of each selection of packages
/// with other features, so scopes that share a selection share the build of their dependencies.
const SELECTIONS: &[&[&str]] = &[
    &["onetake-core", "onetake-http", "onetake-sim"],
    &["onetake-cli", "onetake-core", "onetake-sim", "onetake-stores"],
];

/// Tests mutants, as cargo-mutants lists them, stage by stage: first all that can be switched, then
/// the others, each with its own build. Mutants with `is_argued` need no further stage. Returns the
/// results by cargo-mutants' names.
pub(super) fn run(
    root: &Path,
    tools: &Path,
    listed: &[Value],
    stages: &[Stage],
    is_argued: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Outcome>, String> {
    let mutants: Vec<Mutant> =
        (1..).zip(listed).filter_map(|(number, entry)| Mutant::read(number, entry)).collect();
    let build = Build {
        packages: selection(stages)?,
        tree: tree::copy(root, "switched")?,
        target: root.join("target/mutants/build"),
        tools: tools.to_owned(),
    };
    let Some(first) = stages.first() else { return Err("the scope has no tests".to_owned()) };
    let (unviable, left_out) = build.prepare(&mutants, first)?;
    let name = |number: &u32| {
        let index = usize::try_from(*number).unwrap_or_default().saturating_sub(1);
        mutants.get(index).map(|mutant| mutant.name.clone())
    };
    let mut outcomes: BTreeMap<String, Outcome> =
        unviable.iter().filter_map(name).map(|name| (name, Outcome::Unviable)).collect();
    let is_in =
        |mutant: &&Mutant| !unviable.contains(&mutant.number) && !left_out.contains(&mutant.number);
    let mut left: Vec<&Mutant> = mutants.iter().filter(is_in).collect();
    for stage in stages {
        if left.is_empty() {
            break;
        }
        let programs = build.programs(stage)?;
        let found = test(&programs, &left);
        left.retain(|mutant| {
            found.get(&mutant.name) == Some(&Outcome::Missed) && !is_argued(&mutant.name)
        });
        outcomes.extend(found);
    }
    println!("{} mutants have to be built one at a time", left_out.len());
    for mutant in mutants.iter().filter(|mutant| left_out.contains(&mutant.number)) {
        let (outcome, by) = build.alone(root, mutant, stages, &is_argued)?;
        println!("{outcome:?} {} {by}", mutant.name);
        outcomes.insert(mutant.name.clone(), outcome);
    }
    Ok(outcomes)
}

/// Runs the programs on each mutant, some mutants at once.
fn test(programs: &[Program], mutants: &[&Mutant]) -> BTreeMap<String, Outcome> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (outcome, by) = outcome(programs, mutant.number);
                    println!("{outcome:?} {} {by}", mutant.name);
                    if let Ok(mut found) = found.lock() {
                        found.insert(mutant.name.clone(), outcome);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_default()
}

/// Returns the result of a mutant, and the program that caught it.
fn outcome(programs: &[Program], mutant: u32) -> (Outcome, String) {
    for program in programs {
        match program.run(mutant) {
            Ended::Passed => {}
            Ended::Failed => return (Outcome::Caught, format!("by {}", program.name())),
            Ended::Hung => return (Outcome::Timeout, format!("in {}", program.name())),
        }
    }
    (Outcome::Missed, String::new())
}

/// Mutants that the compiler rejects.
#[derive(Default)]
struct Refused {
    /// Their own code does not compile.
    mutants: BTreeSet<u32>,
    /// The switch around them does not compile.
    switches: BTreeSet<u32>,
}

impl Refused {
    fn is_empty(&self) -> bool {
        self.mutants.is_empty() && self.switches.is_empty()
    }
}

/// Returns the selection of packages with the tests of all stages.
fn selection(stages: &[Stage]) -> Result<&'static [&'static str], String> {
    let wanted = stages.iter().flat_map(|stage| stage.packages);
    let mut selections = SELECTIONS.iter();
    let found = selections.find(|packages| wanted.clone().all(|one| packages.contains(one)));
    found.copied().ok_or_else(|| "no selection has the packages of all stages".to_owned())
}

/// A copy of the sources with switched mutants, and its build folder.
struct Build {
    packages: &'static [&'static str],
    tree: PathBuf,
    target: PathBuf,
    tools: PathBuf,
}

impl Build {
    /// Rewrites the files until they and the tests of a stage compile. Returns the mutants that do
    /// not compile, and those that cannot be switched.
    fn prepare(
        &self,
        mutants: &[Mutant],
        stage: &Stage,
    ) -> Result<(BTreeSet<u32>, BTreeSet<u32>), String> {
        let mut by_file: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
        for mutant in mutants {
            by_file.entry(&mutant.file).or_default().push(mutant);
        }
        let mut originals = BTreeMap::new();
        for file in by_file.keys() {
            let read = std::fs::read_to_string(self.tree.join(file));
            originals.insert(*file, read.map_err(|error| format!("{file}: {error}"))?);
        }
        self.add_switches(by_file.keys().copied())?;
        let mut unviable = BTreeSet::new();
        let mut left_out = BTreeSet::new();
        for _ in 0..CHECKS_MAX {
            let mut rewritten = BTreeMap::new();
            for (file, mutants) in &by_file {
                let is_wanted = |one: &&Mutant| {
                    !unviable.contains(&one.number) && !left_out.contains(&one.number)
                };
                let wanted: Vec<&Mutant> = mutants.iter().copied().filter(is_wanted).collect();
                let original = originals.get(file).map(String::as_str).unwrap_or_default();
                let one = rewrite::rewrite(original, &wanted)?;
                left_out.extend(&one.left_out);
                self.write(file, &one.text)?;
                rewritten.insert((*file).to_owned(), one);
            }
            let refused = self.check(&rewritten, stage)?;
            if refused.is_empty() {
                return Ok((unviable, left_out));
            }
            unviable.extend(refused.mutants);
            left_out.extend(refused.switches);
        }
        Err("the compiler refuses the switched sources again and again".to_owned())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.tree.join(file);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        std::fs::write(path, text).map_err(|error| format!("{file}: {error}"))
    }

    /// Adds the switch to the root of each crate that has one of these files.
    fn add_switches<'a>(&self, files: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let crates: BTreeSet<&str> =
            files.filter_map(|file| file.split_once("/src/")).map(|(folder, _)| folder).collect();
        for folder in crates {
            let root = format!("{folder}/src/lib.rs");
            let text = std::fs::read_to_string(self.tree.join(&root))
                .map_err(|error| format!("{root}: {error}"))?;
            self.write(&root, &format!("{QUIET}{text}{SWITCH}"))?;
        }
        Ok(())
    }

    /// The command that builds the tests of a stage. It selects the same packages for every stage.
    fn cargo_test(&self, stage: &Stage) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--no-run", "--all-features"]).args(stage.arguments);
        cargo.args(self.packages.iter().flat_map(|package| ["--package", package]));
        cargo.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "false");
        cargo
    }

    /// Compiles the crates, and returns the mutants that the compiler rejects.
    fn check(
        &self,
        rewritten: &BTreeMap<String, Rewritten>,
        stage: &Stage,
    ) -> Result<Refused, String> {
        let mut command = self.cargo_test(stage);
        command.arg("--message-format=json");
        eprintln!("$ {command:?}");
        let ran = command.stderr(Stdio::null()).output().map_err(|error| error.to_string())?;
        if ran.status.success() {
            return Ok(Refused::default());
        }
        let said = String::from_utf8_lossy(&ran.stdout);
        let errors: Vec<Value> = said
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter_map(|line| line.get("message").cloned())
            .filter(|message| message.get("level").and_then(Value::as_str) == Some("error"))
            .collect();
        let mut refused = Refused::default();
        for (mutants, is_their_code) in errors.iter().filter_map(|error| accused(error, rewritten))
        {
            let set = if is_their_code { &mut refused.mutants } else { &mut refused.switches };
            set.extend(mutants);
        }
        if refused.is_empty() {
            let texts = errors.iter().filter_map(|error| error.get("rendered")?.as_str());
            return Err(format!(
                "the switched sources do not compile:\n{}",
                texts.collect::<String>()
            ));
        }
        eprintln!("{} mutants do not compile", refused.mutants.len());
        Ok(refused)
    }

    /// Builds the test programs of a stage, and runs each without a mutant.
    fn programs(&self, stage: &Stage) -> Result<Vec<Program>, String> {
        let mut command = self.cargo_test(stage);
        command.arg("--message-format=json-render-diagnostics");
        eprintln!("$ {command:?}");
        let built = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
        if !built.status.success() {
            return Err("the tests of the switched sources could not be built".to_owned());
        }
        let said = String::from_utf8_lossy(&built.stdout);
        let mut programs: Vec<Program> =
            said.lines().filter_map(|line| Program::read(line, &self.tools, stage)).collect();
        for program in &mut programs {
            program.measure()?;
        }
        // Fast programs first: most mutants are caught by the first few.
        programs.sort_by_key(Program::takes);
        Ok(programs)
    }

    /// Builds and tests one mutant without a switch, stage by stage. Returns its result, and the
    /// program that caught it.
    fn alone(
        &self,
        root: &Path,
        mutant: &Mutant,
        stages: &[Stage],
        is_argued: impl Fn(&str) -> bool,
    ) -> Result<(Outcome, String), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", mutant.file);
        let original = std::fs::read_to_string(root.join(&mutant.file)).map_err(failed)?;
        let applied = mutant.applied(&original).ok_or("a mutant is outside of its file")?;
        let switched = std::fs::read_to_string(self.tree.join(&mutant.file)).map_err(failed)?;
        self.write(&mutant.file, &applied)?;
        let mut found = (Outcome::Missed, String::new());
        for stage in stages {
            let mut command = self.cargo_test(stage);
            command.arg("--message-format=json").stderr(Stdio::null());
            let built = command.output().map_err(|error| error.to_string())?;
            let said = String::from_utf8_lossy(&built.stdout);
            if !built.status.success() {
                // A linker that was killed, or a full disk, says nothing about the mutant.
                if !has_compile_error(&said, &mutant.file) {
                    self.write(&mutant.file, &switched)?;
                    return Err(format!("{} could not be built", mutant.name));
                }
                found = (Outcome::Unviable, String::new());
                break;
            }
            let mut programs: Vec<Program> =
                said.lines().filter_map(|line| Program::read(line, &self.tools, stage)).collect();
            programs.iter_mut().for_each(|program| program.expect(ALONE_TAKES));
            found = outcome(&programs, 0);
            if found.0 != Outcome::Missed || is_argued(&mutant.name) {
                break;
            }
        }
        self.write(&mutant.file, &switched)?;
        Ok(found)
    }
}

/// True if cargo's messages have an error of the compiler in this file.
fn has_compile_error(said: &str, file: &str) -> bool {
    said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).any(|line| {
        let is_error = line.pointer("/message/level").and_then(Value::as_str) == Some("error");
        let spans = line.pointer("/message/spans").and_then(Value::as_array);
        let is_in_file = |span: &Value| {
            let name = span.get("file_name").and_then(Value::as_str);
            name.is_some_and(|name| name.ends_with(file))
        };
        is_error && spans.into_iter().flatten().any(is_in_file)
    })
}

/// Returns the mutants that an error of the compiler is about, and true if it is about their code.
/// Otherwise it is about a switch: that of the innermost part at the error, or of the arm after it,
/// because a match whose arms can be switched off may not cover all values.
fn accused(error: &Value, rewritten: &BTreeMap<String, Rewritten>) -> Option<(Vec<u32>, bool)> {
    let spans = error.get("spans").and_then(Value::as_array);
    let mut spans: Vec<&Value> = spans.into_iter().flatten().collect();
    spans.sort_by_key(|span| span.get("is_primary").and_then(Value::as_bool) != Some(true));
    let place = |span: &Value| {
        let parts = &rewritten.get(span.get("file_name")?.as_str()?)?.parts;
        let at = |field: &str| usize::try_from(span.get(field)?.as_u64()?).ok();
        Some((parts, at("byte_start")?, at("byte_end")?))
    };
    let innermost = |span: &Value| {
        let (parts, start, end) = place(span)?;
        let around = parts.iter().filter(|part| part.range.start <= start && end <= part.range.end);
        let part = around.min_by_key(|part| part.range.len())?;
        Some((part.mutants.clone(), part.is_change))
    };
    let next_arm = |span: &Value| {
        let (parts, start, _) = place(span)?;
        let behind = parts.iter().filter(|part| part.is_arm && start < part.range.start);
        let part = behind.min_by_key(|part| part.range.start)?;
        Some((part.mutants.clone(), false))
    };
    let is_match = error.pointer("/code/code").and_then(Value::as_str) == Some("E0004");
    let first = spans.first().filter(|_| is_match).and_then(|span| next_arm(span));
    first.or_else(|| spans.iter().find_map(|span| innermost(span)))
}

#[cfg(test)]
mod tests {
    use super::super::scope::{MutantKind, SCOPES};
    use super::*;

    #[test]
    fn the_packages_of_every_scope_are_in_one_selection() {
        for scope in SCOPES {
            if let MutantKind::Rust { stages, .. } = &scope.kind {
                assert!(selection(stages).is_ok(), "{}", scope.name);
            }
        }
    }
}
