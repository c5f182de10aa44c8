//! The files with SQL and Lua, and their mutants.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::Options;
use super::super::argued::{Argued, names};
use super::change::{TextChange, changes, one_line};
use super::literal::literals;
use super::{Language, Which, fit, part, read};

/// The largest number of characters of the line in a mutant's name, on each side of the change.
const SHOWN_MAX: usize = 30;

/// The shortest text that is searched for in a program. A shorter one could occur elsewhere.
const BYTES_MIN: usize = 24;

/// Files that are not mutated: tables and indexes, whose changes fail at once or change only the
/// speed, and messages.
const EXCEPT: [&str; 4] = ["schema.sql", "doctor.rs", "diagnose.rs", "statement_error.rs"];

/// Statements that are not mutated, for the same reason.
const DEFINITIONS: [&str; 4] = ["CREATE TABLE", "CREATE INDEX", "ALTER TABLE", "CREATE VIEW"];

/// One mutant of a text.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// A name without positions.
    pub(super) name: String,
    /// The original text.
    pub(super) old: String,
    /// The mutated text, as long as the old one, if there is room for the change.
    pub(super) new: Option<String>,
}

/// The folder of a language, from the root.
fn folder(language: Language) -> &'static str {
    match language {
        Language::Sqlite => "crates/onetake-stores/src/sqlite",
        Language::Postgres => "crates/onetake-stores/src/postgres",
        Language::Lua => "crates/onetake-stores/src/redis/scripts",
    }
}

/// Every mutant of a language.
pub(super) fn mutants(root: &Path, language: Language) -> Result<Vec<Mutant>, String> {
    let folder = folder(language);
    let entries =
        std::fs::read_dir(root.join(folder)).map_err(|error| format!("{folder}: {error}"))?;
    let names_of_files: BTreeSet<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let mut found = Vec::new();
    for name in names_of_files.iter().filter(|name| !EXCEPT.contains(&name.as_str())) {
        let (path, file) = (root.join(folder).join(name), format!("{folder}/{name}"));
        if [".sql", ".lua"].iter().any(|end| name.ends_with(end)) {
            found.extend(of_file(&file, &read(&path)?, language));
        } else if name.ends_with(".rs") {
            found.extend(of_rust(&file, &read(&path)?, language));
        }
    }
    let unique = names(found.iter().map(|mutant| mutant.name.as_str()));
    for (mutant, name) in found.iter_mut().zip(unique) {
        mutant.name = name;
    }
    Ok(found)
}

/// Returns the mutants of a file that is one text. A program is searched for a part of the text.
fn of_file(file: &str, text: &str, language: Language) -> Vec<Mutant> {
    changes(text, language)
        .into_iter()
        .map(|change| {
            mutant(file, &owner(text, change.at.start, language), text, &change, language)
        })
        .collect()
}

/// Mutants of the statements in a Rust source.
fn of_rust(file: &str, source: &str, language: Language) -> Vec<Mutant> {
    let mut found = Vec::new();
    for literal in literals(source) {
        // A placeholder splits the text in the program.
        for piece in literal.value.split(['{', '}']) {
            if is_statement(piece) {
                found.extend(
                    changes(piece, language)
                        .into_iter()
                        .map(|change| mutant(file, &literal.owner, piece, &change, language)),
                );
            }
        }
    }
    found
}

/// Returns true for a piece of SQL that is worth mutating, and false for a message.
fn is_statement(piece: &str) -> bool {
    const WORDS: [&str; 9] = [
        "SELECT ",
        "UPDATE ",
        "INSERT ",
        "DELETE ",
        "WHERE ",
        " AND ",
        "ORDER BY ",
        "WITH ",
        "CASE ",
    ];
    piece.len() >= BYTES_MIN
        && WORDS.iter().any(|word| piece.contains(word))
        && !DEFINITIONS.iter().any(|word| piece.contains(word))
}

fn mutant(file: &str, owner: &str, text: &str, change: &TextChange, language: Language) -> Mutant {
    let before = text.get(..change.at.start).unwrap_or_default();
    let before = one_line(before.rsplit('\n').next().unwrap_or_default());
    let skipped = before.chars().count().saturating_sub(SHOWN_MAX);
    let before: String = before.chars().skip(skipped).collect();
    let changed = text.get(change.at.clone()).unwrap_or_default();
    let changed = if change.with.is_empty() { "…".to_owned() } else { one_line(changed) };
    let behind = text.get(change.at.end..).unwrap_or_default();
    let behind = one_line(behind.lines().next().unwrap_or_default());
    let behind: String = behind.chars().take(SHOWN_MAX).collect();
    let shown = one_line(&format!("{before} {changed} {behind}"));
    Mutant {
        name: format!("{file}: {} in {owner}: {shown}", change.what),
        old: text.to_owned(),
        new: fit::apply(text, change, language),
    }
}

/// Returns the function that contains a position of a file.
fn owner(text: &str, at: usize, language: Language) -> String {
    let before = text.get(..at).unwrap_or_default();
    let word = if language == Language::Lua { "local function " } else { "CREATE FUNCTION " };
    let name = before.rfind(word).and_then(|from| before.get(from + word.len()..));
    let is_open = language != Language::Lua
        || before
            .rfind("\nend\n")
            .is_none_or(|end| before.rfind(word).is_some_and(|from| from > end));
    let name = name.filter(|_| is_open).and_then(|name| name.split(['(', ' ']).next());
    name.unwrap_or("the script").to_owned()
}

/// Returns arguments for mutants of this language that no longer exist.
pub(super) fn stale(mutants: &[Mutant], argued: &Argued, language: Language) -> Vec<String> {
    let existing: BTreeSet<String> = mutants.iter().map(|mutant| mutant.name.clone()).collect();
    // Mutants of Rust code in the same folder belong to cargo-mutants.
    let is_ours = |name: &str| existing.iter().any(|other| file(other) == file(name));
    let is_of =
        |of: &str| of.starts_with(folder(language)) && (!of.ends_with(".rs") || is_ours(of));
    let stale = argued.stale(&existing, is_of);
    stale.into_iter().filter(|name| is_text(name)).map(str::to_owned).collect()
}

fn file(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

/// Returns true for the name of a mutant of a text: its owner is followed by the old line.
pub(crate) fn is_text(name: &str) -> bool {
    !file(name).ends_with(".rs") || name.splitn(3, ": ").count() == 3
}

/// Returns the mutants whose names contain a text, of a shard; or the fixed sample.
pub(super) fn choose(mutants: Vec<Mutant>, options: &Options, which: Which) -> Vec<Mutant> {
    let (index, count) = match which {
        Which::All => options.shard.as_deref().and_then(part).unwrap_or((0, 1)),
        Which::Sample => {
            return mutants.into_iter().filter(|mutant| is_sampled(&mutant.name)).collect();
        }
    };
    let mutants = mutants.into_iter().filter(|mutant| options.is_chosen(&mutant.name));
    let chosen = mutants.enumerate().filter(|(at, _)| at % count == index);
    chosen.map(|(_, mutant)| mutant).collect()
}

/// The sample of the short form: mutants of the SQLite store, which needs no server. The
/// conformance suite checks something that each of them breaks.
const SAMPLE: [&str; 7] = [
    "table.rs: replace = with <> in FIND: FROM onetake_records WHERE id = :id",
    "table.rs: replace > with >= in IDS: FROM onetake_records WHERE id > :from ORDER BY id LIMIT :limit",
    "table.rs: drop ask_at <= :now AND in UNSETTLED: sum FROM onetake_records WHERE … +expires_at > :now ORDER BY as",
    "table.rs: replace and with OR in UNSETTLED: e_records WHERE ask_at <= :now AND +expires_at > :now ORDER BY as",
    "audit.rs: drop DESC in READ: E place < :from ORDER BY place … LIMIT :limit",
    "audit.rs: replace < with <= in READ: FROM onetake_notes WHERE place < :from ORDER BY place DESC LIMI",
    "audit.rs: drop id = :id AND in READ_OF: cksum FROM onetake_notes WHERE … place < :from ORDER BY place D",
];

fn is_sampled(name: &str) -> bool {
    let name = name.strip_prefix(folder(Language::Sqlite)).and_then(|name| name.strip_prefix('/'));
    name.is_some_and(|name| SAMPLE.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sharded(shard: &str) -> Options {
        let arguments = ["--shard", shard].map(str::to_owned);
        super::super::super::options(arguments.into_iter()).unwrap()
    }

    #[test]
    fn mutants_name_their_function() {
        let text = "CREATE FUNCTION f (a bigint) AS $$\n    SELECT a < 3\n$$;";
        let found = of_file("f.sql", text, Language::Postgres);
        let found: Vec<_> = found.iter().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(
            found,
            [
                "f.sql: replace < with <= in f: SELECT a < 3",
                "f.sql: replace 3 with 4 in f: SELECT a < 3"
            ]
        );
        let text = "local function f(a)\n  return a < b\nend\n\nreturn a > b\n";
        let found = of_file("f.lua", text, Language::Lua);
        let found: Vec<_> = found.iter().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(
            found,
            [
                "f.lua: replace < with <= in f: return a < b",
                "f.lua: replace > with >= in the script: return a > b"
            ]
        );
    }

    #[test]
    fn every_language_has_mutants_with_room() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for language in [Language::Sqlite, Language::Postgres, Language::Lua] {
            let mutants = mutants(root, language).unwrap();
            let fitting = mutants.iter().filter(|mutant| mutant.new.is_some()).count();
            assert!(fitting * 10 > mutants.len() * 9, "{fitting} of {}", mutants.len());
            assert!(mutants.len() > 50, "{language:?}: {}", mutants.len());
            let sampled = mutants.iter().filter(|mutant| is_sampled(&mutant.name));
            assert!(sampled.clone().all(|mutant| mutant.new.is_some()));
            let expected = if language == Language::Sqlite { SAMPLE.len() } else { 0 };
            assert_eq!(sampled.count(), expected, "every name of the sample is a mutant's");
        }
    }

    #[test]
    fn a_shard_is_a_part() {
        let one = Mutant { name: String::new(), old: String::new(), new: None };
        let all = vec![one; 10];
        let sizes = ["0/3", "1/3", "2/3"]
            .map(|shard| choose(all.clone(), &sharded(shard), Which::All).len());
        assert_eq!(sizes, [4, 3, 3]);
    }
}
