//! Forms of values. A form reads a value, and knows its JSON Schema and its description in the
//! documentation.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, Uri};
use onetake_http::json::Pointer;

use super::address::{parse_listen, parse_upstream};
use super::error::{Origin, Problems, ValueError};
use super::reader::{Section, Value};
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

type Read<T> = dyn Fn(&Value<'_>, &mut Problems<'_>) -> Option<T>;

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
    pub(super) fn new(
        shape: Shape,
        read: impl Fn(&Value<'_>, &mut Problems<'_>) -> Option<T> + 'static,
    ) -> Self {
        Self { shape, read: Box::new(read), show: Box::new(|_| String::new()) }
    }

    pub(super) fn shown(self, show: impl Fn(&T) -> String + 'static) -> Self {
        Self { show: Box::new(show), ..self }
    }

    /// A further step after reading.
    pub(super) fn then<U: 'static>(
        self,
        step: impl Fn(T, &Value<'_>, &mut Problems<'_>) -> Option<U> + 'static,
    ) -> Form<U> {
        let read = self.read;
        Form::new(self.shape, move |value, problems| step(read(value, problems)?, value, problems))
    }

    pub(super) fn map<U: 'static>(self, map: impl Fn(T) -> U + 'static) -> Form<U> {
        self.then(move |read, _, _| Some(map(read)))
    }

    /// This form, or for tables another one.
    pub(super) fn or_table(self, table: Self) -> Self {
        let shape = Shape::OneOf(vec![self.shape, table.shape]);
        let (plain, table) = (self.read, table.read);
        Self::new(shape, move |value, problems| match value.node.kind {
            TomlType::Table(_) => table(value, problems),
            _ => plain(value, problems),
        })
    }
}

/// A string; `example` is a right value as TOML.
pub(super) fn text<T: 'static>(
    pattern: &'static str,
    example: &'static str,
    parse: impl Fn(&str) -> Result<T, ValueError> + 'static,
) -> Form<T> {
    Form::new(Shape::Text(pattern), move |value, problems| value.parse(example, problems, &parse))
}

/// A string of 1 to 255 characters.
pub(super) fn name(example: &'static str) -> Form<String> {
    text(r"[\s\S]{1,255}", example, |text| match (1..=255).contains(&text.chars().count()) {
        true => Ok(text.to_owned()),
        false => {
            Err(ValueError::new("empty or too long", "write 1 to 255 characters, or remove it"))
        }
    })
}

pub(super) fn boolean() -> Form<bool> {
    let read = |value: &Value<'_>, problems: &mut Problems<'_>| match value.node.kind {
        TomlType::Boolean(value) => Some(value),
        _ => value.wrong_type("true or false, without quotes,", "true", problems),
    };
    Form::new(Shape::Boolean, read).shown(bool::to_string)
}

pub(super) fn integer(min: usize, max: usize) -> Form<usize> {
    let read = move |value: &Value<'_>, problems: &mut Problems<'_>| {
        let TomlType::Integer(_, number) = &value.node.kind else {
            return value.wrong_type("an integer, without quotes,", &min.to_string(), problems);
        };
        let number = number.and_then(|number| usize::try_from(number).ok());
        let fix = format!("write a number from {min} to {max}");
        number
            .filter(|number| (min..=max).contains(number))
            .or_else(|| value.refuse(ValueError::new("out of range", fix), problems))
    };
    Form::new(Shape::Integer(min, max), read).shown(usize::to_string)
}

pub(super) fn duration(
    min: &'static str,
    max: &'static str,
    usual: &'static str,
) -> Form<Duration> {
    let read = move |value: &Value<'_>, problems: &mut Problems<'_>| {
        let example = format!("\"{usual}\"");
        value.parse(&example, problems, |text| units::parse_duration(text, min, max, usual))
    };
    let show = |duration: &Duration| format!("\"{}\"", units::show_duration(*duration));
    Form::new(Shape::Duration(min, max), read).shown(show)
}

/// The size of a body.
pub(super) fn size() -> Form<usize> {
    size_within("1B", "64MiB")
}

/// A size within bounds, both included.
pub(super) fn size_within(min: &'static str, max: &'static str) -> Form<usize> {
    let read = move |value: &Value<'_>, problems: &mut Problems<'_>| {
        let parsed = match &value.node.kind {
            // The number may be written in hexadecimal; one that does not fit is out of bounds.
            TomlType::Integer(text, number) => {
                units::parse_size(&number.map_or(text.clone(), |n| n.to_string()), min, max)
            }
            _ => units::parse_size(value.text("\"1MiB\"", problems)?, min, max),
        };
        parsed.map_or_else(|fault| value.refuse(fault, problems), Some)
    };
    Form::new(Shape::Size(min, max), read)
        .shown(|bytes| format!("\"{}\"", units::show_size(*bytes)))
}

/// One of a few words.
pub(super) fn words<T: Copy + PartialEq + 'static>(words: &'static [(&'static str, T)]) -> Form<T> {
    let all = words.iter().map(|(word, _)| *word).collect::<Vec<_>>();
    let shown = |value: &T| words.iter().find(|(_, other)| other == value).map(|(word, _)| *word);
    Form::new(Shape::Words(all), |value, problems| value.choice(words, problems))
        .shown(move |value| shown(value).map(|word| format!("\"{word}\"")).unwrap_or_default())
}

/// A list; every wrong element is reported.
pub(super) fn list<T: 'static>(
    of: Form<T>,
    (min, max): (usize, usize),
    example: &'static str,
) -> Form<Vec<T>> {
    let (shape, read) = (Shape::List(Box::new(of.shape), min, max), of.read);
    let read = move |value: &Value<'_>, problems: &mut Problems<'_>| {
        let elements = value.list(example, problems)?;
        if !(min..=max).contains(&elements.len()) {
            let fix = format!("write from {min} to {max}, such as {example}");
            return value
                .refuse(ValueError::new(format!("{} elements", elements.len()), fix), problems);
        }
        let read = elements.iter().map(|element| read(element, problems)).collect::<Vec<_>>();
        read.into_iter().collect()
    };
    Form::new(shape, read)
        .shown(|elements: &Vec<T>| if elements.is_empty() { "[]".into() } else { String::new() })
}

pub(super) fn table<T: Table + 'static>() -> Form<T> {
    Form::new(Shape::Table(T::info), |value, problems| {
        let mut section = Section::open(value, &T::info(), problems)?;
        let read = T::read_fields(&mut section, problems);
        // A misspelt name was reported; other messages would only follow from it.
        read.filter(|_| !section.has_faults())
    })
}

/// The name of a file or folder. A relative name in the file is relative to the file's folder.
pub(super) fn file(example: &'static str) -> Form<PathBuf> {
    Form::new(Shape::File, move |value, problems| {
        let path = value.parse(example, problems, |text| match text {
            "" => Err(ValueError::new(
                "the file name is empty",
                format!("write for example {example}"),
            )),
            // The content of a PEM file instead of its name. It may be a key, so no part of it is
            // shown.
            _ if text.contains("-----BEGIN") => {
                let fix = "put the content in a file, and write the name of the file here";
                Err(ValueError::new("not a file name", fix).hiding_value(true))
            }
            _ => Ok(PathBuf::from(text)),
        })?;
        Some(problems.in_folder(&value.node.at, path))
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
        HeaderName::from_bytes(text.as_bytes())
            .map_err(|_| ValueError::new("not a header name", fix))
    })
}

/// A JSON Pointer (RFC 6901), other than the empty one, which names the whole body.
pub(super) fn pointer() -> Form<Pointer> {
    text("/([^~]|~[01])*", "\"/client_reference\"", parse_pointer)
}

pub(super) fn parse_pointer(text: &str) -> Result<Pointer, ValueError> {
    let fix = "write a JSON Pointer, such as \"/order/timestamp\" (`~1` for `/`, `~0` for `~`)";
    match text {
        "" => Err(ValueError::new("the empty pointer names the whole body", fix)),
        _ => Pointer::parse(text).map_err(|error| ValueError::new(error.to_string(), fix)),
    }
}

/// `json:` and a JSON Pointer.
pub(super) fn parse_part(text: &str) -> Result<Pointer, ValueError> {
    let fix = "write json: and a JSON Pointer, such as \"json:/order_id\"";
    let pointer =
        text.strip_prefix("json:").ok_or(ValueError::new("not a value of the request", fix))?;
    parse_pointer(pointer)
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
    let shape = Shape::OneOf(vec![Shape::Text(pattern), Shape::Table(Elsewhere::one)]);
    Form::new(Shape::Secret(Box::new(shape)), move |value, problems| {
        let found = match value.node.kind {
            TomlType::Table(_) => {
                let mut section = Section::open(value, &Elsewhere::info(), problems)?;
                let Elsewhere { env, file } = Elsewhere::read_fields(&mut section, problems)?;
                elsewhere(value, &section, env, file, problems)?
            }
            // Digits alone parse as a number. No part of them is shown.
            TomlType::Integer(ref text, _) => {
                (text.clone(), value.path.clone(), value.node.at.clone())
            }
            _ => {
                let text = value.text("{ env = \"NAME\" }", problems)?;
                (text.to_owned(), value.path.clone(), value.node.at.clone())
            }
        };
        let (text, path, at) = found;
        let refuse = |fault: ValueError| problems.add(&at, &path, None, fault.hiding_value(true));
        parse(text.trim()).map_err(refuse).ok()
    })
}

impl Elsewhere {
    /// The table, of which exactly one field must be written.
    fn one() -> TableInfo {
        let one = serde_json::json!({ "minProperties": 1, "maxProperties": 1 });
        TableInfo { extra: one, ..Self::info() }
    }
}

/// Returns the text in a variable or a file, and its position for messages.
pub(super) fn elsewhere(
    value: &Value<'_>,
    section: &Section<'_>,
    env: Option<String>,
    file: Option<PathBuf>,
    problems: &mut Problems<'_>,
) -> Option<(String, String, Origin)> {
    let (field, text) = match (env, file) {
        (Some(name), None) => (section.get("env")?, problems.variable(&name)),
        (None, Some(file)) => (section.get("file")?, read_file(&file)),
        _ if section.has_faults() => return None,
        _ => {
            let fix = "write the value itself, { env = \"NAME\" } or { file = \"…\" }";
            return value.refuse(ValueError::new("not exactly one value", fix), problems);
        }
    };
    let found = text.map_err(|fault| field.refuse::<()>(fault, problems)).ok()?;
    Some((found, field.path.clone(), field.node.at.clone()))
}

/// Maximum size of a file with a secret, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

fn read_file(name: &Path) -> Result<String, ValueError> {
    let fix = "name a file that this process can read and that contains only the value";
    let unreadable = |error| ValueError::new(format!("the file cannot be read: {error}"), fix);
    let about = std::fs::metadata(name).map_err(unreadable)?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        return Err(ValueError::new(
            format!("not a regular file of at most {FILE_BYTES_MAX} bytes"),
            fix,
        ));
    }
    std::fs::read_to_string(name).map_err(unreadable)
}

/// The value itself, or `{ env = "NAME" }`: for URLs, which may hold a password.
pub(super) fn or_variable<T: 'static>(plain: Form<T>) -> Form<T> {
    let shape = Shape::OneOf(vec![plain.shape, Shape::Table(Variable::info)]);
    let read = plain.read;
    Form::new(shape, move |value, problems| {
        if !matches!(value.node.kind, TomlType::Table(_)) {
            return read(value, problems);
        }
        let mut section = Section::open(value, &Variable::info(), problems)?;
        let Variable { env } = Variable::read_fields(&mut section, problems)?;
        let field = section.get("env")?;
        let text = problems.variable(&env).map_err(|fault| field.refuse::<()>(fault, problems));
        let node = TomlNode::text(text.ok()?, Origin::Env(env));
        read(&Value { node: &node, path: value.path.clone() }, problems)
    })
}

/// A table, or the value of one of its options alone.
pub(super) fn shorthand<T: 'static, U: 'static>(
    alone: Form<T>,
    option: &'static str,
    table: Form<U>,
) -> Form<U> {
    let shape = Shape::OneOf(vec![alone.shape, table.shape]);
    let (alone, table) = (alone.read, table.read);
    Form::new(shape, move |value, problems| {
        if matches!(value.node.kind, TomlType::Table(_)) {
            return table(value, problems);
        }
        alone(value, problems)?;
        let at = value.node.at.clone();
        let mut node = TomlNode::table(at);
        node.set(&[option.to_owned()], value.node.clone());
        table(&Value { node: &node, path: value.path.clone() }, problems)
    })
}
