//! Typed access to values of the tree, with errors that say what was expected.

use std::borrow::{Borrow, Cow};
use std::fmt::Display;

use super::error::{Origin, Problems, ValueError};
use super::sources;
use super::table::{Table, TableInfo, nearest, unknown};
use super::tree::{TomlNode, TomlType, shorten};

/// A value, its path for messages, and the list that its errors are added to.
#[derive(Clone, Debug)]
pub(super) struct Value<'t> {
    pub(super) node: &'t TomlNode,
    pub(super) path: String,
    pub(super) problems: &'t Problems<'t>,
}

impl<'t> Value<'t> {
    /// Reads a table, and reports every error in it.
    pub(super) fn table<T: Table>(&self) -> Option<T> {
        let has_its_options = self.check_names(&T::info())?;
        T::read_fields(self).filter(|_| has_its_options)
    }

    /// Reports unknown options, and required ones that are missing. `None` if it is not a table.
    fn check_names(&self, info: &TableInfo) -> Option<bool> {
        let TomlType::Table(entries) = &self.node.kind else {
            return self.wrong_type("a table", info.example);
        };
        let is_unknown = |name: &str| info.names().all(|known| known != name);
        let mut has_unknown = false;
        for entry in entries.iter().filter(|entry| is_unknown(&entry.name)) {
            has_unknown = true;
            let path = self.path_of(&entry.name);
            let rename = |near: &str| sources::rename(&entry.at, &path, near);
            self.problems.add(&entry.at, &path, None, unknown(info, &entry.name, rename));
        }
        let required = info.all().filter(|option| option.is_required).map(|option| option.name);
        let missing = required.filter(|name| self.field(name).is_none()).collect::<Vec<_>>();
        let fix = format!("write for example {}", info.example);
        match entries.is_empty() && !missing.is_empty() {
            // One of the unknown options may be the missing one, misspelt.
            _ if has_unknown => {}
            true => {
                let what = format!("`{}` is missing", missing.join("` and `"));
                self.refuse::<()>(ValueError::new(what, fix));
            }
            false => missing.iter().for_each(|name| {
                let fault = ValueError::new("missing", &*fix);
                self.problems.add(&self.node.at, &self.path_of(name), None, fault);
            }),
        }
        Some(!has_unknown && missing.is_empty())
    }

    /// Reports an error of this value.
    pub(super) fn refuse<T>(&self, fault: ValueError) -> Option<T> {
        let fault = match &self.node.kind {
            TomlType::Text(written) => match self.expanded(written) {
                Ok(Cow::Owned(text)) => fault.about_file_only(&text, written),
                _ => fault,
            },
            _ => fault,
        };
        self.problems.add(&self.node.at, &self.path, self.node.shown(), fault);
        None
    }

    /// The field of a table, if it was written.
    pub(super) fn field(&self, name: &str) -> Option<Self> {
        Some(Self { node: self.node.get(name)?, path: self.path_of(name), ..*self })
    }

    /// The path of a field, written or not.
    pub(super) fn path_of(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// A string; `example` is a valid value as TOML.
    ///
    /// A variable has no quotes to tell `7` from `"7"`, so any plain value of a variable is a
    /// string.
    pub(super) fn text(&self, example: &str) -> Option<Cow<'t, str>> {
        match (&self.node.kind, &self.node.at) {
            (TomlType::Text(text), _) => {
                self.expanded(text).map_or_else(|fault| self.refuse(fault), Some)
            }
            (TomlType::Integer(text, _) | TomlType::Other(_, text), Origin::Env(_)) => {
                Some(text.into())
            }
            (TomlType::Boolean(value), Origin::Env(_)) => Some(value.to_string().into()),
            _ => self.wrong_type("a string", example),
        }
    }

    /// The text with the values of the variables in it. Only the file can name variables.
    fn expanded(&self, text: &'t str) -> Result<Cow<'t, str>, ValueError> {
        match self.node.at {
            Origin::File(_) if text.contains("${") => {
                sources::expanded(text, self.problems).map(Cow::Owned)
            }
            _ => Ok(Cow::Borrowed(text)),
        }
    }

    /// A string that `parse` accepts.
    pub(super) fn parse<T, E: Into<ValueError>>(
        &self,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        parse(&self.text(example)?).map_or_else(|fault| self.refuse(fault.into()), Some)
    }

    /// The elements of a list.
    pub(super) fn list(&self, example: &str) -> Option<Vec<Self>> {
        let TomlType::List(nodes) = &self.node.kind else {
            return self.wrong_type("a list", example);
        };
        let path = |index| format!("{}[{index}]", self.path);
        let element = |(index, node)| Self { node, path: path(index), ..*self };
        Some(nodes.iter().enumerate().map(element).collect())
    }

    /// Reports a value of the wrong type.
    pub(super) fn wrong_type<T>(&self, expected: &str, example: &str) -> Option<T> {
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
        self.refuse(ValueError::new(what, fix))
    }
}

/// Reads a value that is in no file: a default, or the values of a preset.
pub(super) fn read_built_in<T>(
    node: &TomlNode,
    read: impl Fn(&Value<'_>) -> Option<T>,
) -> Option<T> {
    read(&Value { node, path: String::new(), problems: &Problems::new(None, "", &[]) })
}

/// The error for a word that is not among the choices.
pub(super) fn unknown_word(word: &str, choices: &[String]) -> ValueError {
    let words = choices.iter().filter_map(|choice| choice.strip_prefix('"')?.strip_suffix('"'));
    let fix = match nearest(word, words) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("use {}", one_of(choices)),
    };
    ValueError::new("unknown value", fix)
}

/// Choices as a list for a message: `"a", "b" or "c"`.
pub(super) fn one_of<S: Borrow<str> + Display>(choices: &[S]) -> String {
    match choices {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => choices.concat(),
    }
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
