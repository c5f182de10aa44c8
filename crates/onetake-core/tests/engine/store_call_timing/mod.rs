//! Attempts on a manual clock: renewals, settlements and waiters.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod journal;
mod reaper_and_sweeper;
mod renewal;
mod settlement_retries;
mod shutdown;
mod waiting;
mod without_a_run;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::{Answers, Claim, Claimed, Settled, Settlement, Swept, Transition};
use onetake_core::{
    Begin, Clock, Engine, Fingerprint, Key, Lease, Limits, ManualClock, MemoryStore, Operation,
    Record, RecordId, Recording, Scope, Store, StoreError, StoreErrorKind, SystemRng,
    delegate_store,
};

const SECOND: Duration = Duration::from_secs(1);

/// A store that records its calls, and fails as often as a test sets.
#[derive(Debug)]
struct Watched {
    memory: MemoryStore,
    clock: Arc<ManualClock>,
    /// Settlements, with their times since the start of the test.
    settlements: Mutex<Vec<(Duration, Settlement)>>,
    claims: AtomicUsize,
    loads: AtomicUsize,
    /// The number of settlements that fail from now on, and the kind of failure.
    refused: AtomicUsize,
    kind: Mutex<StoreErrorKind>,
    /// The times of sweeps.
    sweeps: Mutex<Vec<Duration>>,
    /// The number of reads that panic from now on.
    panics: AtomicUsize,
}

impl Watched {
    /// Returns the times of the settlements of one kind.
    fn times(&self, is_one: impl Fn(&Transition) -> bool) -> Vec<Duration> {
        let settlements = self.settlements.lock().unwrap();
        let times = settlements.iter().filter(|(_, settlement)| is_one(&settlement.transition));
        times.map(|(at, _)| *at).collect()
    }

    fn renewals(&self) -> Vec<Duration> {
        self.times(|transition| *transition == Transition::Renew)
    }
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Store for Watched {
    delegate_store!(self => self.memory; name, due, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.claims.fetch_add(batch.len(), Ordering::SeqCst);
        self.memory.claim(batch)
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        let at = self.clock.monotonic().saturating_sub(SECOND);
        self.settlements.lock().unwrap().extend(batch.iter().map(|one| (at, one.clone())));
        if take_one(&self.refused) {
            let error = StoreError::new(*self.kind.lock().unwrap(), "refused by the test");
            return std::future::ready(batch.iter().map(|_| Err(error.clone())).collect()).boxed();
        }
        self.memory.settle(batch)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        self.sweeps.lock().unwrap().push(self.clock.monotonic().saturating_sub(SECOND));
        self.memory.sweep(limit)
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        if take_one(&self.refused) {
            let error = StoreError::new(StoreErrorKind::Unavailable, "refused by the test");
            return std::future::ready(Err(error)).boxed();
        }
        self.memory.ready()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        assert!(!take_one(&self.panics), "the store panics, as the test wants");
        self.memory.load(ids)
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Watched, self => self.memory);

/// An engine on such a store.
struct World {
    clock: Arc<ManualClock>,
    store: Arc<Watched>,
    engine: Engine,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(Watched {
            memory: MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>),
            clock: Arc::clone(&clock),
            settlements: Mutex::default(),
            claims: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            kind: Mutex::new(StoreErrorKind::Unavailable),
            sweeps: Mutex::default(),
            panics: AtomicUsize::new(0),
        });
        let engine = engine(&clock, &store);
        Self { clock, store, engine }
    }

    async fn lease(&self, operation: &Operation) -> Lease {
        match self.engine.begin(operation).await.unwrap() {
            Begin::Run(lease) => lease,
            Begin::Answer(answer) => panic!("{answer:?}"),
        }
    }

    /// Advances the clock in steps, and lets all tasks run after each step.
    async fn pass(&self, time: Duration, step: Duration) {
        let until = self.clock.monotonic() + time;
        breathe().await;
        while self.clock.monotonic() < until {
            self.clock.advance(step.min(until - self.clock.monotonic()));
            breathe().await;
        }
    }

    /// Advances the clock in steps of a second.
    async fn seconds(&self, seconds: u32) {
        self.pass(SECOND * seconds, SECOND).await;
    }

    async fn record(&self, operation: &Operation) -> Arc<Record> {
        self.store.memory.load(vec![operation.id]).await.remove(0).unwrap().unwrap()
    }
}

/// Another engine on the same store.
fn engine(clock: &Arc<ManualClock>, store: &Arc<Watched>) -> Engine {
    let (store, clock) = (Arc::clone(store) as Arc<dyn Store>, Arc::clone(clock) as Arc<dyn Clock>);
    Engine::with(store, clock, Arc::new(SystemRng), Limits::default())
}

/// Lets every task of this thread run until it waits for something.
async fn breathe() {
    for _ in 0..300 {
        tokio::task::yield_now().await;
    }
}

fn operation(key: &str) -> Operation {
    Operation::new(
        &Scope::new("store-call-timing"),
        &Key::new(key).unwrap(),
        Fingerprint::of(b"pay"),
    )
}
