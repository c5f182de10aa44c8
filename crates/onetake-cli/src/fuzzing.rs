//! Properties of the configuration, for the fuzzer (`fuzz/`) and for the tests, which replay its
//! corpora.

use crate::config::{self, Overrides};

const FILE: &str = "onetake.toml";

/// Any text is a configuration, or a list of errors that name the file, a line of it, and a fix.
pub fn configuration(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let loaded = config::load(Some(&text), FILE, std::iter::empty(), Overrides::default());
    let Err(error) = loaded else { return };
    assert!(!error.problems().is_empty(), "an error without a reason");
    let lines = text.matches('\n').count() + 1;
    for problem in error.problems() {
        assert!(!problem.what.is_empty() && !problem.fix.is_empty(), "{problem}");
        let place = problem.place.strip_prefix(FILE);
        assert!(place.is_some(), "another place: {problem}");
        let mut numbers = place.unwrap_or_default().split(':').skip(1);
        let line: Option<usize> = numbers.next().and_then(|line| line.parse().ok());
        match line {
            Some(line) => assert!((1..=lines).contains(&line), "line {line} of {lines}: {problem}"),
            // A field that is missing has no line.
            None => assert!(!problem.field.is_empty(), "{problem}"),
        }
    }
    let shown = error.to_string();
    assert!(!shown.contains(['\u{0}', '\u{1b}', '\r']), "a control character: {shown:?}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_of_configurations() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/configuration");
        let files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|file| file.unwrap()).collect();
        assert!(files.len() > 4, "{corpus} has too few files");
        for file in files {
            super::configuration(&std::fs::read(file.path()).unwrap());
        }
    }
}
