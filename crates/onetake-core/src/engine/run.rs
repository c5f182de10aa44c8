//! Execution of operations, each in one task: claim, run, settle.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::record::Cause;

use super::resolve::{Granted, Proceeded, Resolved};
use super::{
    Answer, Attempt, Begin, Engine, EngineError, Lease, Operation, Outcome, Settling, Verdict,
};

/// The work of an operation that owns its key.
pub trait Work: Send + 'static {
    /// The value for the caller beside the verdict, such as a response.
    type Output: Send + 'static;

    /// Does the work and returns its verdict, which the engine settles.
    ///
    /// Call [`Lease::start`] immediately before the work can have its first effect. If that returns
    /// an error, the work must have no effect, and the verdict is [`Verdict::Release`]. Work that
    /// panics after its start is unknown.
    fn run(self, lease: &Lease) -> impl Future<Output = (Verdict, Self::Output)> + Send;
}

/// The result of [`Engine::execute`].
#[derive(Debug)]
pub enum Executed<W: Work> {
    /// The work ran now, with this settlement. Show its output only if it is recorded (S6).
    Ran(Settling, W::Output),
    /// The work panicked.
    Panicked(Settling),
    /// The work did not run for this caller: the answer. The work is returned.
    Answered(Answer, W),
    /// The engine could not start, and the work did not begin. The work is returned, unless it was
    /// lost when the engine stopped, an earlier attempt has to be rolled back first
    /// ([`OnRetry`](super::OnRetry)) and that could not begin, or the key is known to be taken.
    Failed(EngineError, Option<W>),
}

impl Engine {
    /// Runs the work of an operation, or returns the answer of an earlier attempt.
    ///
    /// One task claims, runs and settles: a caller that is dropped neither stops the work nor loses
    /// its outcome. Only the work itself limits its duration; its lease is renewed for
    /// [`Operation::run_max`].
    pub async fn execute<W: Work>(&self, operation: &Operation, work: W) -> Executed<W> {
        match self.resolve(operation, Perform(work)).await {
            Resolved::Proceeded((settling, Some(output))) => Executed::Ran(settling, output),
            Resolved::Proceeded((settling, None)) => Executed::Panicked(settling),
            Resolved::Answered(answer, Perform(work)) => Executed::Answered(answer, work),
            Resolved::Failed(error, unused) => {
                Executed::Failed(error, unused.map(|Perform(work)| work))
            }
        }
    }

    /// Runs the operation, or returns the answer of an earlier attempt.
    ///
    /// It runs in its own task: a caller that is dropped neither stops it nor loses its outcome.
    /// The outcome is unknown if the operation panics, or takes longer than `run_max` and is
    /// dropped.
    ///
    /// # Errors
    /// If the engine could not start; then the operation did not run.
    pub async fn run<F, Fut>(&self, operation: Operation, work: F) -> Result<Outcome, EngineError>
    where
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Verdict> + Send + 'static,
    {
        let work = Bounded { work, run_max: operation.run_max };
        match self.execute(&operation, work).await {
            Executed::Ran(settling, HasStarted(true)) | Executed::Panicked(settling) => {
                Ok(Outcome::Ran(settling))
            }
            Executed::Ran(Settling::Pending, _) => Ok(Outcome::Ran(Settling::Pending)),
            Executed::Ran(..) => Ok(Outcome::Answered(Answer::InFlight)),
            Executed::Answered(answer, _) => Ok(Outcome::Answered(answer)),
            Executed::Failed(error, _) => Err(error),
        }
    }

    /// Claims the operation for the caller to run, or returns the answer of an earlier attempt.
    ///
    /// The future may be dropped at any time: a claim that is granted afterwards is released.
    ///
    /// # Errors
    /// If the engine could not start; then this caller does not own the operation.
    pub async fn begin(&self, operation: &Operation) -> Result<Begin, EngineError> {
        match self.resolve(operation, HandOver).await {
            Resolved::Proceeded(lease) => Ok(Begin::Run(lease)),
            Resolved::Answered(answer, _) => Ok(Begin::Answer(answer)),
            Resolved::Failed(error, _) => Err(error),
        }
    }
}

/// Hands the lease to the caller.
struct HandOver;

impl Granted for HandOver {
    type Reply = Lease;

    async fn proceed(self, lease: Lease) -> Proceeded<Lease> {
        Proceeded { reply: lease, rest: None }
    }
}

/// Runs the work and settles it.
struct Perform<W>(W);

impl<W: Work> Granted for Perform<W> {
    type Reply = (Settling, Option<W::Output>);

    async fn proceed(self, lease: Lease) -> Proceeded<Self::Reply> {
        let ran = AssertUnwindSafe(async { self.0.run(&lease).await }).catch_unwind().await;
        let (transition, output) = match ran {
            Ok((verdict, output)) => (verdict.into(), Some(output)),
            Err(_panic) => (lease.transition_if_dropped(), None),
        };
        let (settling, rest) = lease.settle_here(transition).await;
        Proceeded { reply: (settling, output), rest }
    }
}

/// A function with a maximum duration.
struct Bounded<F> {
    work: F,
    run_max: Duration,
}

struct HasStarted(bool);

impl<F, Fut> Work for Bounded<F>
where
    F: FnOnce(Attempt) -> Fut + Send + 'static,
    Fut: Future<Output = Verdict> + Send + 'static,
{
    type Output = HasStarted;

    async fn run(self, lease: &Lease) -> (Verdict, HasStarted) {
        if lease.start().is_err() {
            return (Verdict::Release, HasStarted(false));
        }
        let verdict = tokio::select! {
            biased;
            verdict = (self.work)(lease.as_attempt()) => verdict,
            () = lease.clock().sleep(self.run_max) => Verdict::Unknown(Cause::TimedOut),
        };
        (verdict, HasStarted(true))
    }
}
