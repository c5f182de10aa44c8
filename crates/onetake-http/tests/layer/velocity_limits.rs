//! Velocity limits, which apply to new operations only.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Answered, key, send};
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use http::{Request, StatusCode};
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::delegate_store;
use onetake_core::store::Answers;
use onetake_core::{
    Engine, Limits, ManualClock, MemoryStore, Record, RecordId, Store, StoreError, StoreErrorKind,
    SystemRng,
};
use onetake_http::json::{Pointer, Selection};
use onetake_http::velocity::{Rate, SharedVelocity, VelocityDecision};
use onetake_http::{
    By, Dialect, FingerprintMode, InFlight, OnStoreDown, OnetakeLayer, Policy, Tenant,
};
use tokio::sync::Notify;

/// A small API with a manual clock.
#[derive(Clone)]
struct Api {
    clock: ManualClock,
    memory: Arc<MemoryStore>,
    store: Arc<Faulty>,
    engine: Engine,
    runs: Arc<AtomicUsize>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

impl Api {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let clock = ManualClock::default();
        let memory = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        let store = Faulty::around(Arc::clone(&memory) as Arc<dyn Store>);
        let engine = Engine::with(
            Arc::new(Reading(Arc::clone(&store) as Arc<dyn Store>)),
            Arc::new(clock.clone()),
            Arc::new(SystemRng),
            // Only the store and the limits remember anything: there is no cache.
            Limits { cache_bytes_max: 0, ..limits },
        );
        let (started, finish) = (Arc::default(), Arc::default());
        Self { clock, memory, store, engine, runs: Arc::default(), started, finish }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn router(&self, policy: Policy) -> Router {
        self.router_with(OnetakeLayer::new(self.engine.clone(), policy).unwrap())
    }

    fn router_with(&self, layer: OnetakeLayer) -> Router {
        Router::new()
            .route("/charges", post(charge))
            .route("/slow", post(slow))
            .with_state(self.clone())
            .layer(layer)
    }
}

/// A store with slow reads. Concurrent requests therefore all read the state from before any of
/// their claims.
#[derive(Debug)]
struct Reading(Arc<dyn Store>);

impl Store for Reading {
    delegate_store!(self => self.0; name, claim, settle, due, sweep, ready, close);

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            let found = self.0.load(ids).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            found
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Reading, self => self.0);

async fn charge(State(api): State<Api>) -> StatusCode {
    api.runs.fetch_add(1, Ordering::SeqCst);
    StatusCode::CREATED
}

async fn slow(State(api): State<Api>) -> StatusCode {
    api.runs.fetch_add(1, Ordering::SeqCst);
    api.started.notify_one();
    api.finish.notified().await;
    StatusCode::CREATED
}

fn account() -> Tenant {
    Tenant::Header("x-account".parse().unwrap())
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

fn card() -> By {
    By::Json(Pointer::parse("/card").unwrap())
}

/// A limit of two operations in ten minutes for each card.
fn per_card() -> Policy {
    Policy::new()
        .tenant(account())
        .key_required()
        .velocity([card()], Rate::new(2.try_into().unwrap(), TEN_MINUTES).unwrap())
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

fn request(path: &str, tenant: &str, key: &str, body: &str) -> Request<axum::body::Body> {
    Request::post(path)
        .header("idempotency-key", key)
        .header("x-account", tenant)
        .body(body.to_owned().into())
        .unwrap()
}

async fn pay(router: &Router, tenant: &str, number: usize, card: &str) -> Answered {
    send(router, request("/charges", tenant, &key(number), &format!("{{\"card\":\"{card}\"}}")))
        .await
}

#[tokio::test]
async fn one_too_many_is_told_when_and_nothing_is_claimed() {
    let api = Api::new();
    let router = api.router(per_card());
    for number in 0..2 {
        assert_eq!(pay(&router, "a", number, "4242").await.status, 201);
    }
    let refused = pay(&router, "a", 2, "4242").await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "velocity_limit_exceeded"));
    assert_eq!(refused.header("retry-after"), "300");
    assert_eq!(refused.header("ratelimit-policy"), "\"default\";q=2;w=600");
    assert_eq!(refused.header("ratelimit"), "\"default\";r=0;t=300");
    assert!(!refused.header("idempotency-reference").is_empty());
    assert!(!String::from_utf8_lossy(&refused.body).contains("4242"));
    assert_eq!(api.memory.len(), 2, "nothing is claimed");
    // `Retry-After` is rounded up to whole seconds.
    api.clock.advance(Duration::from_millis(299_001));
    assert_eq!(pay(&router, "a", 2, "4242").await.header("retry-after"), "1");
    api.clock.advance(Duration::from_millis(999));
    assert_eq!(pay(&router, "a", 2, "4242").await.status, 201);
    assert_eq!(pay(&router, "a", 3, "4242").await.status, 429);
    assert_eq!(api.runs(), 3);
}

#[tokio::test]
async fn known_keys_are_neither_counted_nor_refused() {
    let api = Api::new();
    let router = api.router(per_card());
    for _ in 0..5 {
        assert_eq!(pay(&router, "a", 0, "4242").await.status, 201, "counted once");
    }
    assert_eq!(pay(&router, "a", 1, "4242").await.status, 201);
    assert_eq!(pay(&router, "a", 2, "4242").await.status, 429);
    for number in [0, 1] {
        let again = pay(&router, "a", number, "4242").await;
        assert!(again.is_replay() && again.status == 201);
    }
    let other = pay(&router, "a", 0, "5555").await;
    assert_eq!(other.code(), "idempotency_payload_mismatch");
    let not_json = send(&router, request("/charges", "a", &key(0), "no JSON")).await;
    assert_eq!(not_json.code(), "idempotency_payload_mismatch");
    // Neither of the two mismatches counted.
    for number in 10..12 {
        assert_eq!(pay(&router, "a", number, "5555").await.status, 201);
    }
    assert_eq!(api.runs(), 4);
}

#[tokio::test]
async fn limits_are_independent_and_hold_together() {
    let api = Api::new();
    let router = api.router(per_card().velocity([By::Tenant], rate("3/h")));
    for (number, card) in [(0, "1"), (1, "1")] {
        assert_eq!(pay(&router, "a", number, card).await.status, 201);
    }
    // A refusal by the card's limit does not count against the tenant's limit.
    for number in 10..20 {
        let refused = pay(&router, "a", number, "1").await;
        assert_eq!(refused.header("ratelimit-policy"), "\"default\";q=2;w=600");
    }
    assert_eq!(pay(&router, "a", 2, "2").await.status, 201, "two cards do not share");
    // A refusal by the tenant's limit does not count against the card's limit.
    let refused = pay(&router, "a", 3, "3").await;
    assert_eq!(refused.header("ratelimit-policy"), "\"default\";q=3;w=3600");
    assert_eq!(refused.header("retry-after"), "1200");
    for number in 20..22 {
        assert_eq!(pay(&router, "b", number, "3").await.status, 201, "two tenants do not share");
    }
    assert_eq!(pay(&router, "b", 22, "1").await.status, 429, "a card is one, whoever sends it");
    assert_eq!(api.runs(), 5);
}

#[tokio::test]
async fn values_as_json_sees_them() {
    let api = Api::new();
    let router = api.router(per_card());
    let next = AtomicUsize::new(0);
    let status = async |body: &str| {
        let key = key(next.fetch_add(1, Ordering::SeqCst));
        send(&router, request("/charges", "a", &key, body)).await.status
    };
    for (bodies, refused) in [
        (["{\"card\":1}", "{\"card\":1.0, \"x\":2}"], "{\"card\":10e-1}"),
        (["{\"card\":\"1\"}", "{\"x\":1,\"card\":\"\\u0031\"}"], "{\"card\":\"1\"}"),
        // A missing member is a value of its own.
        (["{}", "{\"card\":null}"], ""),
        (["{\"card\":[1,2]}", "{\"card\":[1, 2]}"], "{\"card\":[1,2]}"),
    ] {
        for body in bodies {
            assert_eq!(status(body).await, 201, "{body}");
        }
        assert_eq!(status(refused).await, 429, "{refused}");
    }
    let not_json = send(&router, request("/charges", "a", &key(100), "no JSON")).await;
    assert_eq!((not_json.status, not_json.code().as_str()), (400, "request_body_invalid"));
    assert_eq!(api.memory.len(), api.runs());
}

#[tokio::test]
async fn one_fresh_key_counts_once_however_many_come() {
    let api = Api::new();
    let wait = InFlight::Wait(Duration::from_secs(30));
    let router = api.router(per_card().in_flight(wait));
    for number in 0..2 {
        let requests = (0..50).map(|_| pay(&router, "a", number, "4242"));
        for answered in join_all(requests).await {
            assert_eq!(answered.status, 201, "{answered:?}");
        }
        assert_eq!(api.runs(), number + 1);
    }
    // The limit is used up: no count of an operation that ran was undone.
    for answered in join_all((0..50).map(|_| pay(&router, "a", 2, "4242"))).await {
        assert_eq!(answered.status, 429);
    }
    assert_eq!(api.runs(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_fresh_key_counts_once_on_many_threads() {
    let api = Api::new();
    let wait = InFlight::Wait(Duration::from_secs(30));
    let policy = Policy::new().tenant(account()).in_flight(wait).key_required();
    let policy = policy.velocity([card()], rate("40/d"));
    let router = api.router(policy);
    for number in 0..40 {
        let requests = (0..20).map(|_| {
            let router = router.clone();
            tokio::spawn(async move { pay(&router, "a", number, "4242").await.status })
        });
        for status in join_all(requests).await {
            assert_eq!(status.unwrap(), 201, "key {number}");
        }
    }
    assert_eq!(pay(&router, "a", 40, "4242").await.status, 429);
    assert_eq!(api.runs(), 40);
}

#[tokio::test]
async fn what_did_not_run_is_given_back() {
    let api = Api::new();
    let router = api.router(per_card());
    // Two concurrent requests with one key and two cards. One runs, and the other does not count.
    let (one, other) = tokio::join!(pay(&router, "a", 0, "1"), pay(&router, "a", 0, "2"));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 422]);
    let (ran, did_not) = if one.status == 201 { ("1", "2") } else { ("2", "1") };
    assert_eq!(pay(&router, "a", 1, ran).await.status, 201);
    assert_eq!(pay(&router, "a", 2, ran).await.status, 429);
    for number in 10..12 {
        assert_eq!(pay(&router, "a", number, did_not).await.status, 201);
    }
    // Requests that the store could not claim or load do not count either.
    for number in 20..25 {
        api.store.fail_claims(StoreFault::Unavailable);
        assert_eq!(pay(&router, "a", number, "3").await.status, 503);
        api.store.fail_loads(StoreFault::Unavailable);
        assert_eq!(pay(&router, "a", number, "3").await.status, 503);
        api.store.fail_claims(StoreFault::None);
        assert_eq!(pay(&router, "a", number, "3").await.status, 503, "nothing runs uncounted");
        api.store.fail_loads(StoreFault::None);
    }
    for number in 30..32 {
        assert_eq!(pay(&router, "a", number, "3").await.status, 201);
    }
}

#[tokio::test]
async fn another_card_does_not_ride_along_under_the_same_key() {
    let api = Api::new();
    let amount = Selection::Include(vec![Pointer::parse("/amount").unwrap()]);
    let router = api.router(per_card().fingerprint(FingerprintMode::Json(amount)));
    for number in 0..2 {
        assert_eq!(pay(&router, "a", number, "2").await.status, 201);
    }
    let (one, other) = tokio::join!(pay(&router, "a", 9, "1"), pay(&router, "a", 9, "2"));
    assert_eq!((one.status, other.status), (201, 429));
}

#[tokio::test]
async fn while_the_store_is_away_it_is_counted_as_ever() {
    let api = Api::new();
    let router = api.router(per_card().on_store_down(OnStoreDown::FailOpen));
    for (claims, loads, card) in [
        (StoreFault::Unavailable, StoreFault::Unavailable, "1"),
        (StoreFault::Unavailable, StoreFault::None, "2"),
        (StoreFault::None, StoreFault::Unavailable, "3"),
    ] {
        api.store.fail_claims(claims);
        api.store.fail_loads(loads);
        for number in 0..2 {
            assert_eq!(pay(&router, "a", number, card).await.status, 201);
        }
        assert_eq!(pay(&router, "a", 2, card).await.code(), "velocity_limit_exceeded");
    }
    assert_eq!((api.runs(), api.memory.len()), (6, 0));
}

/// Sends a request, and returns when its operation has started.
async fn started(api: &Api, router: &Router) -> tokio::task::JoinHandle<Answered> {
    let (router, asked) = (router.clone(), request("/slow", "a", &key(1), "{\"card\":\"4242\"}"));
    let sent = tokio::spawn(async move { send(&router, asked).await });
    api.started.notified().await;
    sent
}

/// A run without a record lasts until after the store is back. Requests with its key find out that
/// the store is back.
#[tokio::test]
async fn a_run_without_a_record_does_not_make_later_ones_bypass_the_store() {
    let api = Api::new();
    let router = api.router(per_card().on_store_down(OnStoreDown::FailOpen));
    api.store.fail_claims(StoreFault::Unavailable);
    api.store.fail_loads(StoreFault::Unavailable);
    let first = started(&api, &router).await;
    api.store.fail_claims(StoreFault::None);
    api.store.fail_loads(StoreFault::None);
    let second = started(&api, &router).await;
    assert_eq!(api.memory.len(), 1, "the second run has a record");
    api.finish.notify_waiters();
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (201, 201));
    let replay = send(&router, request("/slow", "a", &key(1), "{\"card\":\"4242\"}")).await;
    assert_eq!((replay.status, api.runs()), (201, 2));
}

/// The store's error comes before the engine is asked.
#[tokio::test]
async fn too_much_at_once_is_not_bypassed_while_the_store_is_away() {
    let api = Api::with(Limits { running_max: 0, ..Limits::default() });
    let router = api.router(per_card().on_store_down(OnStoreDown::FailOpen));
    api.store.fail_claims(StoreFault::Unavailable);
    api.store.fail_loads(StoreFault::Unavailable);
    let refused = pay(&router, "a", 1, "4242").await;
    assert_eq!((refused.status, &*refused.code(), api.runs()), (503, "overloaded", 0));
}

#[tokio::test]
async fn what_runs_is_known_and_a_client_that_goes_away_gives_nothing_back() {
    let api = Api::new();
    let router = api.router(per_card());
    let slow = |number| request("/slow", "a", &key(number), "{\"card\":\"4242\"}");
    for number in 0..2 {
        let client = tokio::spawn({
            let (router, request) = (router.clone(), slow(number));
            async move { send(&router, request).await }
        });
        api.started.notified().await;
        client.abort();
        let _gone = client.await;
        assert_eq!(send(&router, slow(number)).await.code(), "request_in_progress");
    }
    assert_eq!(pay(&router, "a", 2, "4242").await.status, 429);
    api.finish.notify_waiters();
}

#[tokio::test]
async fn stripe_is_told_to_retry() {
    let api = Api::new();
    let router = api.router(per_card().errors(Dialect::Stripe));
    for number in 0..2 {
        assert_eq!(pay(&router, "a", number, "1").await.status, 201);
    }
    let refused = pay(&router, "a", 2, "1").await;
    let problem: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(problem["error"]["code"], "velocity_limit_exceeded");
    assert_eq!((refused.status, refused.header("stripe-should-retry")), (429, "true"));
    assert_eq!(refused.header("ratelimit"), "\"default\";r=0;t=300");
}

/// A shared counter for many nodes, without a clock.
#[derive(Debug, Default)]
struct Place {
    counts: Mutex<HashMap<[u8; 32], u32>>,
    away: AtomicBool,
}

impl Place {
    fn counts(&self) -> Vec<u32> {
        let mut counts: Vec<_> = self.counts.lock().unwrap().values().copied().collect();
        counts.sort_unstable();
        counts
    }

    fn answer<T: Send + 'static>(
        &self,
        answer: impl FnOnce() -> T,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        let away = self.away.load(Ordering::SeqCst);
        let away = away.then(|| StoreError::new(StoreErrorKind::Unavailable, "away"));
        let answer = away.map_or_else(|| Ok(answer()), Err);
        std::future::ready(answer).boxed()
    }
}

impl SharedVelocity for Place {
    fn take(
        &self,
        key: [u8; 32],
        rate: Rate,
    ) -> BoxFuture<'_, Result<VelocityDecision, StoreError>> {
        self.answer(|| {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry(key).or_default();
            if *count == rate.count().get() {
                return VelocityDecision::Refused { retry_after: Duration::from_millis(1_500) };
            }
            *count += 1;
            VelocityDecision::Allowed
        })
    }

    fn give_back(&self, key: [u8; 32], _rate: Rate) -> BoxFuture<'_, Result<(), StoreError>> {
        self.answer(|| *self.counts.lock().unwrap().get_mut(&key).unwrap() -= 1)
    }
}

#[tokio::test]
async fn many_nodes_count_together_and_each_by_itself_while_they_cannot() {
    let place = Arc::new(Place::default());
    let apis = [Api::new(), Api::new()];
    let policy = || per_card().velocity([By::Tenant], rate("3/h"));
    let routers = apis.each_ref().map(|api| {
        let layer = OnetakeLayer::builder(api.engine.clone()).policy(policy());
        let place = Arc::clone(&place) as Arc<dyn SharedVelocity>;
        api.router_with(layer.shared_velocity(place).build().unwrap())
    });
    for (number, router) in routers.iter().enumerate() {
        assert_eq!(pay(router, "a", number, "1").await.status, 201);
    }
    let refused = pay(&routers[0], "a", 2, "1").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, "2"));
    assert_eq!(place.counts(), [2, 2], "the card, and the tenant");
    assert_eq!(pay(&routers[0], "a", 3, "2").await.status, 201);
    assert_eq!(
        pay(&routers[1], "a", 4, "3").await.header("ratelimit-policy"),
        "\"default\";q=3;w=3600"
    );
    // The card's limit allowed the request and the tenant's limit refused it. A task of its own
    // undoes the card's count.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.counts(), [0, 1, 2, 3]);
    place.away.store(true, Ordering::SeqCst);
    for (router, first) in routers.iter().zip([10, 20]) {
        for number in 0..2 {
            assert_eq!(pay(router, "a", first + number, "1").await.status, 201);
        }
        assert_eq!(pay(router, "a", first + 2, "1").await.status, 429);
    }
    assert_eq!(place.counts(), [0, 1, 2, 3]);
}
