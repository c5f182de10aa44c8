//! The tenant of a request: the owner of its key.
//!
//! The tenant must stay the same across the retries of one operation. Otherwise a retry runs again.
//! A client's address changes when it leaves the Wi-Fi, and a bearer token changes when it is
//! refreshed.

mod credential;
#[cfg(feature = "jwt")]
pub mod jwt;
mod named;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::header::{COOKIE, HeaderName};
use http::request::Parts;

use onetake_core::Clock;

use crate::advice::Advice;
use crate::problem::{Code, Problem};
use credential::credential;
pub use named::{TENANT_FORMS, tenant_named};

/// A function that returns the tenant of a request, or `None` if it cannot identify one.
pub type TellTenant = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// Authentication by another service, which identifies the sender and decides whether the request
/// is allowed.
///
/// The layer calls it before every claim and before every replay. A sender that has lost its
/// permission gets no recording.
pub trait Ask: Send + Sync + 'static {
    /// Returns the sender's name, which is never empty, or a problem for the sender.
    fn ask<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Vec<u8>, Problem>>;
}

/// The address of the client, in the extensions of a request, for [`Tenant::ClientIp`].
///
/// The code that sets it decides which proxies are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientIp(pub IpAddr);

/// The way in which the tenant of a request is identified.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Tenant {
    /// The credential, as in `Tenant::Credential`. All requests without one are one public
    /// tenant. A request with cookies and no other credential is refused: it belongs to a user, and
    /// the layer cannot tell which.
    #[default]
    CredentialOrPublic,
    /// The credential: the bearer token, the user of Basic, or `X-Api-Key`.
    Credential,
    /// One tenant for all requests.
    ///
    /// **Warning:** keys must then be impossible to guess.
    Public,
    /// The [`ClientIp`] that a component in front of this layer has set.
    ///
    /// **Warning:** a client that changes its network is another tenant, and its retry runs again.
    ClientIp,
    /// A header that a trusted proxy sets. The gateway removes it from all requests except those of
    /// trusted proxies.
    ///
    /// **Warning:** without the gateway, the deployment must ensure that no other sender can set
    /// it.
    Header(HeaderName),
    /// The issuer and a claim of a JSON Web Token that the layer verifies. The token itself does
    /// not count, so a refreshed token is the same tenant.
    #[cfg(feature = "jwt")]
    Jwt(Arc<jwt::Jwt>),
    /// The result of your own function. If it is `None`, the request is refused with 401.
    Custom(Arc<TellTenant>),
    /// The answer of another service, which is asked for every keyed request, handle and issued
    /// key.
    Asked(Arc<dyn Ask>),
}

/// The sender of a request.
#[derive(Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant, as bytes that include its kind.
    pub tenant: Vec<u8>,
    /// A secret that must be the same for a replay but is no part of the tenant: the password of
    /// Basic. On a replay, no service behind the layer checks the password, so the layer must.
    pub proof: Vec<u8>,
}

impl Caller {
    fn new(tenant: Vec<u8>) -> Self {
        Self { tenant, proof: Vec::new() }
    }
}

impl Tenant {
    /// The tenant that authentication outside this layer has found: `of` names it from a value in
    /// the request's extensions. A request without such a value is refused with 401.
    ///
    /// ```
    /// use onetake_http::Tenant;
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     id: u64,
    /// }
    /// let tenant = Tenant::extension(|user: &User| user.id.to_string());
    /// ```
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(
        of: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(Arc::new(move |parts: &Parts| {
            parts.extensions.get::<T>().map(|value| of(value).into_bytes())
        }))
    }

    /// Identifies the caller. It waits only for [`Tenant::Asked`], or if the key of a token has to
    /// be fetched.
    ///
    /// # Errors
    /// Returns a problem for the client.
    pub async fn resolve(&self, parts: &Parts, clock: &dyn Clock) -> Result<Caller, Problem> {
        if let Self::Asked(ask) = self {
            return ask.ask(parts).await.map(|name| Caller::new(tagged(b"asked", &name)));
        }
        #[cfg(feature = "jwt")]
        if let Self::Jwt(jwt) = self {
            if let Some(fetched) = jwt.fetch_key(parts, clock) {
                fetched.await;
            }
            return by_token(jwt, parts, clock);
        }
        self.resolve_now(parts, clock)
            .unwrap_or_else(|| Err(unresolved("the tenant was not looked up")))
    }

    /// Identifies the caller without waiting. Returns `None` if that needs an answer from
    /// elsewhere.
    pub(crate) fn resolve_now(
        &self,
        parts: &Parts,
        #[cfg_attr(not(feature = "jwt"), expect(unused_variables, reason = "tokens expire"))]
        clock: &dyn Clock,
    ) -> Option<Result<Caller, Problem>> {
        Some(match self {
            Self::CredentialOrPublic => match credential(parts) {
                Ok(Some(caller)) => Ok(caller),
                Ok(None) if parts.headers.contains_key(COOKIE) => {
                    let problem = unresolved(
                        "cookies do not identify it. Send an Authorization header (Bearer or Basic) or X-Api-Key",
                    );
                    Err(problem.advising(Advice::CookiesOnly))
                }
                Ok(None) => Ok(public()),
                Err(problem) => Err(problem),
            },
            Self::Credential => credential(parts).and_then(|caller| {
                caller.ok_or_else(|| {
                    unresolved("send an Authorization header (Bearer or Basic) or X-Api-Key")
                })
            }),
            Self::Public => Ok(public()),
            Self::ClientIp => client_ip(parts),
            Self::Header(name) => header(parts, name).map(Caller::new),
            #[cfg(feature = "jwt")]
            Self::Jwt(jwt) if jwt.waits_for_key(parts, clock.monotonic()) => return None,
            #[cfg(feature = "jwt")]
            Self::Jwt(jwt) => by_token(jwt, parts, clock),
            Self::Custom(resolve) => resolve(parts)
                .map(|tenant| Caller::new(tagged(b"custom", &tenant)))
                .ok_or_else(|| unresolved("the service did not recognise the caller")),
            Self::Asked(_) => return None,
        })
    }

    /// True if the tenant is verified, so that a refusal tells the sender something about its own
    /// credentials.
    pub(crate) fn is_verified(&self) -> bool {
        match self {
            #[cfg(feature = "jwt")]
            Self::Jwt(_) => true,
            Self::Asked(_) => true,
            _ => false,
        }
    }
}

/// Functions and services are equal if they are clones of the same `Arc`.
impl PartialEq for Tenant {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Header(a), Self::Header(b)) => a == b,
            #[cfg(feature = "jwt")]
            (Self::Jwt(a), Self::Jwt(b)) => a == b,
            (Self::Custom(a), Self::Custom(b)) => Arc::ptr_eq(a, b),
            (Self::Asked(a), Self::Asked(b)) => Arc::ptr_eq(a, b),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CredentialOrPublic => f.write_str("CredentialOrPublic"),
            Self::Credential => f.write_str("Credential"),
            Self::Public => f.write_str("Public"),
            Self::ClientIp => f.write_str("ClientIp"),
            Self::Header(name) => write!(f, "Header({name})"),
            #[cfg(feature = "jwt")]
            Self::Jwt(_) => f.write_str("Jwt"),
            Self::Custom(_) => f.write_str("Custom"),
            Self::Asked(_) => f.write_str("Asked"),
        }
    }
}

fn unresolved(fix: &str) -> Problem {
    Problem::new(
        Code::TenantUnresolved,
        format!("The owner of this key cannot be determined: {fix}. Nothing was run."),
    )
}

#[cfg(feature = "jwt")]
fn by_token(jwt: &jwt::Jwt, parts: &Parts, clock: &dyn Clock) -> Result<Caller, Problem> {
    jwt.principal(parts, clock.now()).map(|name| Caller::new(tagged(b"jwt", &name)))
}

fn public() -> Caller {
    Caller::new(b"public".to_vec())
}

/// Puts the kind before the value, ended by a byte that no kind contains. Tenants of different
/// kinds are thus never equal.
fn tagged(kind: &[u8], value: &[u8]) -> Vec<u8> {
    [kind, b"\0", value].concat()
}

/// Identifies the caller by address. An IPv4 address in IPv6 form is the same address.
fn client_ip(parts: &Parts) -> Result<Caller, Problem> {
    match parts.extensions.get::<ClientIp>() {
        Some(ClientIp(address)) => {
            let address = address.to_canonical().to_string();
            Ok(Caller::new(tagged(b"client-ip", address.as_bytes())))
        }
        None => Err(unresolved(
            "the client address is unknown, because the header X-Forwarded-For is not a list of addresses",
        )),
    }
}

fn header(parts: &Parts, name: &HeaderName) -> Result<Vec<u8>, Problem> {
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(tagged(b"header", value.as_bytes())),
        (None, _) => Err(unresolved(&format!("the header {name} is missing"))),
        _ => {
            Err(unresolved(&format!("the header {name} must be sent exactly once, and not empty")))
        }
    }
}
