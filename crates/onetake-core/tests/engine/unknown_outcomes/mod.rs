//! Attempts whose owner went silent: reconciled, rolled back, or handed over at shutdown.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod late_completion;
mod rollback_hooks;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::audit::{AuditAction, AuditResult};
use onetake_core::engine::{JournalBatch, Settling};
use onetake_core::store::{Answers, Settled};
use onetake_core::{
    Answer, Begin, Cause, Clock, Engine, Fingerprint, Inquiry, Journal, Key, Limits, ManualClock,
    MemoryStore, OnUnknown, Operation, Reconcile, ReconcileAnswer, ReconcileOptions, Record,
    Recording, Scope, Settlement, State, Store, StoreError, SystemRng, Terms, Verdict,
};

use super::engine_with_journal;

const INQUIRY: Inquiry = Inquiry {
    after: Duration::from_secs(60),
    timeout: Duration::from_secs(5),
    pause_min: Duration::from_secs(1),
    pause_max: Duration::from_secs(30),
    limit: Duration::from_secs(600),
};

/// A reconciler with prepared answers, which counts its calls.
#[derive(Debug, Default)]
struct Scripted {
    answers: Mutex<VecDeque<ReconcileAnswer>>,
    asked: AtomicUsize,
    hangs: bool,
    knows_nothing: bool,
}

impl Scripted {
    fn saying(answers: impl IntoIterator<Item = ReconcileAnswer>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), ..Self::default() })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Reconcile for Scripted {
    fn inquiry(&self, _record: &Record) -> Option<Inquiry> {
        (!self.knows_nothing).then_some(INQUIRY)
    }

    fn ask(&self, _record: Arc<Record>) -> BoxFuture<'_, ReconcileAnswer> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            return std::future::pending().boxed();
        }
        let found = self.answers.lock().unwrap().pop_front();
        std::future::ready(found.unwrap_or(ReconcileAnswer::Unclear("not yet".into()))).boxed()
    }
}

struct World {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    engine: Engine,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>));
        let engine = Self::engine(&clock, Arc::clone(&store) as Arc<dyn Store>);
        Self { clock, store, engine }
    }

    fn engine(clock: &Arc<ManualClock>, store: Arc<dyn Store>) -> Engine {
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        Engine::with(store, clock, Arc::new(SystemRng), Limits::default())
    }

    /// Returns the engine of the next process, with the journal of this one.
    fn next_engine(&self, journal: &Arc<Paper>) -> Engine {
        engine_with_journal(Arc::clone(&self.store) as Arc<dyn Store>, &self.clock, journal)
    }

    async fn tick(&self, reconciler: &dyn Reconcile) -> usize {
        self.engine.reconcile(reconciler, ReconcileOptions::default()).await
    }

    async fn unknown(&self, key: &str) {
        let verdict = Verdict::Unknown(Cause::TimedOut);
        self.engine.run(operation(key), async move |_| verdict).await.unwrap();
    }

    async fn state(&self, key: &str) -> State {
        let mut found = self.store.load(vec![operation(key).id]).await;
        found.pop().unwrap().unwrap().unwrap().state.clone()
    }
}

fn operation(key: &str) -> Operation {
    let key = Key::new(key).unwrap();
    let terms = Terms { on_unknown: OnUnknown::Reconcile, ..Terms::default() };
    Operation::new(&Scope::new("unknown-outcomes"), &key, Fingerprint::of(b"pay")).terms(terms)
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_is_found_is_settled_and_noted() {
    let failure = onetake_core::Failure { code: "declined".into(), detail: "by the bank".into() };
    for (found, state, action) in [
        (ReconcileAnswer::Completed(Recording::new("paid")), "completed", AuditAction::Resolve),
        (ReconcileAnswer::NotExecuted, "released", AuditAction::Release),
        (ReconcileAnswer::Failed(failure), "failed", AuditAction::Fail),
    ] {
        let world = World::new();
        world.unknown("a").await;
        let answer = world.engine.begin(&operation("a")).await.unwrap();
        assert!(matches!(answer, Begin::Answer(Answer::Unknown(_))), "{answer:?}");
        world.clock.advance(MINUTE);
        let reconciler = Scripted::saying([found]);
        assert_eq!(world.tick(&*reconciler).await, 1);
        assert_eq!(world.state("a").await.name(), state);
        let entries = world.engine.audit_entries(None, None, 10).await.unwrap().entries;
        assert_eq!(entries.len(), 1);
        let entry = &entries[0];
        assert_eq!(
            (entry.action, entry.ended, &*entry.by),
            (action, AuditResult::Done, "reconciler")
        );
        assert_eq!(world.tick(&*reconciler).await, 0, "it is settled");
        assert_eq!(reconciler.asked(), 1);
    }
}

#[tokio::test]
async fn nobody_asks_too_early() {
    let world = World::new();
    world.unknown("a").await;
    let reconciler = Scripted::saying([ReconcileAnswer::NotExecuted]);
    for _ in 0..59 {
        world.tick(&*reconciler).await;
        world.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(reconciler.asked(), 0, "what was sent may still arrive");
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.tick(&*reconciler).await, 1);
    assert_eq!(world.state("a").await.name(), "released");
}

#[tokio::test]
async fn it_is_asked_again_with_longer_pauses_until_the_limit() {
    let world = World::new();
    world.unknown("a").await;
    let reconciler = Scripted::saying([]);
    let (mut asks, mut seconds) = (Vec::new(), 0_u64);
    while world.state("a").await.name() == "unknown" {
        let before = reconciler.asked();
        world.tick(&*reconciler).await;
        if reconciler.asked() > before {
            asks.push(seconds);
        }
        world.clock.advance(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 1_000, "it is asked for ever");
    }
    let State::Failed { failure, .. } = world.state("a").await else { panic!("not failed") };
    assert_eq!(failure.code, "not_reconciled");
    assert!(failure.detail.ends_with("last result: not yet"), "{}", failure.detail);
    assert_eq!(asks[0], 60);
    assert!(*asks.last().unwrap() >= 600, "not before the limit: {asks:?}");
    let pauses: Vec<u64> = asks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.iter().all(|pause| (6..=36).contains(pause)), "{pauses:?}");
    let answer = world.engine.begin(&operation("a")).await.unwrap();
    assert!(matches!(answer, Begin::Answer(Answer::Failed(_))), "{answer:?}");
}

#[tokio::test]
async fn it_is_failed_before_it_expires() {
    let world = World::new();
    let terms = Terms { ttl: 10 * MINUTE, on_unknown: OnUnknown::Reconcile, ..Terms::default() };
    let short = || operation("a").terms(terms);
    let unknown = async move |_| Verdict::Unknown(Cause::TimedOut);
    world.engine.run(short(), unknown).await.unwrap();
    let reconciler = Scripted::saying([]);
    // A key that expires while unknown could run again, whatever it did.
    for _ in 0..599 {
        world.tick(&*reconciler).await;
        world.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(world.state("a").await.name(), "failed");
}

/// A reconciler that panics for one key, and knows all others.
#[derive(Debug)]
struct Panicky(onetake_core::RecordId);

impl Reconcile for Panicky {
    fn inquiry(&self, _record: &Record) -> Option<Inquiry> {
        Some(INQUIRY)
    }

    fn ask(&self, record: Arc<Record>) -> BoxFuture<'_, ReconcileAnswer> {
        assert!(record.id != self.0, "this one is too much");
        std::future::ready(ReconcileAnswer::NotExecuted).boxed()
    }
}

#[tokio::test]
async fn a_reconciler_that_panics_hurts_nobody_else() {
    let world = World::new();
    world.unknown("bad").await;
    world.unknown("good").await;
    world.clock.advance(MINUTE);
    assert_eq!(world.tick(&Panicky(operation("bad").id)).await, 2);
    let states = (world.state("bad").await.name(), world.state("good").await.name());
    assert_eq!(states, ("unknown", "released"));
}

#[tokio::test]
async fn several_nodes_do_not_tread_on_each_other() {
    let world = World::new();
    for number in 0..50 {
        world.unknown(&format!("key {number}")).await;
    }
    world.clock.advance(MINUTE);
    let reconciler = Scripted::saying([]);
    let nodes: Vec<Engine> = (0..4)
        .map(|_| World::engine(&world.clock, Arc::clone(&world.store) as Arc<dyn Store>))
        .collect();
    let asking = nodes.iter().map(|node| node.reconcile(&*reconciler, ReconcileOptions::default()));
    futures_util::future::join_all(asking).await;
    assert_eq!(reconciler.asked(), 50, "each is asked for once");
}

#[tokio::test]
async fn one_that_hangs_is_left_alone_and_asked_again() {
    let world = World::new();
    world.unknown("a").await;
    world.clock.advance(MINUTE);
    let hangs = Scripted { hangs: true, ..Scripted::default() };
    let tick = world.tick(&hangs);
    tokio::pin!(tick);
    while hangs.asked() == 0 {
        assert!(futures_util::poll!(&mut tick).is_pending());
        tokio::task::yield_now().await;
    }
    world.clock.advance(INQUIRY.timeout);
    assert_eq!(tick.await, 1);
    assert_eq!(world.state("a").await.name(), "unknown");
    world.clock.advance(2 * MINUTE);
    assert_eq!(world.tick(&*Scripted::saying([ReconcileAnswer::NotExecuted])).await, 1);
    assert_eq!(world.state("a").await.name(), "released");
}

#[tokio::test]
async fn a_key_that_nobody_can_ask_for_stays_unknown() {
    let world = World::new();
    world.unknown("a").await;
    world.clock.advance(MINUTE);
    let ignorant = Scripted { knows_nothing: true, ..Scripted::default() };
    assert_eq!(world.tick(&ignorant).await, 1);
    assert_eq!(world.tick(&ignorant).await, 0, "nor is it looked at all the time");
    assert_eq!((ignorant.asked(), world.state("a").await.name()), (0, "unknown"));
    // The pause is as long as the record has been unknown. Then a reconciler that knows the outcome
    // gets its turn.
    world.clock.advance(MINUTE);
    assert_eq!(world.tick(&*Scripted::saying([ReconcileAnswer::NotExecuted])).await, 1);
    assert_eq!(world.state("a").await.name(), "released");
}

#[tokio::test]
async fn the_owner_who_comes_back_first_is_believed() {
    let world = World::new();
    let Begin::Run(lease) = world.engine.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    // Its lease ends without a renewal, as if its process was stopped. Another node writes the
    // audit entry.
    let other = World::engine(&world.clock, Arc::clone(&world.store) as Arc<dyn Store>);
    world.clock.advance(3 * MINUTE);
    let mut reaped = 0;
    while reaped == 0 {
        reaped = other.reap(10).await;
        tokio::task::yield_now().await;
    }
    let noted = other.audit_entries(None, None, 10).await.unwrap().entries;
    assert_eq!((noted[0].action, &*noted[0].by), (AuditAction::ExpireLease, "reaper"));
    let reconciler = Scripted::saying([ReconcileAnswer::NotExecuted]);
    world.clock.advance(MINUTE);
    // In the attempt's own process there is no ask: the attempt is under way.
    assert_eq!(world.tick(&*reconciler).await, 1);
    assert_eq!(reconciler.asked(), 0);
    let settled = lease.complete(Recording::new("paid, and late")).await;
    assert!(matches!(settled, Settling::Recorded(_)), "{settled:?}");
    world.clock.advance(10 * MINUTE);
    other.reconcile(&*reconciler, ReconcileOptions::default()).await;
    assert_eq!((reconciler.asked(), world.state("a").await.name()), (0, "completed"));
}

/// The page of a journal that cannot be read.
const TORN: &str = "a torn page";

/// A journal in memory.
#[derive(Debug, Default)]
struct Paper(Mutex<Vec<(String, JournalBatch)>>);

impl Paper {
    /// Waits until at most this many pages are left.
    async fn has(&self, pages: usize) {
        for _ in 0..100_000 {
            if self.0.lock().unwrap().len() <= pages {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("nobody settles what is in the journal");
    }
}

impl Journal for Paper {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        let mut pages = self.0.lock().unwrap();
        let name = format!("page {}", pages.len());
        pages.push((name, JournalBatch { settlements, is_whole: true }));
        std::future::ready(Ok(())).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let pages = self.0.lock().unwrap();
        let names = pages.iter().map(|(name, _)| name.clone()).collect();
        std::future::ready(Ok(names)).boxed()
    }

    fn read(&self, name: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>> {
        if name == TORN {
            let torn = StoreError::new(onetake_core::StoreErrorKind::Unavailable, "it is torn");
            return std::future::ready(Err(torn)).boxed();
        }
        let pages = self.0.lock().unwrap();
        let kept = pages.iter().find(|(known, _)| *known == name).map(|(_, kept)| kept.clone());
        std::future::ready(Ok(kept)).boxed()
    }

    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.lock().unwrap().retain(|(known, _)| *known != name);
        std::future::ready(Ok(())).boxed()
    }
}

/// Runs to completion while the store accepts no settlements, and shuts the engine down.
async fn end_with_an_outcome_in_hand(world: &World, journal: &Arc<Paper>) {
    let faulty = Faulty::around(Arc::clone(&world.store) as Arc<dyn Store>);
    let store = Arc::clone(&faulty) as Arc<dyn Store>;
    let engine = engine_with_journal(store, &world.clock, journal);
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    faulty.fail_settlements(StoreFault::Unavailable);
    let pending = tokio::spawn(lease.complete(Recording::new("paid")));
    let shutdown = tokio::spawn(async move { engine.shutdown(Duration::ZERO).await.unwrap() });
    while !shutdown.is_finished() || !pending.is_finished() {
        world.clock.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
    }
    assert!(!shutdown.await.unwrap(), "it did not end by itself");
    assert!(matches!(pending.await.unwrap(), Settling::Pending), "it was shown");
    assert_eq!(journal.0.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_outcome_in_hand_survives_the_end() {
    let world = World::new();
    let journal = Arc::new(Paper::default());
    end_with_an_outcome_in_hand(&world, &journal).await;
    assert_eq!(world.state("a").await.name(), "running");
    let next = world.next_engine(&journal);
    journal.has(0).await;
    let answer = next.begin(&operation("a")).await.unwrap();
    let Begin::Answer(Answer::Replay(record)) = answer else { panic!("{answer:?}") };
    let State::Completed { recording, .. } = &record.state else { panic!() };
    assert_eq!(*recording, Recording::new("paid"));
}

/// A store that permanently refuses to settle one record.
#[derive(Debug)]
struct Refusing(Arc<MemoryStore>, onetake_core::RecordId);

impl Store for Refusing {
    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            let mut answers = Vec::new();
            for settlement in batch {
                if settlement.id == self.1 {
                    let kind = onetake_core::StoreErrorKind::Invalid;
                    answers.push(Err(StoreError::new(kind, "never")));
                } else {
                    answers.extend(self.0.settle(vec![settlement]).await);
                }
            }
            answers
        }
        .boxed()
    }

    onetake_core::delegate_store!(self => self.0; name, claim, load, due, sweep, ready, close);
}

onetake_core::delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Refusing, self => self.0);

#[tokio::test]
async fn what_is_refused_holds_nothing_up() {
    let world = World::new();
    let journal = Arc::new(Paper::default());
    end_with_an_outcome_in_hand(&world, &journal).await;
    let refused = Settlement {
        id: operation("refused").id,
        attempt: onetake_core::AttemptId::from_bytes([1; 16]),
        transition: onetake_core::Transition::Release,
    };
    let page = JournalBatch { settlements: vec![refused.clone()], is_whole: true };
    journal.0.lock().unwrap().insert(0, ("a first page".into(), page));
    journal.0.lock().unwrap().insert(0, (TORN.into(), JournalBatch::default()));
    let store = Arc::new(Refusing(Arc::clone(&world.store), refused.id));
    let _next = engine_with_journal(store, &world.clock, &journal);
    journal.has(2).await;
    assert_eq!(world.state("a").await.name(), "completed");
    let left: Vec<String> = journal.0.lock().unwrap().iter().map(|it| it.0.clone()).collect();
    assert_eq!(left, [TORN, "a first page"], "they are kept");
}

#[tokio::test]
async fn what_was_settled_meanwhile_stands() {
    let world = World::new();
    let journal = Arc::new(Paper::default());
    end_with_an_outcome_in_hand(&world, &journal).await;
    // A reconciler finds another outcome before the next start.
    world.clock.advance(10 * MINUTE);
    let next = World::engine(&world.clock, Arc::clone(&world.store) as Arc<dyn Store>);
    assert_eq!(next.reap(10).await, 1);
    world.clock.advance(MINUTE);
    let found = ReconcileAnswer::Completed(Recording::new("paid, as the bank says"));
    next.reconcile(&*Scripted::saying([found]), ReconcileOptions::default()).await;
    let _after = world.next_engine(&journal);
    journal.has(0).await;
    let State::Completed { recording, .. } = world.state("a").await else { panic!() };
    assert_eq!(recording, Recording::new("paid, as the bank says"), "theirs stands (S4)");
}
