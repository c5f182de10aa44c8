//! Mutants that no test can tell from the program, one line each with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The file, from the root.
pub(crate) const FILE: &str = "xtask/mutants.argued";

/// The separator between a mutant's name and the argument.
const SEPARATOR: &str = " :: ";

/// Argued mutants by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Argued {
    lines: BTreeMap<String, String>,
}

impl Argued {
    /// Reads the file. A missing file contains no arguments.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        match std::fs::read_to_string(root.join(FILE)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{FILE} cannot be read: {error}")),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let parts = line.split_once(SEPARATOR);
            let parts = parts.filter(|(_, argument)| !argument.trim().is_empty());
            let (name, argument) = parts.ok_or_else(|| {
                format!("{FILE}:{}: write `mutant{SEPARATOR}argument` on one line", at + 1)
            })?;
            if lines.insert(name.trim().to_owned(), argument.trim().to_owned()).is_some() {
                return Err(format!("{FILE}:{}: `{name}` is there twice", at + 1));
            }
        }
        Ok(Self { lines })
    }

    /// True if the mutant of this name is argued.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.lines.contains_key(name)
    }

    /// Argued mutants of the given files that do not exist any more.
    pub(crate) fn stale(
        &self,
        existing: &BTreeSet<String>,
        is_of: impl Fn(&str) -> bool,
    ) -> Vec<&str> {
        self.lines
            .keys()
            .map(String::as_str)
            .filter(|name| is_of(name.split(':').next().unwrap_or_default()))
            .filter(|name| !existing.contains(*name))
            .collect()
    }
}

/// Returns names without positions, made unique by a number: `#2` is the second mutant of that name
/// in its file. Line numbers change with every edit; these names change only when the mutated text
/// changes.
pub(crate) fn names<'a>(mutants: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut number = |name: String| {
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name} #{count}") }
    };
    mutants.into_iter().map(|mutant| number(without_position(mutant))).collect()
}

/// Returns `FILE:LINE:COLUMN: text` as `FILE: text`.
fn without_position(mutant: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = mutant.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(line), Some(column), Some(text))
            if is_number(line) && is_number(column) =>
        {
            format!("{file}:{text}")
        }
        _ => mutant.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_needs_an_argument() {
        let argued =
            Argued::parse("# comment\n\na.rs: replace + with - in f :: it is 0\n").unwrap();
        assert!(argued.has("a.rs: replace + with - in f"));
        for bad in ["a.rs: replace + with -", "a.rs: replace + with - :: ", "a :: b\na :: c"] {
            assert!(Argued::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mutants_of_one_name_are_numbered() {
        let listed = [
            "a.rs:1:2: replace > with >= in f",
            "a.rs:9:2: replace > with >= in f",
            "b.rs:1:2: replace > with >= in f",
        ];
        let expected = [
            "a.rs: replace > with >= in f",
            "a.rs: replace > with >= in f #2",
            "b.rs: replace > with >= in f",
        ];
        assert_eq!(names(listed), expected);
    }

    #[test]
    fn an_argument_for_nothing_is_stale() {
        let argued = Argued::parse("a.rs: old :: x\nb.rs: other :: y").unwrap();
        let existing = BTreeSet::from(["a.rs: new".to_owned()]);
        assert_eq!(argued.stale(&existing, |file| file == "a.rs"), ["a.rs: old"]);
    }
}
