//! Handlers that complete their operation themselves. The layer checks the record and shows only
//! committed responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::helpers::{KEY, logs, post_of, send};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use onetake_core::store::Sealing;
use onetake_core::{
    Attempt, AttemptId, Completion, Engine, FinishError, MemoryStore, Message, OnUnknown,
    OpenTransaction, RecordId, Recording, Settled, Settlement, Store, StoreError, Terms,
    TransactionSource, Transition, delegate_store,
};
use onetake_http::transaction::{CommitError, InTransaction};
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

/// Acts as the path says in the first run, and commits in all others.
async fn act(
    running: InTransaction,
    State(world): State<World>,
    Path(how): Path<String>,
) -> Response {
    let run = world.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let how = if run == 1 { how.as_str() } else { "commit" };
    let answer: Response = match how {
        "typed" => Stored(Receipt { run }).into_response(),
        "refuse" => return (StatusCode::UNPROCESSABLE_ENTITY, "no funds").into_response(),
        "own commit, then 500" => {
            return (StatusCode::INTERNAL_SERVER_ERROR, "after its own commit").into_response();
        }
        "own commit, then panic" => panic!("after its own commit"),
        "no database" => {
            let error = running.begin(NoDatabase).await.unwrap_err();
            return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
        }
        "busy" => return (StatusCode::SERVICE_UNAVAILABLE, "not handled").into_response(),
        _ => (StatusCode::CREATED, [("x-run", run.to_string())], format!("run {run}"))
            .into_response(),
    };
    if how.starts_with("guarded") {
        return in_guard(&world, &running, how, answer).await;
    }
    let (completion, response) = running.complete(answer, Vec::new()).await.unwrap();
    if how.ends_with("rolled back") {
        // The last statement of a transaction that was then rolled back.
        completion.mark_executed();
    } else if !how.starts_with("forget") {
        // The same steps as in a transaction that commits.
        completion.mark_executed();
        let attempt = running.attempt();
        let transition = Transition::Complete(completion.recording);
        let settlement = Settlement { id: attempt.id, attempt: attempt.attempt, transition };
        let settled = world.store.settle(vec![settlement]).await.remove(0).unwrap();
        assert!(matches!(settled, Settled::Done { .. }));
    }
    match how {
        "forget and panic" => panic!("after the commit"),
        "forget and fail" | "fail, rolled back" => {
            (StatusCode::INTERNAL_SERVER_ERROR, "rolled back").into_response()
        }
        "forget and succeed" => (StatusCode::CREATED, "something else").into_response(),
        "lose" => (StatusCode::BAD_GATEWAY, "nobody heard of the commit").into_response(),
        "panic" => panic!("after the commit"),
        _ => response,
    }
}

async fn as_usual() -> Json<&'static str> {
    Json("as usual")
}

/// The store in the role of a database with transactions.
enum Database {}

struct Writes {
    store: MemoryStore,
    last: Option<Settlement>,
}

/// A database that is unreachable.
struct NoDatabase;

impl TransactionSource<Database> for NoDatabase {
    type Transaction = Writes;
    type Error = std::io::Error;

    async fn begin(self) -> Result<Writes, std::io::Error> {
        Err(std::io::Error::other("the database is unreachable"))
    }
}

impl TransactionSource<Database> for &MemoryStore {
    type Transaction = Writes;
    type Error = std::io::Error;

    async fn begin(self) -> Result<Writes, std::io::Error> {
        Ok(Writes { store: self.clone(), last: None })
    }
}

impl OpenTransaction for Writes {
    type Native = Self;
    type Executor = MemoryStore;
    type Error = std::io::Error;

    fn native(&mut self) -> &mut Self {
        self
    }

    fn executor(&self) -> &MemoryStore {
        &self.store
    }

    fn executor_mut(&mut self) -> &mut MemoryStore {
        &mut self.store
    }

    async fn finish(
        &mut self,
        attempt: &Attempt,
        completion: &Completion,
    ) -> Result<(), FinishError<std::io::Error>> {
        let transition = Transition::Complete(completion.recording.clone());
        self.last = Some(Settlement { id: attempt.id, attempt: attempt.attempt, transition });
        completion.mark_executed();
        Ok(())
    }

    async fn commit(self) -> Result<(), std::io::Error> {
        let settled = self.store.settle(self.last.into_iter().collect()).await;
        assert!(matches!(settled[..], [Ok(Settled::Done { .. })]), "{settled:?}");
        Ok(())
    }
}

async fn in_guard(world: &World, running: &InTransaction, how: &str, answer: Response) -> Response {
    let tx = running.begin(&world.store).await.unwrap();
    assert_eq!(tx.name(), world.store.name(), "it is used as its connection is");
    let failed = (StatusCode::INTERNAL_SERVER_ERROR, "rolled back").into_response();
    match how {
        "guarded fail" => failed,
        "guarded finish and fail" => {
            let large = Message::new("t".repeat(300), "o", "p");
            let refused = tx.commit(answer, [large]).await.unwrap_err();
            assert!(matches!(refused, CommitError::Response(_)), "{refused:?}");
            failed
        }
        "guarded forget" => answer,
        "guarded answer" => {
            tx.commit(answer, []).await.unwrap();
            (StatusCode::OK, "something else").into_response()
        }
        _ => tx.commit(answer, []).await.unwrap(),
    }
}

fn world() -> (World, Router) {
    let world = World { store: MemoryStore::new(), runs: Arc::default() };
    let engine = Engine::new(Arc::new(world.store.clone()));
    let policy = Policy::new().transactional(act);
    assert_eq!(policy.terms.on_unknown, OnUnknown::Rollback);
    // Later calls do not change it, and a plain policy cannot claim to be transactional.
    let policy = policy.terms(Terms::default()).on_unknown(OnUnknown::Fail);
    assert_eq!(policy.terms.on_unknown, OnUnknown::Rollback);
    let plain = Policy::new().on_unknown(OnUnknown::Rollback);
    assert_eq!(plain.terms.on_unknown, OnUnknown::Fail);
    let layer = OnetakeLayer::new(engine, policy).unwrap().typed::<Receipt>();
    let router = Router::new()
        .route("/plain", post(as_usual))
        .route("/unused", post(|_: InTransaction| async { "as usual" }))
        .route("/gone", post(|| async { StatusCode::SERVICE_UNAVAILABLE }))
        .route("/failing", post(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
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
    for (how, status) in [
        ("claim,%20rolled%20back", 503),
        ("fail,%20rolled%20back", 500),
        ("guarded%20fail", 500),
        ("guarded%20finish%20and%20fail", 500),
        ("no%20database", 500),
        ("busy", 503),
    ] {
        let (world, router) = world();
        let path = format!("/{how}");
        let first = send(&router, post_of("alice", &path, KEY)).await;
        assert_eq!(first.status, status, "{}", first.body);
        assert!(!first.body.contains("run 1"), "{}", first.body);
        let again = send(&router, post_of("alice", &path, KEY)).await;
        let told = (again.status, again.body.as_str(), again.is_replay());
        assert_eq!(told, (201, "run 2", false), "{how}");
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
        // A task of its own checks whether the attempt committed.
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
    assert_eq!(send(&router, post_of("alice", "/unused", &other)).await.status, 200);
    assert!(send(&router, post_of("alice", "/unused", &other)).await.is_replay());
}

/// Handlers that wrote their effects and did not finish. There is one effect, and no retry runs it
/// again.
#[tokio::test]
async fn an_attempt_that_forgot_to_finish_never_runs_again() {
    for how in [
        "forget",
        "forget%20and%20fail",
        "forget%20and%20panic",
        "own%20commit,%20then%20500",
        "own%20commit,%20then%20panic",
    ] {
        let (world, router) = world();
        let (lines, _guard) = logs();
        let path = format!("/{how}");
        for retry in 0..3 {
            let told = send(&router, post_of("alice", &path, KEY)).await;
            assert_eq!(
                told.problem(),
                (500, "previous_attempt_failed".to_owned()),
                "{how} {retry}"
            );
            assert!(told.body.contains("may have had its effect"), "{how} {retry}: {}", told.body);
        }
        assert_eq!(world.runs.load(Ordering::SeqCst), 1, "{how}");
        let said = lines.lock().unwrap().join("\n");
        assert!(
            said.contains("ERROR") && said.contains("reference=") && said.contains("route="),
            "{said}"
        );
    }
}

/// If the handler reports success, its response is recorded, because it may have succeeded.
#[tokio::test]
async fn a_success_beside_the_transaction_is_recorded_and_reported() {
    for (path, body) in [("/forget%20and%20succeed", "something else"), ("/unused", "as usual")] {
        let (_, router) = world();
        let (lines, _guard) = logs();
        let first = send(&router, post_of("alice", path, KEY)).await;
        assert_eq!(first.body, body);
        assert!(send(&router, post_of("alice", path, KEY)).await.is_replay());
        let said = lines.lock().unwrap().join("\n");
        assert!(said.contains("ERROR") && said.contains("reference="), "{said}");
    }
}

/// A handler that begins a transaction and answers 201 without a commit. There is no effect, so the
/// 201 is not shown.
#[tokio::test]
async fn a_success_that_was_not_committed_is_not_shown() {
    let (world, router) = world();
    let (lines, _guard) = logs();
    let path = "/guarded%20forget";
    let first = send(&router, post_of("alice", path, KEY)).await;
    assert_eq!(first.problem(), (500, "misconfigured".to_owned()));
    assert!(lines.lock().unwrap().join("\n").contains("did not commit"));
    let again = send(&router, post_of("alice", path, KEY)).await;
    assert_eq!((again.status, again.body.as_str()), (201, "run 2"));
    assert_eq!(world.runs.load(Ordering::SeqCst), 2);
}

/// The committed response counts, whichever response the handler returns after its commit.
#[tokio::test]
async fn what_a_guard_commits_is_shown_and_replayed() {
    for how in ["guarded", "guarded%20answer"] {
        let (world, router) = world();
        let path = format!("/{how}");
        let first = send(&router, post_of("alice", &path, KEY)).await;
        assert_eq!((first.status, first.body.as_str()), (201, "run 1"), "{how}");
        let again = send(&router, post_of("alice", &path, KEY)).await;
        assert!(again.is_replay() && again.body == first.body, "{how}: {}", again.body);
        assert_eq!(world.runs.load(Ordering::SeqCst), 1, "{how}");
    }
}

/// A transactional route whose handler uses no transaction. The layer detects it and refuses
/// further requests.
#[tokio::test]
async fn a_handler_that_does_not_take_part_is_refused_from_then_on() {
    let (_, router) = world();
    let (lines, _guard) = logs();
    let (other, third) = (KEY.replace('9', "8"), KEY.replace('9', "7"));
    let first = send(&router, post_of("alice", "/plain", KEY)).await;
    assert_eq!((first.status, first.body.as_str()), (200, "\"as usual\""));
    let said = lines.lock().unwrap().join("\n");
    assert!(
        said.contains("ERROR") && said.contains("/plain") && said.contains("reference="),
        "{said}"
    );
    let next = send(&router, post_of("alice", "/plain", &other)).await;
    assert_eq!(next.problem(), (500, "misconfigured".to_owned()));
    assert!(send(&router, post_of("alice", "/plain", KEY)).await.is_replay(), "outcomes stay");
    assert_eq!(send(&router, post_of("alice", "/commit", &third)).await.status, 201, "others run");
}

/// If the handler does not use the transaction, a 5xx does not prove that nothing happened. The
/// exception is a response that is released on every route.
#[tokio::test]
async fn a_failure_of_a_handler_that_does_not_take_part_is_unknown() {
    let (_, router) = world();
    let first = send(&router, post_of("alice", "/failing", KEY)).await;
    assert_eq!(first.problem(), (500, "previous_attempt_failed".to_owned()));
    let other = KEY.replace('9', "8");
    for _ in 0..2 {
        let unhandled = send(&router, post_of("alice", "/gone", &other)).await;
        assert_eq!((unhandled.status, unhandled.body.as_str()), (503, ""));
    }
}

/// A transactional handler on a route that is not transactional is refused, because its guarantee
/// would not survive a kill.
#[tokio::test]
async fn a_handler_that_takes_part_elsewhere_is_refused() {
    let (lines, _guard) = logs();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let act = move |_: InTransaction| {
        counted.fetch_add(1, Ordering::SeqCst);
        async {}
    };
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let layer = OnetakeLayer::new(engine, Policy::new().label("pays")).unwrap();
    let router = Router::new().route("/pay", post(act)).layer(layer);
    for _ in 0..2 {
        let told = send(&router, post_of("alice", "/pay", KEY)).await;
        assert_eq!(told.problem(), (500, "misconfigured".to_owned()));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let said = lines.lock().unwrap().join("\n");
    assert!(said.contains("pays") && said.contains("Policy::transactional(handler)"), "{said}");
}

/// A store that seals recordings before it writes them.
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

/// A recording that a transaction writes does not pass through the store. It must be sealed as the
/// store would seal it.
#[tokio::test]
async fn what_is_to_be_written_is_sealed() {
    let engine = Engine::new(Arc::new(Encrypting(MemoryStore::new())));
    let act = async |running: InTransaction| {
        let (completion, _) = running.complete("paid", Vec::new()).await.unwrap();
        completion.recording.body.unwrap_or(completion.recording.head)
    };
    let layer = OnetakeLayer::new(engine, Policy::new().transactional(act)).unwrap();
    let router = Router::new().route("/pay", post(act)).layer(layer);
    let told = send(&router, post_of("alice", "/pay", KEY)).await;
    assert_eq!(told.body, "sealed: paid");
}
