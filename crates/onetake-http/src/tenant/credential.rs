//! Tenants by credential: `Authorization` and `X-Api-Key`.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::header::{AUTHORIZATION, HeaderName};
use http::request::Parts;

use super::{Caller, header, tagged, unresolved};
use crate::advice::Advice;
use crate::problem::{Code, Problem};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Schemes whose credential is the same on every request. Other schemes may sign each request with
/// a new value (SigV4, Digest, OAuth 1, every kind of HMAC). A retry would then look like another
/// tenant and would run again, so other schemes are refused.
pub(super) const STABLE_SCHEMES: [&str; 10] = [
    "bearer",
    "basic",
    "token",
    "apikey",
    "api-key",
    "api_key",
    "key",
    "jwt",
    "dpop",
    "privatetoken",
];

/// Returns the caller by all of its credentials. A second credential can distinguish callers that
/// share the first one, so both are part of the tenant.
pub(super) fn credential(parts: &Parts) -> Result<Option<Caller>, Problem> {
    let mut callers = [authorization(parts)?, api_key(parts)?].into_iter().flatten();
    Ok(match (callers.next(), callers.next()) {
        (Some(first), Some(second)) => {
            let length = (first.tenant.len() as u64).to_be_bytes();
            let both = [&length[..], &first.tenant, &second.tenant].concat();
            Some(Caller { tenant: tagged(b"credentials", &both), proof: first.proof })
        }
        (caller, _) => caller,
    })
}

fn authorization(parts: &Parts) -> Result<Option<Caller>, Problem> {
    let mut values = parts.headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(unresolved("the header Authorization was sent more than once"));
    }
    let value = value.as_bytes().trim_ascii();
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at_checked(end).unwrap_or((value, b""));
    let rest = rest.trim_ascii();
    let is_named = |name: &&&str| name.as_bytes().eq_ignore_ascii_case(scheme);
    let Some(scheme) = STABLE_SCHEMES.iter().find(is_named) else {
        let problem = Problem::new(
            Code::TenantUnstable,
            "Credentials of this Authorization scheme may change with every request, so a retry could not be recognized. Send a credential that stays the same instead, such as Bearer, Basic or X-Api-Key. Nothing was run.",
        );
        return Err(problem.advising(Advice::UnstableCredential));
    };
    if rest.is_empty() {
        return Err(unresolved("the header Authorization has no credential after its scheme"));
    }
    if *scheme == "basic" {
        let (user, password) = basic(rest)
            .ok_or_else(|| unresolved("the Basic credential is not user:password in base64"))?;
        return Ok(Some(Caller { tenant: credential_of(b"basic", &user), proof: password }));
    }
    Ok(Some(Caller { tenant: credential_of(scheme.as_bytes(), rest), proof: Vec::new() }))
}

/// Returns the tenant of a credential. The client chooses the scheme, so the scheme is part of the
/// value. Otherwise it could forge another kind of tenant.
pub(super) fn credential_of(scheme: &[u8], value: &[u8]) -> Vec<u8> {
    // Both tags at once: see `tagged`.
    [b"credential\0", scheme, b"\0", value].concat()
}

fn api_key(parts: &Parts) -> Result<Option<Caller>, Problem> {
    if !parts.headers.contains_key(X_API_KEY) {
        return Ok(None);
    }
    let tenant = credential_of(b"x-api-key", &header(parts, &X_API_KEY)?);
    Ok(Some(Caller { tenant, proof: Vec::new() }))
}

/// The tenant of a client that sends this value as its `X-Api-Key`.
pub(super) fn api_key_of(value: &[u8]) -> Vec<u8> {
    credential_of(b"x-api-key", &tagged(b"header", value))
}

/// Decodes a Basic credential into user and password. Only the user is the tenant. A retry with a
/// changed password is thus a mismatch and not a second run.
fn basic(encoded: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let decoded = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded)).ok()?;
    let end = decoded.iter().position(|byte| *byte == b':')?;
    let (user, password) = decoded.split_at_checked(end)?;
    Some((user.to_vec(), password.to_vec()))
}
