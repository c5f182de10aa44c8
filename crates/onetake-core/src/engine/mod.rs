//! Claim, run, settle, replay.
//!
//! The engine is what a request meets first: it answers what this process already knows (running
//! operations, recently settled records), asks the store for the rest, in batches, and runs what it
//! was granted in tasks that outlive their callers.

mod batch;
mod cache;
mod flight;
mod heart;
mod housekeeping;
mod lease;
mod metrics;
mod remote;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, Rng, SystemClock, SystemRng, Timestamp};
use crate::decide::{self, Reading};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::planted::{Bug, planted};
use crate::record::{AttemptId, Cause, Failure, Fence, Record, Recording, State, Terms};
use crate::scope::{RecordId, Scope};
use crate::store::{Claim, Claimed, Settled, Settlement, Store, StoreError, StoreErrorKind, Verb};

use batch::Lane;
use cache::Cache;
use flight::{Entered, Flight, Flights, Landing, Phase};
use heart::Heart;
use lease::Granted;
use metrics::Metrics;
use remote::Remote;

pub use housekeeping::Housekeeping;
pub use lease::{Lease, LeaseLost, Settling};

/// Every bound of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Operations that may run at once; one more is refused as overloaded.
    pub running_max: usize,
    /// Callers that may wait at once for somebody else's attempt; one more is told that it runs.
    pub waiting_max: usize,
    /// Of these, callers with one and the same key, so that a hot key does not crowd out others.
    pub waiting_per_key_max: usize,
    /// Items in one write to the store.
    pub batch_items_max: usize,
    /// Writes of one kind that are under way at once.
    pub writers_max: usize,
    /// Bytes of settled records that are remembered in this process.
    pub cache_bytes_max: usize,
    /// For how long a settled record is remembered in this process.
    pub cache_age_max: Duration,
    /// How often a key that runs on another node is looked at, while somebody waits for it.
    pub poll_interval: Duration,
    /// How long a caller waits for its claim before it is told that the store does not answer.
    pub claim_patience: Duration,
    /// How long a caller waits for an outcome to become durable before it is told that it is
    /// pending.
    pub settle_patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running_max: 10_000,
            waiting_max: 10_000,
            waiting_per_key_max: 2_000,
            batch_items_max: 512,
            writers_max: 1,
            cache_bytes_max: 64 << 20,
            cache_age_max: Duration::from_secs(60),
            poll_interval: Duration::from_millis(25),
            claim_patience: Duration::from_secs(5),
            settle_patience: Duration::from_secs(5),
        }
    }
}

/// What to do for a key whose attempt still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InFlight {
    /// Say so at once.
    #[default]
    Reject,
    /// Wait for its outcome, for at most this long.
    Wait(Duration),
}

/// One operation that somebody asks for.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The record of its key.
    pub id: RecordId,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// What it would be claimed under.
    pub terms: Terms,
    /// What to do if it runs already.
    pub in_flight: InFlight,
    /// For how long it may run: its lease is renewed no longer than that.
    pub run_max: Duration,
}

impl Operation {
    /// The operation that `key` names inside `scope`, under default terms.
    #[must_use]
    pub fn new(scope: &Scope, key: &Key, fingerprint: Fingerprint) -> Self {
        let mut id = RecordId::derive(scope, key);
        if planted(Bug::FingerprintInId) {
            let mut bytes = *id.as_bytes();
            for (byte, digest) in bytes.iter_mut().zip(fingerprint.digest()) {
                *byte ^= digest;
            }
            id = RecordId::from_bytes(bytes);
        }
        Self {
            id,
            fingerprint,
            terms: Terms::default(),
            in_flight: InFlight::default(),
            run_max: Duration::from_secs(30),
        }
    }

    /// Sets the terms.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Sets what to do if it runs already.
    #[must_use]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Sets for how long it may run.
    #[must_use]
    pub fn run_max(mut self, run_max: Duration) -> Self {
        self.run_max = run_max;
        self
    }
}

/// What a caller who must not run is told.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The recorded outcome: the state is `Completed`.
    Replay(Arc<Record>),
    /// The recorded failure: the state is `Failed`.
    Failed(Arc<Record>),
    /// An attempt runs, or ran and was released while this caller waited for it.
    InFlight,
    /// It still runs after the whole wait.
    WaitTimeout,
    /// Another payload came with this key before.
    Mismatch,
    /// The earlier attempt's outcome is unknown: the state is `Unknown`.
    Unknown(Arc<Record>),
}

/// What [`Engine::begin`] comes to.
#[derive(Debug)]
pub enum Begin {
    /// The caller owns the operation.
    Run(Lease),
    /// Somebody else did.
    Answer(Answer),
}

/// What an operation says of itself.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It has an outcome.
    Complete(Recording),
    /// It failed for good.
    Fail(Failure),
    /// It is known to have had no effect.
    Release,
    /// It does not know what became of it.
    Unknown(Cause),
}

impl From<Verdict> for Verb {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Complete(recording) => Self::Complete(recording),
            Verdict::Fail(failure) => Self::Fail(failure),
            Verdict::Release => Self::Release,
            Verdict::Unknown(cause) => Self::Unknown(cause),
        }
    }
}

/// What [`Engine::run`] comes to.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The operation ran here and now.
    Ran(Settling),
    /// It did not run.
    Answered(Answer),
}

impl Outcome {
    /// The recorded outcome, whether it was recorded just now or earlier.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        let record = match self {
            Self::Ran(Settling::Recorded(record) | Settling::Stale(Some(record)))
            | Self::Answered(Answer::Replay(record)) => record,
            _ => return None,
        };
        match &record.state {
            State::Completed { recording, .. } => Some(recording),
            _ => None,
        }
    }
}

/// The operation that is running, as it sees itself.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The record.
    pub id: RecordId,
    /// The attempt.
    pub attempt: AttemptId,
    /// Its fence: pass it on to whoever can refuse lower ones.
    pub fence: Fence,
}

/// Why the engine could not even try. The operation did not run (S10).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The store did not answer.
    #[error("the store is not available: {0}")]
    Store(#[from] StoreError),
    /// As much is running as may run at once.
    #[error("too many operations are running at once")]
    Overloaded,
    /// The engine is draining.
    #[error("the engine is shutting down")]
    Closing,
}

/// Runs each operation once. Cheap to clone; all clones are one engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    /// The heart, the reaper and the sweeper hold the inside alone: when the last engine and the
    /// last lease are gone, they end.
    _alive: Arc<tokio_util::sync::DropGuard>,
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
    running: Arc<Semaphore>,
    waiting: Semaphore,
    metrics: Arc<Metrics>,
    closing: AtomicBool,
    /// Cancelled when nothing may go on.
    stopped: CancellationToken,
    /// The error after which the store must not be used any more.
    fatal: watch::Sender<Option<StoreError>>,
}

impl Engine {
    /// An engine on `store`, with the system's clock and default limits.
    ///
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with(
            store,
            Arc::new(SystemClock),
            Arc::new(SystemRng),
            Limits::default(),
        )
    }

    /// An engine with everything chosen.
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
            claims: claim_lane(&runtime, &store, &clock, &metrics, limits),
            settles: settle_lane(&runtime, &store, &clock, &metrics, limits),
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
            running: Arc::new(Semaphore::new(limits.running_max)),
            waiting: Semaphore::new(limits.waiting_max),
            metrics,
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
        Self {
            inner,
            _alive: alive,
        }
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
        if let Some(answer) = self.known(&operation) {
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

    /// Runs a future in a task that shutdown waits for.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.inner.tracker.spawn_on(future, &self.inner.runtime);
    }

    /// The clock that everything here goes by.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
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
        match fatal
            .wait_for(Option::is_some)
            .await
            .map(|error| error.clone())
        {
            Ok(Some(error)) => error,
            // The sender lives as long as this engine.
            _ => std::future::pending().await,
        }
    }

    /// Takes no new operations, waits for the running ones for at most `patience`, then stops and
    /// closes the store. Says whether everything ended by itself.
    ///
    /// # Errors
    /// If the store could not be closed.
    pub async fn shutdown(&self, patience: Duration) -> Result<bool, StoreError> {
        let inner = &self.inner;
        inner.closing.store(true, Ordering::Release);
        inner.tracker.close();
        let drained = tokio::select! {
            () = inner.tracker.wait() => true,
            () = inner.clock.sleep(patience) => false,
        };
        inner.stopped.cancel();
        inner.store.close().await?;
        Ok(drained)
    }

    /// What this process knows without asking anybody.
    fn known(&self, operation: &Operation) -> Option<Answer> {
        let record = self
            .inner
            .cache
            .get(&operation.id, self.inner.clock.monotonic())?;
        let answer = if record.fingerprint == operation.fingerprint {
            settled(&record)?
        } else {
            Answer::Mismatch
        };
        Some(self.told(answer))
    }

    async fn resolve(&self, operation: &Operation, lead: Lead) -> Result<Begin, EngineError> {
        let inner = &self.inner;
        let mut patience = Patience::new(inner, operation.in_flight);
        loop {
            if let Some(answer) = self.known(operation) {
                return Ok(Begin::Answer(answer));
            }
            let next = match inner
                .flights
                .enter(operation.id, inner.limits.waiting_per_key_max)
            {
                Entered::Full => Next::Answer(Answer::InFlight),
                Entered::Leader(flight) => match self.lead(operation, flight, lead).await? {
                    Led::Run(lease) => return Ok(Begin::Run(lease)),
                    Led::Found(record, now) => interpret(&record, operation, now),
                },
                Entered::Joiner(phase) => join(operation, phase, &mut patience).await?,
            };
            let answer = match next {
                Next::Answer(answer) => answer,
                Next::Again => continue,
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
            Answer::Replay(_) | Answer::Failed(_) => metrics.replayed.increment(1),
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
        let mut claiming = Box::pin(claim(self.clone(), operation.clone(), flight));
        let patience = self.inner.clock.sleep(self.inner.limits.claim_patience);
        match lead {
            Lead::Here => tokio::select! {
                biased;
                led = &mut claiming => led,
                () = patience => {
                    // It goes on by itself; a lease that nobody takes is released.
                    self.spawn(async move { drop(claiming.await) });
                    Err(no_answer())
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
                    () = patience => Err(no_answer()),
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
        let attempt = Attempt {
            id: lease.id(),
            attempt: lease.attempt(),
            fence: lease.fence(),
        };
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

fn no_answer() -> EngineError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the store does not answer in time",
    )
    .into()
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

enum Next {
    Answer(Answer),
    Again,
    RunsElsewhere,
}

/// What a record as found means to this operation.
fn interpret(record: &Arc<Record>, operation: &Operation, now: Timestamp) -> Next {
    match decide::read(Some(record), &operation.fingerprint, now) {
        Reading::Mismatch => Next::Answer(Answer::Mismatch),
        Reading::InFlight => Next::RunsElsewhere,
        Reading::Unknown => Next::Answer(Answer::Unknown(Arc::clone(record))),
        Reading::Settled => settled(record).map_or(Next::Again, Next::Answer),
        // The store has the last word on these.
        Reading::Free | Reading::Abandoned => Next::Again,
    }
}

fn settled(record: &Arc<Record>) -> Option<Answer> {
    match record.state {
        State::Completed { .. } => Some(Answer::Replay(Arc::clone(record))),
        State::Failed { .. } => Some(Answer::Failed(Arc::clone(record))),
        _ => None,
    }
}

/// How long a caller is willing to wait, and its place among the waiters.
struct Patience<'a> {
    engine: &'a Inner,
    until: Option<Duration>,
    place: Option<tokio::sync::SemaphorePermit<'a>>,
}

impl<'a> Patience<'a> {
    fn new(engine: &'a Inner, in_flight: InFlight) -> Self {
        let until = match in_flight {
            InFlight::Reject => None,
            InFlight::Wait(budget) => Some(engine.clock.monotonic().saturating_add(budget)),
        };
        Self {
            engine,
            until,
            place: None,
        }
    }

    /// How much longer to wait; or what to say instead of waiting.
    fn left(&mut self) -> Result<Duration, Answer> {
        let until = self.until.ok_or(Answer::InFlight)?;
        if self.place.is_none() {
            // Surplus waiters are told that it runs (S19).
            self.place = Some(
                self.engine
                    .waiting
                    .try_acquire()
                    .map_err(|_| Answer::InFlight)?,
            );
            self.engine.metrics.waiting.increment(1);
        }
        let left = until.saturating_sub(self.engine.clock.monotonic());
        if left.is_zero() {
            Err(Answer::WaitTimeout)
        } else {
            Ok(left)
        }
    }
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.engine.metrics.waiting.decrement(1);
        }
    }
}

/// Follows a flight of this process.
async fn join(
    operation: &Operation,
    mut phase: watch::Receiver<Phase>,
    patience: &mut Patience<'_>,
) -> Result<Next, EngineError> {
    let mut waited = false;
    loop {
        let current = phase.borrow_and_update().clone();
        match current {
            // Nobody can tell yet whether this is a retry.
            Phase::Claiming => {
                let engine = patience.engine;
                tokio::select! {
                    biased;
                    changed = phase.changed() => if changed.is_err() { return Ok(Next::Again) },
                    () = engine.clock.sleep(engine.limits.claim_patience) => {
                        return Err(no_answer());
                    }
                }
            }
            Phase::Running(fingerprint) => {
                if fingerprint != operation.fingerprint {
                    return Ok(Next::Answer(Answer::Mismatch));
                }
                let left = match patience.left() {
                    Ok(left) => left,
                    Err(answer) => return Ok(Next::Answer(answer)),
                };
                waited = true;
                tokio::select! {
                    biased;
                    changed = phase.changed() => if changed.is_err() { return Ok(Next::Again) },
                    () = patience.engine.clock.sleep(left) => {
                        return Ok(Next::Answer(Answer::WaitTimeout));
                    }
                }
            }
            Phase::Landed(Landing::Record(record, now)) => {
                // A herd of waiters must not become a herd of claims.
                if waited && matches!(record.state, State::Released { .. }) {
                    return Ok(Next::Answer(Answer::InFlight));
                }
                return Ok(interpret(&record, operation, now));
            }
            Phase::Landed(Landing::Failed(error)) => return Err(error),
            Phase::Landed(Landing::Nothing) => return Ok(Next::Again),
        }
    }
}

/// Waits for an attempt of another node. `None`: ask the store again.
async fn elsewhere(
    engine: &Inner,
    operation: &Operation,
    patience: &mut Patience<'_>,
) -> Option<Answer> {
    let left = match patience.left() {
        Ok(left) => left,
        Err(answer) => return Some(answer),
    };
    let mut seen = engine.remote.watch(operation.id);
    let found = tokio::select! {
        biased;
        found = seen.wait_for(Option::is_some) => found.ok().and_then(|seen| seen.clone().flatten()),
        () = engine.clock.sleep(left) => return Some(Answer::WaitTimeout),
    };
    let record = found?;
    if record.fingerprint != operation.fingerprint {
        return None;
    }
    match record.state {
        State::Released { .. } => Some(Answer::InFlight),
        _ => settled(&record),
    }
}

/// Asks the store for the right to run, and lands the flight if it is not given.
async fn claim(
    engine: Engine,
    operation: Operation,
    flight: Arc<Flight>,
) -> Result<Led, EngineError> {
    let mut open = Open {
        inner: &engine.inner,
        id: operation.id,
        flight: Some(flight),
    };
    match try_claim(&engine.inner, &operation).await {
        Ok((Ok(granted), permit)) => match open.flight.take() {
            Some(flight) => Ok(Led::Run(Lease::new(
                &engine, flight, permit, &operation, granted,
            ))),
            None => Err(EngineError::Closing),
        },
        Ok((Err((record, now)), _permit)) => {
            open.land(Landing::Record(Arc::clone(&record), now));
            Ok(Led::Found(record, now))
        }
        Err(error) => {
            open.land(Landing::Failed(error.clone()));
            Err(error)
        }
    }
}

/// A flight whose claim is under way. Whatever becomes of the claim, those who joined are told.
struct Open<'a> {
    inner: &'a Inner,
    id: RecordId,
    flight: Option<Arc<Flight>>,
}

impl Open<'_> {
    fn land(&mut self, landing: Landing) {
        if let Some(flight) = self.flight.take() {
            self.inner.flights.land(self.id, &flight, landing);
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.land(Landing::Nothing);
    }
}

type ClaimAnswer = Result<Granted, (Arc<Record>, Timestamp)>;

async fn try_claim(
    engine: &Arc<Inner>,
    operation: &Operation,
) -> Result<(ClaimAnswer, tokio::sync::OwnedSemaphorePermit), EngineError> {
    if engine.closing.load(Ordering::Acquire) {
        return Err(EngineError::Closing);
    }
    let permit = Arc::clone(&engine.running)
        .try_acquire_owned()
        .map_err(|_| {
            engine.metrics.overloaded.increment(1);
            EngineError::Overloaded
        })?;
    let attempt = AttemptId::random(&*engine.rng);
    let claim = Claim {
        id: operation.id,
        attempt,
        fingerprint: operation.fingerprint,
        terms: operation.terms,
    };
    let asked_at = engine.clock.monotonic();
    let answer = match engine.claims.submit(claim).await {
        Err(error) if error.kind() == StoreErrorKind::Indeterminate => {
            recover(engine, operation, attempt, error).await
        }
        answer => answer,
    };
    match answer {
        Ok(Claimed::Granted { fence }) => Ok((
            Ok(Granted {
                attempt,
                fence,
                asked_at,
            }),
            permit,
        )),
        Ok(Claimed::Found { record, now }) => {
            engine.cache.put(&record, now, asked_at);
            Ok((Err((record, now)), permit))
        }
        Err(error) => {
            engine.failed(&error);
            Err(error.into())
        }
    }
}

/// A claim whose answer got lost may have landed: look, and believe the own attempt id. If looking
/// fails too, nothing ran, and what may have landed is released when the store is back.
async fn recover(
    engine: &Arc<Inner>,
    operation: &Operation,
    attempt: AttemptId,
    error: StoreError,
) -> Result<Claimed, StoreError> {
    let (id, terms) = (operation.id, operation.terms);
    let mut found = engine.store.load(vec![id]).await;
    match found.pop() {
        Some(Ok(Some(record))) if record.attempt == attempt => Ok(Claimed::Granted {
            fence: record.fence,
        }),
        // Somebody else's, or nothing: ours did not land, or not yet. Not running is always safe.
        _ => {
            engine
                .runtime
                .spawn(disown(Arc::clone(engine), id, attempt, terms));
            Err(error)
        }
    }
}

/// Releases a claim that may have landed, or may still land, although nobody runs it.
async fn disown(engine: Arc<Inner>, id: RecordId, attempt: AttemptId, terms: Terms) {
    let release = Settlement {
        id,
        attempt,
        verb: Verb::Release,
    };
    let until = engine
        .clock
        .monotonic()
        .saturating_add(terms.lease)
        .saturating_add(terms.grace);
    let mut pause = Duration::from_millis(50);
    loop {
        match engine.settles.submit(release.clone()).await {
            Ok(Settled::Done { .. }) => return,
            // It has not landed. It could until its lease would be over anyway.
            Ok(Settled::Stale { .. }) if engine.clock.monotonic() >= until => return,
            _ => {}
        }
        tokio::select! {
            () = engine.clock.sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            () = engine.stopped.cancelled() => return,
        }
    }
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

fn claim_lane(
    runtime: &Handle,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    limits: Limits,
) -> Lane<Claim, Claimed> {
    let (store, clock, metrics) = (Arc::clone(store), Arc::clone(clock), Arc::clone(metrics));
    Lane::new(
        runtime.clone(),
        limits.batch_items_max,
        limits.writers_max,
        move |batch| {
            let (store, clock, metrics) =
                (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&metrics));
            metrics.claim_batch.record(batch.len() as f64);
            async move {
                let from = clock.monotonic();
                let answers = store.claim(batch).await;
                metrics
                    .claim_seconds
                    .record((clock.monotonic() - from).as_secs_f64());
                answers
            }
            .boxed()
        },
    )
}

fn settle_lane(
    runtime: &Handle,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    metrics: &Arc<Metrics>,
    limits: Limits,
) -> Lane<Settlement, Settled> {
    let (store, clock, metrics) = (Arc::clone(store), Arc::clone(clock), Arc::clone(metrics));
    Lane::new(
        runtime.clone(),
        limits.batch_items_max,
        limits.writers_max,
        move |batch| {
            let (store, clock, metrics) =
                (Arc::clone(&store), Arc::clone(&clock), Arc::clone(&metrics));
            metrics.settle_batch.record(batch.len() as f64);
            async move {
                let from = clock.monotonic();
                let answers = store.settle(batch).await;
                metrics
                    .settle_seconds
                    .record((clock.monotonic() - from).as_secs_f64());
                answers
            }
            .boxed()
        },
    )
}
