//! The forms of values: types, words and patterns.
//!
//! A pattern is never meant to refuse what the readers accept; where a form is too intricate for
//! one, it lets through more. They do without look-around, which not every validator has.

use serde_json::{Value, json};

use super::super::units::BODY_BYTES_MAX;
use super::with;

pub(super) fn boolean() -> Value {
    json!({ "type": "boolean" })
}

/// An integer within bounds, both included.
pub(super) fn integer((min, max): (usize, usize)) -> Value {
    json!({ "type": "integer", "minimum": min, "maximum": max })
}

/// One of a few words.
pub(super) fn words<T>(choices: &[(&str, T)]) -> Value {
    let words = choices.iter().map(|(word, _)| *word).collect::<Vec<_>>();
    json!({ "enum": words })
}

pub(super) fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

/// A string with at least one character.
pub(super) fn name() -> Value {
    json!({ "type": "string", "minLength": 1 })
}

/// A file's name.
pub(super) fn file_name() -> Value {
    with(name(), json!({ "not": { "pattern": "-----BEGIN" } }))
}

/// A string of this form from its first to its last character.
pub(super) fn text(form: &str) -> Value {
    json!({ "type": "string", "pattern": format!("^({form})$") })
}

pub(super) fn duration() -> Value {
    text(r"\s*([0-9]+(ms|s|m|h|d))+\s*")
}

/// A size of a body, with a unit or in bytes.
pub(super) fn body_size() -> Value {
    let bytes = json!({ "type": "integer", "minimum": 1, "maximum": BODY_BYTES_MAX });
    json!({ "oneOf": [bytes, text(r"\s*[0-9]+\s*(GiB|MiB|KiB|B)?\s*")] })
}

const IPV4: &str = r"[0-9]{1,3}(\.[0-9]{1,3}){3}";
const IPV6: &str = "[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*";

pub(super) fn listen() -> Value {
    text(&format!(r"({IPV4}|\[{IPV6}(%[0-9]+)?\]):[0-9]+"))
}

pub(super) fn address_block() -> Value {
    let bits4 = "0*([0-9]|[12][0-9]|3[0-2])";
    let bits6 = "0*([0-9]{1,2}|1[01][0-9]|12[0-8])";
    text(&format!("{IPV4}(/{bits4})?|{IPV6}(/{bits6})?"))
}

pub(super) fn upstream() -> Value {
    text(r"https?://(\[[^/?#@\[\]\s]+\]|[^/?#@:\[\]\s]+)(:[0-9]+)?/?")
}

/// Where credentials are asked about.
pub(super) fn auth_url() -> Value {
    text(r"https?://(\[[^/?#@\[\]\s]+\]|[^/?#@:\[\]\s]+)(:[0-9]+)?([/?][^#\s]*)?")
}

pub(super) fn header_name() -> Value {
    text("[!#$%&'*+.^_`|~0-9A-Za-z-]+")
}

/// A JSON Pointer, but for the empty one.
const POINTER: &str = "/([^~]|~[01])*";

pub(super) fn pointer() -> Value {
    text(POINTER)
}

/// A part of the request that a key is derived from.
pub(super) fn part() -> Value {
    text(&format!("json:{POINTER}"))
}

/// What a limit is counted by.
pub(super) fn by() -> Value {
    text(&format!("tenant|json:{POINTER}"))
}

pub(super) fn rate() -> Value {
    text(r"\s*0*[1-9][0-9]*\s*/\s*(s|min|h|d)\s*")
}

/// A status, or a class of them.
pub(super) fn status() -> Value {
    text("[2-5](xx|[0-9]{2})")
}

pub(super) fn route_match() -> Value {
    let method = "(POST|PUT|PATCH|DELETE)";
    // Neither `:` nor `*`: in other syntaxes these begin a parameter.
    let first = r"!$%&'()+,\-.0-9;=@A-Z\[\]_a-z~";
    let segment = format!(r"\{{\*?[{first}]+\}}|[{first}][{first}:*]*");
    text(&format!(r"\s*(\*|{method}(\s*,\s*{method})*)\s+(/({segment})?)+\s*"))
}

const REDIS: &str = r"rediss?(-cluster)?://\S+";

pub(super) fn store_url() -> Value {
    let local = r"memory:|(embedded|sqlite):(/|/?[^/][\s\S]*)";
    text(&format!(r"{local}|(postgres|postgresql|dynamodb)://\S+|{REDIS}"))
}

pub(super) fn redis_url() -> Value {
    text(REDIS)
}

/// 32 bytes in base64.
pub(super) fn secret() -> Value {
    text(r"\s*[A-Za-z0-9+/_-]{43}=?\s*")
}

/// Where a relay delivers to.
pub(super) fn sink_url() -> Value {
    text(r"(nats|tls)://\S+|https?://\S+")
}

/// `whsec_` and base64.
pub(super) fn webhook_secret() -> Value {
    text(r"\s*whsec_[A-Za-z0-9+/]{32,88}={0,2}\s*")
}
