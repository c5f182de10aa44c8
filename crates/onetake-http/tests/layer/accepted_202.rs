//! `in_flight = "async"`: 202 after the wait, and the outcome by its handle.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::without_identifier;
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::{
    Clock, Engine, Limits, ManualClock, MemoryStore, OnRetry, OnUnknown, Store, SystemRng, Terms,
};
use onetake_http::{
    AttemptReport, Disposition, HttpLimits, InFlight, OPERATIONS, OnStoreDown, OnetakeLayer,
    Policy, Resolve, Secrets, Tenant,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};
use tower::ServiceExt;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
const WAIT: Duration = Duration::from_secs(2);
const SECRET: [u8; 32] = [7; 32];
/// `alice:right` and `alice:wrong`.
const RIGHT: &str = "Basic YWxpY2U6cmlnaHQ=";
const WRONG: &str = "Basic YWxpY2U6d3Jvbmc=";

/// An API with one operation. It runs until the test lets it end, and its body chooses the
/// response.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<AtomicUsize>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

async fn work(State(api): State<Api>, headers: HeaderMap, body: String) -> Response {
    let run = api.runs.fetch_add(1, Ordering::SeqCst);
    api.started.notify_one();
    if body != "fast" {
        api.finish.notified().await;
    }
    let hears = ["x-request-timeout-ms", "x-request-deadline", "grpc-timeout"];
    assert!(!hears.iter().any(|name| headers.contains_key(*name)), "it may take its time");
    match body.as_str() {
        "429" => (StatusCode::TOO_MANY_REQUESTS, "slow down").into_response(),
        "500" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "500 once" if run == 0 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "login" if headers["authorization"] != RIGHT => StatusCode::UNAUTHORIZED.into_response(),
        "release" => ([("onetake-outcome", "release")], "nothing done").into_response(),
        "unsent" => {
            let mut response = (StatusCode::BAD_GATEWAY, "never sent").into_response();
            AttemptReport::new(Disposition::Release).attach(&mut response);
            response
        }
        _ => (StatusCode::CREATED, [("location", "/things/1")], "done").into_response(),
    }
}

/// A node: an engine, its own connection to the store, and the API behind the layer.
struct Node {
    api: Api,
    engine: Engine,
    store: Arc<Faulty>,
    router: Router,
}

/// Nodes that share a store and a clock.
#[derive(Clone)]
struct World {
    clock: ManualClock,
    memory: MemoryStore,
    policy: Policy,
    limits: Limits,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::default();
        let memory = MemoryStore::with_clock(Arc::new(clock.clone()));
        let policy = Policy::new().in_flight(InFlight::Async(WAIT)).upstream_timeout(600 * WAIT);
        Self { clock, memory, policy, limits: Limits::default() }
    }

    fn node(&self) -> Node {
        self.node_with(Secrets::default().handles(SECRET))
    }

    fn node_with(&self, secrets: Secrets) -> Node {
        self.node_by(Arc::new(self.policy.clone()), secrets)
    }

    fn node_by(&self, policies: impl Resolve, secrets: Secrets) -> Node {
        let store = Faulty::around(Arc::new(self.memory.clone()));
        let clock = Arc::new(self.clock.clone());
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Engine::with(shared, clock, Arc::new(SystemRng), self.limits);
        let limits = HttpLimits::default();
        let layer = OnetakeLayer::builder(engine.clone())
            .resolve(policies)
            .limits(limits)
            .secrets(secrets)
            .around_whole_app()
            .build()
            .unwrap();
        let api = Api::default();
        let router = Router::new().route("/work", post(work)).with_state(api.clone()).layer(layer);
        Node { api, engine, store, router }
    }
}

impl Node {
    fn runs(&self) -> usize {
        self.api.runs.load(Ordering::SeqCst)
    }

    fn send(&self, request: Request<String>) -> JoinHandle<Answered> {
        let router = self.router.clone();
        tokio::spawn(async move {
            let (parts, body) =
                router.oneshot(request.map(axum::body::Body::from)).await.unwrap().into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Answered { status: parts.status.as_u16(), headers: parts.headers, body }
        })
    }

    /// Starts an operation that takes longer than the wait, and returns the 202.
    async fn accepted(&self, world: &World, request: Request<String>) -> Answered {
        let first = self.send(request);
        self.api.started.notified().await;
        world.clock.advance(WAIT);
        first.await.unwrap()
    }

    async fn get(&self, location: &str, credential: &str) -> Answered {
        let get = Request::get(location).header("authorization", credential);
        self.send(get.body(String::new()).unwrap()).await.unwrap()
    }

    /// Polls until the operation has ended.
    async fn outcome(&self, location: &str) -> Answered {
        loop {
            let answer = self.get(location, "Bearer alice").await;
            if !answer.is_running() {
                return answer;
            }
            assert_eq!(
                (answer.status, &answer.headers["retry-after"]),
                (200, &"1".parse().unwrap())
            );
            yield_now().await;
        }
    }
}

fn request(body: &str) -> Request<String> {
    request_by("Bearer alice", body)
}

fn request_by(credential: &str, body: &str) -> Request<String> {
    Request::post("/work")
        .header("idempotency-key", KEY)
        .header("authorization", credential)
        .body(body.to_owned())
        .unwrap()
}

fn with(mut request: Request<String>, name: &'static str, value: &str) -> Request<String> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

#[derive(Debug)]
struct Answered {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answered {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn problem(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }

    fn is_running(&self) -> bool {
        self.json()["status"] == "running"
    }

    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// Checks all that a 202 must contain, and returns the location of the handle.
    fn location(&self) -> String {
        assert_eq!(self.status, 202, "{self:?}");
        let location = self.headers["location"].to_str().unwrap().to_owned();
        assert!(location.starts_with(OPERATIONS) && location.len() == OPERATIONS.len() + 48);
        assert_eq!(self.headers["retry-after"], "1");
        assert_eq!(self.headers["content-type"], "application/json");
        let reference = self.headers["idempotency-reference"].to_str().unwrap();
        let body = json!({ "status": "running", "reference": reference, "operation": location });
        assert_eq!(self.json(), body);
        location
    }
}

/// Lets all tasks run as far as they can, on the single thread of the test.
async fn settled_down() {
    for _ in 0..200 {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_long_operation_is_answered_202_and_fetched_by_its_handle() {
    let world = World::new();
    let node = world.node();
    let first = node.accepted(&world, request("x")).await;
    let location = first.location();
    assert!(!first.headers.contains_key("preference-applied"));
    let running = node.get(&location, "Bearer alice").await;
    assert!(running.status == 200 && running.is_running());
    assert_eq!(running.headers["idempotency-reference"], first.headers["idempotency-reference"]);
    node.api.finish.notify_one();
    let outcome = node.outcome(&location).await;
    assert_eq!((outcome.status, &outcome.body[..]), (201, &b"done"[..]));
    assert!(outcome.is_replay() && outcome.headers["location"] == "/things/1");
    let retry = node.send(request("x")).await.unwrap();
    assert_eq!((retry.status, &retry.body), (201, &outcome.body));
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn a_fast_operation_is_answered_as_ever() {
    let world = World::new();
    let node = world.node();
    let preferring = with(request("fast"), "prefer", "respond-async, wait=1");
    for is_replay in [false, true] {
        let answer = node.send(preferring.clone()).await.unwrap();
        assert_eq!((answer.status, answer.is_replay()), (201, is_replay));
        assert!(!answer.headers.contains_key("preference-applied"));
    }
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn retries_wait_as_long_and_get_the_same_handle() {
    let world = World::new();
    let node = world.node();
    let location = node.accepted(&world, request("x")).await.location();
    let retries = [node.send(request("x")), node.send(request("x"))];
    settled_down().await;
    assert!(retries.iter().all(|retry| !retry.is_finished()), "they wait first");
    let other = node.send(request("other")).await.unwrap();
    assert_eq!(other.problem(), (422, "idempotency_payload_mismatch".to_owned()));
    world.clock.advance(WAIT);
    for retry in retries {
        assert_eq!(retry.await.unwrap().location(), location);
    }
    let waiting = node.send(request("x"));
    settled_down().await;
    node.api.finish.notify_one();
    let waited = waiting.await.unwrap();
    assert!(waited.status == 201 && waited.is_replay());
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn surplus_waiters_get_202_at_once_but_not_with_another_payload() {
    let mut world = World::new();
    for limits in [
        Limits { waiting_max: 0, ..Limits::default() },
        Limits { waiting_per_key_max: 0, ..Limits::default() },
    ] {
        world.memory = MemoryStore::with_clock(Arc::new(world.clock.clone()));
        world.limits = limits;
        let node = world.node();
        let first = node.send(request("429"));
        node.api.started.notified().await;
        let location = node.send(request("429")).await.unwrap().location();
        let other = node.send(request("other")).await.unwrap();
        assert!(matches!(other.status, 409 | 422), "{other:?}");
        node.api.finish.notify_one();
        assert_eq!(first.await.unwrap().status, 429);
        let outcome = node.send(request("429")).await.unwrap();
        assert!(outcome.status == 429 && outcome.is_replay(), "it was promised: {location}");
        assert_eq!(node.runs(), 1);
    }
}

#[tokio::test]
async fn a_client_may_prefer_to_wait_less_but_not_more() {
    let second = Duration::from_secs(1);
    for (prefer, waits, applied) in [
        ("respond-async, wait=1", second, Some("respond-async")),
        ("wait=1", second, Some("wait=1")),
        ("respond-async, wait=0", Duration::ZERO, Some("respond-async")),
        ("respond-async", WAIT, Some("respond-async")),
        ("wait=60", WAIT, None),
    ] {
        let world = World::new();
        let node = world.node();
        let first = node.send(with(request("x"), "prefer", prefer));
        node.api.started.notified().await;
        if !waits.is_zero() {
            world.clock.advance(waits - Duration::from_millis(1));
            settled_down().await;
            assert!(!first.is_finished(), "{prefer}");
            world.clock.advance(Duration::from_millis(1));
        }
        let first = first.await.unwrap();
        let location = first.location();
        let said = first.headers.get("preference-applied").map(|value| value.to_str().unwrap());
        assert_eq!(said, applied, "{prefer}");
        let retry = node.send(with(request("x"), "prefer", "respond-async, wait=0")).await.unwrap();
        assert_eq!(retry.location(), location);
        node.api.finish.notify_one();
        assert_eq!((node.outcome(&location).await.status, node.runs()), (201, 1));
    }
}

#[tokio::test]
async fn other_routes_do_not_know_preferences() {
    let mut world = World::new();
    world.policy = Policy::new().in_flight(InFlight::Wait(WAIT));
    let node = world.node();
    let first = node.send(with(request("x"), "prefer", "respond-async, wait=0"));
    node.api.started.notified().await;
    world.clock.advance(2 * WAIT);
    settled_down().await;
    node.api.finish.notify_one();
    let first = first.await.unwrap();
    assert_eq!((first.status, node.runs()), (201, 1));
    assert!(!first.headers.contains_key("preference-applied"));
}

#[tokio::test]
async fn a_deadline_is_how_long_the_client_waits_and_not_how_long_it_runs() {
    let world = World::new();
    let node = world.node();
    let first = node.send(with(request("x"), "x-request-timeout-ms", "500"));
    node.api.started.notified().await;
    world.clock.advance(Duration::from_millis(500));
    let location = first.await.unwrap().location();
    world.clock.advance(10 * WAIT);
    settled_down().await;
    node.api.finish.notify_one();
    assert_eq!((node.outcome(&location).await.status, node.runs()), (201, 1));
}

#[tokio::test]
async fn after_a_202_nothing_is_released() {
    for (body, status, text) in
        [("429", 429, "slow down"), ("release", 200, "nothing done"), ("unsent", 502, "never sent")]
    {
        let world = World::new();
        let node = world.node();
        // The client's wait is shorter than the route's. The 202 decides, not the time.
        let first = node.send(with(request(body), "prefer", "wait=0"));
        node.api.started.notified().await;
        let location = first.await.unwrap().location();
        node.api.finish.notify_one();
        let outcome = node.outcome(&location).await;
        assert_eq!((outcome.status, &outcome.body[..]), (status, text.as_bytes()));
        let retry = node.send(request(body)).await.unwrap();
        assert!(retry.status == status && retry.is_replay(), "{body}");
        assert_eq!(node.runs(), 1, "{body}");
    }
}

/// The 202 went to the caller with the wrong password. Its 401 must not become the outcome of the key.
#[tokio::test]
async fn a_wrong_password_does_not_block_a_key_after_a_202() {
    let world = World::new();
    let node = world.node();
    let first = node.send(with(request_by(WRONG, "login"), "prefer", "wait=0"));
    node.api.started.notified().await;
    let location = first.await.unwrap().location();
    node.api.finish.notify_one();
    // The record is released, then forgotten.
    loop {
        let told = node.get(&location, WRONG).await;
        assert_ne!(told.status, 401, "it is no outcome");
        if told.status == 404 {
            break;
        }
        yield_now().await;
    }
    node.api.finish.notify_one();
    let right = node.send(request_by(RIGHT, "login")).await.unwrap();
    assert_eq!((right.status, right.is_replay(), node.runs()), (201, false, 2));
}

/// A rollback takes longer than the wait. Its attempt runs as was promised, although its own client
/// may have left.
#[tokio::test]
async fn an_outcome_that_is_promised_during_a_rollback_is_made() {
    for leaves in [false, true] {
        let mut world = World::new();
        let clock = world.clock.clone();
        let rollback = OnRetry::new(move |_| {
            let clock = clock.clone();
            async move {
                clock.sleep(20 * WAIT).await;
                Ok(())
            }
        });
        world.policy = world.policy.on_unknown(OnUnknown::Retry).on_retry(rollback);
        let node = world.node();
        node.api.finish.notify_one();
        assert_eq!(node.send(request("500 once")).await.unwrap().status, 500);
        node.api.started.notified().await;
        let leader = node.send(request("500 once"));
        settled_down().await;
        let retry = node.send(request("500 once"));
        settled_down().await;
        if leaves {
            leader.abort();
        }
        world.clock.advance(WAIT);
        let location = retry.await.unwrap().location();
        if !leaves {
            assert_eq!(leader.await.unwrap().location(), location);
        }
        assert_eq!(node.runs(), 1, "the rollback is not over");
        for _ in 0..20 {
            world.clock.advance(WAIT);
            settled_down().await;
        }
        node.api.started.notified().await;
        node.api.finish.notify_one();
        assert_eq!((node.outcome(&location).await.status, node.runs()), (201, 2));
    }
}

#[tokio::test]
async fn before_a_202_it_is_released() {
    for (body, status) in [("429", 429), ("release", 200), ("unsent", 502)] {
        let world = World::new();
        let node = world.node();
        for run in 1..=2 {
            let first = node.send(request(body));
            node.api.started.notified().await;
            world.clock.advance(WAIT - Duration::from_millis(1));
            node.api.finish.notify_one();
            let first = first.await.unwrap();
            assert_eq!((first.status, first.is_replay(), node.runs()), (status, false, run));
        }
    }
}

#[tokio::test]
async fn a_release_that_is_decided_excludes_a_202() {
    let world = World::new();
    let node = world.node();
    let first = node.send(request("429"));
    node.api.started.notified().await;
    node.store.fail_settlements(StoreFault::Unavailable);
    node.api.finish.notify_one();
    while node.store.failures() == 0 {
        yield_now().await;
    }
    // The release is being written when the wait ends.
    world.clock.advance(WAIT);
    settled_down().await;
    assert!(!first.is_finished(), "no 202 any more");
    let retry = node.send(with(request("429"), "prefer", "respond-async, wait=0")).await.unwrap();
    assert_eq!(retry.problem(), (409, "request_in_progress".to_owned()));
    node.store.fail_settlements(StoreFault::None);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(first.await.unwrap().status, 429);
    let again = node.send(request("429"));
    node.api.started.notified().await;
    node.api.finish.notify_one();
    assert!(!again.await.unwrap().is_replay());
    assert_eq!(node.runs(), 2, "released: it runs again");
}

#[tokio::test]
async fn an_outcome_that_is_not_durable_yet_is_running() {
    let world = World::new();
    let node = world.node();
    let first = node.send(request("x"));
    node.api.started.notified().await;
    node.store.fail_settlements(StoreFault::Unavailable);
    node.api.finish.notify_one();
    while node.store.failures() == 0 {
        yield_now().await;
    }
    world.clock.advance(WAIT);
    let location = first.await.unwrap().location();
    assert!(node.get(&location, "Bearer alice").await.is_running());
    node.store.fail_settlements(StoreFault::None);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!((node.outcome(&location).await.status, node.runs()), (201, 1));
}

#[tokio::test]
async fn what_outlasts_the_wait_is_recorded_though_its_client_is_gone() {
    let world = World::new();
    let node = world.node();
    let first = node.send(request("429"));
    node.api.started.notified().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    world.clock.advance(WAIT);
    node.api.finish.notify_one();
    let retry = node.send(request("429")).await.unwrap();
    assert!(retry.status == 429 && retry.is_replay(), "another node may have answered 202");
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn an_unknown_outcome_is_told_as_to_a_retry() {
    let world = World::new();
    let node = world.node();
    let location = node.accepted(&world, request("500")).await.location();
    node.api.finish.notify_one();
    let outcome = node.outcome(&location).await;
    assert_eq!(outcome.problem(), (500, "previous_attempt_failed".to_owned()));
    let retry = node.send(request("500")).await.unwrap();
    assert_eq!((retry.status, &retry.body), (500, &outcome.body));
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn handles_that_are_not_ones_own_are_not_found() {
    // alice:one, alice:two and bob:one
    let (one, two, bob) = ("Basic YWxpY2U6b25l", "Basic YWxpY2U6dHdv", "Basic Ym9iOm9uZQ==");
    let world = World::new();
    let node = world.node();
    let location = node.accepted(&world, request_by(one, "x")).await.location();
    let mut refused = Vec::new();
    for credential in [two, bob, "Bearer alice", "Digest x", "Basic !!!"] {
        refused.push(node.get(&location, credential).await);
    }
    let anonymous = Request::get(&location).body(String::new()).unwrap();
    refused.push(node.send(anonymous).await.unwrap());
    let other = if location.ends_with('A') { "B" } else { "A" };
    let guesses = [
        location[..location.len() - 1].to_owned(),
        format!("{}{other}", &location[..location.len() - 1]),
        format!("{location}A"),
        format!("{location}/"),
        format!("{OPERATIONS}{}", "A".repeat(43)),
        format!("{OPERATIONS}{}", "A".repeat(9_000)),
        format!("{OPERATIONS}%41"),
        OPERATIONS.to_owned(),
    ];
    for guess in guesses {
        refused.push(node.get(&guess, one).await);
    }
    // A node with a random secret of its own.
    refused.push(world.node_with(Secrets::default()).get(&location, one).await);
    for answer in &refused {
        assert_eq!(answer.problem(), (404, "operation_not_found".to_owned()));
        let [body, first] = [answer, &refused[0]]
            .map(|answer| without_identifier(std::str::from_utf8(&answer.body).unwrap()));
        assert_eq!(body, first, "nothing can be told from the answer");
        assert!(!answer.headers.contains_key("idempotency-reference"));
    }
    node.api.finish.notify_one();
    settled_down().await;
    assert_eq!(node.get(&location, two).await.status, 404);
    assert_eq!(node.get(&location, one).await.status, 201);
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn the_tenants_of_handles_are_told_by_the_rules_of_their_routes() {
    let by_header = || Tenant::Header("x-account".parse().unwrap());
    for (tenant, is_closure, is_found) in [
        (Tenant::Public, true, true),
        (Tenant::Credential, true, true),
        (Tenant::CredentialOrPublic, true, true),
        (by_header(), true, false),
        (by_header(), false, true),
    ] {
        let mut world = World::new();
        world.policy = world.policy.tenant(tenant);
        let policy = Arc::new(world.policy.clone());
        let always = Arc::clone(&policy);
        let secrets = Secrets::default();
        let node = if is_closure {
            world.node_by(move |_: &Parts| Some(Arc::clone(&always)), secrets)
        } else {
            world.node_by(policy, secrets)
        };
        if !is_found {
            // No client could fetch the outcome, so nothing runs.
            let refused = node.send(with(request("x"), "x-account", "a")).await.unwrap();
            assert_eq!(refused.problem(), (500, "misconfigured".to_owned()));
            continue;
        }
        let first = node.accepted(&world, with(request("x"), "x-account", "a")).await;
        let get = Request::get(first.location()).header("authorization", "Bearer alice");
        let get = get.header("x-account", "a").body(String::new()).unwrap();
        assert_eq!(node.send(get).await.unwrap().status, 200, "{:?}", world.policy.tenant);
    }
}

#[tokio::test]
async fn an_expired_outcome_is_not_found() {
    let mut world = World::new();
    world.policy.terms = Terms { ttl: Duration::from_secs(60), ..Terms::default() };
    let node = world.node();
    let location = node.accepted(&world, request("x")).await.location();
    node.api.finish.notify_one();
    assert_eq!(node.outcome(&location).await.status, 201);
    world.clock.advance(Duration::from_secs(120));
    let gone = node.get(&location, "Bearer alice").await;
    assert_eq!(gone.problem(), (404, "operation_not_found".to_owned()));
}

/// Regression test for a bug found by the simulation. After a record had expired, another request
/// used its key. The handle of the first request then returned the outcome of the second (S9).
#[tokio::test]
async fn a_handle_does_not_lead_to_another_request_under_its_key() {
    let mut world = World::new();
    world.policy.terms = Terms { ttl: Duration::from_secs(60), ..Terms::default() };
    let node = world.node();
    let first = node.accepted(&world, request("x")).await.location();
    node.api.finish.notify_one();
    assert_eq!(node.outcome(&first).await.status, 201);
    world.clock.advance(Duration::from_secs(120));
    let second = node.accepted(&world, request("y")).await.location();
    assert_ne!(first, second);
    let gone = node.get(&first, "Bearer alice").await;
    assert_eq!(gone.problem(), (404, "operation_not_found".to_owned()));
    assert!(node.get(&second, "Bearer alice").await.is_running());
    node.api.finish.notify_one();
    assert_eq!(node.outcome(&second).await.status, 201);
    let gone = node.get(&first, "Bearer alice").await;
    assert_eq!(gone.problem(), (404, "operation_not_found".to_owned()));
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_an_answer() {
    let world = World::new();
    let node = world.node();
    let location = node.accepted(&world, request("x")).await.location();
    node.store.fail_loads(StoreFault::Unavailable);
    let asked = node.get(&location, "Bearer alice").await;
    assert_eq!(asked.problem(), (503, "idempotency_store_unavailable".to_owned()));
    node.store.fail_loads(StoreFault::None);
    assert!(node.get(&location, "Bearer alice").await.is_running());
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn after_a_restart_the_handle_tells_the_truth() {
    let world = World::new();
    let (before, finished) = (world.node(), world.node());
    let location = before.accepted(&world, request("x")).await.location();
    // The node never reaches the store again and looks dead to all others.
    before.store.fail_settlements(StoreFault::Unavailable);
    let mut other = request("x");
    other.headers_mut().insert("idempotency-key", "another-key-0123456789".parse().unwrap());
    let kept = finished.accepted(&world, other).await.location();
    finished.api.finish.notify_one();
    assert_eq!(finished.outcome(&kept).await.status, 201);

    let after = world.node();
    assert!(after.get(&location, "Bearer alice").await.is_running(), "nobody can tell yet");
    world.clock.advance(Terms::default().lease + Terms::default().grace);
    assert_eq!(after.engine.reap(10).await, 1);
    let outcome = after.get(&location, "Bearer alice").await;
    assert_eq!(outcome.problem(), (500, "previous_attempt_failed".to_owned()));
    let retry = after.send(request("x")).await.unwrap();
    assert_eq!((retry.status, &retry.body), (500, &outcome.body));
    let outcome = after.get(&kept, "Bearer alice").await;
    assert_eq!((outcome.status, &outcome.body[..]), (201, &b"done"[..]));
    assert_eq!((before.runs(), finished.runs(), after.runs()), (1, 1, 0));
}

#[tokio::test]
async fn another_node_answers_202_only_for_what_is_not_released_any_more() {
    let world = World::new();
    let (here, there) = (world.node(), world.node());
    let first = here.send(request("429"));
    here.api.started.notified().await;
    let retry = there.send(with(request("429"), "prefer", "respond-async, wait=0"));
    settled_down().await;
    assert!(!retry.is_finished(), "it could still be released");
    world.clock.advance(WAIT);
    let location = first.await.unwrap().location();
    assert_eq!(retry.await.unwrap().location(), location);
    here.api.finish.notify_one();
    for node in [&here, &there] {
        assert_eq!(node.outcome(&location).await.status, 429);
    }
    assert_eq!((here.runs(), there.runs()), (1, 0));
}

/// A retry waits for an attempt of another node. The attempt is released and another one follows,
/// which the retry may not notice.
#[tokio::test]
async fn another_nodes_attempt_counts_by_its_own_age() {
    let world = World::new();
    let (here, there) = (world.node(), world.node());
    let first = here.send(request("429"));
    here.api.started.notified().await;
    let retry = there.send(request("429"));
    settled_down().await;
    world.clock.advance(WAIT / 2);
    settled_down().await;
    here.api.finish.notify_one();
    assert_eq!(first.await.unwrap().status, 429, "it is released");
    let second = here.send(request("429"));
    here.api.started.notified().await;
    world.clock.advance(WAIT / 2);
    settled_down().await;
    assert!(!retry.is_finished(), "the second attempt could still be released");
    world.clock.advance(WAIT / 2);
    let location = second.await.unwrap().location();
    assert_eq!(retry.await.unwrap().location(), location);
    here.api.finish.notify_one();
    assert_eq!(there.outcome(&location).await.status, 429);
    assert_eq!((here.runs(), there.runs()), (2, 0));
}

/// The operation was seen to run on another node. So it does not run here as well when the store
/// becomes unreachable, although the route is fail-open.
#[tokio::test]
async fn an_operation_of_another_node_is_not_run_without_a_record() {
    let mut world = World::new();
    world.policy = world.policy.on_store_down(OnStoreDown::FailOpen);
    let (here, there) = (world.node(), world.node());
    let first = here.send(request("slow"));
    here.api.started.notified().await;
    // Its own wait is half of the route's. After it, this node waits once more.
    let retry = there.send(with(request("slow"), "prefer", "wait=1"));
    settled_down().await;
    there.store.fail_claims(StoreFault::Unavailable);
    there.store.fail_loads(StoreFault::Unavailable);
    for _ in 0..4 {
        world.clock.advance(WAIT / 2);
        settled_down().await;
    }
    here.api.finish.notify_one();
    assert_eq!(retry.await.unwrap().problem(), (504, "in_progress_timeout".to_owned()));
    let location = first.await.unwrap().location();
    assert_eq!((here.outcome(&location).await.status, here.runs(), there.runs()), (201, 1, 0));
}
