//! The lease of a running attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Clock;
use crate::fingerprint::Fingerprint;
use crate::record::{AttemptId, Cause, Failure, Fence, OnUnknown, Record, Recording, State};
use crate::scope::RecordId;
use crate::store::{Settled, Settlement, StoreError, StoreErrorKind, Transition, transfer_time};
use crate::transaction::UNFINISHED;

use super::flight::{Flight, Landing};
use super::renewal::LeaseState;
use super::report::RepeatedFailure;
use super::tasks::in_span;
use super::untried::note_untried;
use super::{Attempt, Engine, EngineError, Inner, Operation, SPANS, never_started};

/// The first pause before a settlement is tried again; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(20);
/// The longest pause before a settlement is tried again.
const RETRY_MAX: Duration = Duration::from_millis(500);

/// A granted claim. The engine renews it until it is settled.
///
/// Call [`start`](Self::start) immediately before the operation can have its first effect. Then
/// settle it by one of [`complete`](Self::complete), [`fail`](Self::fail),
/// [`release`](Self::release) and [`unknown`](Self::unknown). A lease that is dropped is released
/// if it never started, and unknown if it did.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released, or unknown if it had started"]
pub struct Lease {
    flying: Option<Flying>,
    fence: Fence,
    started: AtomicBool,
    /// True if the payload counts as never tried, although the attempt started.
    disowned: AtomicBool,
    keeps_untried: bool,
    lease_state: Arc<LeaseState>,
    engine: Engine,
}

/// The parts that belong to a lease until it is settled.
#[derive(Debug)]
struct Flying {
    flight: Arc<Flight>,
    /// The fingerprint of the request.
    fingerprint: Fingerprint,
    _permit: OwnedSemaphorePermit,
    /// Shutdown waits for every lease, in any task.
    _tracked: TaskTrackerToken,
}

/// The error for a lease with too little time left to start: the key may be granted to another
/// attempt at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease has ended, or is about to end")]
pub struct LeaseLost;

/// The result of a settlement.
#[derive(Clone, Debug)]
pub enum Settling {
    /// The settlement is durable: the outcome may be shown.
    Recorded(Arc<Record>),
    /// Another attempt owns the key, or the record is final: nothing was changed. The current
    /// record is the outcome for every client.
    Stale(Option<Arc<Record>>),
    /// The store does not answer. The engine retries until the process ends. The outcome must not
    /// be shown yet.
    Pending,
}

impl Lease {
    pub(crate) fn new(
        engine: &Engine,
        flight: Arc<Flight>,
        permit: OwnedSemaphorePermit,
        operation: &Operation,
        granted: Granted,
    ) -> Self {
        let Granted { attempt, fence, asked_at } = granted;
        let lease_state = engine.inner.renewer.add(
            operation.id,
            attempt,
            operation.terms,
            asked_at,
            operation.run_max,
        );
        engine.inner.wake_backlog(flight.run(operation.fingerprint));
        engine.inner.metrics.running.increment(1);
        Self {
            flying: Some(Flying {
                flight,
                fingerprint: operation.fingerprint,
                _permit: permit,
                _tracked: engine.inner.tracker.token(),
            }),
            fence,
            started: AtomicBool::new(false),
            disowned: AtomicBool::new(false),
            keeps_untried: operation.keeps_untried,
            lease_state,
            engine: engine.clone(),
        }
    }

    /// Returns the id of the record.
    #[must_use]
    pub fn id(&self) -> RecordId {
        self.lease_state.id
    }

    /// Returns the id of the attempt.
    #[must_use]
    pub fn attempt(&self) -> AttemptId {
        self.lease_state.attempt
    }

    /// Returns the attempt's fence. Pass it to systems that can refuse lower fences.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Returns the identity of the attempt, for the operation.
    #[must_use]
    pub fn as_attempt(&self) -> Attempt {
        Attempt { id: self.id(), attempt: self.attempt(), fence: self.fence }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.engine.inner.clock
    }

    /// Checks the lease immediately before the operation starts. The clock also counts while the
    /// machine is suspended.
    ///
    /// # Errors
    /// If less than a quarter of the lease is left, or the engine has stopped. Do not start then,
    /// but [`release`](Self::release) the lease.
    pub fn start(&self) -> Result<(), LeaseLost> {
        if self.engine.inner.stopped.is_cancelled() {
            return Err(LeaseLost);
        }
        let left = self.lease_state.remaining(self.engine.inner.clock.monotonic());
        if left < self.lease_state.terms.lease / 4 || left.is_zero() {
            return Err(LeaseLost);
        }
        self.started.store(true, Ordering::Release);
        self.engine.inner.metrics.executed.increment(1);
        Ok(())
    }

    /// Extends the renewal of the lease to `run_max` from now.
    pub(super) fn renew_for(&self, run_max: Duration) {
        self.lease_state.run_until(self.engine.inner.clock.monotonic().saturating_add(run_max));
    }

    /// Lets a release of this attempt leave no payload behind, as if the attempt had never started.
    ///
    /// Use it if the caller was not allowed to try the operation at all, such as one with a wrong
    /// password. Otherwise that caller would block the key for the right payload. The release then
    /// stands even if an outcome was promised: only callers with the same payload have the promise.
    pub fn disown(&self) {
        self.disowned.store(true, Ordering::Release);
    }

    /// Records the outcome. Show it only if the answer is [`Settling::Recorded`] (S6).
    pub async fn complete(self, recording: Recording) -> Settling {
        self.settle(Transition::Complete(recording)).await
    }

    /// Records a permanent failure.
    pub async fn fail(self, failure: Failure) -> Settling {
        self.settle(Transition::Fail(failure)).await
    }

    /// Decides to release the lease. Returns false if its outcome was promised
    /// ([`Engine::promise`]); then it must be settled in another way. After the decision, no
    /// outcome is promised.
    #[must_use]
    pub fn may_release(&self) -> bool {
        self.flying.as_ref().is_some_and(|flying| flying.flight.release())
    }

    /// Releases the key for another attempt. Use it only if this attempt is known to have had no
    /// effect (S16). If its outcome was promised, it is recorded as failed instead: see
    /// [`may_release`](Self::may_release).
    ///
    /// If no attempt of this key ever started, any payload may run under the key afterwards.
    pub async fn release(self) -> Settling {
        self.settle(Transition::Release).await
    }

    /// Records that the operation started and that its outcome is unknown.
    pub async fn unknown(self, cause: Cause) -> Settling {
        self.settle(Transition::Unknown(cause)).await
    }

    /// Settles by any transition; see the other methods. The settlement runs in its own task, so that a
    /// caller that is dropped cannot stop it.
    pub async fn settle(self, transition: Transition) -> Settling {
        let engine = self.engine.clone();
        let (sender, receiver) = engine.inner.tasks.channel();
        let settling = in_span(tracing::Span::current(), Box::pin(self.settle_here(transition)));
        engine.spawn(async move {
            let (settling, rest) = settling.await;
            let _receiver_dropped = sender.send(settling);
            if let Some(rest) = rest {
                rest.await;
            }
        });
        receiver.await.unwrap_or(Settling::Pending)
    }

    /// Settles in the operation's own task, which is never dropped early. If the store does not
    /// answer in time, the task must continue with the returned future after it has reported that
    /// the outcome is pending.
    pub(super) async fn settle_here(
        mut self,
        transition: Transition,
    ) -> (Settling, Option<BoxFuture<'static, ()>>) {
        let more = match &transition {
            Transition::Complete(recording) => transfer_time(recording.bytes()),
            _ => Duration::ZERO,
        };
        let Some(mut settling) = self.hand_over(transition) else {
            return (Settling::Pending, None);
        };
        let patience = self.engine.inner.limits.settle_patience.saturating_add(more);
        let patience = self.engine.inner.clock.sleep(patience);
        tokio::select! {
            biased;
            settled = &mut settling => (settled, None),
            () = patience => {
                self.engine.inner.metrics.pending.increment(1);
                let rest = async move { drop(settling.await) };
                (Settling::Pending, Some(Box::pin(rest)))
            }
        }
    }

    /// Returns the transition for a lease that is dropped. The attempt had no effect if it never started.
    pub(super) fn transition_if_dropped(&self) -> Transition {
        if self.started.load(Ordering::Acquire) {
            Transition::Unknown(Cause::Interrupted)
        } else {
            Transition::Release
        }
    }

    /// Returns the settlement as a future that must be run to its end, or `None` if it was handed
    /// over before.
    fn hand_over(&mut self, transition: Transition) -> Option<BoxFuture<'static, Settling>> {
        let flying = self.flying.take()?;
        // An unknown outcome of an operation that rolls back is a release.
        let rolls_back = self.lease_state.terms.on_unknown == OnUnknown::Rollback;
        let releases = match transition {
            Transition::Release => true,
            Transition::Unknown(_) => rolls_back,
            _ => false,
        };
        let is_disowned = self.disowned.load(Ordering::Acquire);
        let transition = if releases && !flying.flight.release() && !is_disowned {
            Transition::Fail(without_outcome())
        } else {
            transition
        };
        let span =
            tracing::debug_span!(target: SPANS, "settle", onetake.transition = word(&transition));
        let settlement =
            Settlement { id: self.lease_state.id, attempt: self.lease_state.attempt, transition };
        let ever = self.started.load(Ordering::Acquire);
        let is_untried = !ever && !self.keeps_untried;
        let leaves_payload = !is_untried && !is_disowned;
        let started = Started { ever, leaves_payload };
        let (engine, lease_state) = (self.engine.clone(), Arc::clone(&self.lease_state));
        let tracked = engine.inner.settling.token();
        let task = Box::pin(async move {
            let _tracked = tracked;
            settle(engine, lease_state, settlement, flying, started).await
        });
        Some(in_span(span, task))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let transition = self.transition_if_dropped();
        if let Some(settling) = self.hand_over(transition) {
            self.engine.spawn(async move { drop(settling.await) });
        }
    }
}

/// Returns the name of a transition in traces.
fn word(transition: &Transition) -> &'static str {
    match transition {
        Transition::Renew => "renew",
        Transition::Complete(_) => "complete",
        Transition::Fail(_) => "fail",
        Transition::Release => "release",
        Transition::Unknown(_) => "unknown",
        Transition::ExpireLease => "abandon",
        Transition::PostponeReconcile(_) => "defer",
        Transition::Forget => "forget",
    }
}

/// A claim that the store granted.
pub(crate) struct Granted {
    pub(crate) attempt: AttemptId,
    pub(crate) fence: Fence,
    pub(crate) asked_at: Duration,
}

/// The start of an attempt.
#[derive(Clone, Copy)]
struct Started {
    ever: bool,
    /// False if a release leaves no payload behind: see [`Lease::disown`].
    leaves_payload: bool,
}

/// Settles with retries until the store answers, then lands the flight.
async fn settle(
    engine: Engine,
    lease_state: Arc<LeaseState>,
    settlement: Settlement,
    flying: Flying,
    started: Started,
) -> Settling {
    let engine = &engine.inner;
    let (settling, landing) = match write(engine, &lease_state, &settlement).await {
        Ok(Settled::Done { record, now }) => {
            // This is before the landing, so that a waiter finds the key free.
            if settlement.transition == Transition::Release {
                let is_forgotten =
                    !started.leaves_payload && never_started::forget(engine, &record).await;
                // The inbox and jobs count the tries of a key by its attempts.
                if !started.ever && !is_forgotten && record.terms.on_unknown.runs_again() {
                    note_untried(
                        engine,
                        Attempt::of(&record),
                        "engine",
                        "the attempt never started",
                    );
                }
            }
            // Callers that waited for an attempt that never started may try the operation
            // themselves.
            let landing = if started.ever {
                Landing::Record(Arc::clone(&record), now)
            } else {
                Landing::Nothing
            };
            (Settling::Recorded(record), landing)
        }
        Ok(Settled::Stale { current }) => {
            let current = after_stale(engine, &settlement, current, &flying.fingerprint);
            // The answer does not contain the store's time, and the outcome may be about to
            // expire. So it is neither cached nor given to the waiters: they ask the store.
            (Settling::Stale(current), Landing::Nothing)
        }
        Err(error) => {
            engine.could_not_settle(settlement.clone());
            (Settling::Pending, Landing::Failed(error))
        }
    };
    // The lease was renewed until here, or for `run_max`: a short outage of the store must not let
    // the lease end while the outcome waits.
    engine.renewer.remove(&lease_state);
    engine.metrics.running.decrement(1);
    if let Settling::Recorded(record) = &settling {
        count(engine, &settlement.transition, record);
    }
    engine.wake_backlog(engine.flights.land(lease_state.id, &flying.flight, landing));
    drop(flying);
    settling
}

/// Writes a settlement, again and again until the store answers, and caches a record that it
/// changed.
///
/// Returns the error for the waiters if there will be no answer, because the engine stopped or the
/// store must not be used any more. It never says that the store is unreachable: a caller could take
/// that as permission to run without a record, although the operation has run.
async fn write(
    engine: &Inner,
    lease_state: &LeaseState,
    settlement: &Settlement,
) -> Result<Settled, EngineError> {
    let mut pause = RETRY_MIN;
    let mut unsaved = RepeatedFailure::default();
    loop {
        let asked_at = engine.clock.monotonic();
        let answer = tokio::select! {
            biased;
            answer = engine.settles.write(settlement.clone()) => answer,
            () = engine.stopped.cancelled() => {
                let what = "the engine stopped before the store answered";
                Err(StoreError::new(StoreErrorKind::Indeterminate, what))
            }
        };
        let error = match answer {
            Ok(settled) => {
                if let Settled::Done { record, now } = &settled {
                    engine.cache.put(record, *now, asked_at);
                }
                return Ok(settled);
            }
            Err(error) => error,
        };
        engine.failed(&error);
        if engine.stopped.is_cancelled() {
            return Err(EngineError::Closing);
        }
        if error.kind() == StoreErrorKind::Corrupt {
            return Err(error.into());
        }
        if unsaved.count(asked_at).is_some() {
            report(lease_state, &error);
        }
        tokio::select! {
            biased;
            () = engine.stopped.cancelled() => {}
            () = engine.clock.sleep(pause) => {}
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// Returns the record that a stale settlement may show, and logs if its outcome is lost.
fn after_stale(
    engine: &Inner,
    settlement: &Settlement,
    current: Option<Arc<Record>>,
    fingerprint: &Fingerprint,
) -> Option<Arc<Record>> {
    // The attempt's own transaction has completed it (mode T). This settlement only checked that.
    if current.as_ref().is_some_and(|record| completed_itself(record, settlement)) {
        return current;
    }
    engine.metrics.stale.increment(1);
    tracing::warn!(
        reference = %settlement.id.reference(),
        "a late settlement was ignored: another attempt owns the key, or the key is already settled"
    );
    // The record may belong to a later use of the expired key, with another payload (S9).
    current.filter(|record| record.fingerprint == *fingerprint)
}

/// Counts a settlement that the store recorded, and logs it if an operator may have to act.
fn count(engine: &Inner, transition: &Transition, record: &Record) {
    let reference = record.id.reference();
    match transition {
        Transition::Unknown(cause) if matches!(record.state, State::Unknown { .. }) => {
            engine.metrics.unknown.increment(1);
            match record.terms.on_unknown {
                OnUnknown::Reconcile => tracing::warn!(
                    %reference, %cause,
                    "the outcome of an operation is unknown: the reconciler will be asked"
                ),
                OnUnknown::Retry => tracing::warn!(
                    %reference, %cause,
                    "the outcome of an operation is unknown: the next retry runs it again"
                ),
                _ => tracing::warn!(
                    %reference, %cause,
                    "the outcome of an operation is unknown: find out what happened, then settle the key with `onetake keys`"
                ),
            }
        }
        Transition::Fail(failure) if failure.code == UNFINISHED => {
            engine.metrics.unknown.increment(1);
            tracing::error!(
                %reference, route = %record.origin.route,
                "a transactional operation ended without finishing its transaction: it may have had its effects, and its key never runs again. Call finish as the last statement of the transaction, or begin and commit the transaction through InTransaction"
            );
        }
        Transition::Release | Transition::Unknown(_) => engine.metrics.released.increment(1),
        _ => {}
    }
}

/// True if the attempt that would be released has an outcome of its own transaction.
fn completed_itself(record: &Record, settlement: &Settlement) -> bool {
    record.attempt == settlement.attempt
        && record.terms.on_unknown == OnUnknown::Rollback
        && matches!(record.state, State::Completed { .. })
        && !matches!(settlement.transition, Transition::Complete(_))
}

/// Returns the failure for an attempt whose outcome was promised and that has none.
fn without_outcome() -> Failure {
    Failure {
        code: "no_outcome".to_owned(),
        detail: "the attempt ended without an outcome and had no effect".to_owned(),
    }
}

fn report(lease_state: &LeaseState, error: &StoreError) {
    tracing::warn!(
        reference = %lease_state.id.reference(), %error,
        "an outcome could not be saved yet; this is tried again"
    );
}
