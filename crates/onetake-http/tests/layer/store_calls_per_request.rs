//! The calls of the store that a request costs: each is one round trip to a server.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Engine, MemoryStore, Record, RecordId, Settled, Settlement, Store,
    delegate_store,
};
use onetake_http::{OnetakeLayer, Policy, RequestBody};
use tower::{Layer, ServiceExt, service_fn};

/// A store that counts the calls for records. Secrets are read once per process and do not count.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Store>,
    calls: AtomicUsize,
}

impl Counting {
    fn on(inner: &Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), calls: AtomicUsize::new(0) })
    }

    fn count(&self) -> &dyn Store {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.inner.as_ref()
    }
}

impl Store for Counting {
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.count().claim(batch)
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.count().settle(batch)
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.count().load(ids)
    }

    delegate_store!(self => self.inner; name, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Counting, self => self.inner);

/// Sends a request through a layer on the store. Returns true if it is a replay, and the number of
/// calls.
async fn send(layer: &OnetakeLayer, store: &Counting, key: &str) -> (bool, usize) {
    let before = store.calls.load(Ordering::SeqCst);
    let service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("paid")))
    }));
    let request = Request::post("/charges").header("idempotency-key", key);
    let response = service.oneshot(request.body(Full::from("pay")).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let is_replay = response.headers().contains_key("idempotent-replayed");
    (is_replay, store.calls.load(Ordering::SeqCst) - before)
}

fn node(store: &Arc<dyn Store>) -> (OnetakeLayer, Arc<Counting>) {
    let counting = Counting::on(store);
    let engine = Engine::builder(Arc::clone(&counting) as Arc<dyn Store>).housekeeping(None);
    let layer = OnetakeLayer::builder(engine.build()).policy(Policy::new()).build().unwrap();
    (layer, counting)
}

#[tokio::test]
async fn a_fresh_request_takes_two_calls_and_a_replay_at_most_one() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (first, first_store) = node(&store);
    let (second, second_store) = node(&store);
    for key in ["the-first-key-0000001", "another-key-00000002"] {
        let fresh = send(&first, &first_store, key).await;
        assert_eq!(fresh, (false, 2), "a claim and its settlement");
        let from_memory = send(&first, &first_store, key).await;
        assert_eq!(from_memory, (true, 0), "this node knows the outcome");
        let elsewhere = send(&second, &second_store, key).await;
        assert_eq!(elsewhere, (true, 1), "another node asks once");
        assert_eq!(send(&second, &second_store, key).await, (true, 0), "and remembers it");
    }
}
