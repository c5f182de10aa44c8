//! The right to run, in the hands of whoever runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::clock::Clock;
use crate::fingerprint::Fingerprint;
use crate::planted::{Bug, planted};
use crate::record::{AttemptId, Cause, Failure, Fence, OnUnknown, Record, Recording, State};
use crate::scope::RecordId;
use crate::store::{Settled, Settlement, StoreError, StoreErrorKind, Verb};
use crate::transaction::UNFINISHED;

use super::flight::{Flight, Landing};
use super::heart::Pulse;
use super::{Attempt, Engine, EngineError, Operation, SPANS};

/// The first pause before a settlement is tried again; it doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(20);
/// The longest pause before a settlement is tried again.
const RETRY_MAX: Duration = Duration::from_millis(500);

/// A granted claim. It is renewed by itself until it is settled.
///
/// Call [`start`](Self::start) immediately before the operation can have its first effect, then
/// settle it by one of [`complete`](Self::complete), [`fail`](Self::fail),
/// [`release`](Self::release) and [`unknown`](Self::unknown). A lease that is dropped is released
/// if it never started, and unknown if it did.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released, or unknown if it had started"]
pub struct Lease {
    flying: Option<Flying>,
    fence: Fence,
    started: AtomicBool,
    pulse: Arc<Pulse>,
    engine: Engine,
}

/// What belongs to a lease until it is settled.
#[derive(Debug)]
struct Flying {
    flight: Arc<Flight>,
    /// What was asked.
    fingerprint: Fingerprint,
    _permit: OwnedSemaphorePermit,
    /// Shutdown waits for every lease, whoever holds it.
    _tracked: TaskTrackerToken,
}

/// There is too little left of the lease to start: somebody else may be given the key at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease is over, or about to be")]
pub struct LeaseLost;

/// How a settlement went.
#[derive(Clone, Debug)]
pub enum Settling {
    /// It is recorded, durably: the outcome may be shown.
    Recorded(Arc<Record>),
    /// Another attempt owns the key, or the record is final: nothing was changed. What stands is
    /// the truth for every client.
    Stale(Option<Arc<Record>>),
    /// The store does not answer. It is tried for as long as this process lives; the outcome must
    /// not be shown yet.
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
        let pulse = engine.inner.heart.add(
            operation.id,
            attempt,
            operation.terms,
            asked_at,
            operation.run_max,
        );
        flight.run(operation.fingerprint);
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
            pulse,
            engine: engine.clone(),
        }
    }

    /// The record that it is for.
    #[must_use]
    pub fn id(&self) -> RecordId {
        self.pulse.id
    }

    /// The attempt that it was given to.
    #[must_use]
    pub fn attempt(&self) -> AttemptId {
        self.pulse.attempt
    }

    /// The attempt's fence: pass it on to whoever can refuse lower ones.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The attempt as the operation sees itself.
    #[must_use]
    pub fn as_attempt(&self) -> Attempt {
        Attempt { id: self.id(), attempt: self.attempt(), fence: self.fence }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.engine.inner.clock
    }

    /// Checks the lease immediately before the operation starts, by a clock that also counts while
    /// the machine was suspended.
    ///
    /// # Errors
    /// If less than a quarter of the lease is left, or the engine has stopped: do not start,
    /// [`release`](Self::release) it.
    pub fn start(&self) -> Result<(), LeaseLost> {
        if self.engine.inner.stopped.is_cancelled() {
            return Err(LeaseLost);
        }
        let left = self.pulse.remaining(self.engine.inner.clock.monotonic());
        if left < self.pulse.terms.lease / 4 || left.is_zero() {
            return Err(LeaseLost);
        }
        self.started.store(true, Ordering::Release);
        self.engine.inner.metrics.executed.increment(1);
        Ok(())
    }

    /// What may take as long as `run_max` begins now, whatever was before: it is renewed until then.
    pub(super) fn renew_for(&self, run_max: Duration) {
        self.pulse.run_until(self.engine.inner.clock.monotonic().saturating_add(run_max));
    }

    /// Records the outcome. Show it only if the answer is [`Settling::Recorded`] (S6).
    pub async fn complete(self, recording: Recording) -> Settling {
        self.settle(Verb::Complete(recording)).await
    }

    /// Records a failure that is final.
    pub async fn fail(self, failure: Failure) -> Settling {
        self.settle(Verb::Fail(failure)).await
    }

    /// Decides to release it, unless somebody was promised its outcome
    /// ([`Engine::promise`]); then it must be settled in another way. Once decided, nobody is promised
    /// anything.
    #[must_use]
    pub fn may_release(&self) -> bool {
        self.flying.as_ref().is_some_and(|flying| flying.flight.release())
    }

    /// Lets another attempt run: only if this one is known to have had no effect (S16). If somebody was
    /// promised its outcome, it is recorded as failed instead: see [`may_release`](Self::may_release).
    pub async fn release(self) -> Settling {
        self.settle(Verb::Release).await
    }

    /// Says that it started and that nobody knows how it ended.
    pub async fn unknown(self, cause: Cause) -> Settling {
        self.settle(Verb::Unknown(cause)).await
    }

    /// Settles by any verb; see the others. It is done in a task of its own, so that nobody who goes away can
    /// stop it in the middle.
    pub async fn settle(self, verb: Verb) -> Settling {
        let engine = self.engine.clone();
        let (tell, told) = engine.inner.tasks.channel();
        let settling = self.settle_here(verb).instrument(tracing::Span::current());
        engine.spawn(async move {
            let (settling, rest) = settling.await;
            let _gone = tell.send(settling);
            if let Some(rest) = rest {
                rest.await;
            }
        });
        told.await.unwrap_or(Settling::Pending)
    }

    /// Settles in the operation's own task, which nobody drops. If the store does not answer in time, the task has
    /// to go on with the rest, after it has said that the outcome is pending.
    pub(super) async fn settle_here(
        mut self,
        verb: Verb,
    ) -> (Settling, Option<BoxFuture<'static, ()>>) {
        let Some(mut settling) = self.hand_over(verb) else {
            return (Settling::Pending, None);
        };
        if planted(Bug::AnswerBeforeCommit) {
            let rest = async move { drop(settling.await) };
            return (Settling::Recorded(self.unrecorded()), Some(Box::pin(rest)));
        }
        let patience = self.engine.inner.clock.sleep(self.engine.inner.limits.settle_patience);
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

    /// The verb for an attempt that says nothing more: it had no effect if it never started.
    pub(super) fn verb_if_dropped(&self) -> Verb {
        if self.started.load(Ordering::Acquire) {
            Verb::Unknown(Cause::Interrupted)
        } else {
            Verb::Release
        }
    }

    /// The settlement, which has to be carried out whoever waits for it; `None` if it was handed over before.
    fn hand_over(&mut self, verb: Verb) -> Option<BoxFuture<'static, Settling>> {
        let flying = self.flying.take()?;
        // What rolls back is released when it is unknown.
        let rolls_back = self.pulse.terms.on_unknown == OnUnknown::Rollback;
        let releases = match verb {
            Verb::Release => true,
            Verb::Unknown(_) => rolls_back,
            _ => false,
        };
        let verb =
            if releases && !flying.flight.release() { Verb::Fail(without_outcome()) } else { verb };
        let span = tracing::debug_span!(target: SPANS, "settle", onetake.verb = word(&verb));
        let settlement = Settlement { id: self.pulse.id, attempt: self.pulse.attempt, verb };
        let started = self.started.load(Ordering::Acquire);
        let (engine, pulse) = (self.engine.clone(), Arc::clone(&self.pulse));
        let task = settle(engine, pulse, settlement, flying, started).instrument(span);
        Some(Box::pin(self.engine.inner.settling.track_future(task)))
    }

    /// For a planted bug alone: a record that nobody wrote.
    fn unrecorded(&self) -> Arc<Record> {
        Arc::new(Record {
            id: self.pulse.id,
            attempt: self.pulse.attempt,
            fence: self.fence,
            fingerprint: crate::Fingerprint::of(b""),
            terms: self.pulse.terms,
            origin: crate::Origin::default(),
            created_at: self.engine.inner.clock.now(),
            claimed_at: self.engine.inner.clock.now(),
            history: crate::origin::History::default(),
            state: State::Released { at: self.engine.inner.clock.now() },
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let verb = self.verb_if_dropped();
        if let Some(settling) = self.hand_over(verb) {
            self.engine.spawn(async move { drop(settling.await) });
        }
    }
}

/// What a trace calls a verb.
fn word(verb: &Verb) -> &'static str {
    match verb {
        Verb::Renew => "renew",
        Verb::Complete(_) => "complete",
        Verb::Fail(_) => "fail",
        Verb::Release => "release",
        Verb::Unknown(_) => "unknown",
        Verb::Abandon => "abandon",
        Verb::Defer(_) => "defer",
        Verb::Forget => "forget",
    }
}

/// What the store granted.
pub(crate) struct Granted {
    pub(crate) attempt: AttemptId,
    pub(crate) fence: Fence,
    pub(crate) asked_at: Duration,
}

/// Settles for as long as it takes, then lands the flight.
async fn settle(
    engine: Engine,
    pulse: Arc<Pulse>,
    settlement: Settlement,
    flying: Flying,
    started: bool,
) -> Settling {
    let engine = &engine.inner;
    let mut pause = RETRY_MIN;
    let (settling, landing) = loop {
        let asked_at = engine.clock.monotonic();
        let answer = tokio::select! {
            biased;
            answer = engine.settles.write(settlement.clone()) => answer,
            () = engine.stopped.cancelled() => {
                let what = "the engine stopped before the store answered";
                Err(StoreError::new(StoreErrorKind::Indeterminate, what))
            }
        };
        match answer {
            Ok(Settled::Done { record, now }) => {
                engine.cache.put(&record, now, asked_at);
                // Whoever waited for an attempt that never started may try it themselves.
                let landing = if started {
                    Landing::Record(Arc::clone(&record), now)
                } else {
                    Landing::Nothing
                };
                break (Settling::Recorded(record), landing);
            }
            // Its own transaction completed it (mode T), and this was the look whether it did.
            Ok(Settled::Stale { current: Some(record) })
                if completed_itself(&record, &settlement) =>
            {
                // The answer does not say what time it is in the store, and the outcome may be about to expire. So it is
                // neither remembered nor told to those who wait: they ask the store.
                break (Settling::Stale(Some(record)), Landing::Nothing);
            }
            Ok(Settled::Stale { current }) => {
                engine.metrics.stale.increment(1);
                tracing::warn!(
                    reference = %pulse.id.reference(),
                    "a late settlement changed nothing: another attempt owns the key, or it is settled"
                );
                // By now the key may be in another life, of something else that was asked (S9).
                let is_ours = |record: &Arc<Record>| record.fingerprint == flying.fingerprint;
                break (Settling::Stale(current.filter(is_ours)), Landing::Nothing);
            }
            Err(error) => {
                engine.failed(&error);
                // Whoever waited is not told that the store is away: they could take it for leave to
                // run what has run.
                if engine.stopped.is_cancelled() {
                    engine.could_not_settle(settlement.clone());
                    break (Settling::Pending, Landing::Failed(EngineError::Closing));
                }
                if error.kind() == StoreErrorKind::Corrupt {
                    engine.could_not_settle(settlement.clone());
                    break (Settling::Pending, Landing::Failed(error.into()));
                }
                report(&pulse, &error);
                tokio::select! {
                    biased;
                    () = engine.stopped.cancelled() => {}
                    () = engine.clock.sleep(pause) => {}
                }
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    };
    // Renewed until here, or for as long as it may run: a store that was away for a moment must not
    // let the lease end while the outcome waits.
    engine.heart.remove(&pulse);
    engine.metrics.running.decrement(1);
    match (&settlement.verb, &settling) {
        (Verb::Unknown(cause), Settling::Recorded(record))
            if matches!(record.state, State::Unknown { .. }) =>
        {
            engine.metrics.unknown.increment(1);
            tracing::warn!(
                reference = %pulse.id.reference(), %cause,
                "an operation's outcome is unknown: somebody should look at it"
            );
        }
        (Verb::Fail(failure), Settling::Recorded(record)) if failure.code == UNFINISHED => {
            engine.metrics.unknown.increment(1);
            tracing::error!(
                reference = %pulse.id.reference(), route = %record.origin.route,
                "an operation that completes in its own transaction ended without finishing it: its effects may be there, and its key never runs again. Call finish as the last statement of the transaction, or begin and commit it through InTransaction"
            );
        }
        (Verb::Release | Verb::Unknown(_), Settling::Recorded(_)) => {
            engine.metrics.released.increment(1)
        }
        _ => {}
    }
    engine.flights.land(pulse.id, &flying.flight, landing);
    drop(flying);
    settling
}

/// Whether the attempt that would be let go of has an outcome.
fn completed_itself(record: &Record, settlement: &Settlement) -> bool {
    record.attempt == settlement.attempt
        && record.terms.on_unknown == OnUnknown::Rollback
        && matches!(record.state, State::Completed { .. })
        && !matches!(settlement.verb, Verb::Complete(_))
}

/// What whoever was promised an outcome is told if there is none.
fn without_outcome() -> Failure {
    Failure {
        code: "no_outcome".to_owned(),
        detail: "it ended without an outcome, and had no effect".to_owned(),
    }
}

fn report(pulse: &Pulse, error: &StoreError) {
    tracing::warn!(
        reference = %pulse.id.reference(), %error,
        "an outcome could not be made durable yet; it is tried again"
    );
}
