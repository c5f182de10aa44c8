//! Resolution of a request: one loop over the cache, the flights of this process, and the store.
//!
//! A caller whose key has no flight starts the one task that claims, runs and settles the
//! operation. All other callers wait without a task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Span;

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::record::Record;

use super::claim::claim;
use super::flight::{Entered, Flight};
use super::retry::roll_back;
use super::tasks::{Detached, in_span};
use super::wait::{OtherNode, Patience, WaitStep, interpret, join, settled, wait_for_other_node};
use super::{Answer, Begin, Engine, EngineError, Lease, Operation, SPANS};

/// The part of the operation's task that uses a granted lease.
pub(super) trait Granted: Send + 'static {
    /// The answer to the caller in the end.
    type Reply: Send + 'static;

    fn proceed(self, lease: Lease) -> impl Future<Output = Proceeded<Self::Reply>> + Send;
}

/// The result of using a lease.
pub(super) struct Proceeded<T> {
    pub(super) reply: T,
    /// The rest of the task's work after the answer: a settlement that takes long.
    pub(super) rest: Option<BoxFuture<'static, ()>>,
}

/// The result of a request. Work that was not used is returned.
pub(super) enum Resolved<G: Granted> {
    Proceeded(G::Reply),
    Answered(Answer, G),
    /// The work is returned if the caller may run it without a record.
    Failed(EngineError, Option<G>),
}

impl<G: Granted> Resolved<G> {
    /// Drops the work of a failure if the key is known to be taken, so that the caller cannot run the
    /// operation without a record (S10).
    fn if_taken(self, is_taken: bool) -> Self {
        match self {
            Self::Failed(error, _) if is_taken => Self::Failed(error, None),
            resolved => resolved,
        }
    }
}

/// The result of a claim.
pub(super) enum Led {
    Run(Lease),
    Found(Arc<Record>, Timestamp),
}

/// The message of the operation's task to its caller.
enum TaskMessage<G: Granted> {
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
        // True if the key was seen to have a record that excludes another run.
        let mut is_taken = operation.is_taken;
        let mut patience = Patience::new(inner, operation.in_flight);
        loop {
            if let Some(answer) = self.known(operation) {
                return Resolved::Answered(answer, granted);
            }
            let next = match inner.flights.enter(operation.id, inner.limits.waiting_per_key_max) {
                Entered::Full => WaitStep::Answer(Answer::InFlight),
                Entered::Leader(flight) => {
                    match self.lead(operation, asked, flight, granted).await {
                        TaskMessage::Resolved(resolved) => return resolved.if_taken(is_taken),
                        TaskMessage::Found(record, now, unused) => {
                            granted = unused;
                            interpret(&record, &asked, now)
                        }
                    }
                }
                Entered::Joiner(phase) => {
                    match join(&asked, phase, &mut patience, &mut is_taken).await {
                        Ok(next) => next,
                        Err(error) => {
                            return Resolved::Failed(error, Some(granted)).if_taken(is_taken);
                        }
                    }
                }
            };
            let answer = match next {
                WaitStep::Answer(answer) => answer,
                WaitStep::Again => continue,
                WaitStep::Other(found) if operation.recognises(&found) => {
                    (asked, is_taken) = (found, true);
                    continue;
                }
                WaitStep::Other(_) => Answer::Mismatch,
                WaitStep::RunsElsewhere => {
                    match wait_for_other_node(inner, operation.id, &asked, &mut patience).await {
                        OtherNode::Answer(answer) => answer,
                        OtherNode::Again { is_free } => {
                            is_taken = !is_free;
                            continue;
                        }
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

    /// Starts the operation, in a task of its own or in this one, and waits for its message. An
    /// operation in this task gets its own if this future is dropped.
    fn lead<G: Granted>(
        &self,
        operation: &Operation,
        asked: Fingerprint,
        flight: Arc<Flight>,
        granted: G,
    ) -> impl Future<Output = TaskMessage<G>> + Send + use<G> {
        let operation = Operation { fingerprint: asked, ..operation.clone() };
        let (sender, mut receiver) = self.inner.tasks.channel();
        let tracked = self.inner.tracker.token();
        let operation = Arc::new(operation);
        let task = operation_task(tracked, self.clone(), operation, flight, granted, sender);
        // Boxed at once: each wrapper would move the whole future otherwise.
        let task = in_span(Span::current(), Box::pin(task));
        let tasks = &self.inner.tasks;
        let here = if tasks.are_in_callers_task() {
            Some(Detached::new(tasks, task))
        } else {
            tasks.spawn(task);
            None
        };
        async move {
            if let Some(mut here) = here {
                let resolved = poll_fn(|cx| {
                    let polled = Pin::new(&mut here).poll(cx);
                    // The message can be there before the operation has ended: see
                    // `Proceeded::rest`.
                    match receiver.take_now() {
                        Some(reply) => Poll::Ready(Some(reply)),
                        None => polled.map(|()| None),
                    }
                });
                return resolved.await.unwrap_or_else(lost);
            }
            receiver.await.unwrap_or_else(|_| lost())
        }
    }
}

/// The message of an operation that ended without one.
fn lost<G: Granted>() -> TaskMessage<G> {
    TaskMessage::Resolved(Resolved::Failed(EngineError::Closing, None))
}

/// The one task of an operation: claims the key and, if the claim is granted, proceeds with the
/// lease. Shutdown waits until `_tracked` is dropped, which is the last value of this task.
async fn operation_task<G: Granted>(
    _tracked: TaskTrackerToken,
    engine: Engine,
    operation: Arc<Operation>,
    flight: Arc<Flight>,
    granted: G,
    tell: oneshot::Sender<TaskMessage<G>>,
) {
    let begun = match claim_in_time(&engine, &operation, flight).await {
        Ok(Led::Found(record, now)) => {
            let _receiver_dropped = tell.send(TaskMessage::Found(record, now, granted));
            return;
        }
        // The time limit for a claim does not apply to a rollback. Without it nothing runs, not even
        // without a record: the work is not returned.
        Ok(Led::Run(lease)) => match &operation.on_retry {
            Some(hook) => {
                let rolled_back = roll_back(&engine, lease, hook, operation.run_max).await;
                rolled_back.map_err(|error| (error, false))
            }
            None => Ok(Begin::Run(lease)),
        },
        Err(error) => Err((error, true)),
    };
    let (resolved, rest) = match begun {
        Ok(Begin::Run(lease)) => {
            let Proceeded { reply, rest } = granted.proceed(lease).await;
            (Resolved::Proceeded(reply), rest)
        }
        Ok(Begin::Answer(answer)) => (Resolved::Answered(answer, granted), None),
        Err((error, is_returned)) => {
            (Resolved::Failed(error, is_returned.then_some(granted)), None)
        }
    };
    // A lease that the caller no longer waits for is dropped here, and so released.
    let _receiver_dropped = tell.send(TaskMessage::Resolved(resolved));
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
    let claiming = Box::pin(claim(engine.clone(), Arc::clone(operation), flight));
    let mut claiming = in_span(span, claiming);
    tokio::select! {
        biased;
        led = &mut claiming => led,
        () = engine.inner.clock.sleep(engine.inner.limits.claim_patience) => {
            engine.spawn(async move { drop(claiming.await) });
            Err(EngineError::no_answer())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, Verdict, WhileRunning};
    use super::*;
    use crate::key::Key;
    use crate::memory::MemoryStore;
    use crate::record::Recording;
    use crate::scope::Scope;
    use crate::store::Store;
    use tokio::sync::Notify;

    fn operation() -> Operation {
        let key = Key::new("a-key-that-is-long-enough").unwrap();
        Operation::new(&Scope::new("tenant"), &key, Fingerprint::of(b"pay"))
    }

    #[tokio::test]
    async fn an_operation_in_its_callers_task_outlives_the_caller() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let engine = Engine::builder(store).run_in_callers_task().build();
        let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (has_started, may_go) = (Arc::clone(&started), Arc::clone(&go));
        let running = engine.run(operation(), move |_| async move {
            has_started.notify_one();
            may_go.notified().await;
            Verdict::Complete(Recording::new("paid"))
        });
        // The caller goes away as soon as the operation has started.
        tokio::select! {
            biased;
            _ = running => panic!("the operation cannot have ended"),
            () = started.notified() => {}
        }
        go.notify_one();
        let wait = WhileRunning::Wait(std::time::Duration::from_secs(30));
        let again = engine.run(operation().in_flight(wait), |_| async { Verdict::Release }).await;
        let again = again.unwrap();
        assert!(matches!(again, Outcome::Answered(Answer::Replay(_))), "{again:?}");
    }
}
