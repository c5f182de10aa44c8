//! What routes and `[defaults]` have in common, and what only routes have.

use serde_json::{Map, Value, json};

use super::super::fingerprint::MODES;
use super::super::key::{FORMATS, LENGTH_MAX, PARTS_MAX, SOURCES};
use super::super::layer::{
    ERRORS, IN_FLIGHT, NAMESPACE_LENGTH_MAX, ON_STORE_DOWN, ON_UNKNOWN, PROBLEM_STATUSES,
};
use super::super::units::{self, Limits};
use super::super::velocity::{BY_MAX, LIMITS_MAX};
use super::forms::{
    body_size, boolean, by, duration, header_name, integer, list, part, pointer, rate, route_match,
    status, text, upstream, words,
};
use super::{Field, field, or, reconcile, table, tenant, with};
use onetake_http::Preset;

/// `[[route]]`
pub(super) fn route() -> Value {
    let own = [
        field(
            "match",
            "Methods, separated by commas or * for all that can be keyed, and a path: {id} is one \
             segment, {*rest} the rest.",
            route_match(),
        ),
        field(
            "preset",
            "Values for a use case: payment (24h), signup (1h), webhook (7d), job (30d), \
             high-consequence (72h).",
            words(&Preset::ALL),
        ),
    ];
    let route = table("route[]", own.into_iter().chain(references()));
    with(route, json!({ "required": ["match"] }))
}

/// `[defaults]`
pub(super) fn defaults() -> Value {
    table("defaults", references())
}

/// The fields that both have, once.
pub(super) fn definitions() -> Value {
    let title = |(name, schema): Field| (name.to_owned(), with(schema, json!({ "title": name })));
    Value::Object(fields().into_iter().map(title).collect::<Map<_, _>>())
}

fn references() -> impl Iterator<Item = Field> {
    let reference = |(name, _)| (name, json!({ "$ref": format!("#/$defs/{name}") }));
    fields().into_iter().map(reference)
}

fn fields() -> Vec<Field> {
    let time = |name, description: &str, limits: &Limits, usual: Option<&str>| {
        let schema = usual.map_or_else(duration, |usual| or(usual, duration()));
        field(name, format!("{description} {}", limits.sentence()), schema)
    };
    let statuses = || list(&status());
    vec![
        field("namespace", "Separates its keys from those of others.", namespace()),
        field("key", "Where the key comes from, and what it looks like.", key()),
        field(
            "tenant",
            "Whose key it is: the credential's, everybody's, the client address's, that of a header that \
             your own proxy sets, that of a token, or whom a service names. Nothing said: the \
             credential's where there is one, else everybody's.",
            tenant::tenant(),
        ),
        field("fingerprint", "What makes two requests the same.", fingerprint()),
        time("ttl", "How long an outcome is kept.", &units::TTL, Some("24h")),
        time("lease", "How long an attempt may be silent.", &units::LEASE, Some("30s")),
        time(
            "grace",
            "How long a silent attempt is respected after its lease; one lease by default.",
            &units::GRACE,
            None,
        ),
        field(
            "in_flight",
            "While an attempt runs: reject (409), wait, or async (202 after the wait).",
            or("reject", words(&IN_FLIGHT)),
        ),
        time("wait_timeout", "How long to wait.", &units::WAIT_TIMEOUT, Some("5s")),
        field(
            "on_unknown",
            "Where an outcome is unknown: fail (say so, never run again), reconcile (ask what became of \
             it) or retry (run again).",
            or("fail", words(&ON_UNKNOWN)),
        ),
        field(
            "reconcile",
            "Who is asked what became of an attempt, for on_unknown = \"reconcile\": a 2xx is the outcome.",
            reconcile::reconcile(),
        ),
        field(
            "on_store_down",
            "While the store is away: fail-closed (503, nothing runs) or fail-open (runs without a \
             record).",
            or("fail-closed", words(&ON_STORE_DOWN)),
        ),
        field("velocity", "Limits on new operations.", velocity()),
        field("upstream", "Where requests go; the gateway's by default.", upstream()),
        time(
            "upstream_timeout",
            "How long the answer may take.",
            &units::UPSTREAM_TIMEOUT,
            Some("30s"),
        ),
        field("record", "Statuses whose response is recorded and replayed.", statuses()),
        field("release", "Statuses after which a retry runs again.", statuses()),
        field("unknown", "Statuses after which the outcome is unknown.", statuses()),
        field("errors", "In whose words problems are told.", or("problem", words(&ERRORS))),
        field("statuses", "Other statuses for problems.", problem_statuses()),
        field(
            "max_request_body",
            "The largest keyed request: with a unit, or in bytes. A larger one is refused with 413.",
            or("1MiB", body_size()),
        ),
        field(
            "max_response_body",
            "The largest response that is kept for replays: with a unit, or in bytes.",
            or("1MiB", body_size()),
        ),
    ]
}

fn namespace() -> Value {
    or("", text(&format!("[A-Za-z0-9_.:/-]{{0,{NAMESPACE_LENGTH_MAX}}}")))
}

fn key() -> Value {
    let parts = with(list(&part()), json!({ "minItems": 1, "maxItems": PARTS_MAX }));
    let length = integer((1, LENGTH_MAX));
    let key = table(
        "key",
        [
            field("from", "Where it comes from.", or("header", words(&SOURCES))),
            field(
                "required",
                "Whether a request without a key is refused. By default keys from a header are \
                 optional, except for payment and high-consequence, and others are required.",
                boolean(),
            ),
            field("format", "What a key from a header looks like.", or("any", words(&FORMATS))),
            field("min_length", "The shortest key from a header.", or(16, length)),
            field("pointer", "Where in the JSON body it is, for from = \"json\".", pointer()),
            field("parts", "What it is derived from, for from = \"derive\".", parts),
        ],
    );
    // Fields that belong to another source would be without effect.
    let sources = json!([
        { "properties": { "from": { "const": "header" }, "pointer": false, "parts": false } },
        {
            "properties": {
                "from": { "const": "json" }, "parts": false, "format": false, "min_length": false
            },
            "required": ["from", "pointer"],
        },
        {
            "properties": {
                "from": { "const": "derive" }, "pointer": false, "format": false, "min_length": false
            },
            "required": ["from", "parts"],
        },
        {
            "properties": {
                "from": { "const": "issued" }, "pointer": false, "parts": false, "format": false,
                "min_length": false
            },
            "required": ["from"],
        },
    ]);
    with(key, json!({ "oneOf": sources }))
}

fn fingerprint() -> Value {
    let pointers = || list(&pointer());
    let include = with(pointers(), json!({ "minItems": 1 }));
    let table = table(
        "fingerprint",
        [
            field("mode", "Whether every byte of the body counts, or its JSON.", words(&MODES)),
            field("exclude", "What of the JSON does not count.", or(json!([]), pointers())),
            field("include", "What of the JSON counts, and nothing else.", include),
            field("headers", "Headers that count, too.", or(json!([]), list(&header_name()))),
        ],
    );
    let modes = json!([
        { "properties": { "mode": { "const": "bytes" }, "exclude": false, "include": false } },
        { "properties": { "mode": { "const": "json" }, "include": false } },
        {
            "properties": { "mode": { "const": "json" }, "exclude": false },
            "required": ["include"],
        },
    ]);
    let table = with(table, json!({ "required": ["mode"], "oneOf": modes }));
    or(json!({ "mode": "bytes" }), table)
}

fn velocity() -> Value {
    let parts = with(list(&by()), json!({ "maxItems": BY_MAX }));
    let one = table(
        "velocity[]",
        [
            field("by", "What is counted apart: \"tenant\", \"json:/card\".", parts),
            field("limit", "A number, and s, min, h or d: \"5/min\".", rate()),
        ],
    );
    let one = with(one, json!({ "required": ["by", "limit"] }));
    or(json!([]), with(list(&one), json!({ "maxItems": LIMITS_MAX })))
}

fn problem_statuses() -> Value {
    let status = || integer(PROBLEM_STATUSES);
    table(
        "statuses",
        [
            field("mismatch", "Another payload under a known key.", status()),
            field("in_flight", "An attempt is running.", status()),
            field("wait_timeout", "It was still running when the wait was over.", status()),
        ],
    )
}
