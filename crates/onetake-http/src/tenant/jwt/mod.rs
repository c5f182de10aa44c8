//! Tenants by JSON Web Tokens (RFC 7519) that the layer verifies.
//!
//! A key is for one algorithm, and the token must name the same algorithm. `none` is the algorithm
//! of no key, and the bytes of a public key are never used as a secret. The tenant is the issuer
//! and one claim, not the token. A token that was refreshed between two attempts is thus the same
//! tenant.
//!
//! The crate `jsonwebtoken` verifies signatures and reads JSON Web Keys. This module checks the
//! claims itself, for two reasons. The crate takes the time from the system instead of the `Clock`.
//! It also accepts a claim that occurs twice, which two readers can read differently.

mod key;
mod key_set;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use http::request::Parts;

use onetake_core::{Clock, Timestamp};

use super::unresolved;
use crate::json::{self, Document, Limits, Value};
use crate::problem::{Code, Problem};

pub use key::{Algorithm, JwtKey, JwtKeyError};
pub use key_set::{JWKS_KEYS_MAX, JWKS_REFRESH_PAUSE, JWKS_WAIT_MAX, JwksError, JwtKeySet};

/// The longest token that is read, in bytes.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// `Retry-After` of a request whose key cannot be fetched, in seconds.
const RETRY_SECONDS: u64 = 2;
const NO_KEY: &str = "this route has no key for the algorithm of the token (alg)";
const UNKNOWN_KEY: &str = "the token was signed with an unknown key (kid)";
/// The deepest nesting of a token's JSON.
const DEPTH_MAX: usize = 32;
/// The longest number that may name a tenant, in digits.
const DIGITS_MAX: usize = 40;

/// The verification of tokens, and the claim that names the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    keys: Vec<JwtKey>,
    key_set: Option<JwtKeySet>,
    claim: String,
    issuer: Option<String>,
    audience: Option<String>,
    leeway: Duration,
}

impl Jwt {
    /// Accepts tokens that one of these keys signed. The claim `sub` names the tenant, and the
    /// leeway is one minute.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = JwtKey>) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            key_set: None,
            claim: "sub".to_owned(),
            issuer: None,
            audience: None,
            leeway: Duration::from_secs(60),
        }
    }

    /// Also accepts tokens that one of the keys in `set` signed. While the set is empty or its
    /// latest refresh failed, a token with an unknown key gets 503 with `Retry-After` instead of
    /// 401.
    #[must_use]
    pub fn with_key_set(mut self, set: JwtKeySet) -> Self {
        self.key_set = Some(set);
        self
    }

    /// The key set, if there is one.
    #[must_use]
    pub fn key_set(&self) -> Option<&JwtKeySet> {
        self.key_set.as_ref()
    }

    /// Sets the claim that names the tenant: a string or an integer. The claim must stay the same
    /// when a token is refreshed.
    #[must_use]
    pub fn claim(mut self, name: impl Into<String>) -> Self {
        self.claim = name.into();
        self
    }

    /// Accepts only tokens of this issuer.
    #[must_use]
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    /// Accepts only tokens for this audience.
    #[must_use]
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.audience = Some(audience.into());
        self
    }

    /// Sets the leeway for differences between clocks.
    #[must_use]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// Returns the sender's name: the token's issuer and claim.
    pub(super) fn principal(&self, parts: &Parts, now: Timestamp) -> Result<Vec<u8>, Problem> {
        let Some(token) = bearer(parts) else {
            let problem =
                unresolved("send one Authorization header with Bearer and a JSON Web Token");
            return Err(problem.header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        };
        let may_be_fetched =
            || self.key_set.as_ref().is_some_and(JwtKeySet::is_stale) && self.lacks_key(parts);
        self.verify(token, now).map_err(|why| match why {
            NO_KEY | UNKNOWN_KEY if may_be_fetched() => {
                let detail = "The keys that verify bearer tokens cannot be fetched at the moment. Nothing was run. Retry with the same key after Retry-After.";
                Problem::new(Code::AuthUnavailable, detail.to_owned()).retry_after(RETRY_SECONDS)
            }
            why => {
                let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
                unresolved(why).header(WWW_AUTHENTICATE, challenge)
            }
        })
    }

    /// True if the token's key is not known and [`fetch_key`](Self::fetch_key) would wait for it.
    pub(super) fn waits_for_key(&self, parts: &Parts, now: Duration) -> bool {
        let Some(set) = &self.key_set else { return false };
        set.may_be_refreshed(now) && self.lacks_key(parts)
    }

    /// Returns a refresh of the key set, which takes at most [`JWKS_WAIT_MAX`], if the token's key
    /// is not known. The future is boxed, because every request would hold its space otherwise.
    pub(super) fn fetch_key<'a>(
        &'a self,
        parts: &Parts,
        clock: &'a dyn Clock,
    ) -> Option<BoxFuture<'a, ()>> {
        let set = self.key_set.as_ref()?;
        self.lacks_key(parts).then(|| set.refreshed(clock).boxed())
    }

    /// True if the request has a token whose key is not known.
    fn lacks_key(&self, parts: &Parts) -> bool {
        let header = bearer(parts)
            .filter(|token| token.len() <= TOKEN_BYTES_MAX)
            .and_then(|token| token.split(|byte| *byte == b'.').next())
            .and_then(object);
        let Some(header) = header.as_ref().map(Document::root) else { return false };
        // No fetched key can be for HS256 or for an unknown algorithm, so a fetch would not help.
        let algorithm = header.member("alg").and_then(Value::text).and_then(Algorithm::from_name);
        let is_public = algorithm.is_some_and(|algorithm| algorithm != Algorithm::Hs256);
        is_public && matches!(self.candidates(header), Err(NO_KEY | UNKNOWN_KEY))
    }

    /// Returns the keys that may have signed the token, by its algorithm and `kid`.
    fn candidates(&self, header: Value<'_>) -> Result<Vec<JwtKey>, &'static str> {
        let algorithm = header.member("alg").and_then(Value::text).and_then(Algorithm::from_name);
        let fetched = self.key_set.as_ref().map(JwtKeySet::keys).unwrap_or_default();
        let all = self.keys.iter().chain(fetched.iter());
        let mut keys = all.filter(|key| Some(key.algorithm()) == algorithm).peekable();
        if keys.peek().is_none() {
            return Err(NO_KEY);
        }
        let kid = match header.member("kid") {
            Some(kid) => Some(kid.text().ok_or("kid of the token is not a string")?),
            None => None,
        };
        let keys: Vec<JwtKey> = keys.filter(|key| key.is_called(kid)).cloned().collect();
        if keys.is_empty() { Err(UNKNOWN_KEY) } else { Ok(keys) }
    }

    /// Verifies the token and returns the sender's name. The signature is checked before any claim
    /// is read.
    fn verify(&self, token: &[u8], now: Timestamp) -> Result<Vec<u8>, &'static str> {
        const MALFORMED: &str = "the bearer token is not a signed JSON Web Token";
        if token.len() > TOKEN_BYTES_MAX {
            return Err("the token is longer than 16 KiB");
        }
        let (signed, signature) = split_at_last_dot(token).ok_or(MALFORMED)?;
        let (header, payload) = split_at_last_dot(signed).ok_or(MALFORMED)?;
        let header = object(header).ok_or(MALFORMED)?;
        let header = header.root();
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| MALFORMED)?;
        self.check_signature(header, signed, &signature)?;
        let claims = object(payload).ok_or(MALFORMED)?;
        let claims = claims.root();
        self.check_time(claims, now)?;
        self.check_audience(claims)?;
        self.name(claims)
    }

    fn check_signature(
        &self,
        header: Value<'_>,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), &'static str> {
        if header.member("crit").is_some() {
            return Err("the token has extensions (crit), which are not supported");
        }
        let keys = self.candidates(header)?;
        match keys.iter().any(|key| key.verifies(signed, signature)) {
            true => Ok(()),
            false => Err("the signature of the token is invalid"),
        }
    }

    fn check_time(&self, claims: Value<'_>, now: Timestamp) -> Result<(), &'static str> {
        let (now, leeway) = (now.as_micros() / 1_000_000, self.leeway.as_secs());
        let seconds = |value: Value<'_>| value.number().and_then(|number| number.whole());
        let expires = claims.member("exp").ok_or("the token has no expiry time (exp)")?;
        let expires = seconds(expires).ok_or("exp of the token is not a time")?;
        if now >= expires.saturating_add(leeway) {
            return Err("the token has expired");
        }
        if let Some(begins) = claims.member("nbf") {
            let begins = seconds(begins).ok_or("nbf of the token is not a time")?;
            if begins > now.saturating_add(leeway) {
                return Err("the token is not valid yet (nbf)");
            }
        }
        Ok(())
    }

    fn check_audience(&self, claims: Value<'_>) -> Result<(), &'static str> {
        let Some(wanted) = self.audience.as_deref() else { return Ok(()) };
        let is_for_us = match claims.member("aud") {
            Some(all) if all.is_array() => all.items().any(|one| one.text() == Some(wanted)),
            Some(one) => one.text() == Some(wanted),
            None => false,
        };
        if is_for_us { Ok(()) } else { Err("the token is for another audience (aud)") }
    }

    fn name(&self, claims: Value<'_>) -> Result<Vec<u8>, &'static str> {
        let issuer = match claims.member("iss") {
            Some(issuer) => Some(issuer.text().ok_or("iss of the token is not a string")?),
            None => None,
        };
        if self.issuer.is_some() && issuer != self.issuer.as_deref() {
            return Err("the token is from another issuer (iss)");
        }
        let claim = claims.member(&self.claim);
        let text = claim.and_then(|claim| claim.text()).filter(|text| !text.is_empty());
        let (kind, value) = match (text, claim.and_then(|claim| claim.number())) {
            (Some(text), _) => (b's', text.to_owned()),
            (None, Some(number)) => (
                b'i',
                number
                    .integer(DIGITS_MAX)
                    .ok_or("the claim that names the tenant is neither a string nor an integer")?,
            ),
            (None, None) => return Err("the token does not have the claim that names the tenant"),
        };
        Ok(name_of(issuer, kind, &value))
    }
}

/// Encodes issuer and claim without ambiguity. A missing issuer differs from an empty one, and the
/// string "7" from the number 7. The length separates issuer and claim.
pub(super) fn name_of(issuer: Option<&str>, kind: u8, value: &str) -> Vec<u8> {
    let mut name = vec![u8::from(issuer.is_some())];
    let issuer = issuer.unwrap_or_default();
    name.extend_from_slice(&(issuer.len() as u64).to_be_bytes());
    name.extend_from_slice(issuer.as_bytes());
    name.push(kind);
    name.extend_from_slice(value.as_bytes());
    name
}

/// Returns the bearer token, if the request has exactly one `Authorization` header and it is a
/// bearer token.
fn bearer(parts: &Parts) -> Option<&[u8]> {
    let mut values = parts.headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let value = value.as_bytes().trim_ascii();
    let (scheme, rest) = value.split_at_checked(value.iter().position(|byte| *byte == b' ')?)?;
    let token = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then_some(token)
}

fn split_at_last_dot(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (before, after) = text.split_at_checked(text.iter().rposition(|byte| *byte == b'.')?)?;
    Some((before, after.get(1..)?))
}

/// Decodes a part of a token: base64 of a JSON object. A part with a further dot is refused,
/// because a dot is not base64.
fn object(part: &[u8]) -> Option<Document> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    let document = json::parse(bytes.into(), Limits::with_depth_max(DEPTH_MAX)).ok()?;
    document.root().is_object().then_some(document)
}
