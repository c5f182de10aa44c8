//! Forms of values. A form reads a value, and knows its JSON Schema and its description in the
//! documentation.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, Uri};
use onetake_http::json::Pointer;

use super::address::{parse_listen, parse_upstream};
use super::error::{Origin, ValueError};
use super::reader::{Value, unknown_word};
use super::table::{Table, TableInfo, table};
use super::tree::{TomlNode, TomlType};
use super::units;

/// A form of values.
pub(super) struct Form<T> {
    pub(super) shape: Shape,
    pub(super) read: Box<Read<T>>,
    /// A value as TOML.
    pub(super) show: Box<dyn Fn(&T) -> String>,
}

type Read<T> = dyn Fn(&Value<'_>) -> Option<T>;

/// The part of a form that schemas and documentation are made from.
#[derive(Clone)]
pub(super) enum Shape {
    Boolean,
    /// An integer within bounds, both included.
    Integer(usize, usize),
    /// A duration within bounds, both included.
    Duration(&'static str, &'static str),
    /// A size within bounds, both included, with a unit or in bytes.
    Size(&'static str, &'static str),
    /// A string that matches a regular expression from its first to its last character. A pattern
    /// never refuses a string that the form accepts. It has no look-around, which not every
    /// validator has.
    Text(&'static str),
    /// The name of a file or folder.
    File,
    Words(Vec<&'static str>),
    /// A list, with its minimum and maximum number of elements.
    List(Box<Self>, usize, usize),
    /// Names of headers, and a value for each.
    Headers(Box<Self>, usize),
    Table(fn() -> TableInfo),
    OneOf(Vec<Self>),
    /// A value that is never shown.
    Secret(Box<Self>),
}

impl<T: 'static> Form<T> {
    pub(super) fn new(shape: Shape, read: impl Fn(&Value<'_>) -> Option<T> + 'static) -> Self {
        Self { shape, read: Box::new(read), show: Box::new(|_| String::new()) }
    }

    pub(super) fn shown(self, show: impl Fn(&T) -> String + 'static) -> Self {
        Self { show: Box::new(show), ..self }
    }

    /// A further step after reading.
    pub(super) fn then<U: 'static>(
        self,
        step: impl Fn(T, &Value<'_>) -> Option<U> + 'static,
    ) -> Form<U> {
        let read = self.read;
        Form::new(self.shape, move |value| step(read(value)?, value))
    }

    pub(super) fn map<U: 'static>(self, map: impl Fn(T) -> U + 'static) -> Form<U> {
        self.then(move |read, _| Some(map(read)))
    }

    /// This form, or another one for tables or lists.
    pub(super) fn or_else(self, other: Self) -> Self {
        let shapes = match self.shape {
            Shape::OneOf(shapes) => shapes,
            shape => vec![shape],
        };
        let is_table = matches!(other.shape, Shape::Table(_));
        let shape = Shape::OneOf(shapes.into_iter().chain([other.shape]).collect());
        let (read, other) = (self.read, other.read);
        Self::new(shape, move |value| match value.node.kind {
            TomlType::Table(_) if is_table => other(value),
            TomlType::List(_) if !is_table => other(value),
            _ => read(value),
        })
    }

    /// A form whose values are never shown.
    pub(super) fn hidden(self) -> Self {
        Self { shape: Shape::Secret(Box::new(self.shape)), ..self }
    }
}

/// A string; `example` is a right value as TOML.
pub(super) fn text<T: 'static, E: Into<ValueError>>(
    pattern: &'static str,
    example: &'static str,
    parse: impl Fn(&str) -> Result<T, E> + 'static,
) -> Form<T> {
    Form::new(Shape::Text(pattern), move |value| value.parse(example, &parse))
}

/// A string that is used as it is written, if `is_right`. The error is `what`, and then `fix`.
pub(super) fn plain(
    pattern: &'static str,
    example: &'static str,
    is_right: impl Fn(&str) -> bool + 'static,
    (what, fix): (&'static str, &'static str),
) -> Form<String> {
    text(pattern, example, move |text| match is_right(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::new(what, fix)),
    })
}

/// A string of 1 to 255 characters.
pub(super) fn name(example: &'static str) -> Form<String> {
    let fault = ("empty or too long", "write 1 to 255 characters, or remove it");
    plain(r"[\s\S]{1,255}", example, |text| (1..=255).contains(&text.chars().count()), fault)
}

pub(super) fn boolean() -> Form<bool> {
    let read = |value: &Value<'_>| match value.node.kind {
        TomlType::Boolean(value) => Some(value),
        _ => value.wrong_type("true or false, without quotes,", "true"),
    };
    Form::new(Shape::Boolean, read).shown(bool::to_string)
}

pub(super) fn integer(min: usize, max: usize) -> Form<usize> {
    let read = move |value: &Value<'_>| {
        let TomlType::Integer(_, number) = &value.node.kind else {
            return value.wrong_type("an integer, without quotes,", &min.to_string());
        };
        let number = number.and_then(|number| usize::try_from(number).ok());
        let fix = format!("write a number from {min} to {max}");
        let number = number.filter(|number| (min..=max).contains(number));
        number.or_else(|| value.refuse(ValueError::new("out of range", fix)))
    };
    Form::new(Shape::Integer(min, max), read).shown(usize::to_string)
}

pub(super) fn duration(
    min: &'static str,
    max: &'static str,
    usual: &'static str,
) -> Form<Duration> {
    let read = move |value: &Value<'_>| {
        let example = format!("\"{usual}\"");
        value.parse(&example, |text| units::parse_duration(text, min, max, usual))
    };
    let show = |duration: &Duration| format!("\"{}\"", units::show_duration(*duration));
    Form::new(Shape::Duration(min, max), read).shown(show)
}

/// A size within bounds, both included.
pub(super) fn size(min: &'static str, max: &'static str) -> Form<usize> {
    let read = move |value: &Value<'_>| {
        let parsed = match &value.node.kind {
            // The number may be written in hexadecimal; one that does not fit is out of bounds.
            TomlType::Integer(text, number) => {
                units::parse_size(&number.map_or(text.clone(), |n| n.to_string()), min, max)
            }
            _ => units::parse_size(&value.text("\"1MiB\"")?, min, max),
        };
        parsed.map_or_else(|fault| value.refuse(fault), Some)
    };
    Form::new(Shape::Size(min, max), read)
        .shown(|bytes| format!("\"{}\"", units::show_size(*bytes)))
}

/// One of a few words.
pub(super) fn words<T: Clone + PartialEq + 'static, const N: usize>(
    words: [(&'static str, T); N],
) -> Form<T> {
    words_or(words, &[])
}

/// One of a few words. Messages also name `others`, the values that another form reads.
pub(super) fn words_or<T: Clone + PartialEq + 'static, const N: usize>(
    words: [(&'static str, T); N],
    others: &[&str],
) -> Form<T> {
    let all = words.iter().map(|(word, _)| *word).collect::<Vec<_>>();
    let quoted = all.iter().map(|word| format!("\"{word}\""));
    let choices = quoted.chain(others.iter().map(ToString::to_string)).collect::<Vec<_>>();
    let names = words.clone();
    let read = move |value: &Value<'_>| {
        let text = value.text(choices.first()?)?;
        let found = words.iter().find(|(word, _)| *word == text);
        found
            .map_or_else(|| value.refuse(unknown_word(&text, &choices)), |(_, it)| Some(it.clone()))
    };
    Form::new(Shape::Words(all), read).shown(move |value| {
        let name = names.iter().find(|(_, known)| known == value);
        name.map(|(word, _)| format!("\"{word}\"")).unwrap_or_default()
    })
}

/// A list; every wrong element is reported.
pub(super) fn list<T: 'static>(
    of: Form<T>,
    (min, max): (usize, usize),
    example: &'static str,
) -> Form<Vec<T>> {
    let (shape, read) = (Shape::List(Box::new(of.shape), min, max), of.read);
    let read = move |value: &Value<'_>| {
        let elements = value.list(example)?;
        if !(min..=max).contains(&elements.len()) {
            let fix = format!("write from {min} to {max}, such as {example}");
            return value.refuse(ValueError::new(format!("{} elements", elements.len()), fix));
        }
        elements.iter().map(&read).collect::<Vec<_>>().into_iter().collect()
    };
    Form::new(shape, read)
        .shown(|elements: &Vec<T>| if elements.is_empty() { "[]".into() } else { String::new() })
}

pub(super) fn table<T: Table + 'static>() -> Form<T> {
    Form::new(Shape::Table(T::info), |value| value.table())
}

/// The name of a file or folder. A relative name in the file is relative to the file's folder.
pub(super) fn file(example: &'static str) -> Form<PathBuf> {
    Form::new(Shape::File, move |value| {
        let fault = match &*value.text(example)? {
            "" => ValueError::new("the file name is empty", format!("write for example {example}")),
            // The content of a PEM file instead of its name. It may be a key, so no part of it is
            // shown.
            text if text.contains("-----BEGIN") => {
                let fix = "put the content in a file, and write the name of the file here";
                ValueError::new("not a file name", fix).hiding_value(true)
            }
            text => return Some(value.in_folder(text.into())),
        };
        value.refuse(fault)
    })
}

pub(super) fn listen() -> Form<SocketAddr> {
    const LISTEN: &str =
        r"([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[0-9]+)?\]):[0-9]+";
    text(LISTEN, "\"127.0.0.1:8080\"", parse_listen)
}

pub(super) fn upstream() -> Form<Uri> {
    let pattern = r"(https?|h2c)://(\[[^/?#@\[\]\s]+\]|[^/?#@:\[\]\s]+)(:[0-9]+)?(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?";
    text(pattern, "\"http://127.0.0.1:3000\"", parse_upstream)
}

pub(super) fn header_name(example: &'static str) -> Form<HeaderName> {
    text("[!#$%&'*+.^_`|~0-9A-Za-z-]+", example, move |text| {
        let fix = format!("write for example {example}");
        text.parse().map_err(|_| ValueError::new("not a header name", fix))
    })
}

/// A JSON Pointer (RFC 6901), other than the empty one, which names the whole body.
pub(super) fn pointer() -> Form<Pointer> {
    text("/([^~]|~[01])*", "\"/client_reference\"", |text| {
        let fix = "write a JSON Pointer, such as \"/order/timestamp\" (`~1` for `/`, `~0` for `~`)";
        match text {
            "" => Err(ValueError::new("the empty pointer names the whole body", fix)),
            _ => Pointer::parse(text).map_err(|error| ValueError::new(error.to_string(), fix)),
        }
    })
}

table! {
    /// A value outside the file.
    struct Elsewhere [Debug] ("a value outside the file", "{ env = \"NAME\" }") {
        /// The environment variable that holds the value.
        env: Option<String> = name("\"NAME\"").optional(),
        /// The file that holds the value and nothing else.
        file: Option<PathBuf> = file("\"/run/secrets/onetake\"").optional(),
    }
}

table! {
    /// A value in an environment variable.
    struct Variable [Debug] ("a value from the environment", "{ env = \"NAME\" }") {
        /// The environment variable that holds the value.
        env: String = name("\"NAME\"").required(),
    }
}

/// A secret: the text itself, `{ env = "NAME" }` or `{ file = "…" }`. No message repeats a part of
/// it.
pub(super) fn secret<T: 'static>(
    pattern: &'static str,
    parse: impl Fn(&str) -> Result<T, ValueError> + 'static,
) -> Form<T> {
    let exactly_one = || {
        let extra = serde_json::json!({ "minProperties": 1, "maxProperties": 1 });
        TableInfo { extra, ..Elsewhere::info() }
    };
    let shape = Shape::OneOf(vec![Shape::Text(pattern), Shape::Table(exactly_one)]);
    let read = move |value: &Value<'_>| {
        let (text, field) = match &value.node.kind {
            TomlType::Table(_) => {
                let Elsewhere { env, file } = value.table()?;
                value.elsewhere(env, file)?
            }
            // Digits alone parse as a number. No part of them is shown.
            TomlType::Integer(text, _) => (text.clone(), value.clone()),
            _ => (value.text("{ env = \"NAME\" }")?.into_owned(), value.clone()),
        };
        let fault = match parse(text.trim()) {
            Ok(parsed) => return Some(parsed),
            Err(fault) => fault.hiding_value(true),
        };
        field.problems.add(&field.node.at, &field.path, None, fault);
        None
    };
    Form::new(shape, read).hidden()
}

/// Maximum size of a file with a secret, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

impl Value<'_> {
    /// Returns the text in the variable or the file that a table names, and the field that names it.
    pub(super) fn elsewhere(
        &self,
        env: Option<String>,
        file: Option<PathBuf>,
    ) -> Option<(String, Self)> {
        let (field, text) = match (env, file) {
            (Some(name), None) => (self.field("env")?, self.problems.variable(&name)),
            (None, Some(file)) => (self.field("file")?, read_file(&file)),
            _ => {
                let fix = "write the value itself, { env = \"NAME\" } or { file = \"…\" }";
                return self.refuse(ValueError::new("not exactly one value", fix));
            }
        };
        let text = text.map_or_else(|fault| field.refuse(fault), Some)?;
        Some((text, field))
    }

    /// Resolves a path. A path from the file is relative to the file's folder.
    pub(super) fn in_folder(&self, path: PathBuf) -> PathBuf {
        match self.node.at {
            Origin::File(_) => self.problems.folder().join(path),
            _ => path,
        }
    }
}

fn read_file(name: &Path) -> Result<String, ValueError> {
    let fix = "name a file that this process can read and that contains only the value";
    let unreadable = |error| ValueError::new(format!("the file cannot be read: {error}"), fix);
    let about = std::fs::metadata(name).map_err(unreadable)?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        let what = format!("not a regular file of at most {FILE_BYTES_MAX} bytes");
        return Err(ValueError::new(what, fix));
    }
    std::fs::read_to_string(name).map_err(unreadable)
}

/// The value itself, or `{ env = "NAME" }`: for URLs, which may hold a password.
pub(super) fn or_variable<T: 'static>(itself: Form<T>) -> Form<T> {
    let shape = Shape::OneOf(vec![itself.shape, Shape::Table(Variable::info)]);
    let read = itself.read;
    Form::new(shape, move |value| {
        if !matches!(value.node.kind, TomlType::Table(_)) {
            return read(value);
        }
        let Variable { env } = value.table()?;
        let (text, _) = value.elsewhere(Some(env.clone()), None)?;
        let node = TomlNode::text(text, Origin::Env(env));
        read(&Value { node: &node, ..value.clone() })
    })
}

/// A table, or the value of one of its options alone.
pub(super) fn shorthand<T: 'static, U: Table + 'static>(
    alone: Form<T>,
    option: &'static str,
) -> Form<U> {
    let read = alone.read;
    let alone = Form::new(alone.shape, move |value| {
        read(value)?;
        let mut node = TomlNode::table(value.node.at.clone());
        node.set(&[option.to_owned()], value.node.clone());
        Value { node: &node, ..value.clone() }.table()
    });
    alone.or_else(table())
}
