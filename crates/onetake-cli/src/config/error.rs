//! Errors in the configuration, collected and formatted for people.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use onetake_http::text::TextError;
use onetake_stores::UrlError;

use super::tree::shorten;

/// Maximum number of errors that are shown. The rest is only counted.
const SHOWN_MAX: usize = 20;

/// All errors of the configuration, in the order of the file.
///
/// The `Display` form is for a terminal. Each error has one line with the place, the field and what
/// is wrong, and one line with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    problems: Vec<ConfigProblem>,
}

impl ConfigError {
    /// An error without a cause. Users should never see it.
    pub(super) fn unexplained() -> Self {
        Self { problems: Vec::new() }
    }

    /// The errors; there is at least one.
    #[must_use]
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => f.write_str("the configuration has 1 error:")?,
            count => write!(f, "the configuration has {count} errors:")?,
        }
        for problem in self.problems.iter().take(SHOWN_MAX) {
            write!(f, "\n\n{problem}")?;
        }
        match self.problems.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\n\n… and {more} more"),
        }
    }
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The position: `file:line:column`, the variable or the flag.
    pub place: String,
    /// The field's full path, such as `route[1].fingerprint.mode`; empty for a syntax error.
    pub field: String,
    /// The value as written, shortened; absent if it is of no help or may be a secret.
    pub value: Option<String>,
    /// The error.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        match (&self.value, self.field.is_empty()) {
            (_, true) => {}
            (Some(value), false) => write!(f, "{} = {value}: ", self.field)?,
            (None, false) => write!(f, "{}: ", self.field)?,
        }
        write!(f, "{}\n    {}", self.what, self.fix)
    }
}

/// An error of a value, without its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueError {
    pub(super) what: String,
    pub(super) fix: String,
    shows: Shows,
}

/// The part of the value that a message may show.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shows {
    AsWritten,
    /// The value may hold a credential; this is the rest of it.
    Instead(String),
    Nothing,
}

impl ValueError {
    pub(super) fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into(), shows: Shows::AsWritten }
    }

    /// Hides the value, because it may hold a credential.
    pub(super) fn hiding_value(self, hides_value: bool) -> Self {
        if hides_value { self.showing(None) } else { self }
    }

    /// Shows the text of the file instead of expanded variables, which may hold a secret.
    pub(super) fn about_file_only(self, text: &str, written: &str) -> Self {
        let plain = |said: String| match text.is_empty() {
            true => said,
            false => said.replace(text, written),
        };
        let shows = match self.shows {
            Shows::AsWritten => Shows::AsWritten,
            Shows::Instead(_) | Shows::Nothing => Shows::Nothing,
        };
        Self { what: plain(self.what), fix: plain(self.fix), shows }
    }

    /// Shows this text instead of the value, or nothing.
    pub(super) fn showing(self, instead: Option<String>) -> Self {
        Self { shows: instead.map_or(Shows::Nothing, Shows::Instead), ..self }
    }

    /// The text to show for a value that was written like this.
    pub(super) fn value_of(&self, written: impl FnOnce() -> Option<String>) -> Option<String> {
        match &self.shows {
            Shows::AsWritten => written(),
            Shows::Instead(value) => Some(format!("\"{}\"", shorten(value))),
            Shows::Nothing => None,
        }
    }
}

impl From<TextError> for ValueError {
    fn from(error: TextError) -> Self {
        Self::new(error.what, error.fix)
    }
}

impl From<UrlError> for ValueError {
    fn from(error: UrlError) -> Self {
        Self::new(error.what, error.fix).showing(error.shown)
    }
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// At this byte of the file.
    File(usize),
    /// In this environment variable.
    Env(String),
    /// In this flag.
    Flag(&'static str),
    /// Nowhere: something is missing.
    Absent,
}

/// The collected errors, and the file that they are in.
pub(super) struct Problems<'a> {
    pub(super) text: Option<&'a str>,
    file_name: &'a str,
    pub(super) env: &'a [(String, String)],
    found: RefCell<Vec<(Rank, ConfigProblem)>>,
}

/// The order of errors: through the file, then missing fields, then the rest.
type Rank = (u8, usize);

/// Text and environment can have secrets.
impl fmt::Debug for Problems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Problems").field("file_name", &self.file_name).finish_non_exhaustive()
    }
}

impl<'a> Problems<'a> {
    pub(super) fn new(
        text: Option<&'a str>,
        file_name: &'a str,
        env: &'a [(String, String)],
    ) -> Self {
        Self { text, file_name, env, found: RefCell::default() }
    }

    /// The value of an environment variable.
    pub(super) fn variable(&self, name: &str) -> Result<String, ValueError> {
        let found = self.env.iter().find(|(known, _)| known == name);
        let fix = "set it in the environment of this process, or name another variable";
        let missing = || ValueError::new("the environment variable is not set", fix);
        found.map(|(_, text)| text.clone()).ok_or_else(missing)
    }

    /// The folder of the file; empty if there is no file.
    pub(super) fn folder(&self) -> &Path {
        let file = self.text.and(Path::new(self.file_name).parent());
        file.unwrap_or(Path::new(""))
    }

    pub(super) fn add(&self, at: &Origin, field: &str, value: Option<String>, fault: ValueError) {
        let rank = match at {
            Origin::File(offset) => (0, *offset),
            Origin::Absent => (1, 0),
            Origin::Env(_) => (2, 0),
            Origin::Flag(_) => (3, 0),
        };
        let value = fault.value_of(|| value);
        let (place, field) = (self.place(at), field.to_owned());
        let problem = ConfigProblem { place, field, value, what: fault.what, fix: fault.fix };
        self.found.borrow_mut().push((rank, problem));
    }

    /// True if the same mistake at this position was reported for `[defaults]`.
    pub(super) fn is_of_defaults(&self, at: &Origin, what: &str) -> bool {
        let (place, found) = (self.place(at), self.found.borrow());
        let of_defaults = |it: &&ConfigProblem| it.field.starts_with("defaults.");
        let mut known = found.iter().map(|(_, known)| known).filter(of_defaults);
        known.any(|known| known.place == place && known.what == what)
    }

    /// Returns the errors that were found, if there are any.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let mut found = self.found.take();
        found.sort_by_key(|(rank, _)| *rank);
        let problems = found.into_iter().map(|(_, problem)| problem).collect::<Vec<_>>();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }

    /// The name of a position in messages.
    pub(super) fn place(&self, at: &Origin) -> String {
        match at {
            Origin::File(offset) => {
                let (line, column) = position(self.text.unwrap_or_default(), *offset);
                format!("{}:{line}:{column}", self.file_name)
            }
            Origin::Env(name) => name.clone(),
            Origin::Flag(name) => (*name).to_owned(),
            Origin::Absent if self.text.is_some() => self.file_name.to_owned(),
            Origin::Absent => "configuration".to_owned(),
        }
    }
}

/// Line and column of a byte, both from one. The column counts characters, as editors do.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..text.floor_char_boundary(offset)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters() {
        let text = "a\r\nö = 1\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, 3), (2, 1));
        assert_eq!(position(text, 5), (2, 2), "ö is one character of two bytes");
        assert_eq!(position(text, 4), (2, 1), "inside a character");
        assert_eq!(position(text, 999), (3, 1), "behind the end");
    }

    #[test]
    fn many_faults_are_counted_not_listed() {
        let problems = Problems::new(Some(""), "f", &[]);
        for offset in 0..30 {
            problems.add(&Origin::File(offset), "x", None, ValueError::new("bad", "mend it"));
        }
        let shown = problems.check().unwrap_err().to_string();
        assert!(
            shown.starts_with("the configuration has 30 errors:\n\nf:1:1: x: bad\n    mend it")
        );
        assert!(shown.ends_with("… and 10 more"));
    }
}
