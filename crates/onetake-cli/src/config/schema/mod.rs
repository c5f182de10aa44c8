//! The JSON Schema of the file, for editors and for tools that write one.
//!
//! It knows the names, types, words and forms of all fields. What takes two fields, the length of a
//! duration or anything outside the file, only `check` knows: the schema is never the stricter of
//! the two.

mod forms;
mod policy;
mod reconcile;
mod tenant;

use serde_json::{Map, Value, json};

use super::document::SWEEP_BATCH_MAX;
use super::relay::{BATCH_MAX, PREFIX_LENGTH_MAX, TRIES_MAX};
use super::secrets::{ID_LENGTH_MAX, SECRETS_MAX};
use super::units;
use forms::{
    address_block, boolean, duration, file_name, integer, list, listen, name, redis_url, secret,
    sink_url, store_url, text, upstream, webhook_secret,
};

/// The JSON Schema (draft 2020-12) of the configuration file.
#[must_use]
pub fn schema() -> Value {
    let root = table(
        "",
        [
            field("gateway", "Where clients come in, and where their requests go.", gateway()),
            field("admin", "The listener for operators, probes and metrics.", admin()),
            field("store", "Where records are kept.", store()),
            field("sweep", "How expired records are cleaned up.", sweep()),
            field("relay", "Who delivers the outbox, and where to.", relay()),
            field("secrets", "What only the operator knows; the first of each is used.", secrets()),
            field("defaults", "What routes do not say.", policy::defaults()),
            field("route", "The first route that matches wins.", list(&policy::route())),
        ],
    );
    let about = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "onetake",
        "description": "The configuration file of the gateway. `onetake check` knows more than \
                        this schema, and has the last word.",
        "$defs": policy::definitions(),
    });
    with(root, about)
}

fn gateway() -> Value {
    table(
        "gateway",
        [
            field("listen", "Where clients connect.", or("127.0.0.1:8080", listen())),
            field("upstream", "Where requests go whose route names no other.", upstream()),
            field(
                "trusted_proxies",
                "Whose X-Forwarded-*, Forwarded and tenant headers count.",
                or(json!(["127.0.0.0/8", "::1"]), list(&address_block())),
            ),
            field("tls", "Whom clients meet over TLS; none: they come in plain.", tls()),
            field(
                "upstream_tls",
                "How upstreams, a forward_auth and a reconcile with https:// are met.",
                upstream_tls(),
            ),
        ],
    )
}

fn tls() -> Value {
    let fields = identity("The certificate in PEM, followed by those that signed it.");
    with(table("gateway.tls", fields), json!({ "required": ["certificate", "key"] }))
}

fn upstream_tls() -> Value {
    let roots = "The only roots, in PEM, to check upstreams by; none: those of the system.";
    let own = "Who the gateway is to upstreams that ask, in PEM.";
    let fields = [field("roots", roots, file_name())].into_iter().chain(identity(own));
    let both = json!({ "certificate": ["key"], "key": ["certificate"] });
    with(table("gateway.upstream_tls", fields), json!({ "dependentRequired": both }))
}

/// The fields of a certificate and its key.
fn identity(certificate: &str) -> [Field; 2] {
    [
        field("certificate", certificate, file_name()),
        field("key", "Its private key in PEM.", file_name()),
    ]
}

fn admin() -> Value {
    let listen = or("127.0.0.1:9091", listen());
    let token = json!({ "oneOf": [text(r"\s*[!-~]{16,512}\s*"), elsewhere("admin.token")] });
    table(
        "admin",
        [
            field("listen", "Where operators, probes and metrics are served.", listen),
            field(
                "token",
                "What operators show, or where it is: { env } or { file }. Required where the \
                 listener is not on loopback.",
                token,
            ),
        ],
    )
}

fn store() -> Value {
    table(
        "store",
        [
            field(
                "url",
                "embedded:FOLDER, sqlite:FILE, postgres://…, redis://…, redis-cluster://…, \
                 dynamodb://REGION/TABLE, memory:, or the variable that holds it.",
                or("embedded:./onetake-data", or_variable(&store_url(), "store.url")),
            ),
            field(
                "filter",
                "The URL of a Redis in front of PostgreSQL, or the variable that holds it.",
                or_variable(&redis_url(), "store.filter"),
            ),
            field(
                "allow_lossy",
                "Accepts stores that can lose acknowledged writes.",
                or(false, boolean()),
            ),
            field(
                "journal",
                "A folder of this machine for outcomes that the store did not take before the end; by default \
                 beside the store's own files, or ./onetake-journal for a server.",
                file_name(),
            ),
        ],
    )
}

fn sweep() -> Value {
    table(
        "sweep",
        [
            field(
                "interval",
                format!("How long to pause between sweeps. {}", units::SWEEP_INTERVAL.sentence()),
                or("15m", duration()),
            ),
            field(
                "batch",
                "How many records one step may remove.",
                or(5000, integer((1, SWEEP_BATCH_MAX))),
            ),
        ],
    )
}

fn relay() -> Value {
    let time = |what: &str, limits: &units::Limits| format!("{what} {}", limits.sentence());
    let secret = json!({ "oneOf": [webhook_secret(), elsewhere("relay.secrets[]")] });
    let secrets = with(list(&secret), json!({ "maxItems": SECRETS_MAX }));
    let prefix =
        with(text(r"([A-Za-z0-9_-][A-Za-z0-9_.-]*)?"), json!({ "maxLength": PREFIX_LENGTH_MAX }));
    table(
        "relay",
        [
            field(
                "sink",
                "nats://HOST:4222 or tls://HOST:4222 (JetStream), https://HOST/PATH (a webhook), or the variable \
                 that holds it.",
                or_variable(&sink_url(), "relay.sink"),
            ),
            field("subject_prefix", "What NATS subjects begin with.", or("", prefix)),
            field(
                "secrets",
                "What webhooks are signed with: all of them sign.",
                or(json!([]), secrets),
            ),
            field("batch", "The most messages of a turn.", or(100, integer((1, BATCH_MAX)))),
            field(
                "hold",
                time(
                    "When a relay dies, how long what it had waits for another.",
                    &units::RELAY_HOLD,
                ),
                or("30s", duration()),
            ),
            field(
                "poll",
                time("How long to wait when there was nothing to do.", &units::RELAY_POLL),
                or("200ms", duration()),
            ),
            field(
                "timeout",
                time("How long a receiver may take for a message.", &units::RELAY_TIMEOUT),
                or("10s", duration()),
            ),
            field(
                "backoff_max",
                time("The longest pause between two tries.", &units::RELAY_BACKOFF),
                or("30s", duration()),
            ),
            field(
                "tries_max",
                "After how many failures a message is parked, if others are delivered meanwhile; none: never.",
                integer((1, TRIES_MAX)),
            ),
            field(
                "kept",
                time("How long delivered messages are kept.", &units::RELAY_KEPT),
                or("24h", duration()),
            ),
            field("listen", "Where the relay serves its metrics; none: nowhere.", listen()),
        ],
    )
}

/// Where a secret is that does not stand in the file itself.
fn elsewhere(path: &str) -> Value {
    let elsewhere = table(
        path,
        [
            field("env", "The variable that holds it.", name()),
            field("file", "The file that holds it and nothing else.", name()),
        ],
    );
    with(elsewhere, json!({ "minProperties": 1, "maxProperties": 1 }))
}

fn secrets() -> Value {
    let kind = |path: &str| {
        let id = text(&format!("[A-Za-z0-9_.-]{{1,{ID_LENGTH_MAX}}}"));
        let elsewhere = elsewhere(&format!("{path}[].key"));
        let one = table(
            &format!("{path}[]"),
            [
                field("id", "Its name, kept beside what it seals.", id),
                field(
                    "key",
                    "32 bytes in base64, or where they are: { env } or { file }.",
                    json!({ "oneOf": [secret(), elsewhere] }),
                ),
            ],
        );
        let one = with(one, json!({ "required": ["id", "key"] }));
        or(json!([]), with(list(&one), json!({ "maxItems": SECRETS_MAX })))
    };
    table(
        "secrets",
        [
            field("fingerprint", "Seal the digests of requests.", kind("secrets.fingerprint")),
            field("encryption", "Encrypt recordings.", kind("secrets.encryption")),
            field("issued_keys", "Sign issued keys.", kind("secrets.issued_keys")),
        ],
    )
}

/// The value itself, or `{ env = "NAME" }`.
fn or_variable(value: &Value, path: &str) -> Value {
    let variable = table(path, [field("env", "The variable that holds it.", name())]);
    json!({ "oneOf": [value, with(variable, json!({ "required": ["env"] }))] })
}

/// A field's name and its schema.
type Field = (&'static str, Value);

fn field(name: &'static str, description: impl Into<String>, schema: Value) -> Field {
    (name, with(schema, json!({ "description": description.into() })))
}

/// A table with these fields and no others; each has the name that messages call it by as a title.
fn table(path: &str, fields: impl IntoIterator<Item = Field>) -> Value {
    let titled = fields.into_iter().map(|(name, schema)| {
        let title = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let schema = match schema.get("$ref") {
            Some(_) => schema,
            None => with(schema, json!({ "title": title })),
        };
        (name.to_owned(), schema)
    });
    let properties = titled.collect::<Map<_, _>>();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// What holds where the field is not written.
fn or(default: impl Into<Value>, schema: Value) -> Value {
    with(schema, json!({ "default": default.into() }))
}

/// One schema with another's keywords beside its own.
fn with(mut schema: Value, keywords: Value) -> Value {
    if let (Value::Object(schema), Value::Object(keywords)) = (&mut schema, keywords) {
        schema.extend(keywords);
    }
    schema
}
