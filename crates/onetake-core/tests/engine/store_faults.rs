//! The engine on a store that fails at one moment: retries, releases, and entries in the journal.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, poll_immediate};
use onetake_core::audit::AuditEntry;
use onetake_core::store::{Answers, AuditLog, Claim, Claimed, Sealing, Settled};
use onetake_core::transaction::Completion;
use onetake_core::{
    Answer, AttemptId, Begin, Clock, Engine, Fingerprint, Inbox, InboxOptions, Inquiry, Limits,
    ManualClock, MemoryStore, OnUnknown, Origin, Outcome, Reconcile, ReconcileAnswer,
    ReconcileOptions, Record, RecordId, Recording, Rng, Settlement, Settling, State, Store,
    StoreError, StoreErrorKind, SystemRng, Terms, Transition, Verdict, WhileRunning,
    delegate_store,
};

use super::{Pages, engine_on, engine_with_journal, memory, operation, pass, settle_down};

const SECOND: Duration = Duration::from_secs(1);

/// A store that can fail or hang on request, and counts its calls.
#[derive(Debug)]
struct Failing {
    memory: Arc<MemoryStore>,
    claim_error: Mutex<Option<StoreErrorKind>>,
    settle_error: Mutex<Option<StoreErrorKind>>,
    load_error: Mutex<Option<StoreErrorKind>>,
    note_error: Mutex<Option<StoreErrorKind>>,
    hangs: AtomicBool,
    settlements: Mutex<Vec<Transition>>,
    entries: AtomicUsize,
}

impl Failing {
    fn new() -> (Arc<ManualClock>, Arc<Self>) {
        let (clock, memory) = memory();
        let store = Self {
            memory,
            claim_error: Mutex::default(),
            settle_error: Mutex::default(),
            load_error: Mutex::default(),
            note_error: Mutex::default(),
            hangs: AtomicBool::new(false),
            settlements: Mutex::default(),
            entries: AtomicUsize::new(0),
        };
        (clock, Arc::new(store))
    }

    fn engine(self: &Arc<Self>, clock: &Arc<ManualClock>, limits: Limits) -> Engine {
        engine_on(Arc::clone(self) as Arc<dyn Store>, clock, limits)
    }

    fn settlements(&self) -> Vec<Transition> {
        self.settlements.lock().unwrap().clone()
    }

    async fn answer<T>(
        &self,
        error: &Mutex<Option<StoreErrorKind>>,
        items: usize,
        answers: BoxFuture<'_, Answers<T>>,
    ) -> Answers<T> {
        if self.hangs.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        let error = *error.lock().unwrap();
        match error {
            Some(kind) => (0..items).map(|_| Err(StoreError::new(kind, "a fault"))).collect(),
            None => answers.await,
        }
    }
}

impl Store for Failing {
    delegate_store!(self => self.memory; name, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        let answers = self.memory.claim(batch.clone());
        self.answer(&self.claim_error, batch.len(), answers).boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.settlements.lock().unwrap().extend(batch.iter().map(|it| it.transition.clone()));
        let answers = self.memory.settle(batch.clone());
        self.answer(&self.settle_error, batch.len(), answers).boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        let answers = self.memory.load(ids.clone());
        self.answer(&self.load_error, ids.len(), answers).boxed()
    }
}

delegate_store!(impl RecordIndex, SharedSecrets, Sealing for Failing, self => self.memory);

impl AuditLog for Failing {
    delegate_store!(self => self.memory; audit_entries);

    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        self.entries.fetch_add(1, Ordering::SeqCst);
        let error = *self.note_error.lock().unwrap();
        match error {
            Some(kind) => std::future::ready(Err(StoreError::new(kind, "a fault"))).boxed(),
            None => self.memory.audit(entry),
        }
    }
}

fn releases(journal: &Pages) -> usize {
    let pages = journal.pages.lock().unwrap();
    let kept = pages.iter().flat_map(|(_, kept)| &kept.settlements);
    kept.filter(|settlement| settlement.transition == Transition::Release).count()
}

async fn stop(engine: &Engine, clock: &ManualClock) {
    let stopping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.shutdown(SECOND).await }
    });
    for _ in 0..60 {
        pass(clock, SECOND, 1).await;
        if stopping.is_finished() {
            return;
        }
    }
    panic!("it does not stop");
}

/// The claim may be durable, and the store accepts no release: the next process must release it.
#[tokio::test]
async fn a_claim_whose_write_failed_is_released_by_the_journal() {
    let (clock, store) = Failing::new();
    let journal = Arc::new(Pages::default());
    let engine = engine_with_journal(Arc::clone(&store) as Arc<dyn Store>, &clock, &journal);
    *store.claim_error.lock().unwrap() = Some(StoreErrorKind::Corrupt);
    *store.settle_error.lock().unwrap() = Some(StoreErrorKind::Corrupt);
    assert!(engine.begin(&operation("a")).await.is_err());
    stop(&engine, &clock).await;
    assert_eq!(releases(&journal), 1);
    assert_eq!(store.settlements(), [], "a store that failed to write is not asked again");
}

#[tokio::test]
async fn a_claim_without_an_answer_is_released_by_the_journal_when_the_engine_stops() {
    let (clock, store) = Failing::new();
    let journal = Arc::new(Pages::default());
    let engine = engine_with_journal(Arc::clone(&store) as Arc<dyn Store>, &clock, &journal);
    store.hangs.store(true, Ordering::SeqCst);
    let asking = tokio::spawn({
        let engine = engine.clone();
        async move { engine.begin(&operation("a")).await.is_err() }
    });
    settle_down().await;
    stop(&engine, &clock).await;
    assert!(asking.await.unwrap(), "it is answered");
    assert_eq!(releases(&journal), 1);
    assert_eq!(store.settlements(), [], "a store that hangs is not asked again");
}

/// "Unavailable" means that nothing was written, so there is nothing to recover or to release.
#[tokio::test]
async fn a_claim_that_was_not_written_is_not_released() {
    let (clock, store) = Failing::new();
    let engine = store.engine(&clock, Limits::default());
    for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Busy, StoreErrorKind::Invalid] {
        *store.claim_error.lock().unwrap() = Some(kind);
        assert!(engine.begin(&operation("a")).await.is_err(), "{kind:?}");
        pass(&clock, SECOND, 10).await;
        assert_eq!(store.settlements(), [], "{kind:?}");
    }
}

/// A source of randomness that fails once.
#[derive(Debug)]
struct FailsOnce(AtomicBool);

impl Rng for FailsOnce {
    fn fill(&self, into: &mut [u8]) {
        assert!(self.0.swap(true, Ordering::SeqCst), "there is no randomness yet");
        SystemRng.fill(into);
    }
}

/// A task that ends in the middle of its claim must not leave other callers waiting.
#[tokio::test]
async fn a_claim_that_panics_does_not_block_its_key() {
    let (clock, memory) = memory();
    let rng = Arc::new(FailsOnce(AtomicBool::new(false)));
    let clock_of_engine = Arc::clone(&clock) as Arc<dyn Clock>;
    let engine = Engine::with(memory, clock_of_engine, rng, Limits::default());
    assert!(engine.begin(&operation("a")).await.is_err());
    let asked = operation("a");
    let again = tokio::select! {
        biased;
        again = engine.begin(&asked) => again,
        () = pass(&clock, SECOND, 30) => panic!("the key is blocked"),
    };
    assert!(matches!(again, Ok(Begin::Run(_))), "{again:?}");
}

/// The lease is too old for a start, and it cannot be released either.
#[tokio::test]
async fn a_release_that_the_store_does_not_take_is_pending() {
    let (clock, store) = Failing::new();
    let slow = SlowClaims { store: Arc::clone(&store), clock: Arc::clone(&clock) };
    let limits = Limits { claim_patience: 100 * SECOND, ..Limits::default() };
    let engine = engine_on(Arc::new(slow), &clock, limits);
    let running = tokio::spawn(async move {
        engine.run(operation("a"), async |_| panic!("it must not run")).await
    });
    settle_down().await;
    *store.settle_error.lock().unwrap() = Some(StoreErrorKind::Corrupt);
    clock.advance(25 * SECOND);
    let outcome = running.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Ran(Settling::Pending)), "{outcome:?}");
}

/// A store whose claims take 25 seconds.
#[derive(Debug)]
struct SlowClaims {
    store: Arc<Failing>,
    clock: Arc<ManualClock>,
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for SlowClaims, self => self.store);

impl Store for SlowClaims {
    delegate_store!(self => self.store; name, settle, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let answers = self.store.claim(batch).await;
            self.clock.sleep(25 * SECOND).await;
            answers
        }
        .boxed()
    }
}

/// When the release arrives, the key is used again with another payload (S9).
#[tokio::test]
async fn a_late_release_is_not_told_of_a_transaction_for_another_payload() {
    let (clock, memory) = memory();
    let engine = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let terms = Terms { ttl: 60 * SECOND, on_unknown: OnUnknown::Rollback, ..Terms::default() };
    let asked = operation("a").terms(terms);
    let (id, store, time) = (asked.id, Arc::clone(&memory), Arc::clone(&clock));
    let (first, other) = (asked.fingerprint, Fingerprint::of(b"something else"));
    let work = async move |_| {
        // Another node takes over and completes the operation, the outcome expires, and the key is
        // used with another payload.
        for (number, fingerprint) in [(8, first), (9, other)] {
            time.advance(3_600 * SECOND);
            let (attempt, origin) = (AttemptId::from_bytes([number; 16]), Origin::default());
            let claim = Claim { id, attempt, fingerprint, terms, origin };
            let claimed = store.claim(vec![claim]).await.remove(0).unwrap();
            assert!(matches!(claimed, Claimed::Granted { .. }), "{claimed:?}");
            let transition = Transition::Complete(Recording::new("done"));
            store.settle(vec![Settlement { id, attempt, transition }]).await.remove(0).unwrap();
        }
        Err("rolled back")
    };
    let outcome = engine.transact(asked, work).await.unwrap();
    assert!(matches!(outcome, Outcome::Ran(Settling::Stale(None))), "{outcome:?}");
}

/// A store that changes recordings when it seals them, as encryption would.
#[derive(Debug)]
struct Encrypting(Arc<MemoryStore>);

impl Store for Encrypting {
    delegate_store!(self => self.0; name, claim, settle, load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets for Encrypting, self => self.0);

impl Sealing for Encrypting {
    fn seal(
        &self,
        _id: RecordId,
        _attempt: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        assert_eq!(recording, Recording::new("plain"));
        Ok(Recording::new("sealed"))
    }
}

#[tokio::test]
async fn a_completion_is_sealed_by_the_store() {
    let (clock, memory) = memory();
    let engine = engine_on(Arc::new(Encrypting(memory)), &clock, Limits::default());
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    let attempt =
        onetake_core::Attempt { id: lease.id(), attempt: lease.attempt(), fence: lease.fence() };
    let completion = Completion::new(Recording::new("plain"));
    let sealed = engine.seal(&attempt, completion).unwrap();
    assert_eq!(sealed.recording, Recording::new("sealed"));
}

#[tokio::test]
async fn all_records_are_listed() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let _lease = engine.begin(&operation("a")).await.unwrap();
    let page = engine.page(None, 10).await.unwrap();
    assert_eq!(page.ids, [operation("a").id]);
}

/// A reconciler that answers at once that nothing was executed.
#[derive(Debug)]
struct Knows;

impl Reconcile for Knows {
    fn inquiry(&self, _record: &Record) -> Option<Inquiry> {
        Some(Inquiry {
            after: SECOND,
            timeout: SECOND,
            pause_min: SECOND,
            pause_max: SECOND,
            limit: 60 * SECOND,
        })
    }

    fn ask(&self, _record: Arc<Record>) -> BoxFuture<'_, ReconcileAnswer> {
        std::future::ready(ReconcileAnswer::NotExecuted).boxed()
    }
}

/// Only a record that cannot be read is postponed. After a short outage, the store is asked again
/// at once.
#[tokio::test]
async fn a_reconciliation_whose_store_is_unavailable_is_not_put_off() {
    let (clock, store) = Failing::new();
    let engine = store.engine(&clock, Limits::default());
    let terms = Terms { on_unknown: OnUnknown::Reconcile, ..Terms::default() };
    let asked = operation("a").terms(terms);
    let unknown = Verdict::Unknown(onetake_core::Cause::TimedOut);
    engine.run(asked.clone(), async move |_| unknown).await.unwrap();
    clock.advance(60 * SECOND);
    let before = store.settlements().len();
    *store.load_error.lock().unwrap() = Some(StoreErrorKind::Unavailable);
    assert_eq!(engine.reconcile(&Knows, ReconcileOptions::default()).await, 0);
    assert_eq!(store.settlements().len(), before, "nothing is written");
    *store.load_error.lock().unwrap() = None;
    assert_eq!(engine.reconcile(&Knows, ReconcileOptions::default()).await, 1);
    let found = store.memory.load(vec![asked.id]).await.remove(0).unwrap().unwrap();
    assert!(matches!(found.state, State::Released { .. }), "{found:?}");
}

/// The caller joined a claim, and then the key was free. It runs the operation, and does not answer
/// that another attempt runs.
#[tokio::test]
async fn a_caller_that_joined_a_claim_runs_what_was_released_meanwhile() {
    let (clock, store) = Failing::new();
    let engine = store.engine(&clock, Limits::default());
    let asked = operation("a").in_flight(WhileRunning::Reject);
    let mut leader = Box::pin(engine.begin(&asked));
    assert!(poll_immediate(&mut leader).await.is_none());
    let mut joiner = Box::pin(engine.begin(&asked));
    assert!(poll_immediate(&mut joiner).await.is_none());
    let Begin::Run(lease) = leader.await.unwrap() else { panic!() };
    lease.start().unwrap();
    lease.release().await;
    let begun = joiner.await;
    assert!(matches!(begun, Ok(Begin::Run(_))), "{begun:?}");
}

#[tokio::test]
async fn a_replay_needs_no_store() {
    let (clock, store) = Failing::new();
    let engine = store.engine(&clock, Limits::default());
    engine.run(operation("a"), async |_| Verdict::Complete(Recording::new("paid"))).await.unwrap();
    store.hangs.store(true, Ordering::SeqCst);
    let answer = engine.begin(&operation("a")).now_or_never();
    assert!(matches!(answer, Some(Ok(Begin::Answer(Answer::Replay(_))))), "{answer:?}");
}

/// Pauses are 50, 100, 200, 400, 800 and then 1000 milliseconds.
#[tokio::test]
async fn pauses_grow_while_an_entry_of_the_audit_log_cannot_be_written() {
    let (clock, store) = Failing::new();
    let engine = store.engine(&clock, Limits::default());
    let inbox = Inbox::new(engine, "mailer", InboxOptions::default());
    *store.note_error.lock().unwrap() = Some(StoreErrorKind::Unavailable);
    let delivery = tokio::spawn(async move {
        let is_try: fn(&&'static str) -> bool = |_| false;
        let work = async |_| Err("the database is unreachable");
        inbox.receive_counting("message 1", is_try, work).await.is_ok()
    });
    pass(&clock, Duration::from_millis(10), 1_055).await;
    assert_eq!(store.entries.load(Ordering::SeqCst), 14);
    delivery.abort();
}

/// A store that carries out the first claim, settles it with the verb `then` if there is one, and
/// loses its answer.
#[derive(Debug)]
struct LosesFirst {
    memory: Arc<MemoryStore>,
    is_first: AtomicBool,
    then: Option<Transition>,
}

impl Store for LosesFirst {
    delegate_store!(self => self.memory; name, settle, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let answers = self.memory.claim(batch.clone()).await;
            if !self.is_first.swap(false, Ordering::SeqCst) {
                return answers;
            }
            if let (Some(transition), Some(claim)) = (self.then.clone(), batch.first()) {
                let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
                self.memory.settle(vec![settlement]).await.remove(0).unwrap();
            }
            let lost = || StoreError::new(StoreErrorKind::Indeterminate, "the answer is lost");
            batch.iter().map(|_| Err(lost())).collect()
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for LosesFirst, self => self.memory);

fn losing(then: Option<Transition>) -> (Arc<ManualClock>, Arc<MemoryStore>, Engine) {
    let (clock, memory) = memory();
    let is_first = AtomicBool::new(true);
    let store = Arc::new(LosesFirst { memory: Arc::clone(&memory), is_first, then });
    let engine = engine_on(store, &clock, Limits::default());
    (clock, memory, engine)
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_granted_when_it_has_landed() {
    let (_clock, memory, engine) = losing(None);
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    let record = memory.load(vec![lease.id()]).await.remove(0).unwrap().unwrap();
    assert_eq!((lease.attempt(), lease.fence()), (record.attempt, record.fence));
}

/// The reaper made the claim unknown, as if its attempt had run. The caller must not get the answer
/// that the outcome is unknown.
#[tokio::test]
async fn a_claim_that_was_taken_for_lost_work_is_an_error_and_is_released() {
    let unknown = Transition::Unknown(onetake_core::Cause::LeaseEnded);
    let (clock, memory, engine) = losing(Some(unknown));
    let asked = operation("a");
    let begun = engine.begin(&asked).await;
    assert!(begun.is_err(), "{begun:?}");
    pass(&clock, SECOND, 31).await;
    let record = memory.load(vec![asked.id]).await.remove(0).unwrap().unwrap();
    assert!(matches!(record.state, State::Released { .. }), "{record:?}");
}

/// A key in the cache and a key that is under way are known without the store.
#[tokio::test]
async fn a_key_of_this_process_is_known_while_the_store_is_unreachable() {
    let (clock, store) = Failing::new();
    let engine = store.engine(&clock, Limits::default());
    let (done, running, absent) = (operation("done"), operation("running"), operation("absent"));
    let complete = async |_| Verdict::Complete(Recording::new("paid"));
    engine.run(done.clone(), complete).await.unwrap();
    let Begin::Run(lease) = engine.begin(&running).await.unwrap() else { panic!() };
    assert!(!engine.is_known(&absent).await.unwrap());
    *store.load_error.lock().unwrap() = Some(StoreErrorKind::Unavailable);
    assert!(engine.is_known(&done).await.unwrap());
    assert!(engine.is_known(&running).await.unwrap());
    assert!(engine.is_known(&absent).await.is_err());
    let under_way = [&done, &running, &absent].map(|asked| engine.is_under_way(asked.id));
    assert_eq!(under_way, [false, true, false]);
    drop(lease);
}
