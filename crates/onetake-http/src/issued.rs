//! Issued keys: keys that the server makes for clients (`POST /idempotency-tokens`).
//!
//! An issued key is a nonce and an expiry, signed together with the tenant, namespace, method and
//! path that it is for. It works for nothing else (S15). Nothing is stored until the key is used.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::json;
use sha2::Sha256;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use onetake_core::clock::Timestamp;
use onetake_core::{Failure, Key, Rng};

use crate::json::{self, Limits};
use crate::policy::Policy;
use crate::problem::{Code, Problem};

/// Path of the endpoint that issues keys.
pub const TOKENS: &str = "/idempotency-tokens";
/// The largest body of a request for a key, in bytes.
pub(crate) const BODY_MAX: usize = 16 << 10;

/// Prefix of issued keys. It also names the version of their format.
const PREFIX: &str = "ot1";
/// The longest time in which a key may be used for the first time. It is shorter if the route's
/// `ttl` is shorter.
const VALID_MAX: Duration = Duration::from_secs(3600);

const NONCE: usize = 16;
const EXPIRY: usize = 8;
const SIGNATURE: usize = 16;

/// A secret that signs issued keys.
#[derive(Clone)]
pub struct IssuingKey(Hmac<Sha256>);

impl IssuingKey {
    /// Creates the signing key from a secret.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        // A key of one block: the secret, padded with zeros.
        let mut block = [0; 64];
        block.iter_mut().zip(secret).for_each(|(to, from)| *to = *from);
        Self(<Hmac<Sha256> as KeyInit>::new(&block.into()))
    }

    fn mac(&self, used: &Use<'_>, nonce_and_expiry: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        let (method, path) = (used.method.as_str().as_bytes(), used.path.as_bytes());
        let parts = [
            &b"onetake issued key v1"[..],
            used.tenant,
            used.namespace,
            method,
            path,
            nonce_and_expiry,
        ];
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

impl std::fmt::Debug for IssuingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IssuingKey")
    }
}

/// The use that a key is issued for: tenant, namespace, method and path.
#[derive(Clone, Copy)]
pub(crate) struct Use<'a> {
    pub(crate) tenant: &'a [u8],
    pub(crate) namespace: &'a [u8],
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
}

impl<'a> Use<'a> {
    pub(crate) fn of(
        policy: &'a Policy,
        tenant: &'a [u8],
        method: &'a Method,
        path: &'a str,
    ) -> Self {
        Self { tenant, namespace: policy.namespace.as_bytes(), method, path }
    }
}

/// Returns a new key, and the end of the time in which it may be used for the first time.
pub(crate) fn issue(
    key: &IssuingKey,
    used: &Use<'_>,
    ttl: Duration,
    now: Timestamp,
    rng: &dyn Rng,
) -> (String, Timestamp) {
    // If a record expired before its key, the key could run a second time.
    let expires_at = now.plus(ttl.min(VALID_MAX));
    let mut token = [0; NONCE];
    rng.fill(&mut token);
    let mut token = token.to_vec();
    token.extend_from_slice(&expires_at.as_micros().to_be_bytes());
    let signature = key.mac(used, &token).finalize().into_bytes();
    token.extend(signature.iter().take(SIGNATURE));
    (format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(token)), expires_at)
}

/// Verifies that a key was issued by one of these secrets for this use. Returns the end of the time
/// in which it may be used for the first time, or `None` if the key is not valid.
pub(crate) fn verify(keys: &[IssuingKey], used: &Use<'_>, key: &Key) -> Option<Timestamp> {
    let token = URL_SAFE_NO_PAD.decode(key.as_str().strip_prefix(PREFIX)?).ok()?;
    let (signed, signature) = token.split_at_checked(NONCE + EXPIRY)?;
    if signature.len() != SIGNATURE {
        return None;
    }
    let is_ours = |key: &IssuingKey| key.mac(used, signed).verify_truncated_left(signature).is_ok();
    if !keys.iter().any(is_ours) {
        return None;
    }
    let expiry: [u8; EXPIRY] = signed.get(NONCE..)?.try_into().ok()?;
    Some(Timestamp::from_micros(u64::from_be_bytes(expiry)))
}

/// The problem for a key that is not valid on this route.
pub(crate) fn invalid() -> Problem {
    Problem::new(
        Code::IdempotencyKeyInvalid,
        format!(
            "This route accepts only keys from POST {TOKENS}. This key was not issued there, is for another tenant, method or path, or has expired unused. Request a new key. Nothing was run."
        ),
    )
}

/// The failure that is recorded if the outcome of an expired key expired just before a claim with
/// the same key was granted. A release instead would let the key run later.
pub(crate) fn expired_failure() -> Failure {
    Failure {
        code: "issued_key_expired".to_owned(),
        detail: "the issued key has expired, and so has its outcome".to_owned(),
    }
}

/// A request for a key: the method and path that the key is for.
pub(crate) struct KeyRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
}

/// Reads the body of a request for a key: `{"method": "POST", "path": "/v1/charges"}`.
pub(crate) fn parse_key_request(body: &Bytes) -> Result<KeyRequest, Problem> {
    let bad = |what: &str| {
        let detail = format!(
            "{what}. Send the method and path that the key is for, such as {{\"method\": \"POST\", \"path\": \"/v1/charges\"}}."
        );
        Problem::new(Code::RequestBodyInvalid, detail)
    };
    let document = json::parse(body.clone(), Limits::default()).map_err(|error| {
        bad(&format!("The body is not JSON: {error}")).logged_as(error.for_log())
    })?;
    let object = document.root();
    if !object.is_object() {
        return Err(bad("The body is not a JSON object"));
    }
    let text = |name: &str| {
        let text = object.member(name).and_then(|value| value.text());
        text.ok_or_else(|| bad(&format!("`{name}` is missing or not a string")))
    };
    let method = Method::from_bytes(text("method")?.as_bytes());
    let method = method.map_err(|_| bad("`method` is not an HTTP method"))?;
    let path = text("path")?.to_owned();
    if !path.starts_with('/') || path.contains(['?', '#']) {
        return Err(bad("`path` is not a path, or has a query"));
    }
    Ok(KeyRequest { method, path })
}

/// The 201 response with the key.
pub(crate) fn issued(key: &str, expires_at: Timestamp) -> Response<Bytes> {
    let nanos = i128::from(expires_at.as_micros()) * 1000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    let at =
        at.and_then(|at| at.replace_nanosecond(0).ok()).and_then(|at| at.format(&Rfc3339).ok());
    let body = json!({ "key": key, "expires_at": at }).to_string();
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::SystemRng;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn used<'a>(tenant: &'a [u8], method: &'a Method, path: &'a str) -> Use<'a> {
        Use { tenant, namespace: b"", method, path }
    }

    #[test]
    fn a_key_works_for_what_it_was_issued_for_and_nothing_else() {
        let secret = IssuingKey::new(&[7; 32]);
        let right = used(b"alice", &Method::POST, "/charges");
        let day = Duration::from_secs(86_400);
        let (text, expires_at) = issue(&secret, &right, day, NOW, &SystemRng);
        assert_eq!(expires_at, NOW.plus(VALID_MAX));
        let key = Key::from_header(text.as_bytes(), 16).unwrap();
        let secrets = [IssuingKey::new(&[9; 32]), secret];
        assert_eq!(verify(&secrets, &right, &key), Some(expires_at), "rotation keeps old ones");
        for other in [
            used(b"bob", &Method::POST, "/charges"),
            used(b"alice", &Method::PUT, "/charges"),
            used(b"alice", &Method::POST, "/refunds"),
            Use { namespace: b"x", ..right },
        ] {
            assert_eq!(verify(&secrets, &other, &key), None);
        }
        assert_eq!(verify(&[IssuingKey::new(&[8; 32])], &right, &key), None);
        assert_eq!(verify(&[], &right, &key), None);
        assert_eq!(format!("{:?}", secrets[0]), "IssuingKey", "the secret is not shown");
        // A change of any character makes the key invalid.
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let forged = Key::new(String::from_utf8(bytes).unwrap()).unwrap();
            assert_eq!(verify(&secrets, &right, &forged), None, "character {at}");
        }
        for cut in 0..text.len() {
            let forged = Key::new(format!("{} ", &text[..cut])).unwrap();
            assert_eq!(verify(&secrets, &right, &forged), None);
        }
    }

    #[test]
    fn a_record_outlives_its_key() {
        let secret = IssuingKey::new(&[7; 32]);
        let minute = Duration::from_secs(60);
        let used = used(b"", &Method::POST, "/");
        assert_eq!(issue(&secret, &used, minute, NOW, &SystemRng).1, NOW.plus(minute));
    }

    #[test]
    fn what_is_wanted_is_read_or_explained() {
        let read = |text: &str| {
            parse_key_request(&text.to_owned().into()).map(|wanted| (wanted.method, wanted.path))
        };
        let right = read("{\"method\":\"POST\",\"path\":\"/v1/charges\"}").ok().unwrap();
        assert_eq!(right, (Method::POST, "/v1/charges".to_owned()));
        for bad in [
            "",
            "[]",
            "{}",
            "{\"method\":\"POST\"}",
            "{\"method\":\"P T\",\"path\":\"/\"}",
            "{\"method\":\"POST\",\"path\":\"charges\"}",
            "{\"method\":\"POST\",\"path\":\"/a?b=c\"}",
        ] {
            assert_eq!(read(bad).err().unwrap().code(), Code::RequestBodyInvalid, "{bad}");
        }
    }
}
