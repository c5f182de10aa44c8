//! `key`: the source of keys, and their format.

use onetake_http::grpc::{DescriptorSet, MessageField, Schema};
use onetake_http::json::Pointer;
use onetake_http::{KeyFormat, KeySource, Policy, RequestValue};
use serde_json::{Map, Value as Json, json};

use super::error::ValueError;
use super::form::{Form, boolean, integer, list, plain, pointer, table, text, words};
use super::reader::{Value, one_of};
use super::table::{Layered, extend, table};

/// A source of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    /// The value of `from`.
    word: &'static str,
    /// The options that belong to it.
    options: &'static [&'static str],
    /// The option that it needs, as TOML. Empty if it needs none.
    needs: &'static str,
}

const SOURCES: [Source; 7] = [
    Source { word: "header", options: &["name", "format", "min_length"], needs: "" },
    Source { word: "path", options: &["name"], needs: "name = \"id\"" },
    Source { word: "query", options: &["name"], needs: "name = \"order\"" },
    Source { word: "json", options: &["pointer"], needs: "pointer = \"/client_reference\"" },
    Source { word: "derive", options: &["parts"], needs: "parts = [\"json:/order_id\"]" },
    Source { word: "issued", options: &[], needs: "" },
    Source { word: "grpc", options: &["field", "field_number"], needs: "field = \"request_id\"" },
];

/// The options that belong to some of the sources.
const OWNED: [&str; 7] =
    ["name", "pointer", "parts", "field", "field_number", "format", "min_length"];

/// The options that belong to the usual source, if `from` is not written.
const USUAL: &[&str] = &["format", "min_length"];

/// The schema of the rules between `from` and the other options.
fn rules() -> Json {
    let without = |options: &[&str]| {
        let foreign = OWNED.iter().filter(|name| !options.contains(name));
        foreign.map(|name| ((*name).to_owned(), json!(false))).collect::<Map<_, _>>()
    };
    let mut usual = without(USUAL);
    usual.insert("from".to_owned(), json!(false));
    let of = |source: Source| {
        let mut properties = without(source.options);
        properties.insert("from".to_owned(), json!({ "const": source.word }));
        if source.word == "header" {
            properties.insert("name".to_owned(), json!({ "pattern": HEADER }));
        }
        let mut rule = json!({ "properties": properties, "required": ["from"] });
        if !source.needs.is_empty() {
            let needs = source.options.iter().map(|name| json!({ "required": [name] }));
            extend(&mut rule, json!({ "oneOf": needs.collect::<Vec<_>>() }));
        }
        rule
    };
    let variable =
        json!({ "properties": { "from": { "pattern": r"\$\{" } }, "required": ["from"] });
    let all = [json!({ "properties": usual })].into_iter().chain(SOURCES.map(of));
    json!({ "oneOf": all.chain([variable]).collect::<Vec<_>>() })
}

/// The name of a header, or a text with a variable.
const HEADER: &str = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$|\$\{";

table! {
    /// `key`, as it is written.
    struct KeyFields [Debug] ("key", "{ from = \"header\", required = true }", rules()) {
        /// The source of the key: a header, a parameter of the path or of the query, a value in the
        /// JSON body, a digest of such values, a key that the gateway issued, or a field of the
        /// message of a gRPC call.
        from: Option<Source> = words(SOURCES.map(|source| (source.word, source))).optional().else_says("\"header\""),
        /// The name of the header, or of the path or query parameter, for `from = "header"`, `"path"` and `"query"`.
        name: Option<String> =
            plain(r"[\s\S]{1,255}", "\"X-GitHub-Delivery\"", RequestValue::is_name, (
                "not the name of a header or of a parameter",
                "write 1 to 255 bytes without control characters",
            )).optional().else_says("`Idempotency-Key`, or its alias, for a header; else required"),
        /// Whether a request without a key is refused.
        required: Option<bool> = boolean().optional()
            .else_says("`false` for `Idempotency-Key`, except for `payment` and `high-consequence`; else `true`"),
        /// The format of a key from a header.
        format: Option<KeyFormat> = words([("any", KeyFormat::Any), ("uuid", KeyFormat::Uuid)])
            .optional().else_says("\"any\""),
        /// The shortest key from a header, in characters.
        min_length: Option<usize> = integer(1, 255).optional().else_says("16 for `Idempotency-Key`, 1 for another header"),
        /// The key in the JSON body, as a JSON Pointer, for `from = "json"`.
        pointer: Option<Pointer> = pointer().optional(),
        /// The values that name the operation, such as `"header:X-Shop"`, `"path:id"`, `"query:page"` or
        /// `"json:/order_id"`, for `from = "derive"`.
        parts: Option<Vec<RequestValue>> =
            list(text(PART, "\"json:/order_id\"", str::parse), (1, 16), "[\"json:/merchant_id\", \"json:/order_id\"]").optional(),
        /// The field of the message, such as `"request_id"` or `"header.request_id"`, for
        /// `from = "grpc"`. It needs `descriptor_set`.
        field: Option<String> = plain(FIELD, "\"request_id\"", is_field, (
            "not the name of a field",
            "write for example \"request_id\", or \"header.request_id\" for a field inside a field",
        )).optional(),
        /// The number of the field at the top of the message, for `from = "grpc"` without a
        /// descriptor set.
        field_number: Option<usize> = integer(1, 536_870_911).optional(),
    }
}

/// A value of a request as text.
const PART: &str =
    r"header:[!#$%&'*+.^_`|~0-9A-Za-z-]+|(path|query):[\s\S]{1,255}|json:/([^~]|~[01])*";

const FIELD: &str = r"[A-Za-z_][0-9A-Za-z_]*(\.[A-Za-z_][0-9A-Za-z_]*)*";

fn is_field(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = |name: &str| {
        name.starts_with(|c: char| is_word(c) && !c.is_ascii_digit()) && name.chars().all(is_word)
    };
    text.split('.').all(is_name)
}

/// `key`
#[derive(Clone, Debug, Default)]
pub(super) struct KeyOptions {
    /// The source, if `from` is written.
    pub(super) source: Option<KeySource>,
    pub(super) required: Option<bool>,
    pub(super) format: Option<KeyFormat>,
    pub(super) min_length: Option<usize>,
}

impl Layered for KeyOptions {
    fn over(self, weaker: Self) -> Self {
        let weaker_source = weaker.source.clone().unwrap_or_default();
        // Rules for the form of a key are those of its source.
        let is_same = self.source.as_ref().is_none_or(|source| *source == weaker_source);
        Self {
            required: self.required.or(weaker.required),
            format: self.format.or(weaker.format.filter(|_| is_same)),
            min_length: self.min_length.or(weaker.min_length.filter(|_| is_same)),
            source: self.source.or(weaker.source),
        }
    }
}

impl KeyOptions {
    /// Sets the source and the format of keys in a policy.
    pub(super) fn apply(policy: &mut Policy, options: Self) {
        policy.key.source = options.source.unwrap_or_default();
        policy.key.format = options.format.unwrap_or_default();
        policy.key.min_length = options.min_length;
        // A value that the request has anyway is not forgotten by accident.
        let is_usual = policy.key.source == KeySource::Header;
        policy.key.required = options.required.unwrap_or(!is_usual);
    }
}

pub(super) fn key() -> Form<KeyOptions> {
    table::<KeyFields>().then(read)
}

/// Refuses options that belong to another source, and a source without the option that it needs.
fn read(key: KeyFields, value: &Value<'_>) -> Option<KeyOptions> {
    let options = key.from.map_or(USUAL, |source| source.options);
    for name in OWNED.iter().filter(|name| !options.contains(name)) {
        let Some(field) = value.field(name) else { continue };
        let owners = SOURCES.iter().filter(|source| source.options.contains(name));
        let owners = owners.map(|source| format!("\"{}\"", source.word)).collect::<Vec<_>>();
        let what = format!("applies only to keys with from = {}", one_of(&owners));
        let fix = format!("write from = {}, or remove it", owners.first()?);
        return field.refuse(ValueError::new(what, fix));
    }
    if let Some(Source { needs, options, .. }) = key.from
        && !needs.is_empty()
        && options.iter().all(|name| value.field(name).is_none())
    {
        let what = format!("`{}` is missing", needs.split(' ').next().unwrap_or_default());
        let fault = ValueError::new(what, format!("write for example {needs}"));
        return value.field("from")?.refuse(fault);
    }
    let KeyFields { from, required, format, min_length, .. } = key;
    let source = match from {
        Some(from) => Some(key_source(from, key, value)?),
        None => None,
    };
    Some(KeyOptions { source, required, format, min_length })
}

fn key_source(from: Source, key: KeyFields, value: &Value<'_>) -> Option<KeySource> {
    Some(match (from.word, key.name) {
        ("header", None) => KeySource::Header,
        ("header", Some(name)) => {
            let written = value.field("name")?;
            let fix = "write for example name = \"X-GitHub-Delivery\"";
            let refuse = |_| written.refuse(ValueError::new("not a header name", fix));
            KeySource::header(name).map_or_else(refuse, Some)?
        }
        ("path", name) => KeySource::path(name?),
        ("query", name) => KeySource::query(name?),
        ("json", _) => KeySource::Value(RequestValue::Json(key.pointer?)),
        ("derive", _) => KeySource::Derive(key.parts?),
        ("issued", _) => KeySource::Issued,
        _ => KeySource::Grpc(match (key.field, key.field_number) {
            // The schema is read from the descriptor set later.
            (Some(field), None) => {
                MessageField::Named { schema: Schema::new(DescriptorSet::default()), field }
            }
            (None, number) => MessageField::Number(u32::try_from(number?).ok()?),
            (Some(_), Some(_)) => {
                let fault =
                    ValueError::new("cannot be combined with `field`", "keep one of the two");
                return value.field("field_number")?.refuse(fault);
            }
        }),
    })
}
