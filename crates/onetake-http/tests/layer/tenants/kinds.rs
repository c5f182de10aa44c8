//! The kinds of tenants, and requests of each kind.

use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::request::{Builder, Parts};
use http::{HeaderName, Request};
use onetake_core::{Clock, ManualClock};
use onetake_http::{Ask, ClientIp, Code, Jwt, Problem, Tenant};
use proptest::prelude::*;
use serde_json::json;

use super::issuers::Issuer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    CredentialOrPublic,
    Credential,
    Public,
    ClientIp,
    Header,
    Jwt,
    Custom,
    Asked,
}

impl Mode {
    pub(crate) const ALL: [Self; 8] = [
        Self::CredentialOrPublic,
        Self::Credential,
        Self::Public,
        Self::ClientIp,
        Self::Header,
        Self::Jwt,
        Self::Custom,
        Self::Asked,
    ];

    pub(crate) fn tenant(self) -> Tenant {
        match self {
            Self::CredentialOrPublic => Tenant::CredentialOrPublic,
            Self::Credential => Tenant::Credential,
            Self::Public => Tenant::Public,
            Self::ClientIp => Tenant::ClientIp,
            Self::Header => Tenant::Header(HeaderName::from_static("x-account")),
            Self::Jwt => Tenant::Jwt(Arc::new(Jwt::new([ISSUER.key()]))),
            Self::Custom => Tenant::Custom(Arc::new(|parts| {
                Some(parts.headers.get("x-custom")?.as_bytes().to_vec())
            })),
            Self::Asked => Tenant::Asked(Arc::new(Sessions)),
        }
    }
}

static ISSUER: LazyLock<Issuer> = LazyLock::new(Issuer::eddsa);

/// A service that knows the owner of each session.
struct Sessions;

impl Ask for Sessions {
    fn ask<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Vec<u8>, Problem>> {
        async move {
            tokio::task::yield_now().await;
            let session = parts.headers.get("x-session").and_then(|value| value.to_str().ok());
            let name = session.and_then(|session| session.split_once(':')).map(|(_, name)| name);
            let refused = || Problem::new(Code::AuthRefused, "It is nobody's session.");
            name.map(|name| name.as_bytes().to_vec()).ok_or_else(refused)
        }
        .boxed()
    }
}

/// A tenant of one mode.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) mode: Mode,
    /// The kind of credential, if the mode has several.
    form: u8,
    pub(crate) name: String,
}

impl Who {
    /// The identity of the tenant. Two with the same identity are one tenant. For credentials,
    /// their kind is part of it.
    pub(crate) fn identity(&self) -> (Mode, u8, &str) {
        match (self.mode, self.form) {
            (Mode::Public, _) | (Mode::CredentialOrPublic, 3..) => (Mode::Public, 0, ""),
            (Mode::CredentialOrPublic | Mode::Credential, form) => {
                (Mode::Credential, form % 3, &self.name)
            }
            (mode, _) => (mode, 0, &self.name),
        }
    }

    /// Adds the tenant's credentials to a request. Tokens and sessions are new for each request.
    pub(crate) fn dress(&self, request: Builder) -> Builder {
        static FRESH: AtomicUsize = AtomicUsize::new(0);
        let fresh = FRESH.fetch_add(1, Ordering::Relaxed);
        let name = &self.name;
        match (self.mode, self.form) {
            (Mode::Public, _) | (Mode::CredentialOrPublic, 3..) => request,
            (Mode::CredentialOrPublic | Mode::Credential, form) => match form % 3 {
                0 => request.header("authorization", format!("Bearer {name}")),
                1 => request.header("x-api-key", name),
                _ => {
                    let basic = STANDARD.encode(format!("{name}:password"));
                    request.header("authorization", format!("Basic {basic}"))
                }
            },
            (Mode::ClientIp, _) => {
                let mut octets = [0; 16];
                octets[0] = 0x20;
                octets[1] = u8::try_from(name.len()).unwrap();
                octets[4..4 + name.len()].copy_from_slice(name.as_bytes());
                request.extension(ClientIp(Ipv6Addr::from(octets).into()))
            }
            (Mode::Header, _) => request.header("x-account", name),
            (Mode::Jwt, _) => {
                let expires = ManualClock::default().now().as_micros() / 1_000_000 + 600;
                let claims = json!({ "iss": "i", "sub": name, "exp": expires, "jti": fresh });
                request.header("authorization", format!("Bearer {}", ISSUER.token(&claims)))
            }
            (Mode::Custom, _) => request.header("x-custom", name),
            (Mode::Asked, _) => request.header("x-session", format!("{fresh}:{name}")),
        }
    }

    pub(crate) fn post(&self, path: &str) -> Builder {
        self.dress(Request::post(path))
    }
}

/// Generates names that are similar to each other, and names that have a meaning elsewhere.
fn name() -> impl Strategy<Value = String> {
    const KNOWN: [&str; 10] =
        ["alice", "Alice", "alic", "bob", "public", "header", "jwt", "asked", "7", "07"];
    prop_oneof![
        proptest::sample::select(&KNOWN[..]).prop_map(str::to_owned),
        "[a-b]{1,2}",
        "[!-9;-~]{1,11}",
    ]
}

pub(crate) fn who(mode: Mode) -> impl Strategy<Value = Who> {
    (0..4_u8, name()).prop_map(move |(form, name)| Who { mode, form, name })
}

pub(crate) fn anybody() -> impl Strategy<Value = Who> {
    proptest::sample::select(&Mode::ALL[..]).prop_flat_map(who)
}
