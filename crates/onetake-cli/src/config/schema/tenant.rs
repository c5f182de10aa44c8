//! `tenant`: whose key it is.

use onetake_http::tenant::jwt::Algorithm;
use serde_json::{Value, json};

use super::super::tenant::{KEYS_MAX, PRINCIPAL, TEXT_LENGTH_MAX, WORDS};
use super::super::units;
use super::forms::{auth_url, duration, header_name, list, name, text, words};
use super::{field, or, table, with};

pub(super) fn tenant() -> Value {
    let ways = table(
        "tenant",
        [
            field(
                "header",
                "The header that names it, believed from trusted proxies only.",
                header_name(),
            ),
            field(
                "jwt",
                "The issuer and a claim of the bearer token, a JSON Web Token that is verified.",
                jwt(),
            ),
            field(
                "forward_auth",
                "Whom the service at this URL names, which is asked about every keyed request.",
                forward_auth(),
            ),
        ],
    );
    let one = json!({ "minProperties": 1, "maxProperties": 1 });
    json!({ "oneOf": [{ "enum": WORDS }, with(ways, one)] })
}

fn jwt() -> Value {
    let words_of = |schema| with(schema, json!({ "maxLength": TEXT_LENGTH_MAX }));
    let algorithms = with(list(&words(&Algorithm::ALL)), json!({ "minItems": 1 }));
    let leeway = format!("How far clocks may be apart. {}", units::LEEWAY.sentence());
    let table = table(
        "tenant.jwt",
        [
            field("claim", "The claim that names the tenant.", or("sub", words_of(name()))),
            field("issuer", "The issuer (iss) whose tokens count.", words_of(name())),
            field("audience", "For whom tokens must be (aud).", words_of(name())),
            field(
                "key",
                "A public key in PEM, or a secret in base64, or where it is: { env } or { file }; \
                 or a list of them. A kid says which tokens it is for.",
                keys(),
            ),
            field("algorithms", "What keys may be for; all that they are by default.", algorithms),
            field("leeway", leeway, or("60s", duration())),
        ],
    );
    with(table, json!({ "required": ["key"] }))
}

/// One key, or several.
fn keys() -> Value {
    let here = || text(r"\s*(-----BEGIN [\s\S]+|[A-Za-z0-9+/_-]{43,}={0,2})\s*");
    let kid = with(name(), json!({ "maxLength": TEXT_LENGTH_MAX }));
    let elsewhere = || {
        let table = table(
            "tenant.jwt.key",
            [
                field("env", "The variable that holds it.", name()),
                field("file", "The file that holds it and nothing else.", name()),
                field("kid", "Its name in the heads of tokens.", kid.clone()),
            ],
        );
        let one_of = json!([{ "required": ["env"] }, { "required": ["file"] }]);
        with(table, json!({ "oneOf": one_of }))
    };
    let several = list(&json!({ "oneOf": [here(), elsewhere()] }));
    let several = with(several, json!({ "minItems": 1, "maxItems": KEYS_MAX }));
    json!({ "oneOf": [here(), elsewhere(), several] })
}

fn forward_auth() -> Value {
    let timeout = format!("How long it may take. {}", units::AUTH_TIMEOUT.sentence());
    let cache = format!(
        "For how long its answer to the same question counts. {}",
        units::AUTH_CACHE.sentence()
    );
    let table = table(
        "tenant.forward_auth",
        [
            field("url", "Where it is.", auth_url()),
            field("header", "The header that names whom.", or(PRINCIPAL, header_name())),
            field("timeout", timeout, or("2s", duration())),
            field("cache", cache, or("5s", duration())),
        ],
    );
    json!({ "oneOf": [auth_url(), with(table, json!({ "required": ["url"] }))] })
}
