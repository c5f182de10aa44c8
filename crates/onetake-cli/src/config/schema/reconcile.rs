//! `reconcile`

use serde_json::{Value, json};

use super::super::reconcile::HEADERS_MAX;
use super::super::units;
use super::forms::{duration, header_name, list, text};
use super::{elsewhere, field, or, table, with};

pub(super) fn reconcile() -> Value {
    let timeout = format!("How long one answer may take. {}", units::RECONCILE_TIMEOUT.sentence());
    let limit = format!(
        "For how long to go on asking, before it is recorded as failed. {}",
        units::RECONCILE_LIMIT.sentence()
    );
    let statuses = list(&text("404|410"));
    let table = table(
        "reconcile",
        [
            field(
                "request",
                "GET and a URL, with {derived_key} or {key} in its path or query; {tenant} and {reference} too.",
                request(),
            ),
            field(
                "not_executed",
                "Statuses which say for certain that nothing was done: a retry runs then.",
                or(json!([]), statuses),
            ),
            field("headers", "What is sent along; values may be { env } or { file }.", headers()),
            field("timeout", timeout, or("5s", duration())),
            field("limit", limit, or("1h", duration())),
        ],
    );
    json!({ "oneOf": [request(), with(table, json!({ "required": ["request"] }))] })
}

fn request() -> Value {
    let host = r"(\[[^/?#@\[\]{}\s]+\]|[^/?#@:\[\]{}\s]+)(:[0-9]+)?";
    let place = r"\{(derived_key|key)\}";
    text(&format!(r"\s*GET\s+https?://{host}[/?][^#\s]*{place}[^#\s]*\s*"))
}

/// Any names: a table, but not one whose fields are known.
fn headers() -> Value {
    let value =
        json!({ "oneOf": [text(r"\s*[!-~]([ !-~]*[!-~])?\s*"), elsewhere("reconcile.headers.*")] });
    json!({
        "type": ["object"],
        "propertyNames": header_name(),
        "additionalProperties": value,
        "maxProperties": HEADERS_MAX,
    })
}
