//! The engine through its public interfaces: a misbehaving store, a manual clock, a journal in
//! memory.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod conformance;
mod decision_boundaries;
mod deliberate_bugs;
mod expired_and_forgotten_keys;
mod inbox;
mod jobs;
mod journal_replay;
mod late_claims;
mod lease_check_at_start;
mod lease_renewal;
mod limits;
mod never_started;
mod operator_races;
mod queued_writes;
mod reaper_and_sweeper;
mod store_call_timing;
mod store_faults;
mod tasks_per_operation;
mod unknown_outcomes;
mod waiting;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::engine::JournalBatch;
use onetake_core::store::{Claim, Claimed, Settled};
use onetake_core::{
    Attempt, AttemptId, Clock, Engine, Fingerprint, Journal, Key, Limits, ManualClock, MemoryStore,
    Operation, Scope, Settlement, Store, StoreError, SystemRng, Transition,
};

/// Lets every task do what it can do without time passing.
async fn settle_down() {
    for _ in 0..60 {
        tokio::task::yield_now().await;
    }
}

/// Lets time pass in steps.
async fn pass(clock: &ManualClock, step: Duration, steps: usize) {
    for _ in 0..steps {
        clock.advance(step);
        settle_down().await;
    }
}

fn operation(key: &str) -> Operation {
    Operation::new(&Scope::new("engine"), &Key::new(key).unwrap(), Fingerprint::of(b"pay"))
}

/// Returns a clock, and a store in memory on that clock.
fn memory() -> (Arc<ManualClock>, Arc<MemoryStore>) {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    (clock, Arc::new(store))
}

fn engine_on(store: Arc<dyn Store>, clock: &Arc<ManualClock>, limits: Limits) -> Engine {
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Engine::with(store, clock, Arc::new(SystemRng), limits)
}

/// An engine with a journal, without housekeeping.
fn engine_with_journal<J: Journal>(
    store: Arc<dyn Store>,
    clock: &Arc<ManualClock>,
    journal: &Arc<J>,
) -> Engine {
    Engine::builder(store)
        .clock(Arc::clone(clock) as Arc<dyn Clock>)
        .housekeeping(None)
        .journal(Arc::clone(journal) as Arc<dyn Journal>)
        .build()
}

/// Settles an attempt behind its engine's back.
async fn settle(store: &dyn Store, attempt: Attempt, transition: Transition) {
    let settlement = Settlement { id: attempt.id, attempt: attempt.attempt, transition };
    let settled = store.settle(vec![settlement]).await.remove(0).unwrap();
    assert!(matches!(settled, Settled::Done { .. }), "{settled:?}");
}

/// Claims the released key of an attempt for another one.
async fn take_over(store: &dyn Store, released: Attempt) -> Attempt {
    let record = store.load(vec![released.id]).await.remove(0).unwrap().unwrap();
    let claim = Claim {
        id: released.id,
        attempt: AttemptId::from_bytes([77; AttemptId::BYTES]),
        fingerprint: record.fingerprint,
        terms: record.terms,
        origin: record.origin.clone(),
    };
    let claimed = store.claim(vec![claim.clone()]).await.remove(0).unwrap();
    let Claimed::Granted { fence } = claimed else { panic!("{claimed:?}") };
    Attempt { attempt: claim.attempt, fence, ..released }
}

/// A journal in memory that counts how often its pages are read.
#[derive(Debug, Default)]
struct Pages {
    pages: Mutex<Vec<(String, JournalBatch)>>,
    reads: AtomicUsize,
    looks: AtomicUsize,
}

impl Pages {
    fn names_now(&self) -> Vec<String> {
        self.pages.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }
}

impl Journal for Pages {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        let mut pages = self.pages.lock().unwrap();
        let name = format!("page {}", pages.len());
        pages.push((name, JournalBatch { settlements, is_whole: true }));
        std::future::ready(Ok(())).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(self.names_now())).boxed()
    }

    fn read(&self, name: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let pages = self.pages.lock().unwrap();
        let kept = pages.iter().find(|(known, _)| *known == name).map(|(_, kept)| kept.clone());
        std::future::ready(Ok(kept)).boxed()
    }

    fn let_go(&self, name: String) -> BoxFuture<'_, Result<(), StoreError>> {
        self.pages.lock().unwrap().retain(|(known, _)| *known != name);
        std::future::ready(Ok(())).boxed()
    }
}
