//! `key`: where the key comes from, and what it has to look like.

use onetake_http::json::Pointer;
use onetake_http::{KeyFormat, KeySource};

use super::error::{Fault, Origin, Problems};
use super::fields;
use super::fingerprint::parse_pointer;
use super::layer::Located;
use super::reader::{Section, Value};

/// The longest key that is accepted anywhere, and so the most that can be asked for.
pub(super) const LENGTH_MAX: usize = 255;
/// The most parts that a key is derived from.
pub(super) const PARTS_MAX: usize = 16;

/// The words of `key.from`.
pub(super) const SOURCES: [(&str, From); 4] = [
    ("header", From::Header),
    ("json", From::Json),
    ("derive", From::Derive),
    ("issued", From::Issued),
];
/// The words of `key.format`.
pub(super) const FORMATS: [(&str, KeyFormat); 2] =
    [("any", KeyFormat::Any), ("uuid", KeyFormat::Uuid)];

/// What one place says about keys.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyLayer {
    pub(super) source: Option<Located<KeySource>>,
    pub(super) required: Option<bool>,
    pub(super) format: Option<KeyFormat>,
    pub(super) min_length: Option<usize>,
}

/// The word in `from`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Header,
    Json,
    Derive,
    Issued,
}

pub(super) fn read(value: &Value<'_>, problems: &mut Problems<'_>) -> KeyLayer {
    let example = "{ from = \"header\", required = true }";
    let Some(table) = Section::open(value, &fields::KEY, example, problems) else {
        return KeyLayer::default();
    };
    KeyLayer {
        source: read_source(&table, problems),
        required: table.get("required").and_then(|value| value.boolean(problems)),
        format: table.get("format").and_then(|value| value.choice(&FORMATS, problems)),
        min_length: table
            .get("min_length")
            .and_then(|value| value.integer((1, LENGTH_MAX), problems)),
    }
}

fn read_source(table: &Section<'_>, problems: &mut Problems<'_>) -> Option<Located<KeySource>> {
    let word = table.get("from");
    let from = match &word {
        Some(value) => Some(value.choice(&SOURCES, problems)?),
        None => None,
    };
    // What belongs to another source was written for a reason, and would be without effect.
    let foreign = [
        ("pointer", "json", from == Some(From::Json)),
        ("parts", "derive", from == Some(From::Derive)),
        ("format", "header", matches!(from, None | Some(From::Header))),
        ("min_length", "header", matches!(from, None | Some(From::Header))),
    ];
    for (name, owner, belongs) in foreign {
        if let Some(value) = table.get(name).filter(|_| !belongs) {
            let fix = format!("write from = \"{owner}\", or leave it out");
            let what = format!("it is for keys with from = \"{owner}\"");
            value.refuse(Fault::new(what, fix), problems);
        }
    }
    let word = word?;
    let source = match from? {
        From::Header => KeySource::Header,
        From::Issued => KeySource::Issued,
        From::Json => {
            let pointer = needed(table, &word, "pointer", "\"/client_reference\"", problems)?;
            KeySource::Json(pointer.parse("\"/client_reference\"", problems, to_pointer)?)
        }
        From::Derive => {
            let example = "[\"json:/merchant_id\", \"json:/order_id\"]";
            let parts = needed(table, &word, "parts", example, problems)?;
            KeySource::Derive(read_parts(&parts, example, problems)?)
        }
    };
    Some(Located { value: source, at: word.node.at.clone() })
}

/// A field that the source cannot do without.
fn needed<'t>(
    table: &Section<'t>,
    from: &Value<'_>,
    name: &str,
    example: &str,
    problems: &mut Problems<'_>,
) -> Option<Value<'t>> {
    let found = table.get(name);
    if found.is_none() {
        let fix = format!("write for example {name} = {example}");
        from.refuse(Fault::new(format!("`{name}` is missing"), fix), problems);
    }
    found
}

fn read_parts(
    value: &Value<'_>,
    example: &str,
    problems: &mut Problems<'_>,
) -> Option<Vec<Pointer>> {
    let elements = value.list(example, problems)?;
    if elements.is_empty() || elements.len() > PARTS_MAX {
        let fix = format!("name from 1 to {PARTS_MAX} parts, such as {example}");
        value.refuse(Fault::new(format!("{} parts", elements.len()), fix), problems);
        return None;
    }
    let parts =
        elements.iter().map(|element| element.parse("\"json:/order_id\"", problems, parse_part));
    let parts = parts.collect::<Vec<_>>();
    parts.into_iter().collect()
}

/// `json:` and a pointer.
pub(super) fn parse_part(text: &str) -> Result<Pointer, Fault> {
    let Some(pointer) = text.strip_prefix("json:") else {
        let fix = "write json: and a JSON Pointer, such as \"json:/order_id\"";
        return Err(Fault::new("not a part of a request", fix));
    };
    to_pointer(pointer)
}

fn to_pointer(text: &str) -> Result<Pointer, Fault> {
    let text = parse_pointer(text)?;
    let fix = "write a JSON Pointer, such as \"/client_reference\"";
    Pointer::parse(&text).map_err(|error| Fault::new(error.to_string(), fix))
}

/// Where a tenant has to be named: keys that people choose can be guessed.
pub(super) fn is_guessable(source: &KeySource) -> bool {
    matches!(source, KeySource::Json(_) | KeySource::Derive(_))
}

/// Where the source was written.
pub(super) fn origin(layer: &KeyLayer) -> Origin {
    layer.source.as_ref().map_or(Origin::Absent, |source| source.at.clone())
}
