//! `tenant = { forward_auth = "http://…" }`: asks an authentication service for the tenant of a
//! request.
//!
//! The service is asked before anything is claimed or replayed, so a revoked credential gets no
//! recording. Anything but a clear permission is a refusal. With `https://`, the same roots and the
//! same client certificate apply as for upstreams.

mod allowed;
mod counters;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue, USER_AGENT, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Semaphore;
use tracing::Instrument;

use onetake_core::engine::SPANS;
use onetake_core::{Clock, Rng};
use onetake_http::{Ask, Code, Problem};

use super::Connector;
use super::forwarding::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use crate::config;
use allowed::Allowed;
use counters::AuthCounters;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Maximum number of concurrent questions. One more is refused as overloaded.
const ASKED_MAX: usize = 256;
/// Maximum length of a principal's name, in bytes.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum size of a response's head. The body is never read.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Idle connections are closed before the service closes them.
const IDLE: Duration = Duration::from_secs(4);

/// Request headers that the service receives unchanged. The edge has corrected the forwarding
/// headers.
const PASSED_ON: [HeaderName; 6] =
    [AUTHORIZATION, COOKIE, X_API_KEY, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO];

/// A service that knows credentials, with a cache of its recent answers.
pub(super) struct ForwardAuth {
    config: config::ForwardAuth,
    client: Client<Connector, Empty<Bytes>>,
    places: Semaphore,
    allowed: Allowed,
    counters: AuthCounters,
    clock: Arc<dyn Clock>,
}

impl ForwardAuth {
    pub(super) fn new(
        config: config::ForwardAuth,
        connector: Connector,
        clock: Arc<dyn Clock>,
        rng: &dyn Rng,
    ) -> Self {
        // This client follows no redirects.
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(ASKED_MAX)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(connector);
        let allowed = Allowed::new(config.cache, rng);
        let (places, counters) = (Semaphore::new(ASKED_MAX), AuthCounters::new());
        Self { config, client, places, allowed, counters, clock }
    }

    async fn principal(&self, parts: &Parts) -> Result<Vec<u8>, Problem> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.config.url.clone();
        *request.headers_mut() = question(parts);
        let question = self.allowed.digest(request.headers());
        let asked_at = self.clock.monotonic();
        if let Some(name) = self.allowed.name(&question, asked_at) {
            self.counters.cached.increment(1);
            return Ok(name);
        }
        let Ok(_place) = self.places.try_acquire() else {
            self.counters.overloaded.increment(1);
            let detail = "Too many requests wait for the authentication service. Nothing was run. Retry with the same key after Retry-After.";
            return Err(Problem::new(Code::Overloaded, detail).retry_after(1));
        };
        let asked = self.counters.ask(&*self.clock);
        let answer = self.answer(request).await;
        asked.answered(&answer);
        if let Ok(name) = &answer {
            self.allowed.keep(question, name.clone(), asked_at);
        }
        answer
    }

    /// Asks the service for the principal.
    async fn answer(&self, request: Request<Empty<Bytes>>) -> Result<Vec<u8>, Problem> {
        let answered = tokio::select! {
            biased;
            answered = self.client.request(request) => answered,
            () = self.clock.sleep(self.config.timeout) => {
                return Err(self.unavailable("no response within the timeout"));
            }
        };
        match answered {
            Ok(response) => self.read(&response),
            // The credential was not sent: it goes only to a service whose identity is verified.
            Err(error) if error.is_connect() => {
                let why = format!("the connection failed: {}", cause(&error));
                Err(self.unavailable(&why))
            }
            Err(_) => {
                Err(self
                    .unavailable("the service closed the connection, or its response is not HTTP"))
            }
        }
    }

    fn read<B>(&self, response: &Response<B>) -> Result<Vec<u8>, Problem> {
        match response.status() {
            status if status.is_success() => {
                let mut names = response.headers().get_all(&self.config.header).iter();
                match (names.next(), names.next()) {
                    (Some(name), None) if (1..=NAME_BYTES_MAX).contains(&name.len()) => {
                        Ok(name.as_bytes().to_vec())
                    }
                    _ => {
                        Err(self.unavailable("the service allowed the request without exactly one principal in the header"))
                    }
                }
            }
            StatusCode::UNAUTHORIZED => {
                let detail = "The authentication service refused the credential. Nothing was run. Send a valid credential, and retry with the same key.";
                let problem = Problem::new(Code::TenantUnresolved, detail);
                let challenges = response.headers().get_all(WWW_AUTHENTICATE).iter();
                Err(challenges.fold(problem, |problem, challenge| {
                    problem.header(WWW_AUTHENTICATE, challenge.clone())
                }))
            }
            StatusCode::FORBIDDEN => {
                let detail = "The authentication service does not allow this request with this credential. Nothing was run.";
                Err(Problem::new(Code::AuthRefused, detail))
            }
            status => Err(self.unavailable(&format!("the service answered {}", status.as_u16()))),
        }
    }

    /// Fails closed. The client learns that it may retry, the log learns why.
    fn unavailable(&self, why: &str) -> Problem {
        let server = self.config.url.authority().map(http::uri::Authority::as_str);
        let header = self.config.header.as_str();
        tracing::warn!(
            server,
            header,
            why,
            "the forward_auth service gave no valid answer, so a keyed request was refused"
        );
        let detail = "The authentication service is unavailable. Nothing was run. Retry with the same key after Retry-After.";
        Problem::new(Code::AuthUnavailable, detail).retry_after(2)
    }
}

impl Ask for ForwardAuth {
    fn ask<'a>(&'a self, parts: &'a Parts) -> BoxFuture<'a, Result<Vec<u8>, Problem>> {
        let span = tracing::debug_span!(target: SPANS, "forward_auth");
        Box::pin(self.principal(parts).instrument(span))
    }
}

impl fmt::Debug for ForwardAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardAuth").finish_non_exhaustive()
    }
}

/// The innermost cause, such as a certificate that is not trusted.
fn cause<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}

/// The headers of the question: may this sender make this request?
fn question(parts: &Parts) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in PASSED_ON {
        for value in parts.headers.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let uri = parts.uri.path_and_query().map_or("/", |uri| uri.as_str());
    for (name, value) in [(X_FORWARDED_METHOD, parts.method.as_str()), (X_FORWARDED_URI, uri)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    headers.insert(USER_AGENT, HeaderValue::from_static("onetake"));
    headers
}
