//! The tasks and the messages between tasks that a request costs, as ARCHITECTURE.md states them.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use onetake_core::{Engine, Limits, MemoryStore, SystemClock, SystemRng, Traffic};
use onetake_http::{InFlight, Onetake, OnetakeLayer, Policy, RequestBody};
use tokio::runtime::Handle;
use tower::{Layer, Service};

/// A service that counts the tasks that are alive whenever it is called.
#[derive(Clone, Default)]
struct Inner {
    alive: Arc<Mutex<Vec<usize>>>,
}

impl Service<Request<RequestBody<Full<Bytes>>>> for Inner {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
        self.alive.lock().unwrap().push(alive());
        std::future::ready(Ok(Response::new(Full::from("paid")))).boxed()
    }
}

fn alive() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Counts the wakes of a task.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct World {
    engine: Engine,
    inner: Inner,
    service: Onetake<Inner>,
}

impl World {
    async fn new(policy: Policy) -> Self {
        let store = Arc::new(MemoryStore::new());
        let (clock, rng) = (Arc::new(SystemClock), Arc::new(SystemRng));
        Self::with(Engine::with(store, clock, rng, Limits::default()), policy).await
    }

    async fn with(engine: Engine, policy: Policy) -> Self {
        let inner = Inner::default();
        let service = OnetakeLayer::builder(engine.clone())
            .policy(policy)
            .build_with_endpoints()
            .unwrap()
            .0
            .layer(inner.clone());
        let mut world = Self { engine, inner, service };
        // The first request of a layer loads the secret from the store. The first lease of an idle
        // engine wakes the task that renews leases.
        world.send("the-first-key-of-all").await;
        world
    }

    /// Sends a request and returns its cost: tasks, messages, and wakes of the client's own task.
    async fn send(&mut self, key: &str) -> (u64, u64, usize) {
        let before = self.engine.traffic();
        let request = Request::post("/charges").header("idempotency-key", key);
        let request = request.body(Full::from("pay")).unwrap();
        let mut answering = self.service.call(request);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut seen = 0;
        while answering.poll_unpin(&mut Context::from_waker(&waker)).is_pending() {
            while wakes.0.load(Ordering::SeqCst) == seen {
                tokio::task::yield_now().await;
            }
            seen = wakes.0.load(Ordering::SeqCst);
        }
        let Traffic { tasks, hops, .. } = self.engine.traffic();
        (tasks - before.tasks, hops - before.hops, wakes.0.load(Ordering::SeqCst))
    }
}

#[tokio::test]
async fn a_fresh_request_takes_one_task_and_one_message() {
    let mut world = World::new(Policy::new()).await;
    let before = alive();
    assert_eq!(world.send("a-key-that-is-long-enough").await, (1, 1, 1));
    let most = world.inner.alive.lock().unwrap().last().copied().unwrap();
    assert_eq!(most, before + 1, "no task that the engine did not count");
}

#[tokio::test]
async fn in_the_task_of_its_caller_a_fresh_request_takes_no_task_and_no_message() {
    for lanes in [1, 2] {
        let engine = Engine::builder(Arc::new(MemoryStore::new()))
            .limits(Limits { lanes, ..Limits::default() })
            .housekeeping(None)
            .run_in_callers_task()
            .build();
        let mut world = World::with(engine, Policy::new()).await;
        let before = alive();
        let (tasks, hops, _) = world.send("a-key-that-is-long-enough").await;
        assert_eq!((tasks, hops), (0, 0), "{lanes} lanes");
        let most = world.inner.alive.lock().unwrap().last().copied().unwrap();
        assert_eq!(most, before, "no task that the engine did not count");
    }
}

#[tokio::test]
async fn a_replay_from_memory_is_there_at_once() {
    let mut world = World::new(Policy::new()).await;
    assert_eq!(world.send("the-first-key-of-all").await, (0, 0, 0));
    assert_eq!(world.inner.alive.lock().unwrap().len(), 1, "it ran once");
}

#[tokio::test]
async fn an_async_route_takes_one_message_more() {
    let policy = Policy::new().in_flight(InFlight::Async(Duration::from_secs(5)));
    let mut world = World::new(policy).await;
    let (tasks, hops, wakes) = world.send("a-key-that-is-long-enough").await;
    assert_eq!((tasks, hops), (1, 1));
    assert!(wakes <= 2, "that it started, and its outcome: {wakes}");
}
