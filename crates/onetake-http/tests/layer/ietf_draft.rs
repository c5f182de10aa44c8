//! The rules of draft-ietf-httpapi-idempotency-key-header-07, one test for each.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use onetake_core::{Engine, Limits, ManualClock, MemoryStore, Store, SystemRng, Terms};
use onetake_http::{OnetakeLayer, Policy};
use serde_json::Value;
use tokio::sync::Notify;
use tower::ServiceExt;

const KEY: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

/// An API that requires a key, as in the examples of the draft.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<AtomicUsize>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

/// Answers 402 at `/payments/declined`, else 201. At `/payments/slow` it waits for `finish` first.
async fn pay(State(api): State<Api>, request: Request<Body>) -> Response {
    let run = api.runs.fetch_add(1, Ordering::SeqCst);
    let body = format!("run {run}");
    match request.uri().path() {
        "/payments/slow" => {
            api.started.notify_one();
            api.finish.notified().await;
            (StatusCode::CREATED, body).into_response()
        }
        "/payments/declined" => (StatusCode::PAYMENT_REQUIRED, body).into_response(),
        _ => (StatusCode::CREATED, body).into_response(),
    }
}

struct Server {
    api: Api,
    clock: ManualClock,
    store: MemoryStore,
    router: Router,
}

struct Answered {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Server {
    fn new() -> Self {
        let (api, clock) = (Api::default(), ManualClock::default());
        let store = MemoryStore::with_clock(Arc::new(clock.clone()));
        let shared = Arc::new(store.clone()) as Arc<dyn Store>;
        let time = Arc::new(clock.clone());
        let engine = Engine::with(shared, time, Arc::new(SystemRng), Limits::default());
        let router = Router::new()
            .route("/payments/{how}", post(pay))
            .with_state(api.clone())
            .layer(OnetakeLayer::new(engine, Policy::new().key_required()).unwrap());
        Self { api, clock, store, router }
    }

    fn runs(&self) -> usize {
        self.api.runs.load(Ordering::SeqCst)
    }

    async fn send(&self, request: Request<Body>) -> Answered {
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Answered { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> Answered {
        self.send(request(path, "alice", &[key], body)).await
    }

    /// Fetches the documentation that a problem links to.
    async fn documentation(&self, answered: &Answered) -> String {
        let link = answered.headers["link"].to_str().unwrap();
        let (target, relation) = link.split_once(">; ").unwrap();
        assert_eq!(relation, "rel=\"describedby\"");
        let (page, section) = target.strip_prefix('<').unwrap().split_once('#').unwrap();
        let page = self.send(Request::get(page).body(Body::empty()).unwrap()).await;
        assert_eq!(page.status, 200);
        let heading = format!("\n## {section}\n");
        page.body.split(&heading).nth(1).unwrap().to_owned()
    }
}

impl Answered {
    /// Checks that an RFC 9457 problem is complete, and returns its code.
    fn problem(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem: Value = serde_json::from_str(&self.body).unwrap();
        for member in ["type", "title", "detail"] {
            assert!(!problem[member].as_str().unwrap().is_empty(), "{member}: {}", self.body);
        }
        assert_eq!(problem["status"], self.status);
        let reference = self.headers.get("idempotency-reference");
        let instance = problem["instance"].as_str().unwrap();
        match reference.map(|reference| reference.to_str().unwrap()) {
            Some(reference) => assert_eq!(instance, format!("urn:onetake:reference:{reference}")),
            None => assert!(instance.starts_with("urn:onetake:request:"), "{instance}"),
        }
        assert!(problem["retryable"].is_boolean(), "{}", self.body);
        problem["code"].as_str().unwrap().to_owned()
    }

    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

fn request(path: &str, tenant: &str, keys: &[&str], body: &str) -> Request<Body> {
    let mut request = Request::post(path).header("authorization", format!("Bearer {tenant}"));
    for key in keys {
        request = request.header("idempotency-key", *key);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

#[tokio::test]
async fn the_value_is_a_structured_field_string() {
    let server = Server::new();
    let first = server.post("/payments/new", &format!("\"{KEY}\""), "a").await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert!(server.post("/payments/new", &format!("  \"{KEY}\" "), "a").await.is_replay());
    // The usual form of the header, without quotes, names the same operation.
    assert!(server.post("/payments/new", KEY, "a").await.is_replay());
    // So does a header that a proxy repeated and joined.
    let joined = format!("\"{KEY}\", \"{KEY}\"");
    assert!(server.post("/payments/new", &joined, "a").await.is_replay());
    for broken in [
        format!("\"{KEY}"),
        format!("\"{KEY}\" \"{KEY}\""),
        format!("\"{KEY}\", \"{KEY}2\""),
        format!("\"{KEY}\\x\""),
        "\"\"".to_owned(),
    ] {
        let refused = server.post("/payments/new", &broken, "a").await;
        assert_eq!(refused.status, 400, "{broken}");
        assert_eq!(refused.problem(), "idempotency_key_invalid", "{broken}");
    }
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_key_is_not_reused_with_another_payload() {
    let server = Server::new();
    assert_eq!(server.post("/payments/new", KEY, "{\"amount\":1}").await.status, 201);
    for (path, body) in [("/payments/new", "{\"amount\":2}"), ("/payments/more", "{\"amount\":1}")]
    {
        let refused = server.post(path, KEY, body).await;
        assert!(!refused.is_replay() && refused.problem() == "idempotency_payload_mismatch");
    }
    assert_eq!(server.runs(), 1);
    assert!(server.post("/payments/new", KEY, "{\"amount\":1}").await.is_replay());
}

#[tokio::test]
async fn expiry_is_published_and_kept_to() {
    let server = Server::new();
    let page = server.send(Request::get("/.onetake/problems").body(Body::empty()).unwrap()).await;
    let hours = Terms::default().ttl.as_secs() / 3600;
    assert!(page.body.contains("A key *expires*"), "it is said when keys expire");
    assert!(page.body.contains(&format!("{hours} hours")), "and it is what holds by default");
    server.post("/payments/new", KEY, "a").await;
    server.clock.advance(Duration::from_secs(hours * 3600 - 1));
    assert!(server.post("/payments/new", KEY, "a").await.is_replay());
    server.clock.advance(Duration::from_secs(1));
    assert!(!server.post("/payments/new", KEY, "a").await.is_replay());
    assert_eq!(server.runs(), 2);
}

#[tokio::test]
async fn the_first_request_runs() {
    let server = Server::new();
    let first = server.post("/payments/new", KEY, "a").await;
    assert_eq!((first.status, first.body.as_str()), (201, "run 0"));
    assert!(!first.is_replay());
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_retry_after_completion_gets_the_earlier_result_success_or_error() {
    let server = Server::new();
    for (path, key, status) in [
        ("/payments/new", "a-key-that-succeeds", 201),
        ("/payments/declined", "a-key-that-is-declined", 402),
    ] {
        let first = server.post(path, key, "a").await;
        let again = server.post(path, key, "a").await;
        assert_eq!((first.status, again.status), (status, status));
        assert_eq!(first.body, again.body);
        assert!(!first.is_replay() && again.is_replay());
    }
    assert_eq!(server.runs(), 2);
}

#[tokio::test]
async fn a_concurrent_retry_gets_a_conflict_with_a_problem_description() {
    let server = Server::new();
    let retry = async {
        server.api.started.notified().await;
        let retry = server.post("/payments/slow", KEY, "a").await;
        server.api.finish.notify_one();
        retry
    };
    let (first, retry) = tokio::join!(server.post("/payments/slow", KEY, "a"), retry);
    assert_eq!((first.status, retry.status), (201, 409));
    assert_eq!(retry.problem(), "request_in_progress");
    assert!(retry.headers.contains_key("retry-after"));
    assert!(server.documentation(&retry).await.contains("409"));
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn missing_where_required_is_400_with_a_link_to_the_documentation() {
    let server = Server::new();
    let refused = server.send(request("/payments/new", "alice", &[], "a")).await;
    assert_eq!((refused.status, refused.problem().as_str()), (400, "idempotency_key_missing"));
    assert!(server.documentation(&refused).await.contains("400"));
    assert_eq!(server.runs(), 0);
}

#[tokio::test]
async fn another_payload_is_422_with_a_link_to_the_documentation() {
    let server = Server::new();
    server.post("/payments/new", KEY, "a").await;
    let refused = server.post("/payments/new", KEY, "b").await;
    assert_eq!((refused.status, refused.problem().as_str()), (422, "idempotency_payload_mismatch"));
    assert!(server.documentation(&refused).await.contains("422"));
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn the_key_is_validated_before_anything_runs() {
    let server = Server::new();
    let (long, other) = ("x".repeat(256), "another-key-1234567890");
    for keys in [&["short"][..], &[""], &[&long], &["no spaces in a key"], &[KEY, other]] {
        let refused = server.send(request("/payments/new", "alice", keys, "a")).await;
        assert_eq!(refused.status, 400, "{keys:?}");
        assert_eq!(refused.problem(), "idempotency_key_invalid", "{keys:?}");
    }
    assert_eq!(server.runs(), 0);
    assert!(server.store.is_empty(), "nothing was claimed either");
}

#[tokio::test]
async fn the_lookup_key_is_made_of_client_identity_and_key() {
    let server = Server::new();
    let one = server.send(request("/payments/new", "alice", &[KEY], "a")).await;
    let other = server.send(request("/payments/new", "bob", &[KEY], "a")).await;
    assert!(!one.is_replay() && !other.is_replay());
    assert_ne!(one.body, other.body);
    assert_ne!(one.headers["idempotency-reference"], other.headers["idempotency-reference"]);
    for (tenant, first) in [("alice", one), ("bob", other)] {
        let again = server.send(request("/payments/new", tenant, &[KEY], "a")).await;
        assert!(again.is_replay() && again.body == first.body);
    }
    assert_eq!(server.runs(), 2);
}
