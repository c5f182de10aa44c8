//! Who runs an operation: one loop over what this process knows, what it waits for, and what the store says.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::clock::Timestamp;
use crate::record::{Cause, Record};
use crate::store::Verb;

use super::claim::claim;
use super::flight::{Entered, Flight};
use super::retry::roll_back;
use super::wait::{Next, Patience, elsewhere, interpret, join, settled};
use super::{
    Answer, Attempt, Begin, Engine, EngineError, Lease, Operation, Outcome, SPANS, Settling,
    Verdict,
};

/// Where the claim is waited for.
#[derive(Clone, Copy)]
pub(super) enum Lead {
    /// In a task that nobody can drop.
    Here,
    /// In a task of its own, because the caller may be dropped.
    InTask,
}

pub(super) enum Led {
    Run(Lease),
    Found(Arc<Record>, Timestamp),
}

impl Engine {
    /// What this process knows without asking anybody.
    pub(super) fn known(&self, operation: &Operation) -> Option<Answer> {
        let record = self.inner.cache.get(&operation.id, self.inner.clock.monotonic())?;
        let answer = if operation.recognises(&record.fingerprint) {
            settled(&record)?
        } else {
            Answer::Mismatch
        };
        Some(self.told(answer))
    }

    pub(super) async fn resolve(
        &self,
        operation: &Operation,
        lead: Lead,
    ) -> Result<Begin, EngineError> {
        let inner = &self.inner;
        // The store compares one fingerprint: that of the record, if it was sealed with an earlier secret.
        let mut asking = operation.clone();
        let mut patience = Patience::new(inner, operation.in_flight);
        loop {
            if let Some(answer) = self.known(operation) {
                return Ok(Begin::Answer(answer));
            }
            let next = match inner.flights.enter(operation.id, inner.limits.waiting_per_key_max) {
                Entered::Full => Next::Answer(Answer::InFlight),
                Entered::Leader(flight) => match self.lead(&asking, flight, lead).await? {
                    // How long the store may take for a claim does not bound a rollback.
                    Led::Run(lease) => match &operation.on_retry {
                        Some(hook) => return roll_back(self, lease, hook, operation.run_max).await,
                        None => return Ok(Begin::Run(lease)),
                    },
                    Led::Found(record, now) => interpret(&record, &asking, now),
                },
                Entered::Joiner(phase) => join(&asking, phase, &mut patience).await?,
            };
            let answer = match next {
                Next::Answer(answer) => answer,
                Next::Again => continue,
                Next::Other(found) if operation.recognises(&found) => {
                    asking.fingerprint = found;
                    continue;
                }
                Next::Other(_) => Answer::Mismatch,
                Next::RunsElsewhere => match elsewhere(inner, &asking, &mut patience).await {
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

    pub(super) async fn perform<F, Fut>(
        &self,
        operation: Operation,
        lease: Lease,
        work: F,
    ) -> Outcome
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
