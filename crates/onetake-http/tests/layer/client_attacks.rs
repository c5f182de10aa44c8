//! Attacks by clients, and races with time.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{key, send};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, StatusCode};
use onetake_core::delegate_store;
use onetake_core::store::{Answers, Claim, Claimed, SharedSecrets};
use onetake_core::{
    Engine, Limits, ManualClock, MemoryStore, Record, RecordId, Store, StoreError, SystemRng,
};
use onetake_http::typed::json;
use onetake_http::{
    By, HttpLimits, IssuingKey, KeyFormat, KeySource, OnStoreDown, OnetakeLayer, Policy, Secrets,
    Stored, TOKENS, Tenant, Typed,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tower::ServiceExt;

const HOUR: Duration = Duration::from_secs(3600);

/// A store whose calls take as long as a test says.
#[derive(Debug)]
struct Slow {
    memory: MemoryStore,
    clock: ManualClock,
    /// The duration of a claim and of a read, in milliseconds.
    claim_takes: AtomicU64,
    load_takes: AtomicU64,
    /// A gate at which claims wait.
    gate: Semaphore,
    claiming: AtomicUsize,
    hides_secrets: AtomicBool,
}

impl Store for Slow {
    delegate_store!(self => self.memory; name, settle, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            self.claiming.fetch_add(batch.len(), Ordering::SeqCst);
            let _open = self.gate.acquire().await.unwrap();
            self.pass(&self.claim_takes);
            self.memory.claim(batch).await
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            let found = self.memory.load(ids).await;
            self.pass(&self.load_takes);
            found
        }
        .boxed()
    }
}

impl SharedSecrets for Slow {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        if self.hides_secrets.load(Ordering::SeqCst) {
            return std::future::pending().boxed();
        }
        self.memory.secret(name, fresh)
    }
}

delegate_store!(impl RecordIndex, AuditLog, Sealing for Slow, self => self.memory);

impl Slow {
    fn pass(&self, takes: &AtomicU64) {
        self.clock.advance(Duration::from_millis(takes.load(Ordering::SeqCst)));
    }
}

/// A small API with a manual clock.
#[derive(Clone)]
struct Api {
    clock: ManualClock,
    store: Arc<Slow>,
    engine: Engine,
    runs: Arc<AtomicUsize>,
    seen: Arc<Mutex<HeaderMap>>,
}

impl Api {
    fn new() -> Self {
        let clock = ManualClock::default();
        clock.advance(HOUR);
        let store = Arc::new(Slow {
            memory: MemoryStore::with_clock(Arc::new(clock.clone())),
            clock: clock.clone(),
            claim_takes: AtomicU64::new(0),
            load_takes: AtomicU64::new(0),
            gate: Semaphore::new(1),
            claiming: AtomicUsize::new(0),
            hides_secrets: AtomicBool::new(false),
        });
        let engine = Engine::with(
            Arc::clone(&store) as Arc<dyn Store>,
            Arc::new(clock.clone()),
            Arc::new(SystemRng),
            Limits { cache_bytes_max: 0, ..Limits::default() },
        );
        Self { clock, store, engine, runs: Arc::default(), seen: Arc::default() }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn router(&self, policy: Policy) -> Router {
        let secrets = Secrets::default().issued_keys([IssuingKey::new(&[7; 32])]);
        let (policies, limits) = (Arc::new(policy), HttpLimits::default());
        self.router_with(
            OnetakeLayer::builder(self.engine.clone())
                .resolve(policies)
                .limits(limits)
                .secrets(secrets)
                .build()
                .unwrap(),
        )
    }

    fn router_with(&self, layer: OnetakeLayer) -> Router {
        Router::new()
            .route("/charges", post(charge))
            .route("/receipts", post(receipt))
            .with_state(self.clone())
            .layer(layer)
    }

    /// Waits until this many claims have reached the store.
    async fn claimed(&self, count: usize) {
        while self.store.claiming.load(Ordering::SeqCst) < count {
            tokio::task::yield_now().await;
        }
    }
}

async fn charge(State(api): State<Api>, headers: HeaderMap) -> Response {
    api.runs.fetch_add(1, Ordering::SeqCst);
    let outcome = if headers.contains_key("x-lost") { "unknown" } else { "record" };
    *api.seen.lock().unwrap() = headers;
    (StatusCode::CREATED, [("onetake-outcome", outcome)]).into_response()
}

#[derive(Serialize, Deserialize)]
struct Receipt {
    cents: u64,
}

impl Typed for Receipt {
    const NAME: &str = "receipt";

    fn respond(&self) -> http::Response<Bytes> {
        json(StatusCode::OK, self)
    }
}

/// Responds like a handler that returns `(StatusCode::CREATED, [("x-receipt", "7")], Stored(…))`.
async fn receipt(State(api): State<Api>) -> Response {
    api.runs.fetch_add(1, Ordering::SeqCst);
    let mut response = Stored(Receipt { cents: 1999 }).response().map(Body::from);
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().insert("x-receipt", "7".parse().unwrap());
    response
}

fn request(path: &str, key: &str) -> Request<Body> {
    let request = Request::post(path).header("authorization", "Bearer a-bearer-token");
    let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
    request.body("{}".into()).unwrap()
}

fn with(mut request: Request<Body>, name: &'static str, value: &'static str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

async fn issue(router: &Router) -> String {
    let mut asked = request(TOKENS, "");
    *asked.body_mut() = "{\"method\":\"POST\",\"path\":\"/charges\"}".into();
    let answered = send(router, asked).await;
    assert_eq!(answered.status, 201, "{answered:?}");
    let body: serde_json::Value = serde_json::from_slice(&answered.body).unwrap();
    body["key"].as_str().unwrap().to_owned()
}

fn issued(ttl: Duration) -> Policy {
    Policy::new().tenant(Tenant::Credential).ttl(ttl).key_from(KeySource::Issued)
}

fn one_an_hour() -> Policy {
    Policy::new().tenant(Tenant::Credential).key_required().velocity([By::Tenant], "1/h")
}

async fn settled() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A claim that is granted after the deadline leaves a record, and a key with a record is not
/// counted. That must not bypass the limit.
#[tokio::test]
async fn a_deadline_does_not_get_around_a_velocity_limit() {
    let api = Api::new();
    let router = api.router(one_an_hour());
    for number in 0..5 {
        api.store.claim_takes.store(10, Ordering::SeqCst);
        let late = with(request("/charges", &key(number)), "x-request-timeout-ms", "5");
        let late = send(&router, late).await.status;
        assert_eq!(late, if number == 0 { 504 } else { 429 }, "{number}");
        settled().await;
        api.store.claim_takes.store(0, Ordering::SeqCst);
        let again = send(&router, request("/charges", &key(number))).await.status;
        assert_eq!(again, if number == 0 { 201 } else { 429 }, "{number}");
    }
    assert_eq!(api.runs(), 1);
}

/// The same for a client that disconnects during the claim.
#[tokio::test]
async fn hanging_up_does_not_get_around_a_velocity_limit() {
    let api = Api::new();
    let router = api.router(one_an_hour());
    for number in 0..3 {
        let closed = api.store.gate.acquire().await.unwrap();
        let hasty = tokio::spawn(router.clone().oneshot(request("/charges", &key(number))));
        if number == 0 {
            api.claimed(1).await;
        }
        settled().await;
        hasty.abort();
        let _gone = hasty.await;
        drop(closed);
        settled().await;
        let again = send(&router, request("/charges", &key(number))).await.status;
        assert_eq!(again, if number == 0 { 201 } else { 429 }, "{number}");
    }
    assert_eq!(api.runs(), 1);
}

/// A client asks for a new key if its key is reported as expired and unused. The layer must not
/// report that while the key is being claimed.
#[tokio::test]
async fn an_issued_key_that_is_being_claimed_is_not_called_unused() {
    let api = Api::new();
    let router = api.router(issued(24 * HOUR));
    let key = issue(&router).await;
    api.clock.advance(HOUR - Duration::from_secs(1));
    let closed = api.store.gate.acquire().await.unwrap();
    let first = tokio::spawn(router.clone().oneshot(request("/charges", &key)));
    api.claimed(1).await;
    api.clock.advance(Duration::from_secs(2));
    let retry = tokio::spawn(router.clone().oneshot(request("/charges", &key)));
    settled().await;
    drop(closed);
    assert_eq!(first.await.unwrap().unwrap().status(), 201);
    let retry = retry.await.unwrap().unwrap().status().as_u16();
    assert!(retry == 409 || retry == 201, "{retry}");
    assert_eq!(api.runs(), 1);
}

/// The record exists when it is loaded, and has expired when it is claimed.
#[tokio::test]
async fn an_issued_key_is_not_revived_by_the_end_of_its_record() {
    let api = Api::new();
    let router = api.router(issued(2 * HOUR));
    let key = issue(&router).await;
    assert_eq!(send(&router, request("/charges", &key)).await.status, 201);
    api.clock.advance(2 * HOUR - Duration::from_secs(1));
    api.store.load_takes.store(2000, Ordering::SeqCst);
    assert_eq!(send(&router, request("/charges", &key)).await.status, 400);
    settled().await;
    api.store.load_takes.store(0, Ordering::SeqCst);
    for _ in 0..3 {
        let late = send(&router, request("/charges", &key)).await;
        assert!(late.status >= 400, "{late:?}");
        settled().await;
    }
    assert_eq!(api.runs(), 1, "S15: at most one operation");
}

/// The record is unknown when it is loaded, and has expired when it is claimed.
#[tokio::test]
async fn an_issued_key_is_not_revived_by_the_end_of_an_unknown_outcome() {
    let api = Api::new();
    let router = api.router(issued(2 * HOUR));
    let key = issue(&router).await;
    send(&router, with(request("/charges", &key), "x-lost", "1")).await;
    assert_eq!(send(&router, request("/charges", &key)).await.status, 500, "it is unknown");
    api.clock.advance(2 * HOUR - Duration::from_secs(1));
    api.store.load_takes.store(2000, Ordering::SeqCst);
    assert_eq!(send(&router, request("/charges", &key)).await.status, 400);
    assert_eq!(api.runs(), 1, "S15: at most one operation");
}

/// A key is issued under one ttl and used under another, as after a deployment.
#[tokio::test]
async fn a_record_outlives_its_issued_key_whatever_the_ttl_became() {
    let api = Api::new();
    let key = issue(&api.router(issued(24 * HOUR))).await;
    let router = api.router(issued(Duration::from_secs(1)));
    for minutes in [0, 1, 30, 58] {
        api.clock.advance(Duration::from_secs(60 * minutes) / 2);
        let answered = send(&router, request("/charges", &key)).await;
        assert_eq!((answered.status, answered.is_replay()), (201, minutes > 0), "{minutes}");
    }
    assert_eq!(api.runs(), 1, "S15: at most one operation");
}

/// The outcome of an expired issued key is in the store, which does not answer the claim. The route is
/// fail-open.
#[tokio::test]
async fn an_expired_issued_key_is_not_run_without_a_record() {
    let api = Api::new();
    let router = api.router(issued(HOUR).on_store_down(OnStoreDown::FailOpen));
    let key = issue(&router).await;
    assert_eq!(send(&router, request("/charges", &key)).await.status, 201);
    api.clock.advance(HOUR);
    let closed = api.store.gate.acquire().await.unwrap();
    let asking = tokio::spawn(router.clone().oneshot(request("/charges", &key)));
    settled().await;
    api.clock.advance(Duration::from_secs(6));
    assert_eq!(asking.await.unwrap().unwrap().status(), 503);
    assert_eq!(api.runs(), 1, "S15: at most one operation");
    drop(closed);
}

#[tokio::test]
async fn issued_keys_need_not_look_like_what_clients_make() {
    let api = Api::new();
    for policy in [
        issued(HOUR).key_format(KeyFormat::Uuid),
        Policy::new().key_min_length(100).tenant(Tenant::Credential).key_from(KeySource::Issued),
    ] {
        // The check refuses these options beside issued keys. The layer ignores them.
        policy.mark_checked();
        let router = api.router(policy);
        let key = issue(&router).await;
        let answered = send(&router, request("/charges", &key)).await;
        assert_eq!(answered.status, 201, "{answered:?}");
    }
}

/// A response that other code changed cannot be rebuilt from the value alone.
#[tokio::test]
async fn a_typed_response_that_was_changed_is_replayed_as_it_was() {
    let api = Api::new();
    let layer = OnetakeLayer::new(api.engine.clone(), Policy::new()).unwrap().typed::<Receipt>();
    let router = api.router_with(layer);
    let first = send(&router, request("/receipts", &key(1))).await;
    let replay = send(&router, request("/receipts", &key(1))).await;
    assert!(!first.is_replay() && replay.is_replay() && api.runs() == 1);
    assert_eq!((replay.status, &replay.body), (first.status, &first.body));
    assert_eq!(replay.headers.get("x-receipt"), first.headers.get("x-receipt"));
}

/// Concurrent requests wait at the same time, not one after the other.
#[tokio::test]
async fn a_store_that_hides_its_secret_is_not_waited_for_in_turns() {
    let api = Api::new();
    api.store.hides_secrets.store(true, Ordering::SeqCst);
    let router = api.router(Policy::new());
    let all: Vec<_> = (0..20)
        .map(|number| tokio::spawn(router.clone().oneshot(request("/charges", &key(number)))))
        .collect();
    settled().await;
    api.clock.advance(Duration::from_secs(6));
    settled().await;
    let waiting = all.iter().filter(|one| !one.is_finished()).count();
    assert_eq!(waiting, 0, "after more than claim_patience");
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().status(), 503);
    }
}

#[tokio::test]
async fn a_request_without_a_key_cannot_name_an_attempt_either() {
    let api = Api::new();
    let router = api.router(Policy::new());
    let forged = with(request("/charges", ""), "idempotency-derived-key", "somebody-else's");
    let forged = with(forged, "idempotency-fence", "99999999999999999");
    let forged = with(forged, "idempotency-reference", "9B5H-6U57-LCAG");
    let answered = send(&router, forged).await;
    assert_eq!(answered.status, 201);
    let seen = api.seen.lock().unwrap().clone();
    assert!(!seen.contains_key("idempotency-derived-key"), "never taken from a client");
    assert!(!seen.contains_key("idempotency-fence"));
    assert!(!seen.contains_key("idempotency-reference"));
    assert!(!answered.headers.contains_key("onetake-outcome"), "never passed on");
}

/// A layer around each route, and another around all routes. The inner layer passes on what belongs
/// to the outer one.
#[tokio::test]
async fn a_layer_inside_of_another_leaves_its_attempts_alone() {
    let api = Api::new();
    let inner = Policy::new().methods([http::Method::PUT]);
    let inner = api.router_with(OnetakeLayer::new(api.engine.clone(), inner).unwrap());
    let router = inner.layer(OnetakeLayer::new(api.engine.clone(), Policy::new()).unwrap());
    let answered = send(&router, request("/charges", &key(1))).await;
    assert_eq!(answered.status, 201);
    assert!(!answered.headers.contains_key("onetake-outcome"));
    let seen = api.seen.lock().unwrap().clone();
    assert!(seen.contains_key("idempotency-derived-key") && seen.contains_key("idempotency-fence"));
    assert_eq!(seen.get("idempotency-reference"), answered.headers.get("idempotency-reference"));
}

/// A layer around all routes, and another around one of them. The two must not block each other.
#[tokio::test]
async fn two_layers_around_each_other_run_it_once() {
    let api = Api::new();
    let layer = || OnetakeLayer::new(api.engine.clone(), Policy::new()).unwrap();
    let router = api.router_with(layer()).layer(layer());
    let first = send(&router, request("/charges", &key(1))).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert!(api.seen.lock().unwrap().contains_key("idempotency-derived-key"));
    let replay = send(&router, request("/charges", &key(1))).await;
    assert_eq!((replay.status, replay.is_replay(), api.runs()), (201, true, 1));
}

/// The inner layer finds no key of its own in the body. The handler still gets the attempt of the
/// outer layer.
#[tokio::test]
async fn an_inner_layer_without_a_key_keeps_the_attempt_of_the_outer_one() {
    let api = Api::new();
    let mut of_body = Policy::new().tenant(Tenant::Public);
    of_body.key.source = KeySource::json("/order").unwrap();
    let inner = OnetakeLayer::builder(api.engine.clone()).resolve(Arc::new(of_body));
    let router = api
        .router_with(inner.build().unwrap())
        .layer(OnetakeLayer::new(api.engine.clone(), Policy::new()).unwrap());
    let mut asked = with(request("/charges", &key(1)), "content-type", "application/json");
    *asked.body_mut() = "{\"amount\":10}".into();
    assert_eq!(send(&router, asked).await.status, 201);
    let seen = api.seen.lock().unwrap();
    for name in ["idempotency-derived-key", "idempotency-fence", "idempotency-reference"] {
        assert!(seen.contains_key(name), "{name}: {seen:?}");
    }
}

/// Every body that was read counts against the limit of memory, even if it names no operation.
#[tokio::test]
async fn a_body_that_names_nothing_takes_memory_too() {
    let api = Api::new();
    let mut policy = Policy::new().tenant(Tenant::Public);
    policy.key.source = KeySource::json("/order").unwrap();
    let limits = HttpLimits::default().body_bytes_max(7_000);
    let layer = OnetakeLayer::builder(api.engine.clone())
        .resolve(Arc::new(policy))
        .limits(limits)
        .build()
        .unwrap();
    let router = Router::new().route("/stuck", post(std::future::pending::<()>)).layer(layer);
    let stuck = tokio::spawn(router.clone().oneshot(request("/stuck", "")));
    settled().await;
    assert_eq!(send(&router, request("/stuck", "")).await.status, 503);
    stuck.abort();
    let _gone = stuck.await;
    assert_eq!(send(&router, request("/elsewhere", "")).await.status, 404, "it is free again");
}
