//! Client answers after an operator has changed or forgotten a key.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use crate::common::{key, send};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use http::Request;
use onetake_core::engine::{ExpectedState, Intervention, OperatorAction};
use onetake_core::store::{RecordIndex, Settlement, Transition};
use onetake_core::{Cause, Engine, Failure, MemoryStore, Store};
use onetake_http::{OnetakeLayer, Policy, Tenant};
use tokio::sync::Semaphore;

struct Slow {
    runs: Semaphore,
    gate: Semaphore,
}

async fn pay(State(slow): State<Arc<Slow>>, body: String) -> String {
    if body == "pay 10" {
        slow.runs.add_permits(1);
        slow.gate.acquire().await.unwrap().forget();
    }
    format!("done: {body}")
}

fn node(store: &Arc<MemoryStore>, slow: &Arc<Slow>) -> (Engine, Router) {
    let engine = Engine::new(Arc::<MemoryStore>::clone(store));
    let policy = Arc::new(Policy::new().tenant(Tenant::Credential));
    let layer = OnetakeLayer::builder(engine.clone()).resolve(policy).build().unwrap();
    (engine, Router::new().route("/pay", post(pay)).with_state(Arc::clone(slow)).layer(layer))
}

fn request(body: &'static str) -> Request<Body> {
    Request::post("/pay")
        .header("authorization", "Bearer a-bearer-token")
        .header("idempotency-key", key(1))
        .body(body.into())
        .unwrap()
}

/// A failure that is already recorded is final. A late attempt with another outcome gets that
/// failure.
#[tokio::test]
async fn who_comes_late_is_told_that_it_failed() {
    let store = Arc::new(MemoryStore::new());
    let slow = Arc::new(Slow { runs: Semaphore::new(0), gate: Semaphore::new(0) });
    let (_, one) = node(&store, &slow);
    let late = tokio::spawn(async move { send(&one, request("pay 10")).await });
    slow.runs.acquire().await.unwrap().forget();
    let id = store.page(None, 10).await.unwrap().ids.remove(0);
    let attempt = store.load(vec![id]).await.remove(0).unwrap().unwrap().attempt;
    let failure = Failure { code: "lost".to_owned(), detail: "lost for a test".to_owned() };
    for transition in [Transition::Unknown(Cause::LeaseEnded), Transition::Fail(failure)] {
        store.settle(vec![Settlement { id, attempt, transition }]).await.remove(0).unwrap();
    }
    slow.gate.add_permits(1);
    let answered = late.await.unwrap();
    assert_eq!((answered.status, &*answered.code()), (500, "previous_attempt_failed"));
    assert!(String::from_utf8_lossy(&answered.body).contains("lost for a test"));
}

/// S9: the outcome of another payload is never replayed, in any state. This includes a late attempt
/// whose key was used for another payload meanwhile.
#[tokio::test]
async fn who_comes_late_is_not_shown_the_outcome_of_another_payload() {
    let store = Arc::new(MemoryStore::new());
    let slow = Arc::new(Slow { runs: Semaphore::new(0), gate: Semaphore::new(0) });
    let ((_, one), (engine, other)) = (node(&store, &slow), node(&store, &slow));
    let late = tokio::spawn(async move { send(&one, request("pay 10")).await });
    slow.runs.acquire().await.unwrap().forget();
    // The lease ends, and the outcome is unknown. An operator forgets the key.
    let id = store.page(None, 10).await.unwrap().ids.remove(0);
    let running = store.load(vec![id]).await.remove(0).unwrap().unwrap();
    let attempt = running.attempt;
    let transition = Transition::Unknown(Cause::LeaseEnded);
    store.settle(vec![Settlement { id, attempt, transition }]).await.remove(0).unwrap();
    let (by, reason) = ("somebody".to_owned(), "it hangs".to_owned());
    let forget = Intervention {
        id,
        attempt,
        action: OperatorAction::Forget { seen: ExpectedState::Unknown },
        by,
        reason,
    };
    engine.intervene(forget).await.unwrap();
    // The key is free again and is used for another payload.
    let answered = send(&other, request("pay 99")).await;
    assert_eq!((answered.status, &*answered.body), (200, &b"done: pay 99"[..]));
    slow.gate.add_permits(1);
    let answered = late.await.unwrap();
    let told = String::from_utf8_lossy(&answered.body).into_owned();
    assert!(!told.contains("pay 99"), "{} to who asked for `pay 10`: {told}", answered.status);
}
