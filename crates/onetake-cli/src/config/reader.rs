//! Reads fields of the tree: the right type, or a fault that says what was expected.

use super::error::{Fault, Origin, Problems};
use super::fields::{Fields, nearest};
use super::sources;
use super::tree::{Entry, Kind, Node, shorten};

/// A value together with the path under which messages name it.
#[derive(Clone, Debug)]
pub(super) struct Value<'t> {
    pub(super) node: &'t Node,
    pub(super) path: String,
}

/// A table whose field names have been checked.
#[derive(Debug)]
pub(super) struct Section<'t> {
    entries: &'t [Entry],
    path: String,
    has_faults: bool,
}

impl<'t> Section<'t> {
    /// Opens a table; every field that does not belong there is a fault.
    pub(super) fn open(
        value: &Value<'t>,
        fields: &Fields,
        example: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Self> {
        let Kind::Table(entries) = &value.node.kind else {
            value.wrong_type("a table", example, problems);
            return None;
        };
        let mut has_faults = false;
        for entry in entries {
            let path = join(&value.path, &entry.name);
            let rename = |near: &str| sources::rename(&entry.at, &path, near);
            if let Err(fault) = fields.check(&entry.name, rename) {
                has_faults = true;
                problems.add(&entry.at, &path, None, fault);
            }
        }
        Some(Self { entries, path: value.path.clone(), has_faults })
    }

    /// The field of this name, if it was written.
    pub(super) fn get(&self, name: &str) -> Option<Value<'t>> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        Some(Value { node: &entry.value, path: join(&self.path, name) })
    }

    /// Whether a field was refused by its name.
    pub(super) fn has_faults(&self) -> bool {
        self.has_faults
    }

    /// The path of a field, written or not.
    pub(super) fn path_of(&self, name: &str) -> String {
        join(&self.path, name)
    }
}

impl<'t> Value<'t> {
    /// The whole document.
    pub(super) fn root(node: &'t Node) -> Self {
        Self { node, path: String::new() }
    }

    /// Reports what is wrong with this value.
    pub(super) fn refuse(&self, fault: Fault, problems: &mut Problems<'_>) {
        problems.add(&self.node.at, &self.path, self.node.shown(), fault);
    }

    /// A string; `example` is a right value as it is written in TOML.
    ///
    /// A variable has no quotes to tell `7` from `"7"`, so there any plain value is a string.
    pub(super) fn text(&self, example: &str, problems: &mut Problems<'_>) -> Option<&'t str> {
        match (&self.node.kind, &self.node.at) {
            (Kind::Text(text), _) => Some(text),
            (Kind::Integer(text, _) | Kind::Other(_, text), Origin::Env(_)) => Some(text),
            (Kind::Boolean(true), Origin::Env(_)) => Some("true"),
            (Kind::Boolean(false), Origin::Env(_)) => Some("false"),
            _ => {
                self.wrong_type("a string", example, problems);
                None
            }
        }
    }

    /// A string that `parse` understands.
    pub(super) fn parse<T>(
        &self,
        example: &str,
        problems: &mut Problems<'_>,
        parse: impl FnOnce(&'t str) -> Result<T, Fault>,
    ) -> Option<T> {
        let text = self.text(example, problems)?;
        parse(text).map_err(|fault| self.refuse(fault, problems)).ok()
    }

    /// True or false.
    pub(super) fn boolean(&self, problems: &mut Problems<'_>) -> Option<bool> {
        match self.node.kind {
            Kind::Boolean(value) => Some(value),
            _ => {
                self.wrong_type("true or false, without quotes,", "true", problems);
                None
            }
        }
    }

    /// An integer within bounds, both included.
    pub(super) fn integer(
        &self,
        (min, max): (usize, usize),
        problems: &mut Problems<'_>,
    ) -> Option<usize> {
        let Kind::Integer(_, number) = &self.node.kind else {
            self.wrong_type("an integer, without quotes,", &min.to_string(), problems);
            return None;
        };
        let number = number.and_then(|number| usize::try_from(number).ok());
        let accepted = number.filter(|number| (min..=max).contains(number));
        if accepted.is_none() {
            let fix = format!("write a number from {min} to {max}");
            self.refuse(Fault::new("out of bounds", fix), problems);
        }
        accepted
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(
        &self,
        choices: &[(&str, T)],
        problems: &mut Problems<'_>,
    ) -> Option<T> {
        let example = choices.first().map(|(word, _)| format!("\"{word}\"")).unwrap_or_default();
        let text = self.text(&example, problems)?;
        let found = choices.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words = choices.iter().map(|(word, _)| *word).collect::<Vec<_>>();
            self.refuse(unknown_word(text, &words), problems);
        }
        found.map(|(_, value)| *value)
    }

    /// The elements of a list.
    pub(super) fn list(
        &self,
        example: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<Value<'t>>> {
        let Kind::List(nodes) = &self.node.kind else {
            self.wrong_type("a list", example, problems);
            return None;
        };
        let element = |(index, node)| Value { node, path: format!("{}[{index}]", self.path) };
        Some(nodes.iter().enumerate().map(element).collect())
    }

    /// Reports a value of the wrong type.
    pub(super) fn wrong_type(&self, expected: &str, example: &str, problems: &mut Problems<'_>) {
        let what = format!("expected {expected} but found {}", self.node.type_name());
        let fix = match &self.node.at {
            Origin::Env(name) => format!("write for example {name}='{example}'"),
            _ if example.starts_with('[') && self.path == example.trim_matches(['[', ']']) => {
                format!("write {example}, in these brackets, above its fields")
            }
            _ if self.path.ends_with(']') => format!("write for example {example}"),
            _ => {
                let name = self.path.rsplit('.').next().unwrap_or_default();
                format!("write for example {name} = {example}")
            }
        };
        self.refuse(Fault::new(what, fix), problems);
    }
}

/// A word that is not among the choices.
pub(super) fn unknown_word(word: &str, choices: &[&str]) -> Fault {
    let quoted = choices.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>();
    let list = match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.join(""),
    };
    match nearest(word, choices.iter().copied()) {
        Some(near) => Fault::new("there is no such value", format!("did you mean \"{near}\"?")),
        None => Fault::new("there is no such value", format!("use {list}")),
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name = match !name.is_empty() && name.len() <= 60 && name.chars().all(bare) {
        true => name.to_owned(),
        false => format!("\"{}\"", shorten(name)),
    };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}
