//! `on_unknown = "reconcile"`: asks a service of the route for the outcome of an attempt that is
//! unknown.
//!
//! ```text
//! record → route by its name → target (the memo, percent-encoded) → GET → answer: its meaning
//! ```
//!
//! A response that is not clear settles nothing: the engine asks again later, and records a failure
//! at the limit. Neither logs nor responses contain the URL, which has a key in it.

mod answer;
mod health;
mod target;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT_ENCODING, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use onetake_core::{
    Clock, Failure, Inquiry, Origin, Reconcile, ReconcileAnswer, Record, TenantDigest,
};
use onetake_http::recording::record_response;
use onetake_http::{InFlight, MemoField, MemoValues};

use super::Connector;
use super::plan::{NO_ROUTE, label_of};
use crate::config::{self, Config, Placeholder, Settings};
use answer::Means;
use health::Health;

/// Shortest pause between two questions about the same key.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between two questions about the same key.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Maximum size of a response's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Idle connections are closed before the service closes them.
const IDLE: Duration = Duration::from_secs(4);
/// Maximum number of idle connections to one server: as many as are used at once.
const IDLE_MAX: usize = 16;

/// The reconciler of the gateway, which asks the services of routes.
#[derive(Debug)]
pub(super) struct Reconciler {
    routes: Vec<RouteTarget>,
    client: Client<Connector, Empty<Bytes>>,
    /// Maximum clock difference between nodes, for stores without a clock.
    skew: Duration,
    clock: Arc<dyn Clock>,
}

/// The reconciliation settings of one route.
#[derive(Debug)]
struct RouteTarget {
    /// The route's name as in records.
    name: Arc<str>,
    asked: config::Reconcile,
    upstream_timeout: Duration,
    /// True if a client may have got a 202. Then nothing is released, and the handle shows a
    /// failure instead.
    answers_later: bool,
    body_bytes_max: usize,
    health: Health,
}

/// The parts of a request that must be kept in the memo for the URL of the question.
pub(super) fn remembered_for(reconcile: &config::Reconcile) -> Vec<MemoField> {
    let pairs = [
        (Placeholder::DerivedKey, MemoField::DerivedKey),
        (Placeholder::Key, MemoField::Key),
        (Placeholder::Tenant, MemoField::Tenant),
    ];
    let used = pairs.into_iter().filter(|(place, _)| reconcile.request.has(*place));
    used.map(|(_, remembered)| remembered).collect()
}

impl Reconciler {
    /// Returns `None` if no route reconciles.
    pub(super) fn new(
        config: &Config,
        connector: &Connector,
        clock: Arc<dyn Clock>,
    ) -> Option<Self> {
        let named = config.routes.iter().map(|route| (label_of(route), &route.settings));
        let routes = routes(named.chain([(NO_ROUTE.to_owned(), &config.defaults)]));
        if routes.is_empty() {
            return None;
        }
        // This client follows no redirects: only the configured service is asked.
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(connector.clone());
        Some(Self { routes, client, skew: config.store.url.clock_skew_max(), clock })
    }

    fn route(&self, record: &Record) -> Option<&RouteTarget> {
        self.routes.iter().find(|route| route.name == record.origin.route)
    }

    async fn found(&self, record: &Record) -> ReconcileAnswer {
        let Some(route) = self.route(record) else {
            return not_asked("the route no longer has a reconciler");
        };
        let known = MemoValues::of(&record.origin.memo);
        let Some(uri) = target::fill(&route.asked.request, &known, record.id.reference()) else {
            return not_asked(
                "the record does not have the values for the URL: the tenant is too long to be stored, the key or tenant is `.` or `..`, the route had another URL when the key was claimed, or this node cannot decrypt the memo",
            );
        };
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri;
        *request.headers_mut() = headers(&route.asked.request_headers);
        let Some(ask) = route.health.ask(&*self.clock) else {
            return not_asked(
                "the service timed out several times in a row, so requests to it are paused",
            );
        };
        let found = self.answer(route, request, record).await;
        ask.answered();
        found
    }

    /// Sends the request and interprets the response.
    async fn answer(
        &self,
        route: &RouteTarget,
        request: Request<Empty<Bytes>>,
        record: &Record,
    ) -> ReconcileAnswer {
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                return unclear("the connection to the service failed");
            }
            Err(_) => {
                return unclear("the service closed the connection, or its response is not HTTP");
            }
        };
        let (mut parts, body) = response.into_parts();
        let status = match answer::means(parts.status, &parts.headers, &route.asked.not_executed) {
            Means::Outcome(status) => status,
            Means::NotExecuted if route.answers_later => {
                return ReconcileAnswer::Failed(not_executed());
            }
            Means::NotExecuted => return ReconcileAnswer::NotExecuted,
            Means::Nothing(why) => return ReconcileAnswer::Unclear(why),
        };
        parts.status = status;
        answer::strip(&mut parts.headers);
        let response = http::Response::from_parts(parts, body);
        match record_response(response, route.body_bytes_max).await {
            Ok(recording) => {
                if recording.body.is_none() {
                    tracing::warn!(
                        reference = %record.id.reference(), route = &*route.name, max = route.body_bytes_max,
                        "a reconciled response is larger than max_response_body: it is recorded without its body"
                    );
                }
                ReconcileAnswer::Completed(recording)
            }
            Err(_) => unclear("the service closed the connection before the end of its response"),
        }
    }
}

/// The routes that reconcile. Records hold only the beginning of a route's name. If two routes
/// share it, neither is reconciled.
fn routes<'a>(named: impl Iterator<Item = (String, &'a Settings)>) -> Vec<RouteTarget> {
    let mut routes: Vec<RouteTarget> = Vec::new();
    let mut known: Vec<(Arc<str>, String)> = Vec::new();
    for (label, settings) in named {
        let name = Origin::new(TenantDigest::default(), &label).route;
        if let Some((_, other)) = known.iter().find(|(other, _)| *other == name) {
            if *other != label {
                tracing::error!(
                    route = label,
                    "the names of two routes begin with the same characters and are too long to distinguish their records: unknown outcomes of both are not reconciled. Shorten their patterns"
                );
                routes.retain(|route| route.name != name);
            }
            continue; // The first match wins.
        }
        known.push((Arc::clone(&name), label));
        let policy = &settings.policy;
        if let Some(asked) = settings.reconcile.clone() {
            routes.push(RouteTarget {
                name,
                asked,
                upstream_timeout: policy.upstream_timeout,
                answers_later: matches!(policy.in_flight, InFlight::Async(_)),
                body_bytes_max: policy.max_response_body,
                health: Health::default(),
            });
        }
    }
    routes
}

/// Headers of a question. Bodies are requested unencoded, as for keyed requests.
fn headers(configured: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static("onetake"));
    headers.extend(configured.clone());
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

/// The failure for an operation without effect whose client has got a 202.
fn not_executed() -> Failure {
    Failure {
        code: "not_executed".to_owned(),
        detail: "the operation had no effect: use a new key to try again".to_owned(),
    }
}

fn not_asked(why: &str) -> ReconcileAnswer {
    ReconcileAnswer::NotAsked(why.to_owned())
}

fn unclear(why: &str) -> ReconcileAnswer {
    ReconcileAnswer::Unclear(why.to_owned())
}

impl Reconcile for Reconciler {
    fn inquiry(&self, record: &Record) -> Option<Inquiry> {
        let route = self.route(record)?;
        // The longer of the timeouts at the attempt and now, so that a deployment in between
        // shortens nothing.
        let then = MemoValues::of(&record.origin.memo).run_max.unwrap_or_default();
        let upstream_timeout = route.upstream_timeout.max(then);
        Some(Inquiry {
            // Until then, the attempt's request may still arrive at the upstream.
            after: upstream_timeout.saturating_add(record.terms.grace).saturating_add(self.skew),
            timeout: route.asked.timeout,
            pause_min: PAUSE_MIN,
            pause_max: PAUSE_MAX,
            limit: route.asked.give_up_after,
        })
    }

    fn ask(&self, record: Arc<Record>) -> BoxFuture<'_, ReconcileAnswer> {
        Box::pin(async move { self.found(&record).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, load};

    /// A node without the encryption key of a record reads an empty memo. Another node may be able
    /// to ask.
    #[tokio::test]
    async fn who_does_not_know_what_to_ask_for_has_not_asked() {
        let text = "[gateway]\nupstream = \"http://a\"\n[defaults]\non_unknown = \"reconcile\"\n\
             reconcile = \"GET http://127.0.0.1:1/{derived_key}\"\n";
        let config = load(Some(text), "test", std::iter::empty(), Overrides::default()).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(onetake_core::SystemClock);
        let connector = Connector::new(None, Arc::clone(&clock)).unwrap();
        let reconciler = Reconciler::new(&config, &connector, clock).unwrap();
        let at = onetake_core::Timestamp::from_micros(1);
        let record = |route: &str| Record {
            id: onetake_core::RecordId::from_bytes([1; 16]),
            attempt: onetake_core::AttemptId::from_bytes([2; 16]),
            fence: onetake_core::Fence::new(1),
            fingerprint: onetake_core::Fingerprint::of(b"pay"),
            terms: onetake_core::Terms::default(),
            origin: Origin::new(TenantDigest::default(), route),
            created_at: at,
            claimed_at: at,
            history: onetake_core::origin::AttemptHistory::default(),
            state: onetake_core::State::Running { lease_until: at },
        };
        for route in [NO_ROUTE, "POST /gone"] {
            let found = reconciler.found(&record(route)).await;
            assert!(matches!(found, ReconcileAnswer::NotAsked(_)), "{route}: {found:?}");
        }
    }

    #[test]
    fn routes_are_known_by_what_records_call_them() {
        let long = "a".repeat(300);
        let text = format!(
            "[gateway]\nupstream = \"http://a\"\n[defaults]\non_unknown = \"reconcile\"\n\
             reconcile = \"GET http://b/{{derived_key}}\"\n[[route]]\nmatch = \"POST /one\"\n\
             [[route]]\nmatch = \"POST /two\"\non_unknown = \"fail\"\n\
             [[route]]\nmatch = \"POST /{long}/one\"\n[[route]]\nmatch = \"POST /{long}/two\"\n"
        );
        let config = load(Some(&text), "test", std::iter::empty(), Overrides::default()).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(onetake_core::SystemClock);
        let connector = Connector::new(None, Arc::clone(&clock)).unwrap();
        let reconciler = Reconciler::new(&config, &connector, Arc::clone(&clock)).unwrap();
        let names: Vec<_> = reconciler.routes.iter().map(|route| &*route.name).collect();
        assert_eq!(names, ["POST /one", "-"], "not those that cannot be told apart");
        let none = "[gateway]\nupstream = \"http://a\"\n";
        let config = load(Some(none), "test", std::iter::empty(), Overrides::default()).unwrap();
        assert!(Reconciler::new(&config, &connector, clock).is_none());
    }
}
