//! Handlers that complete their operation themselves: the layer looks, and shows nothing that is not committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::shared::{KEY, post_of, send};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use onetake_core::store::Sealing;
use onetake_core::{
    AttemptId, Engine, MemoryStore, OnUnknown, RecordId, Recording, Settled, Settlement, Store,
    StoreError, Terms, Verb, delegate_store,
};
use onetake_http::transaction::InTransaction;
use onetake_http::typed::{Stored, Typed, json};
use onetake_http::{OnetakeLayer, Policy};
use serde::{Deserialize, Serialize};

#[derive(Clone)]
struct World {
    store: MemoryStore,
    runs: Arc<AtomicU32>,
}

#[derive(Serialize, Deserialize)]
struct Receipt {
    run: u32,
}

impl Typed for Receipt {
    const NAME: &str = "receipt";

    fn respond(&self) -> http::Response<bytes::Bytes> {
        json(StatusCode::CREATED, self)
    }
}

/// What the path says is what happens in the first run; all others commit.
async fn act(
    State(world): State<World>,
    Path(how): Path<String>,
    running: InTransaction,
) -> Response {
    let run = world.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let how = if run == 1 { how.as_str() } else { "commit" };
    let answer: Response = match how {
        "typed" => Stored(Receipt { run }).into_response(),
        "refuse" => return (StatusCode::UNPROCESSABLE_ENTITY, "no funds").into_response(),
        "break" => return (StatusCode::INTERNAL_SERVER_ERROR, "rolled back").into_response(),
        _ => (StatusCode::CREATED, [("x-run", run.to_string())], format!("run {run}"))
            .into_response(),
    };
    let (completion, response) = running.complete(answer, Vec::new()).await.unwrap();
    if how != "forget" {
        // As its transaction would.
        let attempt = running.attempt();
        let verb = Verb::Complete(completion.recording);
        let settlement = Settlement { id: attempt.id, attempt: attempt.attempt, verb };
        let settled = world.store.settle(vec![settlement]).await.remove(0).unwrap();
        assert!(matches!(settled, Settled::Done { .. }));
    }
    match how {
        "lose" => (StatusCode::BAD_GATEWAY, "nobody heard of the commit").into_response(),
        "panic" => panic!("after the commit"),
        _ => response,
    }
}

fn world() -> (World, Router) {
    let world = World { store: MemoryStore::new(), runs: Arc::default() };
    let engine = Engine::new(Arc::new(world.store.clone()));
    let policy = Policy::new().transactional();
    assert_eq!(policy.terms.on_unknown, OnUnknown::Rollback);
    // Whatever is set afterwards; and nothing else is taken for a transaction.
    let policy = policy.terms(Terms::default()).on_unknown(OnUnknown::Fail);
    assert_eq!(policy.terms.on_unknown, OnUnknown::Rollback);
    let plain = Policy::new().on_unknown(OnUnknown::Rollback);
    assert_eq!(plain.terms.on_unknown, OnUnknown::Fail);
    let layer = OnetakeLayer::new(engine, policy).unwrap().typed::<Receipt>();
    let router = Router::new()
        .route("/plain", post(|| async { Json("as usual") }))
        .route("/{how}", post(act))
        .layer(layer)
        .with_state(world.clone());
    (world, router)
}

#[tokio::test]
async fn what_is_committed_is_shown_and_replayed() {
    for how in ["commit", "typed"] {
        let (world, router) = world();
        let path = format!("/{how}");
        let first = send(&router, post_of("alice", &path, KEY)).await;
        assert_eq!((first.status, first.is_replay()), (201, false), "{}", first.body);
        assert!(first.headers.contains_key("idempotency-reference"));
        let again = send(&router, post_of("alice", &path, KEY)).await;
        assert!(again.is_replay() && again.body == first.body, "{}", again.body);
        assert_eq!(first.headers.get("x-run"), again.headers.get("x-run"));
        assert_eq!(world.runs.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn what_is_not_committed_is_not_shown_and_may_run_again() {
    for (how, status) in [("forget", 503), ("break", 500)] {
        let (world, router) = world();
        let path = format!("/{how}");
        let first = send(&router, post_of("alice", &path, KEY)).await;
        assert_eq!(first.status, status, "{}", first.body);
        assert!(!first.body.contains("run 1"), "{}", first.body);
        let again = send(&router, post_of("alice", &path, KEY)).await;
        assert_eq!((again.status, again.body.as_str(), again.is_replay()), (201, "run 2", false));
        assert_eq!(world.runs.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn a_commit_that_the_handler_did_not_hear_of_is_told() {
    let (world, router) = world();
    let first = send(&router, post_of("alice", "/lose", KEY)).await;
    assert_eq!((first.status, first.body.as_str()), (201, "run 1"));
    let again = send(&router, post_of("alice", "/lose", KEY)).await;
    assert_eq!((again.body.as_str(), again.headers["x-run"].as_bytes()), ("run 1", &b"1"[..]));
    assert_eq!(world.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_handler_that_dies_after_its_commit_ran_once() {
    let (world, router) = world();
    let first = send(&router, post_of("alice", "/panic", KEY)).await;
    assert_eq!(first.status, 500);
    let again = loop {
        let again = send(&router, post_of("alice", "/panic", KEY)).await;
        // It is looked at in a task of its own.
        if again.status != 409 {
            break again;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((again.status, again.body.as_str(), again.is_replay()), (201, "run 1", true));
    assert_eq!(world.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn other_answers_are_recorded_as_usual() {
    let (world, router) = world();
    let refused = send(&router, post_of("alice", "/refuse", KEY)).await;
    assert_eq!((refused.status, refused.body.as_str()), (422, "no funds"));
    assert!(send(&router, post_of("alice", "/refuse", KEY)).await.is_replay());
    assert_eq!(world.runs.load(Ordering::SeqCst), 1);
    let other = KEY.replace('9', "8");
    assert_eq!(send(&router, post_of("alice", "/plain", &other)).await.status, 200);
    assert!(send(&router, post_of("alice", "/plain", &other)).await.is_replay());
}

/// A store that writes recordings in its own way.
#[derive(Debug)]
struct Encrypting(MemoryStore);

impl Store for Encrypting {
    delegate_store!(self => self.0; name, claim, settle, load, due, sweep, ready, close);
}

impl Sealing for Encrypting {
    fn seal(&self, _: RecordId, _: AttemptId, told: Recording) -> Result<Recording, StoreError> {
        Ok(Recording::new([b"sealed: ", &told.body.unwrap_or_default()[..]].concat()))
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets for Encrypting, self => self.0);

/// What a transaction writes does not pass through the store, and is as the store would have written it.
#[tokio::test]
async fn what_is_to_be_written_is_sealed() {
    let engine = Engine::new(Arc::new(Encrypting(MemoryStore::new())));
    let act = async |running: InTransaction| {
        let (completion, _) = running.complete("paid", Vec::new()).await.unwrap();
        completion.recording.body.unwrap_or(completion.recording.head)
    };
    let layer = OnetakeLayer::new(engine, Policy::new().transactional()).unwrap();
    let router = Router::new().route("/pay", post(act)).layer(layer);
    let told = send(&router, post_of("alice", "/pay", KEY)).await;
    assert_eq!(told.body, "sealed: paid");
}
