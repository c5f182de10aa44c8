//! Mutants of SQL and Lua.
//!
//! The statements and scripts are constants of the test programs of `onetake-stores`, so a mutant
//! needs no build: its text replaces the original in the program's file. The new text has the
//! length of the old one. A shorter text is filled up with spaces, and a longer one takes its room
//! from white space and comments nearby.

mod change;
mod fit;
mod literal;
mod program;
mod source;
mod token;

pub(crate) use source::is_text;
use std::path::Path;

use super::Options;
use super::argued::Argued;
use super::scope::Scope;
use super::table::Score;

/// A language whose texts are mutated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// SQL for SQLite.
    Sqlite,
    /// SQL and PL/pgSQL for PostgreSQL.
    Postgres,
    /// Lua for Redis.
    Lua,
}

/// The mutants that are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// A fixed few, for the short form.
    Sample,
}

/// Tests the mutants of some languages.
pub(crate) fn run(
    scope: &Scope,
    languages: &[Language],
    options: &Options,
    argued: &Argued,
    which: Which,
) -> Result<Score, String> {
    let mut score = Score { scope: scope.name, is_strict: scope.is_strict, ..Score::default() };
    for &language in languages {
        let mutants = source::mutants(&options.root, language)?;
        score.stale.extend(source::stale(&mutants, argued, language));
        let chosen = source::choose(mutants, options, which);
        if !chosen.is_empty() {
            program::test(language, chosen, options, argued, which, &mut score)?;
        }
    }
    Ok(score)
}

/// The names of all mutants of some languages.
pub(crate) fn list(languages: &[Language], root: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for &language in languages {
        names.extend(source::mutants(root, language)?.into_iter().map(|mutant| mutant.name));
    }
    Ok(names)
}

/// `K/N` as two numbers, if K is below N.
pub(crate) fn part(shard: &str) -> Option<(usize, usize)> {
    let (index, count) = shard.split_once('/')?;
    let (index, count) = (index.parse().ok()?, count.parse().ok()?);
    (index < count).then_some((index, count))
}

/// Reads a file as text.
fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}
