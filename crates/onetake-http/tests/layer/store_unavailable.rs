//! Requests while the store is unreachable, refuses a key, or keeps less than it was given.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder};
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Clock, Engine, Limits, MemoryStore, OnRetry, OnUnknown, RecordId, Settled,
    Settlement, Store, StoreError, StoreErrorKind, SystemClock, SystemRng, Transition,
    delegate_store,
};
use onetake_http::{InFlight, OnStoreDown, OnetakeLayer, OperationContext, Policy};
use tokio::sync::Notify;
use tower::ServiceExt;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

/// A small API with a counter of its runs.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<AtomicUsize>,
    finished: Arc<AtomicUsize>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

impl Api {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn router(&self, engine: Engine, policy: Policy) -> Router {
        Router::new()
            .route("/charges", post(charge))
            .route("/slow", post(slow))
            .route("/memory", post(memory))
            .with_state(self.clone())
            .layer(OnetakeLayer::new(engine, policy).unwrap())
    }
}

async fn charge(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let run = api.runs.fetch_add(1, Ordering::SeqCst);
    let seen = |name: &str| headers.get(name).map_or("none", |value| value.to_str().unwrap());
    let text = format!(
        "charged {} with key {} under fence {}",
        String::from_utf8_lossy(&body),
        seen("idempotency-key"),
        seen("idempotency-fence")
    );
    let said = [("location", format!("/charges/{run}")), ("onetake-outcome", "record".to_owned())];
    (StatusCode::CREATED, said, text)
}

/// Says whether the memory of the request's body is counted during its run.
async fn memory(request: axum::extract::Request) -> String {
    let context = OperationContext::of(request.extensions());
    context.and_then(OperationContext::memory).is_some().to_string()
}

async fn slow(State(api): State<Api>) -> &'static str {
    api.runs.fetch_add(1, Ordering::SeqCst);
    api.started.notify_one();
    api.finish.notified().await;
    api.finished.fetch_add(1, Ordering::SeqCst);
    "slow"
}

fn request(path: &str, key: &str, body: &str) -> Request<axum::body::Body> {
    Request::post(path)
        .header("idempotency-key", key)
        .header("idempotency-fence", "7")
        .header("authorization", "Bearer alice")
        .body(body.to_owned().into())
        .unwrap()
}

struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answered {
    fn problem(&self) -> (u16, String) {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        (self.status, problem["code"].as_str().unwrap_or_default().to_owned())
    }

    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

async fn send(router: &Router, request: Request<axum::body::Body>) -> Answered {
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answered { status: parts.status.as_u16(), headers: parts.headers, body }
}

fn spawned(router: &Router, path: &'static str) -> tokio::task::JoinHandle<Answered> {
    let router = router.clone();
    tokio::spawn(async move { send(&router, request(path, KEY, "10")).await })
}

/// A metrics recorder that counts only bypasses.
#[derive(Clone, Default)]
struct Bypasses(Arc<AtomicU64>);

impl Bypasses {
    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Creates an engine whose bypasses are counted here.
    fn engine(&self, store: Arc<dyn Store>, limits: Limits) -> Engine {
        metrics::with_local_recorder(self, || {
            Engine::with(store, Arc::new(SystemClock), Arc::new(SystemRng), limits)
        })
    }
}

struct Count(Bypasses);

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.0.0.fetch_add(value, Ordering::SeqCst);
    }

    fn absolute(&self, value: u64) {
        self.0.0.store(value, Ordering::SeqCst);
    }
}

impl Recorder for Bypasses {
    fn describe_counter(&self, _: KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "onetake_bypassed_total" => Counter::from_arc(Arc::new(Count(self.clone()))),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// An API on a fail-open route, with a store that can be made to fail.
struct World {
    api: Api,
    store: Arc<Faulty>,
    memory: MemoryStore,
    engine: Engine,
    bypasses: Bypasses,
    router: Router,
}

fn fail_open(policy: Policy) -> World {
    let limits = Limits { settle_patience: Duration::from_millis(30), ..Limits::default() };
    fail_open_with(policy, limits)
}

fn fail_open_with(policy: Policy, limits: Limits) -> World {
    let (api, bypasses, memory) = (Api::default(), Bypasses::default(), MemoryStore::new());
    let store = Faulty::around(Arc::new(memory.clone()));
    let engine = bypasses.engine(Arc::clone(&store) as Arc<dyn Store>, limits);
    let router = api.router(engine.clone(), policy.on_store_down(OnStoreDown::FailOpen));
    World { api, store, memory, engine, bypasses, router }
}

#[tokio::test]
async fn fail_open_runs_counts_and_records_nothing() {
    let World { api, store, memory, bypasses, router, .. } = fail_open(Policy::new());
    store.fail_claims(StoreFault::Unavailable);
    for run in 1..=2 {
        let answer = send(&router, request("/charges", KEY, "10")).await;
        let expected = format!("charged 10 with key {KEY} under fence none");
        assert_eq!((answer.status, &answer.body[..]), (201, expected.as_bytes()));
        assert!(!answer.is_replay() && answer.headers.contains_key("idempotency-reference"));
        assert!(!answer.headers.contains_key("onetake-outcome"));
        assert_eq!((api.runs(), bypasses.count()), (run, run as u64));
    }
    assert!(memory.is_empty(), "a bypassed run is never recorded (S10)");
    let counted = send(&router, request("/memory", "another-key-0123456789", "10")).await;
    assert_eq!(counted.body, "true");
    store.fail_claims(StoreFault::None);
    let recorded = send(&router, request("/charges", KEY, "10")).await;
    assert!(recorded.status == 201 && !recorded.is_replay(), "nothing was known of the two before");
    assert!(send(&router, request("/charges", KEY, "10")).await.is_replay());
    assert_eq!((api.runs(), bypasses.count()), (3, 3));
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_bypassed_and_given_back() {
    let World { api, store, bypasses, router, .. } = fail_open(Policy::new());
    store.fail_one_claim(StoreFault::LostAnswer);
    // The claim is sent again and granted again, and the run is recorded.
    assert_eq!(send(&router, request("/charges", KEY, "10")).await.status, 201);
    assert_eq!(bypasses.count(), 0);
    assert!(send(&router, request("/charges", KEY, "10")).await.is_replay());

    let other = "another-key-0123456789";
    store.fail_claims(StoreFault::LostAnswer);
    store.fail_loads(StoreFault::Unavailable);
    store.fail_settlements(StoreFault::Unavailable);
    assert_eq!(send(&router, request("/charges", other, "10")).await.status, 201);
    assert_eq!((api.runs(), bypasses.count()), (2, 1));
    store.fail_claims(StoreFault::None);
    store.fail_loads(StoreFault::None);
    // The claim reached the store. Until the engine has released it, an attempt seems to be
    // running.
    let running = send(&router, request("/charges", other, "10")).await;
    assert_eq!(running.problem(), (409, "request_in_progress".to_owned()));
    store.fail_settlements(StoreFault::None);
    let mut retry = send(&router, request("/charges", other, "10")).await;
    while retry.status == 409 {
        SystemClock.sleep(Duration::from_millis(5)).await;
        retry = send(&router, request("/charges", other, "10")).await;
    }
    assert!(
        retry.status == 201 && !retry.is_replay(),
        "it runs again: that is what fail-open means"
    );
    assert_eq!((api.runs(), bypasses.count()), (3, 1));
}

#[tokio::test]
async fn what_this_process_knows_is_still_answered() {
    let World { api, store, bypasses, router, .. } = fail_open(Policy::new());
    assert_eq!(send(&router, request("/charges", KEY, "10")).await.status, 201);
    let (slow_key, first) = ("another-key-0123456789", {
        let router = router.clone();
        tokio::spawn(async move {
            send(&router, request("/slow", "another-key-0123456789", "10")).await
        })
    });
    api.started.notified().await;
    store.fail_claims(StoreFault::Unavailable);
    store.fail_settlements(StoreFault::Unavailable);
    assert!(send(&router, request("/charges", KEY, "10")).await.is_replay());
    assert_eq!(send(&router, request("/charges", KEY, "99")).await.status, 422);
    assert_eq!(send(&router, request("/slow", slow_key, "10")).await.status, 409);
    assert_eq!(send(&router, request("/slow", slow_key, "99")).await.status, 422);
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().problem(), (503, "outcome_pending".to_owned()));
    assert_eq!(send(&router, request("/slow", slow_key, "10")).await.status, 409);
    store.fail_settlements(StoreFault::None);
    let mut retry = send(&router, request("/slow", slow_key, "10")).await;
    while retry.status == 409 {
        SystemClock.sleep(Duration::from_millis(5)).await;
        retry = send(&router, request("/slow", slow_key, "10")).await;
    }
    assert!(retry.is_replay() && retry.body == "slow", "believed when the store was back");
    assert_eq!((api.runs(), bypasses.count()), (2, 0));
}

#[tokio::test]
async fn too_much_at_once_and_a_node_that_ends_are_never_bypassed() {
    let overloaded = Limits { running_max: 0, ..Limits::default() };
    let World { api, store, bypasses, router, .. } = fail_open_with(Policy::new(), overloaded);
    store.fail_claims(StoreFault::Unavailable);
    let refused = send(&router, request("/charges", KEY, "10")).await;
    assert_eq!(refused.problem(), (503, "overloaded".to_owned()));
    assert_eq!((api.runs(), bypasses.count()), (0, 0));

    let World { api, store, engine, bypasses, router, .. } =
        fail_open(Policy::new().in_flight(InFlight::Wait(Duration::from_secs(20))));
    let first = spawned(&router, "/slow");
    api.started.notified().await;
    let waiter = spawned(&router, "/slow");
    tokio::task::yield_now().await;
    store.fail_claims(StoreFault::Unavailable);
    store.fail_settlements(StoreFault::Unavailable);
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().problem(), (503, "outcome_pending".to_owned()));
    assert!(!engine.shutdown(Duration::ZERO).await.unwrap());
    // The operation ran. The waiting request must not run it again because the store is
    // unreachable.
    let waiter = waiter.await.unwrap();
    assert_eq!(waiter.problem(), (503, "overloaded".to_owned()));
    assert_eq!(send(&router, request("/charges", KEY, "10")).await.status, 503);
    assert_eq!((api.runs(), bypasses.count()), (1, 0));
}

/// The claim is granted. The rollback of the earlier attempt cannot begin, because the record cannot
/// be read.
#[tokio::test]
async fn nothing_is_bypassed_whose_rollback_cannot_begin() {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let rollback = OnRetry::new(move |_| {
        called.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let policy = Policy::new().on_unknown(OnUnknown::Retry).on_retry(rollback);
    let World { api, store, bypasses, router, .. } =
        fail_open(policy.upstream_timeout(Duration::from_millis(300)));
    let first = send(&router, request("/slow", KEY, "10")).await;
    assert_eq!(first.problem(), (504, "upstream_timeout".to_owned()));
    store.fail_loads(StoreFault::Unavailable);
    let refused = send(&router, request("/slow", KEY, "10")).await;
    assert_eq!(refused.problem(), (503, "idempotency_store_unavailable".to_owned()));
    assert_eq!((api.runs(), calls.load(Ordering::SeqCst), bypasses.count()), (1, 0, 0));
    store.fail_loads(StoreFault::None);
    api.finish.notify_one();
    assert_eq!(send(&router, request("/slow", KEY, "10")).await.status, 200);
    assert_eq!((api.runs(), calls.load(Ordering::SeqCst), bypasses.count()), (2, 1, 0));
}

/// Runs without a record are bounded like others (S19).
#[tokio::test]
async fn bypassed_runs_count_among_the_running_operations() {
    let one = Limits { running_max: 1, ..Limits::default() };
    let World { api, store, bypasses, router, .. } = fail_open_with(Policy::new(), one);
    store.fail_claims(StoreFault::Unavailable);
    let first = spawned(&router, "/slow");
    api.started.notified().await;
    let other = "another-key-0123456789";
    let refused = send(&router, request("/charges", other, "10")).await;
    assert_eq!(refused.problem(), (503, "overloaded".to_owned()));
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(send(&router, request("/charges", other, "10")).await.status, 201);
    assert_eq!((api.runs(), bypasses.count()), (2, 2));
}

#[tokio::test]
async fn a_bypassed_run_outlives_its_client_and_has_its_time() {
    let World { api, store, bypasses, router, .. } = fail_open(Policy::new());
    store.fail_claims(StoreFault::Unavailable);
    let client = spawned(&router, "/slow");
    api.started.notified().await;
    client.abort();
    assert!(client.await.is_err());
    api.finish.notify_one();
    while api.finished.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bypasses.count(), 1);
    let short = fail_open(Policy::new().upstream_timeout(Duration::from_millis(20)));
    short.store.fail_claims(StoreFault::Unavailable);
    let answer = send(&short.router, request("/slow", KEY, "10")).await;
    assert_eq!(answer.problem(), (504, "upstream_timeout".to_owned()));
}

/// A store that refuses one key for good, or keeps no bodies.
#[derive(Debug, Default)]
struct Odd {
    inner: MemoryStore,
    refused: Mutex<Option<RecordId>>,
    latest: Mutex<Option<RecordId>>,
    drops_bodies: AtomicBool,
}

impl Store for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let mut answers = Vec::new();
            for claim in batch {
                *self.latest.lock().unwrap() = Some(claim.id);
                if *self.refused.lock().unwrap() == Some(claim.id) {
                    let what = "the record cannot be read";
                    answers.push(Err(StoreError::new(StoreErrorKind::Invalid, what)));
                } else {
                    answers.extend(self.inner.claim(vec![claim]).await);
                }
            }
            answers
        }
        .boxed()
    }

    fn settle(&self, mut batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        if self.drops_bodies.load(Ordering::SeqCst) {
            for settlement in &mut batch {
                if let Transition::Complete(recording) = &mut settlement.transition {
                    recording.body = None;
                }
            }
        }
        self.inner.settle(batch)
    }

    delegate_store!(self => self.inner; load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Odd, self => self.inner);

#[tokio::test]
async fn a_key_that_the_store_refuses_is_refused_alone_and_never_bypassed() {
    let (api, store, bypasses) = (Api::default(), Arc::new(Odd::default()), Bypasses::default());
    let engine = bypasses.engine(Arc::clone(&store) as Arc<dyn Store>, Limits::default());
    let policy = Policy::new().on_store_down(OnStoreDown::FailOpen);
    let router = api.router(engine.clone(), policy.clone());
    assert_eq!(send(&router, request("/charges", KEY, "10")).await.status, 201);
    *store.refused.lock().unwrap() = *store.latest.lock().unwrap();
    // Another node, which has to ask the store.
    let fresh = bypasses.engine(Arc::clone(&store) as Arc<dyn Store>, Limits::default());
    let router = api.router(fresh.clone(), policy);
    for _ in 0..2 {
        let refused = send(&router, request("/charges", KEY, "10")).await;
        assert_eq!(refused.problem(), (503, "idempotency_store_unavailable".to_owned()));
        assert!(refused.headers.contains_key("retry-after"));
        let detail = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(detail.contains("cannot read the record of this key"), "{detail}");
    }
    let other = send(&router, request("/charges", "another-key-0123456789", "10")).await;
    assert_eq!(other.status, 201, "one poisoned record fails nobody else (S21)");
    assert!(fresh.fatal().now_or_never().is_none(), "and does not end the process");
    assert_eq!((api.runs(), bypasses.count()), (2, 0));
}

#[tokio::test]
async fn what_the_store_keeps_without_its_body_is_shown_once_and_never_run_again() {
    let (api, store) = (Api::default(), Arc::new(Odd::default()));
    store.drops_bodies.store(true, Ordering::SeqCst);
    let engine = Engine::new(Arc::clone(&store) as Arc<dyn Store>);
    let router = api.router(engine, Policy::new());
    let first = send(&router, request("/charges", KEY, "10")).await;
    assert_eq!(first.status, 201);
    assert!(first.body.starts_with(b"charged 10"), "the first client gets the real response");
    // One node answers from its cache, the other from the store.
    let other_node = api.router(Engine::new(store), Policy::new());
    for router in [&router, &other_node] {
        let retry = send(router, request("/charges", KEY, "10")).await;
        assert_eq!(retry.problem(), (410, "response_not_replayable".to_owned()));
        assert_eq!(retry.headers["location"], "/charges/0");
        let problem: serde_json::Value = serde_json::from_slice(&retry.body).unwrap();
        assert_eq!(problem["recorded_status"], 201);
    }
    assert_eq!(api.runs(), 1);
}
