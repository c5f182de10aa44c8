//! The same payload under another key: what is suspicious, and what is not.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::post;
use http::{Request, StatusCode};
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::{Engine, Limits, ManualClock, MemoryStore, OnUnknown, Store, SystemRng};
use onetake_http::{DuplicateAction, HttpLimits, OnStoreDown, OnetakeLayer, Policy, Tenant};
use tokio::sync::Notify;

use crate::common::{Answered, key, send};

const WINDOW: Duration = Duration::from_secs(600);

#[derive(Clone)]
struct Api {
    clock: ManualClock,
    store: Arc<Faulty>,
    engine: Engine,
    runs: Arc<AtomicUsize>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

impl Api {
    fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let store = Faulty::around(memory as Arc<dyn Store>);
        let engine = Engine::with(
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::new(clock.clone()),
            Arc::new(SystemRng),
            // Only the store and the detector remember anything: there is no cache.
            Limits { cache_bytes_max: 0, ..Limits::default() },
        );
        let (started, finish) = (Arc::default(), Arc::default());
        Self { clock, store, engine, runs: Arc::default(), started, finish }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn router(&self, policy: Policy, payloads_max: usize) -> Router {
        let limits = HttpLimits::default().duplicate_payloads_max(payloads_max);
        let layer = OnetakeLayer::builder(self.engine.clone()).policy(policy).limits(limits);
        Router::new()
            .route("/slow", post(slow))
            .route("/{status}", post(answer))
            .with_state(self.clone())
            .layer(layer.build().unwrap())
    }

    fn rejecting(&self) -> Router {
        self.router(policy(DuplicateAction::Reject), 1_000)
    }
}

fn policy(action: DuplicateAction) -> Policy {
    let account = Tenant::header("x-account");
    Policy::new().tenant(account).key_required().duplicate_payload(WINDOW, action)
}

async fn answer(State(api): State<Api>, Path(status): Path<u16>) -> StatusCode {
    api.runs.fetch_add(1, Ordering::SeqCst);
    StatusCode::from_u16(status).unwrap()
}

async fn slow(State(api): State<Api>) -> StatusCode {
    api.runs.fetch_add(1, Ordering::SeqCst);
    api.started.notify_one();
    api.finish.notified().await;
    StatusCode::CREATED
}

fn request(path: &str, tenant: &str, number: usize, body: &str) -> Request<Body> {
    let request = Request::post(path).header("x-account", tenant);
    let request = request.header("idempotency-key", key(number));
    request.body(Body::from(body.to_owned())).unwrap()
}

async fn pay(router: &Router, path: &str, number: usize) -> Answered {
    send(router, request(path, "alice", number, "10")).await
}

#[track_caller]
fn is_duplicate(answered: &Answered) {
    assert_eq!((answered.status, answered.code().as_str()), (409, "duplicate_payload"));
}

#[tokio::test]
async fn the_same_payload_under_another_key_is_refused() {
    let api = Api::new();
    let router = api.rejecting();
    let first = pay(&router, "/201", 1).await;
    assert_eq!(first.status, 201);
    let second = pay(&router, "/201", 2).await;
    is_duplicate(&second);
    let problem: serde_json::Value = serde_json::from_slice(&second.body).unwrap();
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains(first.header("idempotency-reference")), "{detail}");
    assert_eq!(problem["retryable"], false);
    assert!(!second.headers.contains_key("retry-after"));
    // A retry of the first key is answered as always.
    assert!(pay(&router, "/201", 1).await.is_replay());
    // Another tenant, path or payload is another operation.
    for other in [
        request("/201", "bob", 2, "10"),
        request("/202", "alice", 2, "10"),
        request("/201", "alice", 3, "11"),
    ] {
        assert!(send(&router, other).await.status < 300);
    }
    assert_eq!(api.runs(), 4);
}

#[tokio::test]
async fn a_client_can_say_that_it_is_meant() {
    let api = Api::new();
    let router = api.rejecting();
    assert_eq!(pay(&router, "/201", 1).await.status, 201);
    let meant = |value: &str| {
        let mut request = request("/201", "alice", 2, "10");
        request.headers_mut().insert("onetake-allow-duplicate", value.parse().unwrap());
        request
    };
    is_duplicate(&send(&router, meant("false")).await);
    assert_eq!(send(&router, meant("true")).await.status, 201);
    // A retry of a known key is no duplicate, with or without the header.
    assert!(pay(&router, "/201", 2).await.is_replay());
    assert!(pay(&router, "/201", 1).await.is_replay());
    is_duplicate(&pay(&router, "/201", 3).await);
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn the_window_begins_with_the_first_request() {
    let api = Api::new();
    let router = api.rejecting();
    assert_eq!(pay(&router, "/201", 1).await.status, 201);
    api.clock.advance(WINDOW / 2);
    assert!(pay(&router, "/201", 1).await.is_replay());
    api.clock.advance(WINDOW / 2 - Duration::from_millis(1));
    is_duplicate(&pay(&router, "/201", 2).await);
    api.clock.advance(Duration::from_millis(1));
    assert_eq!(pay(&router, "/201", 2).await.status, 201);
}

#[tokio::test]
async fn an_attempt_without_effect_blocks_nothing() {
    let api = Api::new();
    let router = api.rejecting();
    // 503 is released, and 402 is recorded: the service refused, and a new key is right.
    for (path, first) in [("/503", 1), ("/402", 11)] {
        let status = pay(&router, path, first).await.status;
        assert_eq!(pay(&router, path, first + 1).await.status, status, "{path}");
    }
    assert_eq!(api.runs(), 4);
    // The claim failed, so nothing started.
    api.store.fail_claims(StoreFault::Unavailable);
    assert_eq!(pay(&router, "/201", 21).await.status, 503);
    api.store.fail_claims(StoreFault::None);
    assert_eq!(pay(&router, "/201", 22).await.status, 201);
}

#[tokio::test]
async fn an_attempt_that_may_have_had_its_effect_does() {
    let api = Api::new();
    let router = api.rejecting();
    assert_eq!(pay(&router, "/500", 1).await.status, 500);
    is_duplicate(&pay(&router, "/500", 2).await);
    let retrying = policy(DuplicateAction::Reject).on_unknown(OnUnknown::Retry);
    let retrying = api.router(retrying, 1_000);
    assert_eq!(pay(&retrying, "/502", 3).await.status, 502);
    // The same key runs again, and is no duplicate of itself.
    assert_eq!(pay(&retrying, "/502", 3).await.status, 502);
    is_duplicate(&pay(&retrying, "/502", 4).await);
    assert_eq!(api.runs(), 3);
}

#[tokio::test]
async fn a_running_attempt_is_found_and_its_client_may_leave() {
    let api = Api::new();
    let router = api.rejecting();
    let running = tokio::spawn({
        let router = router.clone();
        async move { pay(&router, "/slow", 1).await }
    });
    api.started.notified().await;
    is_duplicate(&pay(&router, "/slow", 2).await);
    // The attempt goes on without its client, and so does its payload.
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    is_duplicate(&pay(&router, "/slow", 2).await);
    api.finish.notify_one();
    while !pay(&router, "/slow", 1).await.is_replay() {
        tokio::task::yield_now().await;
    }
    is_duplicate(&pay(&router, "/slow", 2).await);
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn it_never_stands_in_for_the_store() {
    let api = Api::new();
    let logging = api.router(policy(DuplicateAction::Log), 1_000);
    for number in 1..4 {
        assert_eq!(pay(&logging, "/201", number).await.status, 201);
    }
    assert_eq!(api.runs(), 3, "logged, and run");
    // With the store away it is not known whether a key is new, so nothing is called a duplicate.
    let open = policy(DuplicateAction::Reject).on_store_down(OnStoreDown::FailOpen);
    let open = api.router(open, 1_000);
    assert_eq!(pay(&open, "/202", 11).await.status, 202);
    api.store.fail_claims(StoreFault::Unavailable);
    api.store.fail_loads(StoreFault::Unavailable);
    assert_eq!(pay(&open, "/202", 12).await.status, 202);
    assert_eq!(api.runs(), 5);
}

#[tokio::test]
async fn a_full_detector_forgets_the_oldest() {
    let api = Api::new();
    let router = api.router(policy(DuplicateAction::Reject), 2);
    for (number, path) in [(1, "/200"), (2, "/201"), (3, "/202")] {
        assert!(pay(&router, path, number).await.status < 300);
        api.clock.advance(Duration::from_secs(1));
    }
    is_duplicate(&pay(&router, "/202", 13).await);
    is_duplicate(&pay(&router, "/201", 12).await);
    assert_eq!(pay(&router, "/200", 11).await.status, 200);
}
