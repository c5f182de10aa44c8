//! The engine: claims, runs, settles and replays operations.
//!
//! It answers from the memory of this process where it can (running operations, recently settled
//! records), and from the store otherwise, in batches. It runs granted operations in tasks that
//! outlive their callers.

mod batch;
mod builder;
mod bypass;
mod cache;
mod claim;
mod flight;
mod housekeeping;
mod journal;
mod latest;
mod lease;
mod lost_claim;
mod metrics;
mod never_started;
mod operation;
mod operators;
mod read;
mod reconcile;
mod remote;
mod renewal;
mod replays;
mod report;
mod resolve;
mod retry;
mod run;
mod shutdown;
mod tasks;
mod transact;
mod untried;
mod wait;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, Rng};
use crate::scope::RecordId;
use crate::store::{Answers, Claim, Claimed, Settled, Settlement, Store, StoreError};

use batch::{Lane, Lanes};
use cache::Cache;
use flight::Flights;
use lost_claim::LostClaims;
use metrics::Metrics;
use remote::Remote;
use renewal::LeaseRenewer;
use tasks::Tasks;

pub use builder::EngineBuilder;
pub use bypass::Bypass;
pub use housekeeping::Housekeeping;
pub use journal::{Journal, JournalBatch};
pub use lease::{Lease, LeaseLost, Settling};
pub use operation::{
    Answer, Attempt, Begin, EngineError, KeyUse, Limits, Operation, Outcome, RecordWith, Verdict,
    WhileRunning,
};
pub use operators::{ExpectedState, Intervened, Intervention, OperatorAction};
pub use read::Promise;
pub use reconcile::{Inquiry, Reconcile, ReconcileAnswer, ReconcileOptions};
pub use replays::Replays;
pub use retry::{Again, OnRetry};
pub use run::{Executed, Work};
pub use tasks::Traffic;
pub use transact::NotDone;

/// The target of all tracing spans, in this crate and in the crates around it. Filters select them
/// by it.
pub const SPANS: &str = "onetake::trace";

/// Runs each operation once. It is cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    /// Stops the lease renewal, the reaper and the sweeper when the last engine and the last lease
    /// are dropped. These tasks hold `inner` only.
    _alive: Arc<DropGuard>,
}

/// An engine of its own for a store, as [`Engine::new`] makes it.
impl<S: Store> From<S> for Engine {
    fn from(store: S) -> Self {
        Self::new(Arc::new(store))
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    limits: Limits,
    tasks: Tasks,
    claims: Lanes<Claim, Claimed>,
    settles: Lanes<Settlement, Settled>,
    flights: Flights,
    cache: Cache,
    renewer: LeaseRenewer,
    remote: Arc<Remote>,
    tracker: TaskTracker,
    /// The settlements that are under way.
    settling: TaskTracker,
    /// Settlements that the store did not accept before the engine stopped.
    unwritten: Mutex<Vec<Settlement>>,
    journal: Option<Arc<dyn Journal>>,
    /// Held while outcomes are written to the journal: a second call of `shutdown` waits for it.
    handing_over: tokio::sync::Mutex<()>,
    lost_claims: LostClaims,
    /// The start of the engine, by the monotonic clock.
    began: Duration,
    running: Arc<Semaphore>,
    waiting: Semaphore,
    metrics: Arc<Metrics>,
    replays: replays::ReplayCounts,
    closing: AtomicBool,
    /// Cancelled when the engine stops. No work continues afterwards.
    stopped: CancellationToken,
    /// The error after which the store must not be used any more.
    fatal: watch::Sender<Option<StoreError>>,
}

impl Engine {
    /// Creates an engine on `store` with the defaults of [`builder`](Self::builder): the system's
    /// clock, default limits, a reaper and a sweeper, and no journal.
    ///
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::builder(store).build()
    }

    /// Creates an engine with the given parts, without housekeeping and without a journal, for
    /// tests and simulations. [`keep_house`](Self::keep_house) starts the reaper and the sweeper.
    /// [`builder`](Self::builder) sets everything.
    ///
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn with(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        limits: Limits,
    ) -> Self {
        Self::builder(store).clock(clock).rng(rng).limits(limits).housekeeping(None).build()
    }

    fn assemble(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        limits: Limits,
        journal: Option<Arc<dyn Journal>>,
        tasks: Tasks,
    ) -> Self {
        let metrics = Arc::new(Metrics::new());
        let inner = Arc::new(Inner {
            claims: lanes(&tasks, &store, &clock, &metrics, limits, |store, metrics, batch| {
                (store.claim(batch), &metrics.claims)
            }),
            settles: lanes(&tasks, &store, &clock, &metrics, limits, |store, metrics, batch| {
                (store.settle(batch), &metrics.settlements)
            }),
            flights: Flights::new(),
            cache: Cache::new(limits.cache_bytes_max, limits.cache_age_max),
            renewer: LeaseRenewer::new(tasks.clone()),
            remote: Remote::new(
                Arc::clone(&store),
                Arc::clone(&clock),
                limits.poll_interval,
                limits.batch_items_max,
                tasks.clone(),
            ),
            tracker: TaskTracker::new(),
            settling: TaskTracker::new(),
            unwritten: Mutex::default(),
            journal,
            handing_over: tokio::sync::Mutex::default(),
            lost_claims: LostClaims::default(),
            began: clock.monotonic(),
            running: Arc::new(Semaphore::new(limits.running_max)),
            waiting: Semaphore::new(limits.waiting_max),
            metrics,
            replays: replays::ReplayCounts::default(),
            closing: AtomicBool::new(false),
            stopped: CancellationToken::new(),
            fatal: watch::Sender::new(None),
            store,
            clock,
            rng,
            limits,
            tasks,
        });
        inner.tasks.spawn(renewal::renew_leases(Arc::clone(&inner)));
        if let Some(journal) = inner.journal.clone() {
            inner.tasks.spawn(journal::settle_entries(Arc::clone(&inner), journal));
        }
        let alive = Arc::new(inner.stopped.clone().drop_guard());
        Self { inner, _alive: alive }
    }

    /// True if the operation's key is in use: an attempt of this process is under way, this process
    /// remembers its record, or the store has one. Nothing is claimed, and the answer may be out of
    /// date at once.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn is_known(&self, operation: &Operation) -> Result<bool, EngineError> {
        Ok(self.key_use(operation).await? != KeyUse::Unused)
    }

    /// Returns the use of the operation's key. Nothing is claimed, and the answer may be out of date
    /// at once.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn key_use(&self, operation: &Operation) -> Result<KeyUse, EngineError> {
        let (inner, id) = (&self.inner, operation.id);
        if inner.cache.get(&id, inner.clock.monotonic()).is_some() {
            return Ok(KeyUse::Recorded { is_free: false });
        }
        if inner.flights.has(&id) {
            return Ok(KeyUse::UnderWay);
        }
        Ok(inner.read(id).await?.map_or(KeyUse::Unused, |record| KeyUse::Recorded {
            is_free: matches!(record.state, crate::State::Released { .. }),
        }))
    }

    /// True if this process knows, without asking the store, that the key is taken: one of its own
    /// attempts holds the lease, or the cache has the outcome. Unknown outcomes are not in the cache.
    #[must_use]
    pub fn is_taken_here(&self, id: RecordId) -> bool {
        let inner = &self.inner;
        inner.flights.runs(&id) || inner.cache.get(&id, inner.clock.monotonic()).is_some()
    }

    /// True if an attempt of this process is under way, even if the store has not answered its
    /// claim yet.
    #[must_use]
    pub fn is_under_way(&self, id: RecordId) -> bool {
        self.inner.flights.has(&id)
    }

    /// Runs a future in a task that shutdown waits for.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn_tracked(&self.inner.tracker, future);
    }

    /// Returns the number of tasks and messages between tasks so far, for tests and benchmarks.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.inner.tasks.traffic()
    }

    /// Returns the number of claims and settlements that wait for a write, and of tasks that write
    /// them, for tests.
    #[must_use]
    pub fn queued_writes(&self) -> usize {
        self.inner.claims.queued() + self.inner.settles.queued()
    }

    /// Returns the clock of this engine.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Returns the source of randomness of this engine.
    #[must_use]
    pub fn rng(&self) -> &Arc<dyn Rng> {
        &self.inner.rng
    }

    /// Counts operations that became unknown before this engine started: those that a store found
    /// interrupted when it was opened.
    pub fn count_unknown(&self, operations: usize) {
        self.inner.metrics.unknown.increment(operations as u64);
    }

    /// Checks that the store can answer now.
    ///
    /// # Errors
    /// If it cannot, or the engine is shutting down.
    pub async fn ready(&self) -> Result<(), EngineError> {
        if self.inner.closing.load(Ordering::Acquire) {
            return Err(EngineError::Closing);
        }
        Ok(self.inner.store.ready().await?)
    }
}

/// The function that writes a batch of one kind, with the metrics of that kind.
type Write<T, A> = for<'a> fn(
    &'a dyn Store,
    &'a Metrics,
    Vec<T>,
) -> (BoxFuture<'a, Answers<A>>, &'a metrics::Writes);

/// Creates the lanes that write batches of one kind with `write`, and measure each write.
fn lanes<T, A>(
    tasks: &Tasks,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    limits: Limits,
    write: Write<T, A>,
) -> Lanes<T, A>
where
    T: batch::Item,
    A: Send + 'static,
{
    let writers = if limits.lanes > 1 { usize::MAX } else { limits.writers_max };
    Lanes::new(limits.lanes, || {
        let (store, metrics, clock) = (Arc::clone(store), Arc::clone(metrics), Arc::clone(clock));
        let lane_clock = Arc::clone(&clock);
        Lane::new(
            tasks.clone(),
            limits.batch_items_max,
            writers,
            lane_clock,
            move |batch: Vec<T>| {
                let (store, clock, metrics) =
                    (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&metrics));
                Box::pin(async move {
                    let count = batch.len();
                    let (writing, writes) = write(&*store, &metrics, batch);
                    writes.observe(&*clock, count, writing).await
                })
            },
        )
    })
}
