//! Whose key it is.
//!
//! The tenant must stay the same across the retries of one operation, or the retry runs again: a
//! client's address changes when it leaves the Wi-Fi, and a bearer token changes when it is
//! refreshed.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;

use crate::problem::{Code, Problem};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Schemes whose credential is the same on every request. Any other scheme may well sign each
/// request anew (SigV4, Digest, OAuth 1, HMAC of all kinds), and then a retry would look like a
/// stranger and run again: so they are refused, and not guessed at.
const STABLE: [&str; 10] = [
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

/// Tells the tenant of a request, if it can.
pub type TellTenant = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// How the tenant of a request is told.
#[derive(Clone, Default)]
pub enum Tenant {
    /// By its credential where it has one; everybody without is one tenant. A request with cookies
    /// and no other credential is refused: its sender is somebody, and this cannot tell who.
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
    Custom(Arc<TellTenant>),
}

/// Who asks.
#[derive(Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant, as bytes of which its kind is part.
    pub tenant: Vec<u8>,
    /// What must be the same for a replay although it does not name the tenant: the password of
    /// Basic. Nobody behind the layer checks it on a replay, so a wrong one must not get one.
    pub proof: Vec<u8>,
}

impl Tenant {
    /// Tells who asks.
    ///
    /// # Errors
    /// A problem for the client.
    pub fn resolve(&self, parts: &Parts) -> Result<Caller, Problem> {
        let caller = |tenant| Caller { tenant, proof: Vec::new() };
        match self {
            Self::CredentialOrPublic => match credential(parts)? {
                Some(caller) => Ok(caller),
                None if parts.headers.contains_key(COOKIE) => Err(unresolved(
                    "it comes with cookies and no other credential. Configure the tenant of this route, such as tenant = { header = \"X-Account\" }, or tenant = \"public\" if keys cannot be guessed",
                )),
                None => Ok(caller(public())),
            },
            Self::Credential => credential(parts)?.ok_or_else(|| {
                unresolved("send an Authorization header (Bearer or Basic) or X-Api-Key")
            }),
            Self::Public => Ok(caller(public())),
            Self::Header(name) => header(parts, name).map(caller),
            Self::Custom(resolve) => resolve(parts)
                .map(|tenant| caller(tagged(b"custom", &tenant)))
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
        _ => Err(unresolved(&format!("the header {name} must be there once, and not empty"))),
    }
}

/// The caller's credentials, all of them: one that only adds to another still tells people apart.
fn credential(parts: &Parts) -> Result<Option<Caller>, Problem> {
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
        return Err(unresolved("the header authorization was sent twice"));
    }
    let value = value.as_bytes().trim_ascii();
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at_checked(end).unwrap_or((value, b""));
    let scheme = scheme.to_ascii_lowercase();
    let rest = rest.trim_ascii();
    if !STABLE.iter().any(|name| name.as_bytes() == scheme) {
        return Err(Problem::new(
            Code::TenantUnstable,
            "This kind of credential may be made anew for every request, so that a retry would look like a stranger and run again. Configure another tenant for this route, such as tenant = { header = \"X-Account\" } or tenant = \"public\". Nothing was run.",
        ));
    }
    if rest.is_empty() {
        return Err(unresolved("the authorization header holds no credential"));
    }
    if scheme == b"basic" {
        let (user, password) = basic(rest)
            .ok_or_else(|| unresolved("the Basic credential is not base64 of user:password"))?;
        return Ok(Some(Caller { tenant: credential_of(b"basic", &user), proof: password }));
    }
    Ok(Some(Caller { tenant: credential_of(&scheme, rest), proof: Vec::new() }))
}

/// A scheme is the client's own word: it stays inside the kind, or it could name another kind.
fn credential_of(scheme: &[u8], value: &[u8]) -> Vec<u8> {
    tagged(b"credential", &tagged(scheme, value))
}

fn api_key(parts: &Parts) -> Result<Option<Caller>, Problem> {
    if !parts.headers.contains_key(X_API_KEY) {
        return Ok(None);
    }
    let tenant = credential_of(b"x-api-key", &header(parts, &X_API_KEY)?);
    Ok(Some(Caller { tenant, proof: Vec::new() }))
}

/// The user, who is the tenant, and the password, which is not: one that is changed makes a retry
/// a mismatch, and not a second run.
fn basic(encoded: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let decoded = STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded)).ok()?;
    let end = decoded.iter().position(|byte| *byte == b':')?;
    let (user, password) = decoded.split_at_checked(end)?;
    Some((user.to_vec(), password.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Request};

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::new(()).into_parts().0;
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        request
    }

    fn told(headers: &[(&str, &str)]) -> Result<Vec<u8>, Code> {
        let caller = Tenant::Credential.resolve(&parts(headers));
        caller.map(|caller| caller.tenant).map_err(|problem| problem.code())
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
        assert_eq!(told(&[("authorization", "Basic YWxpY2U6dHdv")]).unwrap(), alice);
    }

    #[test]
    fn credentials_that_change_are_refused() {
        for value in [
            "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu/s3/aws4_request, Signature=ab",
            "Digest username=\"u\", nonce=\"n\"",
            "OAuth oauth_consumer_key=\"k\", oauth_nonce=\"n\"",
            "HMAC-SHA256 abc",
            "AWS AKIA:signature",
            "EG1-HMAC-SHA256 client_token=x;signature=y",
            "SharedKey account:signature",
            "TC3-HMAC-SHA256 Credential=x, Signature=y",
            "Something-New abc",
        ] {
            assert_eq!(told(&[("authorization", value)]), Err(Code::TenantUnstable), "{value}");
        }
    }

    #[test]
    fn two_credentials_are_both_counted() {
        let both = |key| told(&[("authorization", "Bearer shared"), ("x-api-key", key)]).unwrap();
        assert_ne!(both("alice"), both("bob"));
        assert_ne!(both("alice"), told(&[("authorization", "Bearer shared")]).unwrap());
        assert_ne!(both("alice"), told(&[("x-api-key", "alice")]).unwrap());
    }

    #[test]
    fn a_password_is_a_proof_and_not_a_tenant() {
        let caller = |value| Tenant::Credential.resolve(&parts(&[("authorization", value)])).ok();
        // alice:one and alice:two
        let (one, two) = (caller("Basic YWxpY2U6b25l"), caller("Basic YWxpY2U6dHdv"));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(one.tenant == two.tenant && one.proof != two.proof);
    }

    #[test]
    fn cookies_are_somebody_and_nobody_knows_who() {
        let cookies = parts(&[("cookie", "session=1")]);
        assert!(Tenant::CredentialOrPublic.resolve(&cookies).is_err());
        assert!(Tenant::Public.resolve(&cookies).is_ok());
        let both = parts(&[("cookie", "session=1"), ("authorization", "Bearer a")]);
        assert!(Tenant::CredentialOrPublic.resolve(&both).is_ok());
    }

    #[test]
    fn nobody_is_refused() {
        let none = Err(Code::TenantUnresolved);
        assert_eq!(told(&[]), none);
        assert_eq!(told(&[("authorization", "Bearer")]), none);
        assert_eq!(told(&[("authorization", "Basic !!!")]), none);
        assert_eq!(told(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]), none);
        assert!(Tenant::CredentialOrPublic.resolve(&parts(&[])).is_ok());
        let account = Tenant::Header(HeaderName::from_static("x-account"));
        assert!(account.resolve(&parts(&[])).is_err());
        assert!(account.resolve(&parts(&[("x-account", "a"), ("x-account", "b")])).is_err());
        assert!(account.resolve(&parts(&[("x-account", "a")])).is_ok());
    }

    #[test]
    fn kinds_never_meet() {
        let public = Tenant::Public.resolve(&parts(&[])).unwrap().tenant;
        let header = Tenant::Header(HeaderName::from_static("x-account"));
        let account = header.resolve(&parts(&[("x-account", "public")])).unwrap().tenant;
        let bearer = told(&[("authorization", "Bearer public")]).unwrap();
        let forged = told(&[("authorization", "header public")]);
        assert_eq!(forged, Err(Code::TenantUnstable), "a scheme is not a kind of tenant");
        assert!(public != account && account != bearer && bearer != public);
    }
}
