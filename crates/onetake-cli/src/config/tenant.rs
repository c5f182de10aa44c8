//! `tenant`: whose key it is.

use std::time::Duration;

use http::{HeaderName, Uri};
use onetake_http::tenant::jwt::Algorithm;
use onetake_http::{Jwt, JwtKey};

use super::TenantConfig;
use super::error::{Fault, Problems};
use super::fields;
use super::reader::{Section, Value, unknown_word};
use super::secrets::{self, Env, Found};
use super::tree::Kind;
use super::units::{self, duration};
use super::url::parse_auth_url;

/// The words of `tenant`.
pub(super) const WORDS: [&str; 3] = ["credential", "public", "client-ip"];
/// The longest claim, issuer, audience or name of a key.
pub(super) const TEXT_LENGTH_MAX: usize = 255;
/// The most keys that verify tokens: the one in use, and those around it.
pub(super) const KEYS_MAX: usize = 8;
/// The header that names the principal, unless the route says another: oauth2-proxy's.
pub(super) const PRINCIPAL: &str = "X-Auth-Request-User";

const LEEWAY: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(2);
const CACHE: Duration = Duration::from_secs(5);

const JWT_EXAMPLE: &str = "{ claim = \"sub\", key = { file = \"/etc/onetake/issuer.pem\" } }";
const URL_EXAMPLE: &str = "\"http://127.0.0.1:4180/auth\"";

/// `forward_auth`: who is asked about credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// Where it is.
    pub url: Uri,
    /// The header of its answer that names the principal.
    pub header: HeaderName,
    /// How long it may take.
    pub timeout: Duration,
    /// For how long its answer counts for the same question; zero: not at all.
    pub cache: Duration,
}

pub(super) fn read(
    value: &Value<'_>,
    env: &Env,
    problems: &mut Problems<'_>,
) -> Option<TenantConfig> {
    if !matches!(value.node.kind, Kind::Table(_)) {
        return read_word(value, problems);
    }
    let table = Section::open(value, &fields::TENANT, "{ header = \"X-Account\" }", problems)?;
    match (table.get("header"), table.get("jwt"), table.get("forward_auth")) {
        (Some(header), None, None) => {
            read_header(&header, "\"X-Account\"", problems).map(TenantConfig::Header)
        }
        (None, Some(jwt), None) => read_jwt(&jwt, env, problems).map(TenantConfig::Jwt),
        (None, None, Some(auth)) => read_auth(&auth, problems).map(TenantConfig::ForwardAuth),
        (None, None, None) if table.has_faults() => None,
        (header, jwt, auth) => {
            let named = [header, jwt, auth].into_iter().flatten().count();
            let what = if named == 0 { "names no tenant" } else { "names more than one tenant" };
            let fix = "write tenant = \"credential\", \"public\", \"client-ip\", or one of { header = \"X-Account\" }, \
                       { jwt = { … } } and { forward_auth = \"http://…\" }";
            value.refuse(Fault::new(what, fix), problems);
            None
        }
    }
}

fn read_word(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<TenantConfig> {
    let word = value.text("\"credential\"", problems)?;
    match word {
        "credential" => return Some(TenantConfig::Credential),
        "public" => return Some(TenantConfig::Public),
        "client-ip" => return Some(TenantConfig::ClientIp),
        _ => {}
    }
    let mut fault = unknown_word(word, &WORDS);
    if !fault.fix.starts_with("did you") {
        let tables =
            "{ header = \"X-Account\" }, { jwt = { … } } or { forward_auth = \"http://…\" }";
        fault.fix = format!("{}, or {tables}", fault.fix);
    }
    value.refuse(fault, problems);
    None
}

fn read_header(
    value: &Value<'_>,
    example: &str,
    problems: &mut Problems<'_>,
) -> Option<HeaderName> {
    value.parse(example, problems, |text| {
        let bad =
            |_| Fault::new("not the name of a header", format!("write for example {example}"));
        HeaderName::from_bytes(text.as_bytes()).map_err(bad)
    })
}

fn read_jwt(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<Jwt> {
    let table = Section::open(value, &fields::JWT, JWT_EXAMPLE, problems)?;
    let algorithms = table.get("algorithms").and_then(|value| read_algorithms(&value, problems));
    let keys = match table.get("key") {
        Some(value) => read_keys(&value, env, algorithms.as_deref(), problems),
        None => {
            if !table.has_faults() {
                let fix = format!("write for example jwt = {JWT_EXAMPLE}");
                value.refuse(Fault::new("`key` is missing", fix), problems);
            }
            None
        }
    };
    let mut text = |name: &str, example: &str| match table.get(name) {
        Some(value) => value.parse(example, problems, parse_text).map(Some),
        None => Some(None),
    };
    let claim = text("claim", "\"sub\"");
    let issuer = text("issuer", "\"https://id.example.com\"");
    let audience = text("audience", "\"payments\"");
    let leeway = match table.get("leeway") {
        Some(value) => duration(&value, &units::LEEWAY, problems)?,
        None => LEEWAY,
    };
    let mut jwt = Jwt::new(keys?).leeway(leeway);
    if let Some(claim) = claim? {
        jwt = jwt.claim(claim);
    }
    if let Some(issuer) = issuer? {
        jwt = jwt.issuer(issuer);
    }
    if let Some(audience) = audience? {
        jwt = jwt.audience(audience);
    }
    Some(jwt)
}

fn parse_text(text: &str) -> Result<String, Fault> {
    match (1..=TEXT_LENGTH_MAX).contains(&text.chars().count()) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(
            "empty or too long",
            format!("write 1 to {TEXT_LENGTH_MAX} characters, or leave it out"),
        )),
    }
}

/// `None`: its fault is reported, and says enough.
fn read_algorithms(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Vec<Algorithm>> {
    let elements = value.list("[\"RS256\"]", problems)?;
    if elements.is_empty() {
        let fix = "write for example [\"RS256\"], or leave it out: a key is for one algorithm only";
        value.refuse(Fault::new("names no algorithm", fix), problems);
        return None;
    }
    let read = elements.iter().map(|element| element.choice(&Algorithm::ALL, problems));
    read.collect::<Vec<_>>().into_iter().collect()
}

/// One key, or a list of them.
fn read_keys(
    value: &Value<'_>,
    env: &Env,
    algorithms: Option<&[Algorithm]>,
    problems: &mut Problems<'_>,
) -> Option<Vec<JwtKey>> {
    let elements = match &value.node.kind {
        Kind::List(_) => value.list("[{ file = \"…\" }]", problems)?,
        _ => vec![value.clone()],
    };
    if elements.is_empty() || elements.len() > KEYS_MAX {
        let fix = format!("write 1 to {KEYS_MAX} keys");
        value.refuse(Fault::new("no key, or too many", fix), problems);
        return None;
    }
    let keys = elements.iter().map(|element| read_key(element, env, algorithms, problems));
    keys.collect::<Vec<_>>().into_iter().collect()
}

fn read_key(
    value: &Value<'_>,
    env: &Env,
    algorithms: Option<&[Algorithm]>,
    problems: &mut Problems<'_>,
) -> Option<JwtKey> {
    let (found, kid) = match &value.node.kind {
        Kind::Text(text) => (Found::here(text, value), None),
        _ => {
            let example = "{ file = \"/etc/onetake/issuer.pem\" }";
            let table = Section::open(value, &fields::JWT_KEY, example, problems)?;
            let kid = match table.get("kid") {
                Some(value) => Some(value.parse("\"2026-07\"", problems, parse_text)?),
                None => None,
            };
            (secrets::elsewhere(&table, value, env, problems)?, kid)
        }
    };
    let Found { text, at, path } = found;
    let key = match JwtKey::parse(&text) {
        Ok(key) => key,
        Err(error) => {
            let fix = "write a public key in PEM (RSA of 2048 bits or more, EC P-256, Ed25519), or a \
                       secret of 32 bytes or more in base64";
            problems.add(&at, &path, None, Fault::new(error.to_string(), fix));
            return None;
        }
    };
    if algorithms.is_some_and(|listed| !listed.contains(&key.algorithm())) {
        let name = key.algorithm().name();
        let what = format!("it is a key for {name}, which `algorithms` does not list");
        let fix =
            format!("add \"{name}\" to `algorithms` if that is what you want, or name another key");
        problems.add(&at, &path, None, Fault::new(what, fix));
        return None;
    }
    Some(match kid {
        Some(kid) => key.kid(kid),
        None => key,
    })
}

/// A URL alone, or a table with more.
fn read_auth(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<ForwardAuth> {
    let header = HeaderName::from_bytes(PRINCIPAL.as_bytes()).ok()?;
    let auth = |url| ForwardAuth { url, header, timeout: TIMEOUT, cache: CACHE };
    if !matches!(value.node.kind, Kind::Table(_)) {
        return value.parse(URL_EXAMPLE, problems, parse_auth_url).map(auth);
    }
    let example = format!("{{ url = {URL_EXAMPLE} }}");
    let table = Section::open(value, &fields::FORWARD_AUTH, &example, problems)?;
    let Some(url) = table.get("url") else {
        if !table.has_faults() {
            let fix = format!("write for example forward_auth = {example}");
            value.refuse(Fault::new("`url` is missing", fix), problems);
        }
        return None;
    };
    let mut auth = auth(url.parse(URL_EXAMPLE, problems, parse_auth_url)?);
    if let Some(value) = table.get("header") {
        auth.header = read_header(&value, "\"X-Auth-Request-User\"", problems)?;
    }
    if let Some(value) = table.get("timeout") {
        auth.timeout = duration(&value, &units::AUTH_TIMEOUT, problems)?;
    }
    if let Some(value) = table.get("cache") {
        auth.cache = duration(&value, &units::AUTH_CACHE, problems)?;
    }
    Some(auth)
}
