//! A client's deadline bounds every wait for the store.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Request;
use http_body_util::BodyExt;
use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Clock, Engine, Limits, MemoryStore, Record, RecordId, Settled, Settlement,
    Store, SystemClock, SystemRng, delegate_store,
};
use onetake_http::{By, HttpLimits, OnStoreDown, OnetakeLayer, Policy};
use tokio::sync::Notify;
use tower::ServiceExt;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
/// The deadline of the client.
const DEADLINE: Duration = Duration::from_millis(200);
/// The engine's own patience with the store, far longer than a test may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The longest time until the answer. A machine may stall for a while.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// A store whose calls of one kind hang.
#[derive(Debug, Default)]
struct Hanging {
    memory: MemoryStore,
    claims: AtomicBool,
    settlements: AtomicBool,
    reads: AtomicBool,
    open: Notify,
}

impl Hanging {
    async fn unless_open(&self, hangs: &AtomicBool) {
        if hangs.load(Ordering::SeqCst) {
            self.open.notified().await;
        }
    }
}

impl Store for Hanging {
    delegate_store!(self => self.memory; name, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            self.unless_open(&self.claims).await;
            self.memory.claim(batch).await
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            self.unless_open(&self.settlements).await;
            self.memory.settle(batch).await
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            self.unless_open(&self.reads).await;
            self.memory.load(ids).await
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Hanging, self => self.memory);

struct World {
    store: Arc<Hanging>,
    runs: Arc<AtomicUsize>,
    router: Router,
}

impl World {
    fn new(policy: Policy) -> Self {
        Self::with(policy, HttpLimits::default())
    }

    fn with(policy: Policy, http: HttpLimits) -> Self {
        let store = Arc::<Hanging>::default();
        let limits =
            Limits { claim_patience: PATIENCE, settle_patience: PATIENCE, ..Limits::default() };
        let (inner, clock) = (Arc::clone(&store) as Arc<dyn Store>, Arc::new(SystemClock));
        let engine = Engine::with(inner, clock, Arc::new(SystemRng), limits);
        let runs = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&runs);
        let charge = async move || {
            counted.fetch_add(1, Ordering::SeqCst);
            "charged"
        };
        let layer = OnetakeLayer::builder(engine).policy(policy).limits(http).build().unwrap();
        let router = Router::new().route("/", post(charge)).layer(layer);
        Self { store, runs, router }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Sends a request with the deadline, and returns its status and the code of its problem.
    async fn send(&self) -> (u16, String) {
        let request = Request::post("/").header("idempotency-key", KEY);
        let request = request.header("authorization", "Bearer alice");
        let request = request.header("content-type", "application/json");
        let request = request.header("x-request-timeout-ms", DEADLINE.as_millis().to_string());
        let request = request.body(axum::body::Body::from("{\"card\":1}")).unwrap();
        let response = tokio::select! {
            biased;
            response = self.router.clone().oneshot(request) => response.unwrap(),
            () = SystemClock.sleep(ANSWERED_WITHIN) => return (0, "no answer".to_owned()),
        };
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        (status, problem.get("code").and_then(|code| code.as_str()).unwrap_or_default().to_owned())
    }
}

fn over() -> (u16, String) {
    (504, "deadline_exceeded".to_owned())
}

#[tokio::test]
async fn a_claim_ends_at_the_deadline_and_nothing_runs_later() {
    for policy in [Policy::new(), Policy::new().on_store_down(OnStoreDown::FailOpen)] {
        let world = World::new(policy);
        world.store.claims.store(true, Ordering::SeqCst);
        assert_eq!(world.send().await, over());
        world.store.claims.store(false, Ordering::SeqCst);
        world.store.open.notify_one();
        // The claim arrives, and no client waits for it. The key is free once it is released.
        let mut retry = world.send().await;
        while retry.0 != 200 {
            assert!([409, 504].contains(&retry.0), "{retry:?}");
            SystemClock.sleep(Duration::from_millis(10)).await;
            retry = world.send().await;
        }
        assert_eq!(world.runs(), 1, "the retry alone ran");
    }
}

#[tokio::test]
async fn a_look_up_ends_at_the_deadline() {
    let world = World::new(Policy::new().key_required().velocity([By::Tenant], "5/min"));
    world.store.reads.store(true, Ordering::SeqCst);
    assert_eq!(world.send().await, over());
    assert_eq!(world.runs(), 0);
}

/// While there is no memory for a request, the store is asked whether it is a retry.
#[tokio::test]
async fn a_look_up_without_memory_for_the_request_ends_at_the_deadline() {
    let world = World::with(Policy::new(), HttpLimits::default().body_bytes_max(1));
    assert_eq!(world.send().await, (503, "overloaded".to_owned()));
    world.store.reads.store(true, Ordering::SeqCst);
    assert_eq!(world.send().await, over());
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn a_settlement_ends_at_the_deadline_and_the_outcome_is_recorded_later() {
    let world = World::new(Policy::new());
    world.store.settlements.store(true, Ordering::SeqCst);
    assert_eq!(world.send().await, (503, "outcome_pending".to_owned()));
    assert_eq!(world.runs(), 1);
    world.store.settlements.store(false, Ordering::SeqCst);
    world.store.open.notify_one();
    let mut retry = world.send().await;
    while retry.0 != 200 {
        assert_eq!(retry.0, 409, "{retry:?}");
        SystemClock.sleep(Duration::from_millis(10)).await;
        retry = world.send().await;
    }
    assert_eq!(world.runs(), 1, "the retry is a replay");
}
