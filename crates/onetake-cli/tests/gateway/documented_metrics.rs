//! docs/OPERATIONS.md names every metric that the code counts, and no other.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Names of metrics that follow `before` in a text.
fn names(text: &str, before: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.split(before)
        .skip(1)
        .filter_map(|rest| {
            let name: String = rest.chars().take_while(|&c| is_name(c)).collect();
            let is_whole = rest[name.len()..].starts_with(['"', '`', '{']);
            (is_whole && !name.is_empty()).then(|| format!("onetake_{name}"))
        })
        .collect()
}

#[test]
fn every_metric_is_documented() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let counted: BTreeSet<String> = folders
        .flat_map(|folder| sources(&folder))
        // It has no metrics, but its indexes have similar names.
        .filter(|file| !file.iter().any(|part| part == "sqlite"))
        .flat_map(|file| names(&std::fs::read_to_string(file).unwrap(), "\"onetake_"))
        .collect();
    let document = std::fs::read_to_string(crates.join("../docs/OPERATIONS.md")).unwrap();
    let rows: String = document.lines().filter(|line| line.starts_with("| `onetake_")).collect();
    let documented = names(&rows, "`onetake_");
    assert!(counted.len() > 25, "the search sees: {counted:?}");
    assert_eq!(documented, counted);
}
