//! Claim, run, settle, replay.
//!
//! The engine is what a request meets first: it answers what this process already knows (running
//! operations, recently settled records), asks the store for the rest, in batches, and runs what it
//! was granted in tasks that outlive their callers.

mod batch;
mod cache;
mod claim;
mod flight;
mod heart;
mod housekeeping;
mod journal;
mod lease;
mod look;
mod metrics;
mod operation;
mod operators;
mod reconcile;
mod remote;
mod replays;
mod retry;
mod transact;
mod wait;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::clock::{Clock, Rng, SystemClock, SystemRng, Timestamp};
use crate::record::{Cause, Record};
use crate::scope::RecordId;
use crate::store::{Claim, Claimed, Settled, Settlement, Store, StoreError, StoreErrorKind, Verb};

use batch::Lane;
use cache::Cache;
use claim::claim;
use flight::{Entered, Flight, Flights};
use heart::Heart;
use metrics::Metrics;
use remote::Remote;
use retry::roll_back;
use wait::{Next, Patience, elsewhere, interpret, join, settled};

pub use housekeeping::Housekeeping;
pub use journal::{Journal, Kept};
pub use lease::{Lease, LeaseLost, Settling};
pub use look::Promise;
pub use operation::{
    Answer, Attempt, Begin, EngineError, InFlight, Limits, Operation, Outcome, Verdict,
};
pub use operators::{Deed, Intervened, Intervention, Standing};
pub use reconcile::{Asking, Found, Inquiry, Reconcile};
pub use replays::Replays;
pub use retry::{Again, OnRetry};
pub use transact::NotDone;

/// The target of all spans of a trace, here and in the crates around: filters select them by it.
pub const SPANS: &str = "onetake::trace";

/// How long the store may take to close.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Runs each operation once. Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    /// The heart, the reaper and the sweeper hold the inside alone: when the last engine and the
    /// last lease are gone, they end.
    _alive: Arc<DropGuard>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    limits: Limits,
    runtime: Handle,
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
        let runtime = Handle::current();
        let metrics = Arc::new(Metrics::new());
        let inner = Arc::new(Inner {
            claims: claims(&runtime, &store, &clock, &metrics, limits),
            settles: settles(&runtime, &store, &clock, &metrics, limits),
            flights: Flights::new(),
            cache: Cache::new(limits.cache_bytes_max, limits.cache_age_max),
            heart: Heart::default(),
            remote: Remote::new(
                Arc::clone(&store),
                Arc::clone(&clock),
                limits.poll_interval,
                limits.batch_items_max,
                runtime.clone(),
            ),
            tracker: TaskTracker::new(),
            settling: TaskTracker::new(),
            unwritten: Mutex::default(),
            journal: OnceLock::new(),
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
            runtime,
        });
        inner.runtime.spawn(heart::beat(Arc::clone(&inner)));
        let alive = Arc::new(inner.stopped.clone().drop_guard());
        Self { inner, _alive: alive }
    }

    /// Runs the operation, or tells what became of it before.
    ///
    /// It runs in a task of its own: a caller that goes away neither stops it nor loses its
    /// outcome. An operation that panics, or that takes longer than `run_max` and is dropped, is
    /// unknown.
    ///
    /// # Errors
    /// If the engine could not even try; then the operation did not run.
    pub async fn run<F, Fut>(&self, operation: Operation, work: F) -> Result<Outcome, EngineError>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        let mut operation = operation;
        if let Some(answer) = self.known(&mut operation) {
            return Ok(Outcome::Answered(answer));
        }
        let (tell, told) = oneshot::channel();
        let engine = self.clone();
        self.inner.tracker.spawn_on(
            async move {
                let outcome = match engine.resolve(&operation, Lead::Here).await {
                    Ok(Begin::Run(lease)) => Ok(engine.perform(operation, lease, work).await),
                    Ok(Begin::Answer(answer)) => Ok(Outcome::Answered(answer)),
                    Err(error) => Err(error),
                };
                let _gone = tell.send(outcome);
            },
            &self.inner.runtime,
        );
        told.await.unwrap_or(Err(EngineError::Closing))
    }

    /// Claims the operation for the caller to run, or tells what became of it before.
    ///
    /// The future may be dropped at any time: a claim that is granted to nobody is released.
    ///
    /// # Errors
    /// If the engine could not even try; then nobody owns the operation on this caller's behalf.
    pub async fn begin(&self, operation: &Operation) -> Result<Begin, EngineError> {
        self.resolve(operation, Lead::InTask).await
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
        self.inner.tracker.spawn_on(future, &self.inner.runtime);
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

    /// Resolves when the store must not be used any more: the process should end.
    pub async fn fatal(&self) -> StoreError {
        let mut fatal = self.inner.fatal.subscribe();
        match fatal.wait_for(Option::is_some).await.map(|error| error.clone()) {
            Ok(Some(error)) => error,
            // The sender lives as long as this engine.
            _ => std::future::pending().await,
        }
    }

    /// Takes no new operations, waits for the running ones for at most `patience`, then stops, hands what could
    /// not be settled to the journal, if there is [one](Self::use_journal), and closes the store. Says whether everything ended by itself.
    ///
    /// # Errors
    /// If the store could not be closed.
    pub async fn shutdown(&self, patience: Duration) -> Result<bool, StoreError> {
        let inner = &self.inner;
        inner.closing.store(true, Ordering::Release);
        inner.tracker.close();
        let drained = tokio::select! {
            biased;
            () = inner.tracker.wait() => true,
            () = inner.clock.sleep(patience) => false,
        };
        inner.stopped.cancel();
        inner.hand_over().await;
        let closed = tokio::select! {
            biased;
            closed = inner.store.close() => closed,
            () = inner.clock.sleep(CLOSE_PATIENCE) => {
                let what = "the store did not close in time";
                Err(StoreError::new(StoreErrorKind::Unavailable, what))
            }
        };
        // What ended meanwhile.
        inner.hand_over().await;
        closed.map(|()| drained)
    }

    /// What this process knows without asking anybody.
    fn known(&self, operation: &mut Operation) -> Option<Answer> {
        let record = self.inner.cache.get(&operation.id, self.inner.clock.monotonic())?;
        let answer = if operation.recognise(&record.fingerprint) {
            settled(&record)?
        } else {
            Answer::Mismatch
        };
        Some(self.told(answer))
    }

    async fn resolve(&self, operation: &Operation, lead: Lead) -> Result<Begin, EngineError> {
        let inner = &self.inner;
        let operation = &mut operation.clone();
        let mut patience = Patience::new(inner, operation.in_flight);
        loop {
            if let Some(answer) = self.known(operation) {
                return Ok(Begin::Answer(answer));
            }
            let next = match inner.flights.enter(operation.id, inner.limits.waiting_per_key_max) {
                Entered::Full => Next::Answer(Answer::InFlight),
                Entered::Leader(flight) => match self.lead(operation, flight, lead).await? {
                    // How long the store may take for a claim does not bound a rollback.
                    Led::Run(lease) => match &operation.on_retry {
                        Some(hook) => return roll_back(self, lease, hook, operation.run_max).await,
                        None => return Ok(Begin::Run(lease)),
                    },
                    Led::Found(record, now) => interpret(&record, operation, now),
                },
                Entered::Joiner(phase) => join(operation, phase, &mut patience).await?,
            };
            let answer = match next {
                Next::Answer(answer) => answer,
                Next::Again => continue,
                Next::Other(found) if operation.recognise(&found) => continue,
                Next::Other(_) => Answer::Mismatch,
                Next::RunsElsewhere => match elsewhere(inner, operation, &mut patience).await {
                    Some(answer) => answer,
                    None => continue,
                },
            };
            return Ok(Begin::Answer(self.told(answer)));
        }
    }

    /// Counts an answer.
    fn told(&self, answer: Answer) -> Answer {
        let metrics = &self.inner.metrics;
        match &answer {
            Answer::Replay(record) | Answer::Failed(record) => {
                metrics.replayed.increment(1);
                self.inner.replays.count(record, self.inner.clock.now());
            }
            Answer::InFlight => metrics.in_flight.increment(1),
            Answer::WaitTimeout => metrics.wait_timeouts.increment(1),
            Answer::Mismatch => metrics.mismatches.increment(1),
            Answer::Unknown(_) => metrics.unknown_answers.increment(1),
        }
        answer
    }

    async fn lead(
        &self,
        operation: &Operation,
        flight: Arc<Flight>,
        lead: Lead,
    ) -> Result<Led, EngineError> {
        let span = tracing::debug_span!(target: SPANS, "claim");
        let claiming = claim(self.clone(), operation.clone(), flight).instrument(span);
        let mut claiming = Box::pin(claiming);
        let patience = self.inner.clock.sleep(self.inner.limits.claim_patience);
        match lead {
            Lead::Here => tokio::select! {
                biased;
                led = &mut claiming => led,
                () = patience => {
                    // It goes on by itself; a lease that nobody takes is released.
                    self.spawn(async move { drop(claiming.await) });
                    Err(EngineError::no_answer())
                }
            },
            Lead::InTask => {
                let (tell, told) = oneshot::channel();
                self.spawn(async move {
                    // If nobody listens any more, the lease is dropped here: released.
                    drop(tell.send(claiming.await));
                });
                tokio::select! {
                    biased;
                    led = told => led.unwrap_or(Err(EngineError::Closing)),
                    () = patience => Err(EngineError::no_answer()),
                }
            }
        }
    }

    async fn perform<F, Fut>(&self, operation: Operation, lease: Lease, work: F) -> Outcome
    where
        F: FnOnce(Attempt) -> Fut + Send,
        Fut: Future<Output = Verdict> + Send,
    {
        if lease.start().is_err() {
            return match lease.release().await {
                settling @ Settling::Pending => Outcome::Ran(settling),
                _ => Outcome::Answered(Answer::InFlight),
            };
        }
        let attempt = Attempt { id: lease.id(), attempt: lease.attempt(), fence: lease.fence() };
        let work = AssertUnwindSafe(async { work(attempt).await }).catch_unwind();
        let verb = tokio::select! {
            biased;
            verdict = work => match verdict {
                Ok(verdict) => verdict.into(),
                Err(_panic) => Verb::Unknown(Cause::Interrupted),
            },
            () = self.inner.clock.sleep(operation.run_max) => Verb::Unknown(Cause::TimedOut),
        };
        Outcome::Ran(lease.settle(verb).await)
    }
}

/// Where the claim is waited for.
#[derive(Clone, Copy)]
enum Lead {
    /// In a task that nobody can drop.
    Here,
    /// In a task of its own, because the caller may be dropped.
    InTask,
}

enum Led {
    Run(Lease),
    Found(Arc<Record>, Timestamp),
}

impl Inner {
    /// Counts a store's error, and remembers the one after which nothing may go on.
    pub(crate) fn failed(&self, error: &StoreError) {
        self.metrics.store_errors.increment(1);
        if error.kind() == StoreErrorKind::Corrupt {
            self.fatal.send_if_modified(|fatal| {
                let first = fatal.is_none();
                fatal.get_or_insert_with(|| error.clone());
                first
            });
        }
    }
}

fn claims(
    runtime: &Handle,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    limits: Limits,
) -> Lane<Claim, Claimed> {
    let (store, clock, metrics) = (Arc::clone(store), Arc::clone(clock), Arc::clone(metrics));
    let lane_clock = Arc::clone(&clock);
    Lane::new(
        runtime.clone(),
        limits.batch_items_max,
        limits.writers_max,
        lane_clock,
        move |batch| {
            let (store, clock, metrics) =
                (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&metrics));
            Box::pin(async move {
                let count = batch.len();
                metrics.claims.observe(&*clock, count, store.claim(batch)).await
            })
        },
    )
}

fn settles(
    runtime: &Handle,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    limits: Limits,
) -> Lane<Settlement, Settled> {
    let (store, clock, metrics) = (Arc::clone(store), Arc::clone(clock), Arc::clone(metrics));
    let lane_clock = Arc::clone(&clock);
    Lane::new(
        runtime.clone(),
        limits.batch_items_max,
        limits.writers_max,
        lane_clock,
        move |batch| {
            let (store, clock, metrics) =
                (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&metrics));
            Box::pin(async move {
                let count = batch.len();
                metrics.settlements.observe(&*clock, count, store.settle(batch)).await
            })
        },
    )
}
