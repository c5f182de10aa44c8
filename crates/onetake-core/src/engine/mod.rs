//! Claim, run, settle, replay.
//!
//! The engine is what a request meets first: it answers what this process already knows (running
//! operations, recently settled records), asks the store for the rest, in batches, and runs what it
//! was granted in tasks that outlive their callers.

mod batch;
mod cache;
mod claim;
mod end;
mod flight;
mod heart;
mod housekeeping;
mod journal;
mod latest;
mod lease;
mod look;
mod lost_claim;
mod metrics;
mod operation;
mod operators;
mod reconcile;
mod remote;
mod replays;
mod resolve;
mod retry;
mod run;
mod tasks;
mod transact;
mod untried;
mod wait;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, Rng, SystemClock, SystemRng};
use crate::scope::RecordId;
use crate::store::{Answers, Claim, Claimed, Settled, Settlement, Store, StoreError};

use batch::Lane;
use cache::Cache;
use flight::Flights;
use heart::Heart;
use lost_claim::LostClaims;
use metrics::Metrics;
use remote::Remote;
use tasks::Tasks;

pub use housekeeping::Housekeeping;
pub use journal::{Journal, Kept};
pub use lease::{Lease, LeaseLost, Settling};
pub use look::Promise;
pub use operation::{
    Answer, Attempt, Begin, EngineError, Limits, Operation, Outcome, RecordWith, Verdict,
    WhileRunning,
};
pub use operators::{Deed, Intervened, Intervention, Standing};
pub use reconcile::{Asking, Found, Inquiry, Reconcile};
pub use replays::Replays;
pub use retry::{Again, OnRetry};
pub use run::{Executed, Work};
pub use tasks::Traffic;
pub use transact::NotDone;

/// The target of all spans of a trace, here and in the crates around: filters select them by it.
pub const SPANS: &str = "onetake::trace";

/// Runs each operation once. Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    /// The heart, the reaper and the sweeper hold the inside alone: when the last engine and the
    /// last lease are gone, they end.
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
    claims: Lane<Claim, Claimed>,
    settles: Lane<Settlement, Settled>,
    flights: Flights,
    cache: Cache,
    heart: Heart,
    remote: Arc<Remote>,
    tracker: TaskTracker,
    /// The settlements that are under way.
    settling: TaskTracker,
    /// What could not be settled before everything stopped.
    unwritten: Mutex<Vec<Settlement>>,
    journal: OnceLock<Arc<dyn Journal>>,
    /// Held while outcomes are handed to the journal: whoever shuts down as well waits for that.
    handing_over: tokio::sync::Mutex<()>,
    lost_claims: LostClaims,
    /// When it began, by the monotonic clock.
    began: Duration,
    running: Arc<Semaphore>,
    waiting: Semaphore,
    metrics: Arc<Metrics>,
    replays: replays::Counts,
    closing: AtomicBool,
    /// Cancelled when nothing may go on.
    stopped: CancellationToken,
    /// The error after which the store must not be used any more.
    fatal: watch::Sender<Option<StoreError>>,
}

impl Engine {
    /// An engine on `store`, with the system's clock, default limits, and a reaper and a sweeper
    /// that keep house by themselves.
    ///
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (clock, rng) = (Arc::new(SystemClock), Arc::new(SystemRng));
        let engine = Self::with(store, clock, rng, Limits::default());
        engine.keep_house(Housekeeping::default());
        engine
    }

    /// An engine with everything chosen. Nobody keeps house until
    /// [`keep_house`](Self::keep_house) is called.
    ///
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn with(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        limits: Limits,
    ) -> Self {
        let tasks = Tasks::from(Handle::current());
        let metrics = Arc::new(Metrics::new());
        let inner = Arc::new(Inner {
            claims: lane(&tasks, &store, &clock, &metrics, limits, |store, metrics, batch| {
                (store.claim(batch), &metrics.claims)
            }),
            settles: lane(&tasks, &store, &clock, &metrics, limits, |store, metrics, batch| {
                (store.settle(batch), &metrics.settlements)
            }),
            flights: Flights::new(),
            cache: Cache::new(limits.cache_bytes_max, limits.cache_age_max),
            heart: Heart::new(tasks.clone()),
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
            journal: OnceLock::new(),
            handing_over: tokio::sync::Mutex::default(),
            lost_claims: LostClaims::default(),
            began: clock.monotonic(),
            running: Arc::new(Semaphore::new(limits.running_max)),
            waiting: Semaphore::new(limits.waiting_max),
            metrics,
            replays: replays::Counts::default(),
            closing: AtomicBool::new(false),
            stopped: CancellationToken::new(),
            fatal: watch::Sender::new(None),
            store,
            clock,
            rng,
            limits,
            tasks,
        });
        inner.tasks.spawn(heart::beat(Arc::clone(&inner)));
        let alive = Arc::new(inner.stopped.clone().drop_guard());
        Self { inner, _alive: alive }
    }

    /// Whether anybody knows the operation's key: this process, because an attempt is under way or a
    /// record was seen a moment ago, or the store. Nothing is claimed, and whoever comes next may
    /// find it otherwise.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn is_known(&self, operation: &Operation) -> Result<bool, EngineError> {
        let (inner, id) = (&self.inner, operation.id);
        if inner.cache.get(&id, inner.clock.monotonic()).is_some() || inner.flights.has(&id) {
            return Ok(true);
        }
        Ok(inner.read(id).await?.is_some())
    }

    /// Whether an attempt of this process is under way, be it that its claim has not been answered yet.
    #[must_use]
    pub fn is_under_way(&self, id: RecordId) -> bool {
        self.inner.flights.has(&id)
    }

    /// Runs a future in a task that shutdown waits for.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn_tracked(&self.inner.tracker, future);
    }

    /// The tasks and messages between tasks that it has cost so far: for tests and benchmarks.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.inner.tasks.traffic()
    }

    /// The clock that everything here goes by.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// The randomness that everything here goes by.
    #[must_use]
    pub fn rng(&self) -> &Arc<dyn Rng> {
        &self.inner.rng
    }

    /// Counts operations that are unknown since before this engine: what a store found interrupted
    /// when it was opened.
    pub fn count_unknown(&self, operations: usize) {
        self.inner.metrics.unknown.increment(operations as u64);
    }

    /// Counts an operation that its caller ran unrecorded, because the store was away and the caller
    /// chose so (S10).
    pub fn count_bypassed(&self) {
        self.inner.metrics.bypassed.increment(1);
    }

    /// Whether the store could answer now.
    ///
    /// # Errors
    /// If it could not, or the engine is draining.
    pub async fn ready(&self) -> Result<(), EngineError> {
        if self.inner.closing.load(Ordering::Acquire) {
            return Err(EngineError::Closing);
        }
        Ok(self.inner.store.ready().await?)
    }
}

/// How a batch of one kind is written, and what counts it.
type Write<T, A> = for<'a> fn(
    &'a dyn Store,
    &'a Metrics,
    Vec<T>,
) -> (BoxFuture<'a, Answers<A>>, &'a metrics::Writes);

/// Writes batches of one kind to the store, as `write` says, and observes how that goes.
fn lane<T, A>(
    tasks: &Tasks,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    limits: Limits,
    write: Write<T, A>,
) -> Lane<T, A>
where
    T: batch::Item,
    A: Send + 'static,
{
    let (store, metrics) = (Arc::clone(store), Arc::clone(metrics));
    let (lane_clock, clock) = (Arc::clone(clock), Arc::clone(clock));
    let (items, writers) = (limits.batch_items_max, limits.writers_max);
    Lane::new(tasks.clone(), items, writers, lane_clock, move |batch: Vec<T>| {
        let (store, clock, metrics) =
            (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&metrics));
        Box::pin(async move {
            let count = batch.len();
            let (writing, writes) = write(&*store, &metrics, batch);
            writes.observe(&*clock, count, writing).await
        })
    })
}
