//! TOML as a tree in which every value knows its position.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Origin, Problems, ValueError};

/// Maximum number of characters of a value in a message.
const SHOWN_CHARACTERS_MAX: usize = 60;

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TomlNode {
    pub(super) kind: TomlType,
    pub(super) at: Origin,
}

/// The TOML types that the configuration uses.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TomlType {
    Text(String),
    /// The integer in decimal, and its value if it fits.
    Integer(String, Option<i64>),
    Boolean(bool),
    /// Floats and dates. No field takes them, so they occur only in messages.
    Other(&'static str, String),
    List(Vec<TomlNode>),
    Table(Vec<TomlField>),
}

/// One field of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TomlField {
    pub(super) name: String,
    pub(super) at: Origin,
    pub(super) value: TomlNode,
}

impl TomlNode {
    pub(super) fn text(text: impl Into<String>, at: Origin) -> Self {
        Self::new(TomlType::Text(text.into()), at)
    }

    pub(super) fn table(at: Origin) -> Self {
        Self::new(TomlType::Table(Vec::new()), at)
    }

    fn new(kind: TomlType, at: Origin) -> Self {
        Self { kind, at }
    }

    /// The type of the value, with its article.
    pub(super) fn type_name(&self) -> &'static str {
        match &self.kind {
            TomlType::Text(_) => "a string",
            TomlType::Integer(..) => "an integer",
            TomlType::Boolean(_) => "a boolean",
            TomlType::Other(name, _) => name,
            TomlType::List(_) => "a list",
            TomlType::Table(_) => "a table",
        }
    }

    /// The value for a message: one line, without control characters, not too long.
    pub(super) fn shown(&self) -> Option<String> {
        match &self.kind {
            TomlType::Text(text) => Some(format!("\"{}\"", shorten(text))),
            TomlType::Integer(text, _) | TomlType::Other(_, text) => Some(shorten(text)),
            TomlType::Boolean(value) => Some(value.to_string()),
            TomlType::List(_) | TomlType::Table(_) => None,
        }
    }

    /// Puts `value` at `section.field…` below this root, and creates missing tables.
    ///
    /// A section that is not a table is left unchanged, so that its own error is reported. Deeper,
    /// `tenant.header` replaces `tenant = "public"`.
    pub(super) fn set(&mut self, path: &[String], value: TomlNode) {
        let section = path.first().and_then(|section| self.find(section));
        let is_table = section.is_none_or(|it| matches!(it.value.kind, TomlType::Table(_)));
        if is_table || path.len() == 1 {
            self.put(path, value);
        }
    }

    pub(super) fn put(&mut self, path: &[String], value: TomlNode) {
        let Some((name, rest)) = path.split_first() else {
            *self = value;
            return;
        };
        if !matches!(self.kind, TomlType::Table(_)) {
            self.kind = TomlType::Table(Vec::new());
        }
        let TomlType::Table(entries) = &mut self.kind else { return };
        let at = value.at.clone();
        let known = entries.iter().position(|entry| entry.name == *name && !rest.is_empty());
        let mut entry = match known {
            Some(index) => entries.swap_remove(index),
            None => TomlField { name: name.clone(), at: at.clone(), value: Self::table(at) },
        };
        entries.retain(|other| other.name != *name);
        entry.value.put(rest, value);
        entries.push(entry);
    }

    /// The value at a path such as `route[0].key.from`, if it exists.
    pub(super) fn get(&self, path: &str) -> Option<&Self> {
        let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
        let (name, index) = match first.strip_suffix(']').and_then(|it| it.split_once('[')) {
            Some((name, index)) => (name, Some(index.parse::<usize>().ok()?)),
            None => (first, None),
        };
        let found = &self.find(name)?.value;
        let found = match (&found.kind, index) {
            (TomlType::List(nodes), Some(index)) => nodes.get(index)?,
            (_, Some(_)) => return None,
            (_, None) => found,
        };
        rest.map_or(Some(found), |rest| found.get(rest))
    }

    fn find(&self, name: &str) -> Option<&TomlField> {
        match &self.kind {
            TomlType::Table(entries) => entries.iter().find(|entry| entry.name == name),
            _ => None,
        }
    }

    /// Removes the field at `section.name`, if it exists.
    pub(super) fn remove(&mut self, section: &str, name: &str) {
        let TomlType::Table(sections) = &mut self.kind else { return };
        for section in sections.iter_mut().filter(|entry| entry.name == section) {
            if let TomlType::Table(entries) = &mut section.value.kind {
                entries.retain(|entry| entry.name != name);
            }
        }
    }
}

/// Parses a file. Of syntax errors, only the first one is reported.
pub(super) fn parse(problems: &Problems<'_>) -> TomlNode {
    match DeTable::parse(problems.text.unwrap_or_default()) {
        Ok(table) => {
            let place = |span: Range<usize>| Origin::File(span.start);
            from_table(table.get_ref(), Origin::File(0), &place, 0)
        }
        Err(error) => {
            let at = error.span().map_or(Origin::Absent, |span| Origin::File(span.start));
            // Only the first line: the others may quote a part of the file.
            let message = error.message().lines().next().unwrap_or_default().to_owned();
            let fix = match message.contains("duplicate") {
                true => "the same name appears above: keep one of the two, or merge them",
                false => "check the quotes, brackets and `=` here; strings need quotes",
            };
            problems.add(&at, "", None, ValueError::new(format!("not valid TOML: {message}"), fix));
            TomlNode::table(Origin::Absent)
        }
    }
}

/// Parses a default of a declaration; `None` if it is a sentence for the documentation.
pub(super) fn parse_built_in(text: &str) -> Option<TomlNode> {
    Some(from_value(&DeValue::parse(text).ok()?, &|_| Origin::Absent, 1))
}

/// Parses the value of a variable: as TOML if it is valid TOML, else as the text itself.
pub(super) fn parse_variable(name: &str, text: &str) -> TomlNode {
    let at = || Origin::Env(name.to_owned());
    let Ok(value) = DeValue::parse(text) else {
        return TomlNode::text(text, at());
    };
    let mut node = from_value(&value, &|_| at(), 1);
    if let TomlType::Integer(shown, _) | TomlType::Other(_, shown) = &mut node.kind {
        // Exactly as written, in case the field takes a string.
        text.clone_into(shown);
    }
    node
}

type ValuePosition<'p> = &'p dyn Fn(Range<usize>) -> Origin;

/// Maximum depth that is read. There are no fields below it, and the value above was refused
/// already.
const DEPTH_MAX: usize = 16;

fn from_value(value: &Spanned<DeValue<'_>>, place: ValuePosition<'_>, depth: usize) -> TomlNode {
    let at = place(value.span());
    let kind = match value.get_ref() {
        DeValue::String(text) => TomlType::Text(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix()).ok();
            TomlType::Integer(number.to_string(), parsed)
        }
        DeValue::Boolean(value) => TomlType::Boolean(*value),
        DeValue::Float(number) => TomlType::Other("a float", number.to_string()),
        DeValue::Datetime(date) => TomlType::Other("a date or time", date.to_string()),
        DeValue::Array(_) | DeValue::Table(_) if depth > DEPTH_MAX => TomlType::List(Vec::new()),
        DeValue::Array(list) => {
            TomlType::List(list.iter().map(|value| from_value(value, place, depth + 1)).collect())
        }
        DeValue::Table(table) => return from_table(table, at, place, depth),
    };
    TomlNode::new(kind, at)
}

fn from_table(table: &DeTable<'_>, at: Origin, place: ValuePosition<'_>, depth: usize) -> TomlNode {
    let entries = table.iter().map(|(name, value)| TomlField {
        name: name.get_ref().to_string(),
        at: place(name.span()),
        value: from_value(value, place, depth + 1),
    });
    TomlNode::new(TomlType::Table(entries.collect()), at)
}

/// Escapes a text, so that it cannot control a terminal, and shortens it.
pub(super) fn shorten(text: &str) -> String {
    let escape = |c: char| match c {
        '\'' => c.to_string(),
        _ => c.escape_debug().to_string(),
    };
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS_MAX).map(escape).collect();
    if text.chars().nth(SHOWN_CHARACTERS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
