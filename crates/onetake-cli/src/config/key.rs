//! `key`: the source of keys, and their format.

use http::HeaderName;
use onetake_http::grpc::{MessageField, Schema};
use onetake_http::json::Pointer;
use onetake_http::{KeyFormat, KeySource, Policy, RequestValue};
use serde_json::json;

use super::error::{Problems, ValueError};
use super::form::{Form, boolean, integer, list, pointer, table, text, words};
use super::messages::NoSchema;
use super::reader::Value;
use super::table::{Layered, table};

table! {
    /// `key`, as it is written.
    struct KeyFields [Debug] ("key", "{ from = \"header\", required = true }", json!({ "oneOf": [
        // Options that belong to another source would be without effect.
        { "properties": { "from": { "const": "header" }, "name": false, "pointer": false, "parts": false,
                          "field": false, "field_number": false } },
        { "properties": { "from": { "const": "header" }, "pointer": false, "parts": false, "field": false,
                          "field_number": false, "name": { "type": "string", "pattern": r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$|\$\{" } },
          "required": ["from", "name"] },
        { "properties": { "from": { "enum": ["path", "query"] }, "pointer": false, "parts": false, "format": false,
                          "min_length": false, "field": false, "field_number": false },
          "required": ["from", "name"] },
        { "properties": { "from": { "const": "json" }, "name": false, "parts": false, "format": false,
                          "min_length": false, "field": false, "field_number": false },
          "required": ["from", "pointer"] },
        { "properties": { "from": { "const": "derive" }, "name": false, "pointer": false, "format": false,
                          "min_length": false, "field": false, "field_number": false },
          "required": ["from", "parts"] },
        { "properties": { "from": { "const": "issued" }, "name": false, "pointer": false, "parts": false,
                          "format": false, "min_length": false, "field": false, "field_number": false },
          "required": ["from"] },
        { "properties": { "from": { "const": "grpc" }, "name": false, "pointer": false, "parts": false,
                          "format": false, "min_length": false },
          "oneOf": [{ "required": ["from", "field"] }, { "required": ["from", "field_number"] }] },
        { "properties": { "from": { "pattern": r"\$\{" } }, "required": ["from"] },
    ] })) {
        /// The source of the key: a header, a parameter of the path or of the query, a value in the
        /// JSON body, a digest of such values, a key that the gateway issued, or a field of the
        /// message of a gRPC call.
        from: Option<Source> = words(&SOURCES).optional().else_says("\"header\""),
        /// The name of the header, or of the path or query parameter, for `from = "header"`, `"path"` and `"query"`.
        name: Option<String> = name().optional().else_says("`Idempotency-Key`, or its alias, for a header; else required"),
        /// Whether a request without a key is refused.
        required: Option<bool> = boolean().optional()
            .else_says("`false` for `Idempotency-Key`, except for `payment` and `high-consequence`; else `true`"),
        /// The format of a key from a header.
        format: Option<KeyFormat> = words(&FORMATS).optional().else_says("\"any\""),
        /// The shortest key from a header, in characters.
        min_length: Option<usize> = integer(1, 255).optional().else_says("16 for `Idempotency-Key`, 1 for another header"),
        /// The key in the JSON body, as a JSON Pointer, for `from = "json"`.
        pointer: Option<Pointer> = pointer().optional(),
        /// The values that name the operation, such as `"header:X-Shop"`, `"path:id"`, `"query:page"` or
        /// `"json:/order_id"`, for `from = "derive"`.
        parts: Option<Vec<RequestValue>> = list(text(PART, "\"json:/order_id\"", parse_part), (1, 16), "[\"json:/merchant_id\", \"json:/order_id\"]").optional(),
        /// The field of the message, such as `"request_id"` or `"header.request_id"`, for
        /// `from = "grpc"`. It needs `descriptor_set`.
        field: Option<String> = text(FIELD, "\"request_id\"", parse_field).optional(),
        /// The number of the field at the top of the message, for `from = "grpc"` without a
        /// descriptor set.
        field_number: Option<usize> = integer(1, 536_870_911).optional(),
    }
}

/// A value of a request as text.
const PART: &str =
    r"header:[!#$%&'*+.^_`|~0-9A-Za-z-]+|(path|query):[\s\S]{1,255}|json:/([^~]|~[01])*";

const FIELD: &str = r"[A-Za-z_][0-9A-Za-z_]*(\.[A-Za-z_][0-9A-Za-z_]*)*";

fn parse_field(text: &str) -> Result<String, ValueError> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match text.split('.').all(is_name) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::new(
            "not the name of a field",
            "write for example \"request_id\", or \"header.request_id\" for a field inside a field",
        )),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Header,
    Path,
    Query,
    Json,
    Derive,
    Issued,
    Grpc,
}

const SOURCES: [(&str, Source); 7] = [
    ("header", Source::Header),
    ("path", Source::Path),
    ("query", Source::Query),
    ("json", Source::Json),
    ("derive", Source::Derive),
    ("issued", Source::Issued),
    ("grpc", Source::Grpc),
];
const FORMATS: [(&str, KeyFormat); 2] = [("any", KeyFormat::Any), ("uuid", KeyFormat::Uuid)];

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
fn read(key: KeyFields, value: &Value<'_>, problems: &mut Problems<'_>) -> Option<KeyOptions> {
    let is = |source| key.from == Some(source);
    let is_header = key.from.is_none() || is(Source::Header);
    let has_name = is(Source::Header) || is(Source::Path) || is(Source::Query);
    let foreign = [
        ("name", "header", has_name),
        ("pointer", "json", is(Source::Json)),
        ("parts", "derive", is(Source::Derive)),
        ("field", "grpc", is(Source::Grpc)),
        ("field_number", "grpc", is(Source::Grpc)),
        ("format", "header", is_header),
        ("min_length", "header", is_header),
    ];
    for (name, owner, belongs) in foreign {
        if let Some(field) = value.field(name).filter(|_| !belongs) {
            let what = match name {
                "name" => {
                    "applies only to keys with from = \"header\", \"path\" or \"query\"".to_owned()
                }
                _ => format!("applies only to keys with from = \"{owner}\""),
            };
            let fix = format!("write from = \"{owner}\", or remove it");
            return field.refuse(ValueError::new(what, fix), problems);
        }
    }
    let (example, source) = match (key.from, key.name) {
        (None, _) => ("", None),
        (Some(Source::Header), None) => ("", Some(KeySource::Header)),
        (Some(Source::Header), Some(name)) => {
            let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
                let fix = "write for example name = \"X-GitHub-Delivery\"";
                let fault = ValueError::new("not a header name", fix);
                return value.field("name")?.refuse(fault, problems);
            };
            ("", Some(KeySource::Value(RequestValue::Header(name))))
        }
        (Some(Source::Path), name) => ("name = \"id\"", name.map(KeySource::path)),
        (Some(Source::Query), name) => ("name = \"order\"", name.map(KeySource::query)),
        (Some(Source::Issued), _) => ("", Some(KeySource::Issued)),
        (Some(Source::Json), _) => {
            let value = key.pointer.map(RequestValue::Json);
            ("pointer = \"/client_reference\"", value.map(KeySource::Value))
        }
        (Some(Source::Derive), _) => {
            ("parts = [\"json:/order_id\"]", key.parts.map(KeySource::Derive))
        }
        (Some(Source::Grpc), _) => {
            let number = key.field_number.and_then(|number| u32::try_from(number).ok());
            if let (Some(_), Some(_), Some(written)) =
                (&key.field, number, value.field("field_number"))
            {
                let fault =
                    ValueError::new("cannot be combined with `field`", "keep one of the two");
                return written.refuse(fault, problems);
            }
            // The schema is read from the descriptor set later.
            let named = |field| MessageField::Named { schema: Schema::new(NoSchema), field };
            let field = key.field.map(named).or(number.map(MessageField::Number));
            ("field = \"request_id\"", field.map(KeySource::Grpc))
        }
    };
    if key.from.is_some() && source.is_none() {
        let what = format!("`{}` is missing", example.split(' ').next().unwrap_or_default());
        let fault = ValueError::new(what, format!("write for example {example}"));
        return value.field("from")?.refuse(fault, problems);
    }
    let KeyFields { required, format, min_length, .. } = key;
    Some(KeyOptions { source, required, format, min_length })
}

/// The name of a header or of a parameter.
fn name() -> Form<String> {
    text(r"[\s\S]{1,255}", "\"X-GitHub-Delivery\"", |text| match RequestValue::is_name(text) {
        true => Ok(text.to_owned()),
        false => {
            let fix = "write 1 to 255 bytes without control characters";
            Err(ValueError::new("not the name of a header or of a parameter", fix))
        }
    })
}

fn parse_part(text: &str) -> Result<RequestValue, ValueError> {
    text.parse::<RequestValue>().map_err(|error| ValueError::new(error.what, error.fix))
}
