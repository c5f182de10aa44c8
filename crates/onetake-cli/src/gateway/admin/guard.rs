//! Access control of the admin API: token, no web pages, rate limits.
//!
//! A browser that visits a foreign page may also send requests to loopback addresses. Such requests
//! are refused by these checks:
//!
//! - Headers that browsers add: `Origin` and `Sec-Fetch-Site`.
//! - The media type: a page cannot set it without a preflight request.
//! - Without a token, the host: it must not be a name, because an attacker can point a name at
//!   loopback (DNS rebinding).

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use onetake_core::Clock;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;
use crate::config::Token;

/// Requests per second, and the burst.
const REQUESTS: (u32, u32) = (50, 100);
/// Wrong tokens per second, and the burst.
const WRONG_TOKENS: (u32, u32) = (5, 50);

/// Checks every request, except those of probes.
#[derive(Clone)]
pub(super) struct Guard(Arc<Inner>);

struct Inner {
    token: Option<[u8; 32]>,
    requests: Bucket,
    wrong_tokens: Bucket,
}

impl Guard {
    pub(super) fn new(token: Option<&Token>, clock: &Arc<dyn Clock>) -> Self {
        let token = token.map(|token| digest(token.as_str().as_bytes()));
        let bucket = |(rate, at_once)| Bucket::new(rate, at_once, Arc::clone(clock));
        let (requests, wrong_tokens) = (bucket(REQUESTS), bucket(WRONG_TOKENS));
        Self(Arc::new(Inner { token, requests, wrong_tokens }))
    }

    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let Inner { token, requests, wrong_tokens } = &*self.0;
        refuse_pages(uri, headers, token.is_some())?;
        if let Some(token) = token
            && !shows(headers, token)
        {
            // Counted separately, so that guessing tokens does not lock operators out.
            wrong_tokens.take()?;
            return Err(ApiError::unauthorized());
        }
        requests.take()
    }
}

/// The middleware.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    }
}

/// True if the request has the token. Digests have the same length and are compared in constant
/// time, so the duration reveals nothing.
fn shows(headers: &HeaderMap, token: &[u8; 32]) -> bool {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let Some((scheme, shown)) = value.as_bytes().split_at_checked(7) else { return false };
    let shown = digest(shown.trim_ascii());
    scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(shown.ct_eq(token))
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn refuse_pages(uri: &Uri, headers: &HeaderMap, has_token: bool) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(HOST).or(uri.authority().map(Authority::as_str));
    if let Some(origin) = text(ORIGIN) {
        let of_origin = origin.split_once("://").map(|(_, host)| host);
        if of_origin.is_none() || of_origin != host {
            return Err(ApiError::cross_origin(
                "The request comes from a web page of another origin.",
            ));
        }
    }
    if let Some(site) = headers.get("sec-fetch-site")
        && ![&b"same-origin"[..], b"none"].contains(&site.as_bytes())
    {
        return Err(ApiError::cross_origin("The request comes from a web page of another site."));
    }
    // All hosts of the request: HTTP/2 has it only in the URI.
    let mut hosts = headers
        .get_all(HOST)
        .iter()
        .map(|value| value.to_str().unwrap_or_default())
        .chain(uri.authority().map(Authority::as_str));
    if !has_token && !hosts.all(is_an_address) {
        return Err(ApiError::cross_origin(
            "Without `admin.token`, the Host must be an IP address or localhost: use \
             http://127.0.0.1 and the port of the listener.",
        ));
    }
    Ok(())
}

/// True if a host is an address or `localhost`, with or without a port.
fn is_an_address(host: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !name.ends_with(':') => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

/// A rate limit with a burst.
struct Bucket {
    interval: Duration,
    at_once: u32,
    clock: Arc<dyn Clock>,
    /// When the bucket will be full again.
    clear_at: Mutex<Duration>,
}

impl Bucket {
    fn new(rate: u32, at_once: u32, clock: Arc<dyn Clock>) -> Self {
        let interval = Duration::from_secs(1) / rate.max(1);
        Self { interval, at_once, clock, clear_at: Mutex::default() }
    }

    fn take(&self) -> Result<(), ApiError> {
        let now = self.clock.monotonic();
        let mut clear_at = self.clear_at.lock().unwrap_or_else(PoisonError::into_inner);
        let owed = clear_at.saturating_sub(now);
        let allowed = self.interval * self.at_once.saturating_sub(1);
        if owed > allowed {
            let wait = (owed - allowed).as_secs_f64().ceil();
            return Err(ApiError::too_many((wait as u64).max(1)));
        }
        *clear_at = now + owed + self.interval;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;
    use onetake_core::ManualClock;

    const TOKEN: &str = "a-token-of-the-operator";

    fn asked(guard: &Guard, lines: &[(&str, &str)]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        match guard.check(&Uri::from_static("/v1/keys"), &headers) {
            Ok(()) => 200,
            Err(fault) => fault.into_response().status().as_u16(),
        }
    }

    fn guard(token: Option<&str>) -> (Guard, ManualClock) {
        let clock = ManualClock::default();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        (Guard::new(token.and_then(Token::new).as_ref(), &shared), clock)
    }

    #[test]
    fn nobody_comes_in_without_the_token() {
        for wrong in [
            &[][..],
            &[("authorization", "Bearer")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Bearer a-token-of-the-operato")],
            &[("authorization", "Bearer a-token-of-the-operator2")],
            &[("authorization", "Basic a-token-of-the-operator")],
            &[("authorization", TOKEN)],
            &[
                ("authorization", "Bearer a-token-of-the-operator"),
                ("authorization", "Bearer a-token-of-the-operator"),
            ],
        ] {
            assert_eq!(asked(&guard(Some(TOKEN)).0, wrong), 401, "{wrong:?}");
        }
        let right = [("authorization", "bearer a-token-of-the-operator")];
        assert_eq!(asked(&guard(Some(TOKEN)).0, &right), 200);
    }

    #[test]
    fn pages_are_refused() {
        let (open, _clock) = guard(None);
        for (line, status) in [
            ([("host", "127.0.0.1:9091"), ("origin", "https://evil.example")], 403),
            ([("host", "127.0.0.1:9091"), ("origin", "null")], 403),
            ([("host", "127.0.0.1:9091"), ("origin", "http://127.0.0.1:3000")], 403),
            ([("host", "127.0.0.1:9091"), ("origin", "http://127.0.0.1:9091")], 200),
            ([("host", "127.0.0.1:9091"), ("sec-fetch-site", "cross-site")], 403),
            ([("host", "127.0.0.1:9091"), ("sec-fetch-site", "same-site")], 403),
            ([("host", "127.0.0.1:9091"), ("sec-fetch-site", "none")], 200),
            ([("host", "rebound.example:9091"), ("x", "y")], 403),
            ([("host", "LOCALHOST:9091"), ("x", "y")], 200),
            ([("host", "[::1]:9091"), ("x", "y")], 200),
            ([("host", "[::1]"), ("x", "y")], 200),
            ([("host", "127.0.0.1.evil.example"), ("x", "y")], 403),
            ([("host", ""), ("x", "y")], 403),
        ] {
            assert_eq!(asked(&open, &line), status, "{line:?}");
        }
        let (closed, _clock) = guard(Some(TOKEN));
        let page = [("host", "a"), ("origin", "https://b"), ("authorization", "Bearer x")];
        assert_eq!(asked(&closed, &page), 403);
        let named =
            [("host", "admin.example"), ("authorization", "Bearer a-token-of-the-operator")];
        assert_eq!(asked(&closed, &named), 200);
    }

    #[test]
    fn not_too_often_and_guesses_keep_nobody_out() {
        let (closed, clock) = guard(Some(TOKEN));
        let right = [("authorization", "Bearer a-token-of-the-operator")];
        let wrong = [("authorization", "Bearer of-somebody-who-guesses")];
        let guesses: Vec<u16> = (0..60).map(|_| asked(&closed, &wrong)).collect();
        assert_eq!(guesses.iter().filter(|status| **status == 401).count(), 50);
        assert_eq!(guesses.last(), Some(&429));
        let answers: Vec<u16> = (0..101).map(|_| asked(&closed, &right)).collect();
        assert_eq!(answers.iter().filter(|status| **status == 200).count(), 100);
        assert_eq!(answers.last(), Some(&429));
        clock.advance(Duration::from_secs(1));
        assert_eq!((0..60).filter(|_| asked(&closed, &right) == 200).count(), 50);
        assert_eq!(asked(&closed, &wrong), 401);
    }
}
