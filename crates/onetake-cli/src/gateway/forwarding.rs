//! The headers by which the upstream learns about the client: `Forwarded` and `X-Forwarded-*`.
//!
//! Unless a trusted proxy has set some of them, their values depend on the peer and the host alone.
//! So a connection makes them once ([`Hop`]), and uses them for every request with the same host.

use std::net::IpAddr;

use http::Version;
use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::Authority;

use onetake_http::Problem;
use onetake_http::key::IDEMPOTENCY_KEY;

use super::edge::{X_FORWARDED, refused};

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
pub(super) const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The headers that [`Hop::write`] adds.
const FORWARDED_HEADERS: usize = 5;
/// The headers that a request gets if it becomes an attempt.
const ATTEMPT_HEADERS: usize = 4;

/// The forwarding headers of one peer and one host.
#[derive(Debug)]
pub(super) struct Hop {
    /// A valid host.
    host: HeaderValue,
    peer: HeaderValue,
    forwarded: HeaderValue,
    port: HeaderValue,
    proto: &'static str,
}

impl Hop {
    /// Makes the headers of requests from this peer.
    ///
    /// # Errors
    /// If the host is malformed.
    pub(super) fn new(
        peer: IpAddr,
        host: HeaderValue,
        proto: &'static str,
    ) -> Result<Self, Problem> {
        let malformed = || refused("The Host header is malformed.");
        let text = host.to_str().map_err(|_| malformed())?;
        let authority = text.parse::<Authority>().map_err(|_| malformed())?;
        if text.contains('@') {
            return Err(malformed());
        }
        let peer = peer.to_canonical();
        let node = match peer {
            IpAddr::V4(address) => format!("for={address}"),
            IpAddr::V6(address) => format!("for=\"[{address}]\""),
        };
        let forwarded = format!("{node};host=\"{text}\";proto={proto}");
        let usual = if proto == "https" { 443 } else { 80 };
        Ok(Self {
            peer: HeaderValue::try_from(peer.to_string()).map_err(|_| malformed())?,
            forwarded: HeaderValue::try_from(forwarded).map_err(|_| malformed())?,
            port: HeaderValue::from(authority.port_u16().unwrap_or(usual)),
            proto,
            // A copy: the value of the request would keep hyper's whole read buffer.
            host: HeaderValue::from_str(text).map_err(|_| malformed())?,
        })
    }

    /// True if a request names this host.
    pub(super) fn is_of(&self, parts: &Parts) -> bool {
        let mut lines = parts.headers.get_all(HOST).iter();
        let is_named = match (lines.next(), parts.uri.authority()) {
            (Some(host), None) => *host == self.host,
            (Some(host), Some(target)) => *host == self.host && self.host == target.as_str(),
            (None, Some(target)) => {
                parts.version == Version::HTTP_2 && self.host == target.as_str()
            }
            (None, None) => false,
        };
        is_named && lines.next().is_none()
    }

    /// Sets the forwarding headers of a request. Those of a trusted proxy are kept and extended.
    /// The edge has removed all others.
    pub(super) fn write(&self, headers: &mut HeaderMap, is_behind_proxy: bool) {
        if !headers.contains_key(HOST) {
            headers.insert(HOST, self.host.clone());
        }
        // A table of headers that grows is hashed anew, so it grows once.
        let is_keyed = headers.contains_key(IDEMPOTENCY_KEY);
        headers.reserve(FORWARDED_HEADERS + if is_keyed { ATTEMPT_HEADERS } else { 0 });
        if is_behind_proxy {
            return self.extend(headers);
        }
        headers.insert(X_FORWARDED_FOR, self.peer.clone());
        headers.insert(FORWARDED, self.forwarded.clone());
        headers.insert(X_FORWARDED_PORT, self.port.clone());
        headers.insert(X_FORWARDED_HOST, self.host.clone());
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(self.proto));
    }

    fn extend(&self, headers: &mut HeaderMap) {
        append(headers, X_FORWARDED_FOR, &self.peer);
        append(headers, FORWARDED, &self.forwarded);
        // Beside the host or the scheme of a proxy in front, the port of this hop would be wrong.
        if !headers.contains_key(X_FORWARDED_HOST) && !headers.contains_key(X_FORWARDED_PROTO) {
            headers.entry(X_FORWARDED_PORT).or_insert(self.port.clone());
        }
        headers.entry(X_FORWARDED_HOST).or_insert(self.host.clone());
        headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(self.proto));
    }
}

/// Removes the forwarding headers of a client that is not a trusted proxy. These are all headers
/// that begin with `X-Forwarded-`: upstreams believe other ones, too, such as `X-Forwarded-Prefix`
/// or `X-Forwarded-User`.
pub(super) fn remove_claims(headers: &mut HeaderMap) {
    let is_claim = |name: &&HeaderName| name.as_str().starts_with(X_FORWARDED);
    let claims: Vec<_> = headers.keys().filter(is_claim).cloned().collect();
    for name in claims.into_iter().chain([FORWARDED, X_REAL_IP]) {
        headers.remove(name);
    }
}

/// Appends to a list header, which may consist of several lines.
fn append(headers: &mut HeaderMap, name: HeaderName, last: &HeaderValue) {
    if !headers.contains_key(&name) {
        headers.insert(name, last.clone());
        return;
    }
    let mut all: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        all.extend_from_slice(value.as_bytes());
        all.extend_from_slice(b", ");
    }
    all.extend_from_slice(last.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&all) {
        headers.insert(name, value);
    }
}

/// Returns the host of a request. There must be exactly one, in the `Host` header or the target.
///
/// # Errors
/// If there is none, or more than one.
pub(super) fn host_of(parts: &Parts) -> Result<HeaderValue, Problem> {
    let mut lines = parts.headers.get_all(HOST).iter();
    let first = lines.next();
    if lines.next().is_some() {
        return Err(refused("The request has more than one Host header."));
    }
    match (first, parts.uri.authority().map(Authority::as_str)) {
        (Some(host), Some(target)) if !host.as_bytes().eq_ignore_ascii_case(target.as_bytes()) => {
            Err(refused("The Host header and the target of the request name different hosts."))
        }
        (Some(host), _) => Ok(host.clone()),
        // HTTP/2 has the host in the target alone. In HTTP/1.1 the header is required as well.
        (None, Some(target)) if parts.version != Version::HTTP_11 => {
            HeaderValue::from_str(target).map_err(|_| refused("The host is malformed."))
        }
        (None, None) if parts.version <= Version::HTTP_10 => {
            Ok(HeaderValue::from_static("localhost"))
        }
        (None, _) => Err(refused("The request has no Host header.")),
    }
}
