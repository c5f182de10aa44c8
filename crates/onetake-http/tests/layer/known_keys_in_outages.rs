//! Fail-open routes while the store is partly unreachable: an operation whose key is known to be
//! taken does not run without a record (S10). The simulation found each of these cases.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Answered, key, send};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, StatusCode};
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::store::{Answers, Claim, Claimed, RecordIndex, Settled, SharedSecrets};
use onetake_core::{
    Cause, Engine, Failure, FingerprintKey, MemoryStore, Rate, Settlement, Store, StoreError,
    StoreErrorKind, Transition, delegate_store,
};
use onetake_http::{By, InFlight, OnStoreDown, OnetakeLayer, Policy, Secrets};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// An API whose operations end when the test says so.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<AtomicUsize>,
    started: Arc<Notify>,
    finish: Arc<Notify>,
}

impl Api {
    /// Creates a node in front of the API, with a process of its own.
    fn node(&self, store: Arc<dyn Store>, policy: Policy, secrets: Secrets) -> Router {
        let layer = OnetakeLayer::builder(Engine::new(store))
            .policy(policy.on_store_down(OnStoreDown::FailOpen))
            .secrets(secrets);
        Router::new()
            .route("/charges", post(charge))
            .with_state(self.clone())
            .layer(layer.build().unwrap())
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// Begins an operation on a node, and returns when it has started.
    async fn started(&self, node: &Router) -> JoinHandle<Answered> {
        let sent = spawned(node);
        self.started.notified().await;
        sent
    }
}

async fn charge(State(api): State<Api>) -> StatusCode {
    api.runs.fetch_add(1, Ordering::SeqCst);
    api.started.notify_one();
    api.finish.notified().await;
    StatusCode::CREATED
}

fn request() -> Request<Body> {
    let request = Request::post("/charges").header("idempotency-key", key(1));
    request.header("authorization", "Bearer alice").body("10".into()).unwrap()
}

fn spawned(node: &Router) -> JoinHandle<Answered> {
    let node = node.clone();
    tokio::spawn(async move { send(&node, request()).await })
}

/// The route has velocity limits, so the store is asked whether the key is known before the claim.
/// It is known, and then the claim fails.
#[tokio::test]
async fn a_key_that_the_store_knew_is_not_run_without_a_record() {
    let (api, memory) = (Api::default(), MemoryStore::new());
    let store = Faulty::around(Arc::new(memory.clone()));
    let limit = Rate::new(100.try_into().unwrap(), Duration::from_secs(60)).unwrap();
    let policy = || Policy::new().key_required().velocity([By::Tenant], limit);
    let here = api.node(Arc::clone(&store) as Arc<dyn Store>, policy(), Secrets::default());
    let there = api.node(Arc::new(memory), policy(), Secrets::default());
    let first = api.started(&there).await;
    store.fail_claims(StoreFault::Unavailable);
    let refused = send(&here, request()).await;
    assert_eq!((refused.status, &*refused.code()), (503, "idempotency_store_unavailable"));
    api.finish.notify_one();
    assert_eq!((first.await.unwrap().status, api.runs()), (201, 1));
}

/// The store knows the key, but its attempt was released. So the key is free.
#[tokio::test]
async fn a_released_key_may_run_without_a_record() {
    let (api, memory) = (Api::default(), MemoryStore::new());
    let store = Faulty::around(Arc::new(memory.clone()));
    let limit = Rate::new(100.try_into().unwrap(), Duration::from_secs(60)).unwrap();
    let policy = || Policy::new().key_required().velocity([By::Tenant], limit);
    let here = api.node(Arc::clone(&store) as Arc<dyn Store>, policy(), Secrets::default());
    let there = api.node(Arc::new(memory.clone()), policy(), Secrets::default());
    let _first = api.started(&there).await;
    settle(&memory, [Transition::Release]).await;
    store.fail_claims(StoreFault::Unavailable);
    let retry = api.started(&here).await;
    api.finish.notify_waiters();
    assert_eq!((retry.await.unwrap().status, api.runs()), (201, 2));
}

/// A retry waits for the operation in its own process. Meanwhile another node settles the key, so
/// that the process has no outcome to show, and the store becomes unreachable.
#[tokio::test]
async fn an_operation_that_this_process_has_run_is_not_run_without_a_record() {
    let (api, memory) = (Api::default(), MemoryStore::new());
    let store = Faulty::around(Arc::new(memory.clone()));
    let waiting = Policy::new().in_flight(InFlight::Wait(Duration::from_secs(30)));
    let node = api.node(Arc::clone(&store) as Arc<dyn Store>, waiting, Secrets::default());
    let first = api.started(&node).await;
    let retry = spawned(&node);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let failure = Failure { code: "by_operator".to_owned(), detail: "it failed".to_owned() };
    settle(&memory, [Transition::Unknown(Cause::TimedOut), Transition::Fail(failure)]).await;
    store.fail_claims(StoreFault::Unavailable);
    api.finish.notify_waiters();
    let refused = retry.await.unwrap();
    assert_eq!((refused.status, &*refused.code()), (503, "idempotency_store_unavailable"));
    let _first = first.await.unwrap();
    assert_eq!(api.runs(), 1);
}

/// The answer to a claim is lost. The renewal that recovers it is answered: another attempt has the
/// key. So the operation does not run without a record.
#[tokio::test]
async fn a_lost_claim_is_no_outage_if_another_attempt_has_the_key() {
    let (api, memory) = (Api::default(), MemoryStore::new());
    let store = Faulty::around(Arc::new(memory.clone()));
    let here = api.node(Arc::clone(&store) as Arc<dyn Store>, Policy::new(), Secrets::default());
    let there = api.node(Arc::new(memory), Policy::new(), Secrets::default());
    let first = api.started(&there).await;
    store.fail_one_claim(StoreFault::LostWrite);
    let refused = send(&here, request()).await;
    assert_eq!((refused.status, &*refused.code()), (409, "request_in_progress"), "it runs");
    api.finish.notify_one();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(send(&here, request()).await.is_replay());
    assert_eq!(api.runs(), 1);
}

/// A store whose first claim is answered and whose other claims fail.
#[derive(Debug, Default)]
struct OneClaim {
    memory: MemoryStore,
    is_spent: AtomicBool,
}

impl Store for OneClaim {
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        if !self.is_spent.swap(true, Ordering::SeqCst) {
            return self.memory.claim(batch);
        }
        let down = || StoreError::new(StoreErrorKind::Unavailable, "the store is unreachable");
        std::future::ready(batch.iter().map(|_| Err(down())).collect()).boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.memory.settle(batch)
    }

    delegate_store!(self => self.memory; name, load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for OneClaim, self => self.memory);

/// The other node seals fingerprints with another secret. So the claim is answered with the record,
/// and is sent again with its fingerprint. The second claim fails.
#[tokio::test]
async fn an_operation_that_a_claim_has_found_is_not_run_without_a_record() {
    let (api, store) = (Api::default(), Arc::new(OneClaim::default()));
    let secrets = |first: &str, second: &str| {
        let key = |name: &str| FingerprintKey::new(name, &[name.len() as u8; 32]);
        Secrets::default().fingerprint([key(first), key(second)])
    };
    let there = api.node(Arc::new(store.memory.clone()), Policy::new(), secrets("a", "bb"));
    let here = api.node(Arc::clone(&store) as Arc<dyn Store>, Policy::new(), secrets("bb", "a"));
    let first = api.started(&there).await;
    let refused = send(&here, request()).await;
    assert_eq!((refused.status, &*refused.code()), (503, "idempotency_store_unavailable"));
    api.finish.notify_one();
    assert_eq!((first.await.unwrap().status, api.runs()), (201, 1));
}

/// Begins an operation on another node, and a retry that waits for it here. Then settles the running
/// attempt. Returns both requests.
async fn wait_for_other_node(
    api: &Api,
    store: &Arc<OneClaim>,
    transitions: impl IntoIterator<Item = Transition>,
) -> (JoinHandle<Answered>, JoinHandle<Answered>) {
    let waiting = Policy::new().in_flight(InFlight::Wait(Duration::from_secs(30)));
    let there = api.node(Arc::new(store.memory.clone()), Policy::new(), Secrets::default());
    let here = api.node(Arc::clone(store) as Arc<dyn Store>, waiting, Secrets::default());
    let (first, retry) = (api.started(&there).await, spawned(&here));
    while !store.is_spent.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    settle(&store.memory, transitions).await;
    (first, retry)
}

/// Settles the attempt of the only record.
async fn settle(memory: &MemoryStore, transitions: impl IntoIterator<Item = Transition>) {
    let ids = memory.page(None, 10).await.unwrap().ids;
    let record = memory.load(ids).await.remove(0).unwrap().unwrap();
    let (id, attempt) = (record.id, record.attempt);
    let settlements = transitions.into_iter();
    let settlements = settlements.map(|transition| Settlement { id, attempt, transition });
    for settled in memory.settle(settlements.collect()).await {
        assert!(matches!(settled, Ok(Settled::Done { .. })), "{settled:?}");
    }
}

/// The claim of the retry finds the operation on another node, where its outcome becomes unknown.
/// The next claim fails.
#[tokio::test]
async fn an_operation_that_became_unknown_elsewhere_is_not_run_without_a_record() {
    let (api, store) = (Api::default(), Arc::new(OneClaim::default()));
    let unknown = [Transition::Unknown(Cause::TimedOut)];
    let (first, retry) = wait_for_other_node(&api, &store, unknown).await;
    let refused = retry.await.unwrap();
    assert_eq!((refused.status, &*refused.code()), (503, "idempotency_store_unavailable"));
    api.finish.notify_one();
    assert_eq!((first.await.unwrap().status, api.runs()), (201, 1));
}

/// The operation on the other node was released and forgotten. So the key is free, and the store
/// becomes unreachable: that is what fail-open is for.
#[tokio::test]
async fn a_key_that_became_free_elsewhere_may_run_without_a_record() {
    let (api, store) = (Api::default(), Arc::new(OneClaim::default()));
    let forgotten = [Transition::Release, Transition::Forget];
    let (_first, retry) = wait_for_other_node(&api, &store, forgotten).await;
    api.started.notified().await;
    api.finish.notify_waiters();
    assert_eq!((retry.await.unwrap().status, api.runs()), (201, 2));
}

/// A store that answers the first question for a secret at once, and a later one with an error when
/// the test says so.
#[derive(Debug, Default)]
struct OneSecret {
    memory: MemoryStore,
    is_spent: AtomicBool,
    fail: Notify,
}

impl Store for OneSecret {
    delegate_store!(self => self.memory; name, claim, settle, load, due, sweep, ready, close);
}

impl SharedSecrets for OneSecret {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        let is_first = !self.is_spent.swap(true, Ordering::SeqCst);
        async move {
            if is_first {
                // The other request asks meanwhile.
                tokio::task::yield_now().await;
                return self.memory.secret(name, fresh).await;
            }
            self.fail.notified().await;
            Err(StoreError::new(StoreErrorKind::Unavailable, "the store is unreachable"))
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, Sealing for OneSecret, self => self.memory);

/// Two requests with one key need the secret for derived keys at the same time. One gets it and
/// runs. The other one does not get it, and its operation runs in this process already.
#[tokio::test]
async fn what_runs_in_this_process_is_not_run_without_a_record() {
    let (api, store) = (Api::default(), Arc::new(OneSecret::default()));
    let node = api.node(Arc::clone(&store) as Arc<dyn Store>, Policy::new(), Secrets::default());
    let (first, second) = (spawned(&node), spawned(&node));
    api.started.notified().await;
    store.fail.notify_one();
    let refused = second.await.unwrap();
    assert_eq!((refused.status, &*refused.code()), (503, "idempotency_store_unavailable"));
    api.finish.notify_one();
    assert_eq!((first.await.unwrap().status, api.runs()), (201, 1));
}
