//! Claims that reach the store long after the engine gave up on them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::{Answers, Claim, Claimed, Settled};
use onetake_core::{
    AttemptId, Begin, Clock, Engine, EngineError, Journal, Limits, ManualClock, MemoryStore,
    Operation, Recording, Settlement, Store, StoreError, StoreErrorKind, SystemRng, Terms,
    Transition, Verdict, delegate_store,
};

use super::{Pages, engine_with_journal, operation, settle_down};

/// A store whose claims are held back by the network: their answers are lost, and they arrive when
/// a test calls `land`.
#[derive(Debug)]
struct Stalled {
    memory: MemoryStore,
    held: Mutex<Vec<Claim>>,
    releases: AtomicUsize,
    is_down: AtomicBool,
}

impl Stalled {
    /// Carries out the claims that were held back.
    async fn land(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        assert!(!held.is_empty(), "no claim is on its way");
        for answer in self.memory.claim(held).await {
            assert!(matches!(answer, Ok(Claimed::Granted { .. })), "{answer:?}");
        }
    }

    fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }
}

impl Store for Stalled {
    delegate_store!(self => self.memory; name, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        let lost = || StoreError::new(StoreErrorKind::Indeterminate, "the connection stalls");
        let answers = batch.iter().map(|_| Err(lost())).collect();
        self.held.lock().unwrap().extend(batch);
        std::future::ready(answers).boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        let releases = batch.iter().filter(|it| it.transition == Transition::Release).count();
        self.releases.fetch_add(releases, Ordering::SeqCst);
        if self.is_down.load(Ordering::SeqCst) {
            let down = || StoreError::new(StoreErrorKind::Unavailable, "the store is unreachable");
            let answers = batch.iter().map(|_| Err(down())).collect();
            return std::future::ready(answers).boxed();
        }
        self.memory.settle(batch)
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Stalled, self => self.memory);

struct World {
    clock: Arc<ManualClock>,
    store: Arc<Stalled>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let memory = MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let store = Stalled {
            memory,
            held: Mutex::default(),
            releases: AtomicUsize::new(0),
            is_down: AtomicBool::new(false),
        };
        Self { clock, store: Arc::new(store) }
    }

    /// Returns an engine whose claims stall.
    fn stalled(&self, limits: Limits) -> Engine {
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        Engine::with(store, Arc::clone(&self.clock) as Arc<dyn Clock>, Arc::new(SystemRng), limits)
    }

    fn stalled_with_journal(&self, journal: &Arc<Pages>) -> Engine {
        engine_with_journal(Arc::clone(&self.store) as Arc<dyn Store>, &self.clock, journal)
    }

    /// Returns an engine of another node, whose connection works.
    fn other_node(&self) -> Engine {
        let (store, clock) = (Arc::new(self.store.memory.clone()), Arc::clone(&self.clock));
        Engine::with(store, clock, Arc::new(SystemRng), Limits::default())
    }

    async fn lose_claim(&self, engine: &Engine, operation: &Operation) {
        let lost = engine.begin(operation).await;
        assert!(matches!(lost, Err(EngineError::Store(_))), "{lost:?}");
    }

    async fn state(&self, operation: &Operation) -> &'static str {
        let found = self.store.memory.load(vec![operation.id]).await.remove(0).unwrap();
        found.map_or("absent", |record| record.state.name())
    }

    /// Advances the clock second by second.
    async fn pass(&self, seconds: usize) {
        for _ in 0..seconds {
            self.clock.advance(Duration::from_secs(1));
            settle_down().await;
        }
    }

    /// Advances the clock until the engine has sent one more release.
    async fn pass_until_released_once_more(&self) {
        let before = self.store.releases();
        for _ in 0..60 {
            if self.store.releases() > before {
                return;
            }
            self.pass(1).await;
        }
        panic!("the engine does not release its claim any more");
    }
}

#[tokio::test]
async fn a_claim_that_lands_after_lease_and_grace_is_released() {
    let world = World::new();
    let (engine, asked) = (world.stalled(Limits::default()), operation("a"));
    world.lose_claim(&engine, &asked).await;
    world.pass(90).await;
    world.store.land().await;
    assert_eq!(world.state(&asked).await, "running");
    world.pass(31).await;
    assert_eq!(world.state(&asked).await, "released", "nothing ran");
    let retry = world.other_node().begin(&asked).await.unwrap();
    assert!(matches!(retry, Begin::Run(_)), "{retry:?}");
}

#[tokio::test]
async fn a_late_claim_that_the_reaper_called_unknown_is_released() {
    let world = World::new();
    let second = Duration::from_secs(1);
    let terms = Terms { lease: 5 * second, grace: 5 * second, ..Terms::default() };
    let (engine, asked) = (world.stalled(Limits::default()), operation("a").terms(terms));
    world.lose_claim(&engine, &asked).await;
    world.pass(90).await;
    world.pass_until_released_once_more().await;
    world.store.land().await;
    world.pass(10).await;
    assert_eq!(world.other_node().reap(10).await, 1);
    assert_eq!(world.state(&asked).await, "unknown");
    world.pass(30).await;
    assert_eq!(world.state(&asked).await, "released", "its own attempt knows that nothing ran");
}

#[tokio::test]
async fn a_claim_that_does_not_land_is_given_up_after_an_hour() {
    let world = World::new();
    let (engine, asked) = (world.stalled(Limits::default()), operation("a"));
    world.lose_claim(&engine, &asked).await;
    world.pass(3_500).await;
    let before = world.store.releases();
    assert!((100..200).contains(&before), "pauses grow to 30 seconds: {before}");
    world.pass(200).await;
    let after = world.store.releases();
    world.pass(600).await;
    assert_eq!(world.store.releases(), after, "it goes on for ever");
}

/// The cause that delayed the releases may also have delayed the claim, so the hour counts from its
/// end.
#[tokio::test]
async fn a_claim_that_lands_after_a_long_outage_is_released() {
    let world = World::new();
    let (engine, asked) = (world.stalled(Limits::default()), operation("a"));
    world.lose_claim(&engine, &asked).await;
    world.store.is_down.store(true, Ordering::SeqCst);
    world.pass(3_000).await;
    let before = world.store.releases();
    world.pass(1_000).await;
    let sent = world.store.releases() - before;
    assert!((190..=210).contains(&sent), "a release every 5 seconds: {sent}");
    world.store.is_down.store(false, Ordering::SeqCst);
    world.pass_until_released_once_more().await;
    world.store.land().await;
    world.pass(10).await;
    assert_eq!(world.state(&asked).await, "released");
}

#[tokio::test]
async fn another_owner_is_left_alone_by_late_releases() {
    let world = World::new();
    let (engine, asked) = (world.stalled(Limits::default()), operation("a"));
    world.lose_claim(&engine, &asked).await;
    let other = world.other_node();
    let Begin::Run(lease) = other.begin(&asked).await.unwrap() else { panic!("not granted") };
    lease.start().unwrap();
    world.pass(120).await;
    assert_eq!(world.state(&asked).await, "running");
    drop(lease);
    settle_down().await;
    assert_eq!(world.state(&asked).await, "unknown");
    world.pass(60).await;
    assert_eq!(world.state(&asked).await, "unknown", "the other attempt had started");
}

/// The claim is still on its way while another attempt has the key, and arrives when that attempt
/// has ended.
#[tokio::test]
async fn a_claim_that_lands_after_another_owner_is_gone_is_released() {
    let world = World::new();
    let terms = Terms { ttl: Duration::from_secs(120), ..Terms::default() };
    let (engine, asked) = (world.stalled(Limits::default()), operation("a").terms(terms));
    world.lose_claim(&engine, &asked).await;
    let other = world.other_node();
    let paid = async |_| Verdict::Complete(Recording::new("paid"));
    other.run(asked.clone(), paid).await.unwrap();
    world.pass(60).await;
    assert_eq!(world.state(&asked).await, "completed");
    world.pass(120).await;
    world.store.land().await;
    world.pass(31).await;
    assert_eq!(world.state(&asked).await, "released", "nothing ran");
}

/// An operator settled the record that the reaper made unknown: there is nothing left to release.
#[tokio::test]
async fn a_late_claim_that_somebody_settled_is_not_released_any_more() {
    let world = World::new();
    let (engine, asked) = (world.stalled(Limits::default()), operation("a"));
    world.lose_claim(&engine, &asked).await;
    let claim = world.store.held.lock().unwrap().first().cloned().unwrap();
    world.store.land().await;
    let transition = Transition::Complete(Recording::new("paid"));
    let settlement = Settlement { id: claim.id, attempt: claim.attempt, transition };
    world.store.memory.settle(vec![settlement]).await.remove(0).unwrap();
    world.pass(31).await;
    let before = world.store.releases();
    world.pass(300).await;
    assert_eq!(world.store.releases(), before);
    assert_eq!(world.state(&asked).await, "completed");
}

#[tokio::test]
async fn too_many_lost_claims_give_up_on_the_oldest() {
    let world = World::new();
    let engine = world.stalled(Limits { lost_claims_max: 2, ..Limits::default() });
    let asked = ["first", "second", "third"].map(operation);
    for asked in &asked {
        world.lose_claim(&engine, asked).await;
    }
    world.pass(10).await;
    world.store.land().await;
    world.pass(30).await;
    let states = [&asked[0], &asked[1], &asked[2]].map(|asked| world.state(asked));
    let states = futures_util::future::join_all(states).await;
    assert_eq!(states, ["running", "released", "released"]);
}

/// A settled claim makes room for another one. An older claim that is still on its way is not given
/// up for it.
#[tokio::test]
async fn a_lost_claim_that_is_settled_does_not_count_any_more() {
    let world = World::new();
    let engine = world.stalled(Limits { lost_claims_max: 2, ..Limits::default() });
    let asked = ["first", "second", "third"].map(operation);
    world.lose_claim(&engine, &asked[0]).await;
    let first = std::mem::take(&mut *world.store.held.lock().unwrap());
    world.lose_claim(&engine, &asked[1]).await;
    world.store.land().await;
    world.pass(10).await;
    assert_eq!(world.state(&asked[1]).await, "released");
    world.lose_claim(&engine, &asked[2]).await;
    world.store.held.lock().unwrap().extend(first);
    world.store.land().await;
    world.pass(31).await;
    for asked in &asked {
        assert_eq!(world.state(asked).await, "released");
    }
}

/// The process ends, the next one replays the journal, and only then does the claim arrive.
#[tokio::test]
async fn a_claim_that_lands_after_the_journal_was_replayed_is_released() {
    let world = World::new();
    let journal = Arc::new(Pages::default());
    let (engine, asked) = (world.stalled_with_journal(&journal), operation("a"));
    world.lose_claim(&engine, &asked).await;
    world.pass(90).await;
    engine.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!(journal.names_now().len(), 1, "the release is handed over");
    let _next = world.stalled_with_journal(&journal);
    world.pass(1).await;
    assert!(journal.names_now().is_empty(), "it was replayed");
    world.store.land().await;
    world.pass(31).await;
    assert_eq!(world.state(&asked).await, "released");
}

/// As above, but another attempt has the key when the journal is replayed.
#[tokio::test]
async fn a_claim_that_lands_behind_another_owner_after_a_replay_is_released() {
    let world = World::new();
    let terms = Terms { ttl: Duration::from_secs(120), ..Terms::default() };
    let journal = Arc::new(Pages::default());
    let (engine, asked) = (world.stalled_with_journal(&journal), operation("a").terms(terms));
    world.lose_claim(&engine, &asked).await;
    engine.shutdown(Duration::ZERO).await.unwrap();
    let paid = async |_| Verdict::Complete(Recording::new("paid"));
    world.other_node().run(asked.clone(), paid).await.unwrap();
    let _next = world.stalled_with_journal(&journal);
    world.pass(180).await;
    world.store.land().await;
    world.pass(31).await;
    assert_eq!(world.state(&asked).await, "released");
}

/// The operation ran: whatever happens to its claim, it must not run again.
#[tokio::test]
async fn an_outcome_from_the_journal_is_never_turned_into_a_release() {
    let world = World::new();
    let journal = Arc::new(Pages::default());
    let (id, attempt) = (operation("a").id, AttemptId::from_bytes([7; 16]));
    let transition = Transition::Complete(Recording::new("paid"));
    journal.keep(vec![Settlement { id, attempt, transition }]).await.unwrap();
    let _next = world.stalled_with_journal(&journal);
    world.pass(60).await;
    assert!(journal.names_now().is_empty(), "it was replayed");
    assert_eq!(world.store.releases(), 0);
}
