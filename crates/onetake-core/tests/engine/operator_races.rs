//! Actions of operators that race with owners and clients.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::audit::AuditEntry;
use onetake_core::engine::{ExpectedState, Intervened, Intervention, OperatorAction};
use onetake_core::store::{Answers, AuditLog, Claim, Claimed, Settlement, Transition};
use onetake_core::{
    Answer, Begin, Cause, Engine, Fingerprint, Key, MemoryStore, Operation, Record, Recording,
    Scope, Store, StoreError, StoreErrorKind, Verdict, delegate_store,
};
use tokio::sync::Semaphore;

fn operation(key: &str) -> Operation {
    Operation::new(&Scope::new("ops"), &Key::new(key).unwrap(), Fingerprint::of(b"pay"))
}

fn want(record: &Record, action: OperatorAction) -> Intervention {
    let (by, reason) = ("somebody".to_owned(), "the bank knows nothing of it".to_owned());
    Intervention { id: record.id, attempt: record.attempt, action, by, reason }
}

async fn seen(store: &dyn Store, key: &str) -> Arc<Record> {
    store.load(vec![operation(key).id]).await.remove(0).unwrap().unwrap()
}

/// A store in which the owner of an unknown attempt returns with its outcome right after the
/// operator looked. If `answers_late` is set, the next claim is answered late.
#[derive(Debug)]
struct Unlucky {
    memory: MemoryStore,
    owner_comes_back: AtomicBool,
    answers_late: AtomicBool,
    answered: Semaphore,
    gate: Semaphore,
}

impl Unlucky {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryStore::new(),
            owner_comes_back: AtomicBool::new(false),
            answers_late: AtomicBool::new(false),
            answered: Semaphore::new(0),
            gate: Semaphore::new(0),
        })
    }
}

impl Store for Unlucky {
    delegate_store!(self => self.memory; name, settle, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let answers = self.memory.claim(batch).await;
            if self.answers_late.swap(false, Ordering::SeqCst) {
                self.answered.add_permits(1);
                self.gate.acquire().await.unwrap().forget();
            }
            answers
        }
        .boxed()
    }
}

impl AuditLog for Unlucky {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let (id, attempt) = (entry.id, entry.attempt);
            self.memory.audit(entry).await?;
            if self.owner_comes_back.swap(false, Ordering::SeqCst) {
                let transition = Transition::Complete(Recording::new("charged, and late"));
                self.memory.settle(vec![Settlement { id, attempt, transition }]).await;
            }
            Ok(())
        }
        .boxed()
    }

    delegate_store!(self => self.memory; audit_entries);
}

delegate_store!(impl RecordIndex, SharedSecrets, Sealing for Unlucky, self => self.memory);

#[tokio::test]
async fn what_the_audit_says_was_forgotten_is_what_was_forgotten() {
    let store = Unlucky::new();
    let engine = Engine::new(store.clone());
    engine.run(operation("a"), async |_| Verdict::Unknown(Cause::TimedOut)).await.unwrap();
    let unknown = seen(&*store, "a").await;
    store.owner_comes_back.store(true, Ordering::SeqCst);
    // Either the action is refused, because the record is no longer what the operator saw, or the
    // audit log says that an outcome was forgotten.
    let done = engine
        .intervene(want(&unknown, OperatorAction::Forget { seen: ExpectedState::Unknown }))
        .await
        .unwrap();
    let entries = engine.audit_entries(Some(unknown.id), None, 10).await.unwrap().entries;
    if matches!(done, Intervened::Done(_)) {
        assert_eq!(entries[0].before, "completed", "the audit: {:?}", entries[0]);
    }
}

#[tokio::test]
async fn an_outcome_that_the_operator_never_saw_is_not_forgotten() {
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::new(store.clone());
    engine.run(operation("a"), async |_| Verdict::Unknown(Cause::TimedOut)).await.unwrap();
    let unknown = seen(&*store, "a").await;
    // The operator sees an unknown record. Then the owner (or the reconciler) settles it.
    let (id, attempt) = (unknown.id, unknown.attempt);
    let transition = Transition::Complete(Recording::new("charged, and late"));
    store.settle(vec![Settlement { id, attempt, transition }]).await.remove(0).unwrap();
    // The operator's request names the same attempt, so only the state that the operator saw shows
    // that the request is stale.
    let done = engine
        .intervene(want(&unknown, OperatorAction::Forget { seen: ExpectedState::Unknown }))
        .await
        .unwrap();
    assert!(!matches!(done, Intervened::Done(_)), "it will be charged a second time: {done:?}");
}

#[tokio::test]
async fn what_runs_in_this_very_process_is_left_alone_although_the_store_calls_it_unknown() {
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::new(store.clone());
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    // Its lease ended meanwhile: the store was unreachable, or the operation runs longer than
    // `run_max`.
    let transition = Transition::Unknown(Cause::LeaseEnded);
    let (id, attempt) = (lease.id(), lease.attempt());
    store.settle(vec![Settlement { id, attempt, transition }]).await.remove(0).unwrap();
    let unknown = seen(&*store, "a").await;
    assert!(engine.is_under_way(id));
    let done = engine.intervene(want(&unknown, OperatorAction::Release)).await.unwrap();
    let other_node = Engine::new(store);
    let overlaps = matches!(other_node.begin(&operation("a")).await.unwrap(), Begin::Run(_));
    assert!(matches!(done, Intervened::Running(_)), "{done:?}; two run at once: {overlaps}");
}

#[tokio::test]
async fn a_forgotten_outcome_is_not_remembered_by_a_claim_that_was_under_way() {
    let store = Unlucky::new();
    // It ran on another node, so that this engine has nothing in its cache.
    let other_node = Engine::new(store.clone());
    let done = async |_| Verdict::Complete(Recording::new("paid"));
    other_node.run(operation("a"), done).await.unwrap();
    let engine = Engine::new(store.clone());
    store.answers_late.store(true, Ordering::SeqCst);
    let retry = tokio::spawn({
        let engine = engine.clone();
        async move { engine.begin(&operation("a")).await.map(|_| ()) }
    });
    store.answered.acquire().await.unwrap().forget();
    let completed = seen(&*store, "a").await;
    let done = engine
        .intervene(want(&completed, OperatorAction::Forget { seen: ExpectedState::Completed }))
        .await
        .unwrap();
    assert!(matches!(done, Intervened::Done(_)));
    store.gate.add_permits(1);
    retry.await.unwrap().unwrap();
    let next = engine.begin(&operation("a")).await.unwrap();
    let replays = matches!(next, Begin::Answer(Answer::Replay(_)));
    assert!(!replays, "replayed by the node that forgot it, for up to a minute");
}

/// A store whose audit log cannot be written.
#[derive(Debug)]
struct Unnoted(MemoryStore);

impl Store for Unnoted {
    delegate_store!(self => self.0; name, claim, settle, load, due, sweep, ready, close);
}

impl AuditLog for Unnoted {
    fn audit(&self, _: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        let error = StoreError::new(StoreErrorKind::Unavailable, "the disk is full");
        std::future::ready(Err(error)).boxed()
    }

    delegate_store!(self => self.0; audit_entries);
}

delegate_store!(impl RecordIndex, SharedSecrets, Sealing for Unnoted, self => self.0);

#[tokio::test]
async fn nothing_is_done_that_cannot_be_noted() {
    let store = Arc::new(Unnoted(MemoryStore::new()));
    let engine = Engine::new(store.clone());
    engine.run(operation("a"), async |_| Verdict::Unknown(Cause::TimedOut)).await.unwrap();
    let unknown = seen(&*store, "a").await;
    for action in [OperatorAction::Release, OperatorAction::Forget { seen: ExpectedState::Unknown }]
    {
        let error = engine.intervene(want(&unknown, action)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert_eq!(seen(&*store, "a").await, unknown);
    }
}

#[tokio::test]
async fn replays_of_a_forgotten_life_are_not_counted_for_the_next() {
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::new(store.clone());
    for _ in 0..3 {
        let done = async |_| Verdict::Complete(Recording::new("paid"));
        engine.run(operation("a"), done).await.unwrap();
    }
    let completed = seen(&*store, "a").await;
    assert_eq!(engine.replays(&completed).count, 2);
    engine
        .intervene(want(&completed, OperatorAction::Forget { seen: ExpectedState::Completed }))
        .await
        .unwrap();
    let done = async |_| Verdict::Complete(Recording::new("paid again"));
    engine.run(operation("a"), done).await.unwrap();
    let again = seen(&*store, "a").await;
    assert_eq!(engine.replays(&again).count, 0, "what is replayed here has never been");
}
