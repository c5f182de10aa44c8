//! Typed access to fields of the tree, with errors that say what was expected.

use super::error::{Origin, Problems, ValueError};
use super::sources;
use super::table::{Table as _, TableInfo, nearest, unknown};
use super::tree::{TomlField, TomlNode, TomlType, shorten};

/// A value with its path for messages.
#[derive(Clone, Debug)]
pub(super) struct Value<'t> {
    pub(super) node: &'t TomlNode,
    pub(super) path: String,
}

/// A table whose field names have been checked.
#[derive(Debug)]
pub(super) struct Section<'t> {
    entries: &'t [TomlField],
    value: Value<'t>,
    has_faults: bool,
    missing: Vec<&'static str>,
}

impl<'t> Section<'t> {
    /// Opens a table. Every unknown field is an error.
    pub(super) fn open(
        value: &Value<'t>,
        info: &TableInfo,
        problems: &mut Problems<'_>,
    ) -> Option<Self> {
        let TomlType::Table(entries) = &value.node.kind else {
            return value.wrong_type("a table", info.example, problems);
        };
        let mut has_faults = false;
        for entry in entries {
            if info.names().any(|name| name == entry.name) {
                continue;
            }
            has_faults = true;
            let path = join(&value.path, &entry.name);
            let rename = |near: &str| sources::rename(&entry.at, &path, near);
            let fault = unknown(info, &entry.name, rename, &super::File::info());
            problems.add(&entry.at, &path, None, fault);
        }
        Some(Self { entries, value: value.clone(), has_faults, missing: Vec::new() })
    }

    /// The field with this name, if it was written.
    pub(super) fn get(&self, name: &str) -> Option<Value<'t>> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        Some(Value { node: &entry.value, path: join(&self.value.path, name) })
    }

    /// True if the table has an unknown field.
    pub(super) fn has_faults(&self) -> bool {
        self.has_faults
    }

    /// Notes that a required field is missing.
    pub(super) fn miss(&mut self, name: &'static str) {
        self.missing.push(name);
    }

    /// Reports missing required fields. If there is an unknown field, nothing is reported: it may
    /// be a misspelt one of them, and was reported already.
    pub(super) fn report_missing(&self, example: &str, problems: &mut Problems<'_>) {
        if self.has_faults {
            return;
        }
        let fix = format!("write for example {example}");
        if self.entries.is_empty() && !self.missing.is_empty() {
            let what = format!("`{}` is missing", self.missing.join("` and `"));
            self.value.refuse::<()>(ValueError::new(what, fix), problems);
            return;
        }
        for name in &self.missing {
            let fault = ValueError::new("missing", fix.clone());
            problems.add(&self.value.node.at, &join(&self.value.path, name), None, fault);
        }
    }
}

impl<'t> Value<'t> {
    /// Reports an error of this value.
    pub(super) fn refuse<T>(&self, fault: ValueError, problems: &mut Problems<'_>) -> Option<T> {
        let fault = match (&self.node.kind, &self.node.written) {
            (TomlType::Text(text), Some(written)) => fault.about_file_only(text, written),
            _ => fault,
        };
        problems.add(&self.node.at, &self.path, self.node.shown(), fault);
        None
    }

    /// The field of a table, if it was written.
    pub(super) fn field(&self, name: &str) -> Option<Self> {
        Some(Self { node: self.node.get(name)?, path: join(&self.path, name) })
    }

    /// The path of a field, written or not.
    pub(super) fn path_of(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// True if it is a table without fields.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.node.kind, TomlType::Table(entries) if entries.is_empty())
    }

    /// A string; `example` is a valid value as TOML.
    ///
    /// A variable has no quotes to tell `7` from `"7"`, so any plain value of a variable is a
    /// string.
    pub(super) fn text(&self, example: &str, problems: &mut Problems<'_>) -> Option<&'t str> {
        match (&self.node.kind, &self.node.at) {
            (TomlType::Text(text), _) => Some(text),
            (TomlType::Integer(text, _) | TomlType::Other(_, text), Origin::Env(_)) => Some(text),
            (TomlType::Boolean(true), Origin::Env(_)) => Some("true"),
            (TomlType::Boolean(false), Origin::Env(_)) => Some("false"),
            _ => self.wrong_type("a string", example, problems),
        }
    }

    /// A string that `parse` accepts.
    pub(super) fn parse<T>(
        &self,
        example: &str,
        problems: &mut Problems<'_>,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let text = self.text(example, problems)?;
        parse(text).map_or_else(|fault| self.refuse(fault, problems), Some)
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
        let words = choices.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        found.map_or_else(|| self.refuse(unknown_word(text, &words), problems), |(_, it)| Some(*it))
    }

    /// The elements of a list.
    pub(super) fn list(
        &self,
        example: &str,
        problems: &mut Problems<'_>,
    ) -> Option<Vec<Value<'t>>> {
        let TomlType::List(nodes) = &self.node.kind else {
            return self.wrong_type("a list", example, problems);
        };
        let element = |(index, node)| Value { node, path: format!("{}[{index}]", self.path) };
        Some(nodes.iter().enumerate().map(element).collect())
    }

    /// Reports a value of the wrong type.
    pub(super) fn wrong_type<T>(
        &self,
        expected: &str,
        example: &str,
        problems: &mut Problems<'_>,
    ) -> Option<T> {
        let what = format!("expected {expected} but found {}", self.node.type_name());
        let fix = match &self.node.at {
            Origin::Env(name) => format!("write for example {name}='{example}'"),
            _ if example.starts_with('[') && self.path == example.trim_matches(['[', ']']) => {
                format!("write the section header {example} above its fields")
            }
            _ if self.path.ends_with(']') => format!("write for example {example}"),
            _ => {
                let name = self.path.rsplit('.').next().unwrap_or_default();
                format!("write for example {name} = {example}")
            }
        };
        self.refuse(ValueError::new(what, fix), problems)
    }
}

/// The error for a word that is not among the choices.
pub(super) fn unknown_word(word: &str, choices: &[&str]) -> ValueError {
    let quoted = choices.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>();
    let list = match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.join(""),
    };
    let fix = match nearest(word, choices.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("use {list}"),
    };
    ValueError::new("unknown value", fix)
}

/// The path of a field.
pub(super) fn join(path: &str, name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name = match !name.is_empty() && name.len() <= 60 && name.chars().all(bare) {
        true => name.to_owned(),
        false => format!("\"{}\"", shorten(name)),
    };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}
