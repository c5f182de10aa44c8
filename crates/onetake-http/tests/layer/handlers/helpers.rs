//! Helpers of the router tests: requests and responses.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::{MethodRouter, post};
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;
use tracing::span;

pub(crate) const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answered {
    /// Returns the status and the code of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        (self.status, body["code"].as_str().unwrap_or_default().to_owned())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answered {
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// A POST by this tenant under this key.
pub(crate) fn post_of(who: &str, path: &str, key: &str) -> Request<Body> {
    Request::post(path)
        .header("authorization", format!("Bearer {who}"))
        .header("idempotency-key", key)
        .body(Body::from("10"))
        .unwrap()
}

/// A handler that counts its runs.
pub(crate) fn counting() -> (MethodRouter, Arc<AtomicU32>) {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = async move || (counted.fetch_add(1, Ordering::Relaxed) + 1).to_string();
    (post(handler), runs)
}

/// A subscriber that stays. If only one were registered, a log statement that another test's thread
/// reaches first would be switched off for all threads.
static ANOTHER: LazyLock<tracing::Dispatch> =
    LazyLock::new(|| tracing::Dispatch::new(Lines(Arc::default())));

/// Collects the lines that this thread logs while the guard lives.
pub(crate) fn logs() -> (Arc<Mutex<Vec<String>>>, tracing::subscriber::DefaultGuard) {
    LazyLock::force(&ANOTHER);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let guard = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    (lines, guard)
}

/// A subscriber that keeps every event as a line of its fields.
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}
