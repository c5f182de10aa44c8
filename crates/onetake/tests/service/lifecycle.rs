//! The lifecycle of a service: drained, cut off, or ended by a store that failed.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use onetake::clock::{Clock, SystemClock};
use onetake::store::Answers;
use onetake::store::{Settled, Settlement, StoreError, StoreErrorKind, Transition};
use onetake::stores::MemoryStore;
use onetake::{Engine, OnetakeLayer, Policy, ServeError, Served, Store, delegate_store};
use onetake_sim::client::{Client, ClientResponse};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
const LONG: Duration = Duration::from_secs(60);

/// A service with one operation, which runs until the test lets it end.
struct Service {
    client: Client,
    started: Arc<Notify>,
    go_on: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<Served, ServeError>>,
    runs: Arc<AtomicU32>,
}

impl Service {
    async fn start(store: Arc<dyn Store>, patience: Duration) -> Self {
        let engine = Engine::new(store);
        let (started, go_on) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let (runs, places) =
            (Arc::<AtomicU32>::default(), (Arc::clone(&started), Arc::clone(&go_on)));
        let counted = Arc::clone(&runs);
        let act = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let (started, go_on) = places.clone();
            async move {
                started.notify_one();
                go_on.notified().await;
                "done"
            }
        };
        let layer = OnetakeLayer::new(engine.clone(), Policy::new().key_required()).unwrap();
        let app = Router::new().route("/act", post(act)).layer(layer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let serving = tokio::spawn(onetake::serve(listener, app, engine, stopped, patience));
        Self { client, started, go_on, stop: Some(stop), serving, runs }
    }

    /// Sends the operation, and returns once it is running.
    async fn begin(&self) -> JoinHandle<ClientResponse> {
        let client = self.client.clone();
        let call = async move { client.post("/act").key(KEY).send().await.unwrap() };
        let call = tokio::spawn(call);
        self.started.notified().await;
        call
    }

    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }
}

/// The result of a server that must have ended by itself within a minute.
async fn ended<T>(serving: JoinHandle<T>) -> T {
    let ended = tokio::select! {
        ended = serving => Some(ended.unwrap()),
        () = SystemClock.sleep(Duration::from_secs(60)) => None,
    };
    ended.unwrap()
}

#[tokio::test]
async fn a_graceful_stop_loses_nothing() {
    let store = Arc::new(MemoryStore::new());
    let mut service = Service::start(Arc::clone(&store) as Arc<dyn Store>, LONG).await;
    let call = service.begin().await;
    service.stop();
    service.go_on.notify_one();
    let first = call.await.unwrap();
    assert_eq!((first.status(), first.text().as_str()), (200, "done"));
    assert_eq!(ended(service.serving).await.unwrap(), Served::Drained);
    let next = Service::start(store, LONG).await;
    let again = next.client.post("/act").key(KEY).send().await.unwrap();
    assert!(again.is_replay() && again.body == first.body);
    assert_eq!(next.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_caller_that_waits_when_patience_ends_is_answered() {
    let patience = Duration::from_millis(100);
    let mut service = Service::start(Arc::new(MemoryStore::new()), patience).await;
    let call = service.begin().await;
    service.stop();
    let answer = call.await.unwrap();
    assert_eq!((answer.status(), answer.code().as_str()), (503, "outcome_pending"));
    // Up to two seconds are added at random.
    assert!(["1", "2", "3"].contains(&answer.header("retry-after")));
    assert_eq!(ended(service.serving).await.unwrap(), Served::CutOff);
}

/// A store that reports damage as soon as an outcome is written.
#[derive(Debug)]
struct Damaged(MemoryStore);

impl Store for Damaged {
    delegate_store!(self => self.0; name, claim, load, due, sweep, ready, close);

    fn settle(
        &self,
        settlements: Vec<Settlement>,
    ) -> futures_util::future::BoxFuture<'_, Answers<Settled>> {
        if settlements
            .iter()
            .any(|settlement| matches!(settlement.transition, Transition::Complete(_)))
        {
            let error = StoreError::new(StoreErrorKind::Corrupt, "the disk is damaged");
            let answers = settlements.iter().map(|_| Err(error.clone())).collect();
            return Box::pin(std::future::ready(answers));
        }
        self.0.settle(settlements)
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Damaged, self => self.0);

#[tokio::test]
async fn a_store_that_failed_for_good_ends_the_server() {
    let service = Service::start(Arc::new(Damaged(MemoryStore::new())), LONG).await;
    let call = service.begin().await;
    service.go_on.notify_one();
    assert_eq!(call.await.unwrap().status(), 503, "the outcome is not durable");
    let ended = ended(service.serving).await;
    assert!(matches!(ended, Err(ServeError::Store(_))), "{ended:?}");
}
