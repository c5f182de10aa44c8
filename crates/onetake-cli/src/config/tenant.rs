//! `tenant`: the owner of a key.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Uri};
use onetake_http::tenant::jwt::Algorithm;
use onetake_http::{Jwt, JwtKey, JwtKeySet, Policy, Tenant};
use serde_json::json;

use super::address::parse_service;
use super::error::ValueError;
use super::form::{
    Form, Shape, duration, file, header_name, list, name, shorthand, table, text, words, words_or,
};
use super::reader::{Value, one_of};
use super::table::{Table as _, table};
use super::tree::TomlType;

/// The most keys that verify tokens: the one in use, and the ones around it.
const KEYS_MAX: usize = 8;

/// `tenant`
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TenantOption {
    Plain(Tenant),
    ForwardAuth(ForwardAuth),
}

impl TenantOption {
    /// Sets the tenant of a policy. A service names it later: until then, every request is refused.
    pub(super) fn apply(policy: &mut Policy, tenant: Option<Self>) {
        let tenant = match tenant {
            Some(Self::ForwardAuth(_)) => Tenant::Custom(Arc::new(|_| None)),
            Some(Self::Plain(tenant)) => tenant,
            None => return,
        };
        *policy = std::mem::take(policy).tenant(tenant);
    }
}

table! {
    /// `tenant = { … }`
    struct TenantTable [Debug]
        ("tenant", "{ header = \"X-Account\" }", json!({ "minProperties": 1, "maxProperties": 1 })) {
        /// The header that names the tenant, believed from `trusted_proxies` only.
        header: Option<TenantOption> = header_name("\"X-Account\"")
            .map(|name| TenantOption::Plain(Tenant::Header(name))).optional(),
        /// The issuer and a claim of the bearer token, a JSON Web Token that the gateway verifies.
        jwt: Option<TenantOption> = table::<JwtOptions>().then(jwt)
            .map(|jwt| TenantOption::Plain(Tenant::Jwt(Arc::new(jwt)))).optional(),
        /// A service that names the tenant of each keyed request.
        forward_auth: Option<TenantOption> =
            shorthand(auth_url(), "url").map(TenantOption::ForwardAuth).optional(),
    }
}

const TABLES: [&str; 3] =
    ["{ header = \"X-Account\" }", "{ jwt = { … } }", "{ forward_auth = \"http://…\" }"];

pub(super) fn tenant() -> Form<TenantOption> {
    let words = [
        ("credential", Tenant::Credential),
        ("public", Tenant::Public),
        ("client-ip", Tenant::ClientIp),
    ];
    let only = |TenantTable { header, jwt, forward_auth }, value: &Value<'_>| {
        let mut named = [header, jwt, forward_auth].into_iter().flatten();
        let what = match (named.next(), named.next()) {
            (Some(tenant), None) => return Some(tenant),
            (None, _) => "has no tenant",
            (Some(_), Some(_)) => "has more than one tenant",
        };
        let words = "\"credential\", \"public\", \"client-ip\"";
        let fix = format!("write tenant = {words}, or one of {}", one_of(&TABLES));
        value.refuse(ValueError::new(what, fix))
    };
    let table = table().then(only);
    words_or(words, &TABLES).map(TenantOption::Plain).or_else(table)
}

table! {
    /// `jwt`, as it is written.
    struct JwtOptions [Debug] ("jwt", "{ claim = \"sub\", verification_key = { file = \"issuer.pem\" } }", json!({
        "anyOf": [{ "required": ["verification_key"] }, { "required": ["jwks_url"] }]
    })) {
        /// A public key in PEM (RSA of 2048 bits or more, EC P-256, Ed25519), or a secret of 32
        /// bytes or more in base64. `kid` says which tokens the key is for. A list of up to 8 keys
        /// is for rotation.
        verification_key: Option<Vec<JwtKey>> =
            verification_keys().optional().formerly("key").else_says("the keys of `jwks_url`"),
        /// The `https://` URL of a JSON Web Key Set with the public keys of the issuer; `http://`
        /// for this machine only. The gateway fetches it at start, every five minutes, and when a
        /// token names a key that is not known.
        jwks_url: Option<String> = jwks_url().optional(),
        /// The claim that names the tenant, a string or an integer.
        claim: String = name("\"sub\"").or("\"sub\""),
        /// The issuer (`iss`) whose tokens count.
        issuer: Option<String> = name("\"https://id.example.com\"").optional().else_says("any issuer"),
        /// The audience (`aud`) of tokens that count. Set it if the issuer makes tokens for other
        /// services, too.
        audience: Option<String> = name("\"payments\"").optional().else_says("any audience"),
        /// The algorithms that keys may be for: a guard against the wrong file.
        algorithms: Option<Vec<Algorithm>> =
            list(words(Algorithm::ALL), (1, usize::MAX), "[\"RS256\"]").optional().else_says("those of the keys"),
        /// The largest difference between clocks.
        leeway: Duration = duration("0s", "10m", "60s").or("\"60s\""),
    }
}

fn jwt(options: JwtOptions, value: &Value<'_>) -> Option<Jwt> {
    let Some(field) = value.field("verification_key").or(value.field("jwks_url")) else {
        let fix = "write verification_key = { file = \"issuer.pem\" }, or jwks_url = \"https://…\"";
        return value.refuse(ValueError::new("the key is missing", fix));
    };
    let keys = options.verification_key.unwrap_or_default();
    let is_listed = |key: &&JwtKey| {
        options.algorithms.as_ref().is_none_or(|listed| listed.contains(&key.algorithm()))
    };
    if let Some(key) = keys.iter().find(|key| !is_listed(key)) {
        let name = key.algorithm().name();
        let what = format!("the key is for {name}, which is not in `algorithms`");
        let fix = format!("add \"{name}\" to `algorithms`, or use another key");
        return field.refuse(ValueError::new(what, fix).hiding_value(true));
    }
    let mut jwt = Jwt::new(keys).leeway(options.leeway).claim(options.claim);
    if let Some(url) = options.jwks_url {
        jwt = jwt.with_key_set(JwtKeySet::new(url));
    }
    if let Some(issuer) = options.issuer {
        jwt = jwt.issuer(issuer);
    }
    if let Some(audience) = options.audience {
        jwt = jwt.audience(audience);
    }
    Some(jwt)
}

/// A URL of a key set. A sender who can change its answer can sign tokens, so only TLS or this
/// machine is accepted.
fn jwks_url() -> Form<String> {
    const FIX: &str = "write for example \"https://id.example.com/.well-known/jwks.json\"";
    text(SERVICE, "\"https://id.example.com/.well-known/jwks.json\"", |text| {
        let uri = parse_service(text, FIX)?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_local = host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        match uri.scheme_str() == Some("https") || is_local {
            true => Ok(uri.to_string()),
            false => Err(ValueError::new("keys are fetched over https:// only", FIX)),
        }
    })
}

table! {
    /// A key of `jwt` outside the file.
    struct JwtKeyTable [Debug] ("a key of jwt", "{ file = \"/etc/onetake/issuer.pem\" }", json!({
        "oneOf": [{ "required": ["env"] }, { "required": ["file"] }]
    })) {
        /// The environment variable that holds the key.
        env: Option<String> = name("\"NAME\"").optional(),
        /// The file that holds the key and nothing else.
        file: Option<PathBuf> = file("\"/etc/onetake/issuer.pem\"").optional(),
        /// The name of the key in the heads of tokens.
        kid: Option<String> = name("\"2026-07\"").optional(),
    }
}

/// One key, or a list of keys.
fn verification_keys() -> Form<Vec<JwtKey>> {
    let many = list(verification_key(), (1, KEYS_MAX), "[{ file = \"…\" }]");
    verification_key().map(|key| vec![key]).or_else(many).hidden()
}

fn verification_key() -> Form<JwtKey> {
    let pattern = r"\s*(-----BEGIN [\s\S]+|[A-Za-z0-9+/_-]{43,}={0,2})\s*";
    let shape = Shape::OneOf(vec![Shape::Text(pattern), Shape::Table(JwtKeyTable::info)]);
    Form::new(shape, |value| {
        let (kid, (text, field)) = match &value.node.kind {
            TomlType::Text(_) => (None, (value.text("")?.into_owned(), value.clone())),
            _ => {
                let JwtKeyTable { env, file, kid } = value.table()?;
                (kid, value.elsewhere(env, file)?)
            }
        };
        match (JwtKey::parse(&text), kid) {
            (Ok(key), Some(kid)) => Some(key.kid(kid)),
            (Ok(key), None) => Some(key),
            (Err(error), _) => {
                let fix = "write a public key in PEM (RSA of 2048 bits or more, EC P-256, Ed25519), or a \
                           secret of 32 bytes or more in base64";
                let fault = ValueError::new(error.to_string(), fix);
                field.problems.add(&field.node.at, &field.path, None, fault);
                None
            }
        }
    })
}

table! {
    /// `forward_auth`: the service that knows credentials.
    pub struct ForwardAuth [Clone, Debug, PartialEq, Eq] ("forward_auth", "{ url = \"http://127.0.0.1:4180/auth\" }") {
        /// The `http://` or `https://` URL of the service. `forward_auth = "http://…"` is short for
        /// it alone.
        url: Uri = auth_url().required(),
        /// The header of the response that names the tenant (Authelia: `Remote-User`).
        header: HeaderName = header_name("\"X-Auth-Request-User\"").or("\"X-Auth-Request-User\""),
        /// The time for the response.
        timeout: Duration = duration("10ms", "30s", "2s").or("\"2s\""),
        /// The time for which a response is reused for the same request. `0s` turns the cache off.
        cache: Duration = duration("0s", "60s", "5s").or("\"5s\""),
    }
}

/// The `http://` or `https://` URL of a service, with a path and a query or without.
const SERVICE: &str = r"https?://(\[[^/?#@\[\]\s]+\]|[^/?#@:\[\]\s]+)(:[0-9]+)?([/?][^#\s]*)?";

fn auth_url() -> Form<Uri> {
    const FIX: &str = "write for example \"http://127.0.0.1:4180/auth\"";
    text(SERVICE, "\"http://127.0.0.1:4180/auth\"", |text| parse_service(text, FIX))
}
