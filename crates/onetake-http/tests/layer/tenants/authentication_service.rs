//! `Tenant::Asked`: when the service is asked, and the effect of its answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::post;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Request;
use http::request::Parts;
use onetake_core::{Engine, Limits, ManualClock, MemoryStore, SystemRng};
use onetake_http::{Ask, Code, OnetakeLayer, Policy, Problem, Tenant};
use tower::ServiceExt;

const KEY: &str = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";

/// An authentication service with a fixed answer. Without one it never answers.
#[derive(Default)]
struct Oracle {
    says: Mutex<Option<Result<&'static str, Code>>>,
    asked: AtomicUsize,
}

impl Ask for Oracle {
    fn ask<'a>(&'a self, _: &'a Parts) -> BoxFuture<'a, Result<Vec<u8>, Problem>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let says = *self.says.lock().unwrap();
        async move {
            match says {
                Some(Ok(name)) => Ok(name.into()),
                Some(Err(code)) => Err(Problem::new(code, "No.")),
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

struct World {
    oracle: Arc<Oracle>,
    clock: ManualClock,
    runs: Arc<AtomicUsize>,
    router: Router,
}

fn world() -> World {
    let (oracle, clock) = (Arc::new(Oracle::default()), ManualClock::default());
    let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
    let time = Arc::new(clock.clone());
    let engine = Engine::with(store, time, Arc::new(SystemRng), Limits::default());
    let asked: Arc<dyn Ask> = Arc::<Oracle>::clone(&oracle);
    let layer = OnetakeLayer::new(engine, Policy::new().tenant(Tenant::Asked(asked))).unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let work = move || async move { counted.fetch_add(1, Ordering::SeqCst).to_string() };
    let router = Router::new().route("/work", post(work)).layer(layer);
    World { oracle, clock, runs, router }
}

impl World {
    fn says(&self, says: Result<&'static str, Code>) {
        *self.oracle.says.lock().unwrap() = Some(says);
    }

    async fn send(&self, headers: &[(&str, &str)]) -> Response {
        let mut request = Request::post("/work");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn every_keyed_request_is_asked_about_and_no_other() {
    let world = world();
    world.says(Ok("alice"));
    assert_eq!(world.send(&[]).await.status(), 200);
    assert_eq!(world.oracle.asked.load(Ordering::SeqCst), 0, "it has no key");
    for asked in 1..=3 {
        assert_eq!(world.send(&[("idempotency-key", KEY)]).await.status(), 200);
        assert_eq!(world.oracle.asked.load(Ordering::SeqCst), asked, "once, replays included");
    }
    assert_eq!(world.runs(), 2);
    // A request that is refused by its head does not cause a question.
    let late = [("idempotency-key", KEY), ("x-request-timeout-ms", "0")];
    assert_eq!(world.send(&late).await.status(), 504);
    assert_eq!(world.send(&[("idempotency-key", "short")]).await.status(), 400);
    assert_eq!(world.oracle.asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_refusal_stands_before_the_recording() {
    let world = world();
    world.says(Ok("alice"));
    assert_eq!(world.send(&[("idempotency-key", KEY)]).await.status(), 200);
    for code in [Code::TenantUnresolved, Code::AuthRefused, Code::AuthUnavailable] {
        world.says(Err(code));
        let refused = world.send(&[("idempotency-key", KEY)]).await;
        assert_eq!(refused.status(), code.status());
        assert!(!refused.headers().contains_key("idempotent-replayed"));
        assert!(!refused.headers().contains_key("idempotency-reference"));
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_deadline_bounds_the_question() {
    let world = world();
    let headers = [("idempotency-key", KEY), ("x-request-timeout-ms", "1500")];
    let mut sent = Box::pin(world.send(&headers));
    assert!(futures_util::poll!(&mut sent).is_pending());
    world.clock.advance(Duration::from_millis(1500));
    assert_eq!(sent.await.status(), 504);
    assert_eq!(world.runs(), 0);
}
