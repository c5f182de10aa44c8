//! Whose key it is.
//!
//! The tenant must stay the same across the retries of one operation, or the retry runs again: a
//! client's address changes when it leaves the Wi-Fi, and a bearer token changes when it is
//! refreshed.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::header::{AUTHORIZATION, HeaderName};
use http::request::Parts;

use crate::problem::{Code, Problem};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Schemes whose credentials are made anew for every request: a retry would look like a stranger.
const UNSTABLE: [&str; 8] = [
    "aws4-hmac-sha256",
    "aws4-ecdsa-p256-sha256",
    "digest",
    "oauth",
    "hawk",
    "signature",
    "negotiate",
    "ntlm",
];

/// How the tenant of a request is told.
#[derive(Clone, Default)]
pub enum Tenant {
    /// By its credential where it has one; everybody without is one tenant.
    #[default]
    CredentialOrPublic,
    /// By its credential: the bearer token, the user of Basic, or `X-Api-Key`.
    Credential,
    /// Everybody is one tenant. Keys must be unguessable then.
    Public,
    /// By a header that a trusted proxy sets. Whoever puts this layer somewhere must see to it that
    /// nobody else can set it; the gateway removes it from everybody but trusted proxies.
    Header(HeaderName),
    /// By your own function; `None` is refused with 401.
    Custom(Arc<dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync>),
}

impl Tenant {
    /// Tells the tenant, as bytes in which its kind is part of.
    ///
    /// # Errors
    /// A problem for the client.
    pub fn resolve(&self, parts: &Parts) -> Result<Vec<u8>, Problem> {
        match self {
            Self::CredentialOrPublic => Ok(credential(parts)?.unwrap_or_else(public)),
            Self::Credential => credential(parts)?.ok_or_else(|| {
                unresolved("send an Authorization header (Bearer or Basic) or X-Api-Key")
            }),
            Self::Public => Ok(public()),
            Self::Header(name) => header(parts, name),
            Self::Custom(resolve) => resolve(parts)
                .map(|tenant| tagged(b"custom", &tenant))
                .ok_or_else(|| unresolved("the service could not tell who is asking")),
        }
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CredentialOrPublic => f.write_str("CredentialOrPublic"),
            Self::Credential => f.write_str("Credential"),
            Self::Public => f.write_str("Public"),
            Self::Header(name) => write!(f, "Header({name})"),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

fn unresolved(fix: &str) -> Problem {
    Problem::new(
        Code::TenantUnresolved,
        format!("It cannot be told whose key this is: {fix}. Nothing was run."),
    )
}

fn public() -> Vec<u8> {
    b"public".to_vec()
}

/// The kind goes in front, ended by a byte that no kind contains, so that kinds never meet.
fn tagged(kind: &[u8], value: &[u8]) -> Vec<u8> {
    [kind, b"\0", value].concat()
}

fn header(parts: &Parts, name: &HeaderName) -> Result<Vec<u8>, Problem> {
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(tagged(b"header", value.as_bytes())),
        (None, _) => Err(unresolved(&format!("the header {name} is missing"))),
        _ => Err(unresolved(&format!(
            "the header {name} must be there once, and not empty"
        ))),
    }
}

fn credential(parts: &Parts) -> Result<Option<Vec<u8>>, Problem> {
    let mut authorizations = parts.headers.get_all(AUTHORIZATION).iter();
    let Some(authorization) = authorizations.next() else {
        return api_key(parts);
    };
    if authorizations.next().is_some() {
        return Err(unresolved("the header authorization was sent twice"));
    }
    let value = authorization.as_bytes().trim_ascii();
    let end = value
        .iter()
        .position(|byte| *byte == b' ')
        .unwrap_or(value.len());
    let (scheme, rest) = value.split_at_checked(end).unwrap_or((value, b""));
    let scheme = scheme.to_ascii_lowercase();
    let rest = rest.trim_ascii();
    if UNSTABLE.iter().any(|name| name.as_bytes() == scheme) || scheme.starts_with(b"hmac") {
        return Err(Problem::new(
            Code::TenantUnstable,
            "This credential is made anew for every request, so a retry would look like a stranger and run again. Configure another tenant for this route, such as tenant = { header = \"X-Account\" } or tenant = \"public\". Nothing was run.",
        ));
    }
    if rest.is_empty() {
        return Err(unresolved("the authorization header holds no credential"));
    }
    if scheme == b"basic" {
        let user = basic_user(rest)
            .ok_or_else(|| unresolved("the Basic credential is not base64 of user:password"))?;
        return Ok(Some(credential_of(b"basic", &user)));
    }
    Ok(Some(credential_of(&scheme, rest)))
}

/// A scheme is the client's own word: it stays inside the kind, or it could name another kind.
fn credential_of(scheme: &[u8], value: &[u8]) -> Vec<u8> {
    tagged(b"credential", &tagged(scheme, value))
}

fn api_key(parts: &Parts) -> Result<Option<Vec<u8>>, Problem> {
    if parts.headers.contains_key(X_API_KEY) {
        header(parts, &X_API_KEY).map(|value| Some(credential_of(b"x-api-key", &value)))
    } else {
        Ok(None)
    }
}

/// The user alone: a password that is changed does not make another tenant.
fn basic_user(encoded: &[u8]) -> Option<Vec<u8>> {
    let decoded = STANDARD
        .decode(encoded)
        .or_else(|_| STANDARD_NO_PAD.decode(encoded))
        .ok()?;
    let end = decoded.iter().position(|byte| *byte == b':')?;
    decoded.get(..end).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Request};

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::new(()).into_parts().0;
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request
                .headers
                .append(name, HeaderValue::from_str(value).unwrap());
        }
        request
    }

    fn told(headers: &[(&str, &str)]) -> Result<Vec<u8>, Code> {
        Tenant::Credential
            .resolve(&parts(headers))
            .map_err(|problem| problem.code())
    }

    #[test]
    fn credentials_name_their_owner() {
        let bearer = told(&[("authorization", "Bearer abc")]).unwrap();
        assert_eq!(told(&[("authorization", "bearer   abc ")]).unwrap(), bearer);
        assert_ne!(told(&[("authorization", "Bearer abd")]).unwrap(), bearer);
        assert_ne!(told(&[("authorization", "Token abc")]).unwrap(), bearer);
        assert_ne!(told(&[("x-api-key", "abc")]).unwrap(), bearer);
        // alice:one and alice:two
        let alice = told(&[("authorization", "Basic YWxpY2U6b25l")]).unwrap();
        assert_eq!(
            told(&[("authorization", "Basic YWxpY2U6dHdv")]).unwrap(),
            alice
        );
    }

    #[test]
    fn credentials_that_change_are_refused() {
        for value in [
            "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu/s3/aws4_request, Signature=ab",
            "Digest username=\"u\", nonce=\"n\"",
            "OAuth oauth_consumer_key=\"k\", oauth_nonce=\"n\"",
            "HMAC-SHA256 abc",
            "hmac abc",
        ] {
            assert_eq!(
                told(&[("authorization", value)]),
                Err(Code::TenantUnstable),
                "{value}"
            );
        }
    }

    #[test]
    fn nobody_is_refused() {
        let none = Err(Code::TenantUnresolved);
        assert_eq!(told(&[]), none);
        assert_eq!(told(&[("authorization", "Bearer")]), none);
        assert_eq!(told(&[("authorization", "Basic !!!")]), none);
        assert_eq!(
            told(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]),
            none
        );
        assert!(Tenant::CredentialOrPublic.resolve(&parts(&[])).is_ok());
        let account = Tenant::Header(HeaderName::from_static("x-account"));
        assert!(account.resolve(&parts(&[])).is_err());
        assert!(
            account
                .resolve(&parts(&[("x-account", "a"), ("x-account", "b")]))
                .is_err()
        );
        assert!(account.resolve(&parts(&[("x-account", "a")])).is_ok());
    }

    #[test]
    fn kinds_never_meet() {
        let public = Tenant::Public.resolve(&parts(&[])).unwrap();
        let header = Tenant::Header(HeaderName::from_static("x-account"));
        let account = header.resolve(&parts(&[("x-account", "public")])).unwrap();
        let bearer = told(&[("authorization", "Bearer public")]).unwrap();
        let forged = told(&[("authorization", "header public")]).unwrap();
        assert_ne!(
            forged, account,
            "a scheme cannot pretend to be another kind of tenant"
        );
        assert!(public != account && account != bearer && bearer != public);
    }
}
