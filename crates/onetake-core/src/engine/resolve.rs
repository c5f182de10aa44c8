//! Resolution of a request: one loop over the cache, the flights of this process, and the store.
//!
//! A caller whose key has no flight starts the one task that claims, runs and settles the
//! operation. All other callers wait without a task.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::record::Record;

use super::claim::claim;
use super::flight::{Entered, Flight};
use super::retry::roll_back;
use super::wait::{Patience, WaitStep, interpret, join, settled, wait_for_other_node};
use super::{Answer, Begin, Engine, EngineError, Lease, Operation, SPANS};

/// The part of the operation's task that uses a granted lease.
pub(super) trait Granted: Send + 'static {
    /// The answer to the caller in the end.
    type Told: Send + 'static;

    fn proceed(self, lease: Lease) -> impl Future<Output = Proceeded<Self::Told>> + Send;
}

/// The result of using a lease.
pub(super) struct Proceeded<T> {
    pub(super) told: T,
    /// The rest of the task's work after the answer: a settlement that takes long.
    pub(super) rest: Option<BoxFuture<'static, ()>>,
}

/// The result of a request. Work that was not used is returned.
pub(super) enum Resolved<G: Granted> {
    Proceeded(G::Told),
    Answered(Answer, G),
    Failed(EngineError, Option<G>),
}

/// The result of a claim.
pub(super) enum Led {
    Run(Lease),
    Found(Arc<Record>, Timestamp),
}

/// The message of the operation's task to its caller.
enum Told<G: Granted> {
    Resolved(Resolved<G>),
    Found(Arc<Record>, Timestamp, G),
}

impl Engine {
    /// Returns the answer from the cache of this process.
    pub(super) fn known(&self, operation: &Operation) -> Option<Answer> {
        let record = self.inner.cache.get(&operation.id, self.inner.clock.monotonic())?;
        let answer = if operation.recognises(&record.fingerprint) {
            settled(&record)?
        } else {
            Answer::Mismatch
        };
        Some(self.counted(answer))
    }

    pub(super) async fn resolve<G: Granted>(
        &self,
        operation: &Operation,
        mut granted: G,
    ) -> Resolved<G> {
        let inner = &self.inner;
        // The store compares one fingerprint. If the record was sealed with an earlier secret, that
        // fingerprint is sent.
        let mut asked = operation.fingerprint;
        let mut patience = Patience::new(inner, operation.in_flight);
        loop {
            if let Some(answer) = self.known(operation) {
                return Resolved::Answered(answer, granted);
            }
            let next = match inner.flights.enter(operation.id, inner.limits.waiting_per_key_max) {
                Entered::Full => WaitStep::Answer(Answer::InFlight),
                Entered::Leader(flight) => {
                    match self.lead(operation, asked, flight, granted).await {
                        Told::Resolved(resolved) => return resolved,
                        Told::Found(record, now, unused) => {
                            granted = unused;
                            interpret(&record, &asked, now)
                        }
                    }
                }
                Entered::Joiner(phase) => match join(&asked, phase, &mut patience).await {
                    Ok(next) => next,
                    Err(error) => return Resolved::Failed(error, Some(granted)),
                },
            };
            let answer = match next {
                WaitStep::Answer(answer) => answer,
                WaitStep::Again => continue,
                WaitStep::Other(found) if operation.recognises(&found) => {
                    asked = found;
                    continue;
                }
                WaitStep::Other(_) => Answer::Mismatch,
                WaitStep::RunsElsewhere => {
                    match wait_for_other_node(inner, operation.id, &asked, &mut patience).await {
                        Some(answer) => answer,
                        None => continue,
                    }
                }
            };
            return Resolved::Answered(self.counted(answer), granted);
        }
    }

    /// Counts an answer in the metrics.
    fn counted(&self, answer: Answer) -> Answer {
        let metrics = &self.inner.metrics;
        match &answer {
            Answer::Replay(completed) => self.replayed(completed.record()),
            Answer::Failed(failed) => self.replayed(failed.record()),
            Answer::InFlight => metrics.in_flight.increment(1),
            Answer::WaitTimeout => metrics.wait_timeouts.increment(1),
            Answer::Mismatch => metrics.mismatches.increment(1),
            Answer::Unknown(_) => metrics.unknown_answers.increment(1),
        }
        answer
    }

    fn replayed(&self, record: &Record) {
        self.inner.metrics.replayed.increment(1);
        self.inner.replays.count(record, self.inner.clock.now());
    }

    /// Starts the operation's own task, and waits for its message.
    fn lead<G: Granted>(
        &self,
        operation: &Operation,
        asked: Fingerprint,
        flight: Arc<Flight>,
        granted: G,
    ) -> impl Future<Output = Told<G>> + Send + use<G> {
        let operation = Operation { fingerprint: asked, ..operation.clone() };
        let (sender, receiver) = self.inner.tasks.channel();
        let task = operation_task(self.clone(), Arc::new(operation), flight, granted, sender);
        self.spawn(task.instrument(tracing::Span::current()));
        async move {
            let lost = || Told::Resolved(Resolved::Failed(EngineError::Closing, None));
            receiver.await.unwrap_or_else(|_| lost())
        }
    }
}

/// The one task of an operation: claims the key and, if the claim is granted, proceeds with the
/// lease.
async fn operation_task<G: Granted>(
    engine: Engine,
    operation: Arc<Operation>,
    flight: Arc<Flight>,
    granted: G,
    tell: oneshot::Sender<Told<G>>,
) {
    let begun = match claim_in_time(&engine, &operation, flight).await {
        Ok(Led::Found(record, now)) => {
            let _receiver_dropped = tell.send(Told::Found(record, now, granted));
            return;
        }
        // The time limit for a claim does not apply to a rollback.
        Ok(Led::Run(lease)) => match &operation.on_retry {
            Some(hook) => roll_back(&engine, lease, hook, operation.run_max).await,
            None => Ok(Begin::Run(lease)),
        },
        Err(error) => Err(error),
    };
    let (resolved, rest) = match begun {
        Ok(Begin::Run(lease)) => {
            let Proceeded { told, rest } = granted.proceed(lease).await;
            (Resolved::Proceeded(told), rest)
        }
        Ok(Begin::Answer(answer)) => (Resolved::Answered(answer, granted), None),
        Err(error) => (Resolved::Failed(error, Some(granted)), None),
    };
    // A lease that the caller no longer waits for is dropped here, and so released.
    let _receiver_dropped = tell.send(Told::Resolved(resolved));
    if let Some(rest) = rest {
        rest.await;
    }
}

/// Claims the key. A claim that takes too long goes on in a task of its own, which releases its
/// lease.
async fn claim_in_time(
    engine: &Engine,
    operation: &Arc<Operation>,
    flight: Arc<Flight>,
) -> Result<Led, EngineError> {
    let span = tracing::debug_span!(target: SPANS, "claim");
    let claiming = claim(engine.clone(), Arc::clone(operation), flight).instrument(span);
    let mut claiming = Box::pin(claiming);
    tokio::select! {
        biased;
        led = &mut claiming => led,
        () = engine.inner.clock.sleep(engine.inner.limits.claim_patience) => {
            engine.spawn(async move { drop(claiming.await) });
            Err(EngineError::no_answer())
        }
    }
}
