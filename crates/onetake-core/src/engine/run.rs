//! Runs operations, each in its one task: claim, run, settle.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::record::Cause;

use super::resolve::{Granted, Proceeded, Resolved};
use super::{
    Answer, Attempt, Begin, Engine, EngineError, Lease, Operation, Outcome, Settling, Verdict,
};

/// What an operation does, once it owns its key.
pub trait Work: Send + 'static {
    /// What it leaves for its caller beside the verdict: a response, say.
    type Output: Send + 'static;

    /// Does it, and says what became of it; the engine settles that.
    ///
    /// Call [`Lease::start`] immediately before it can have its first effect. If that is an error, it must have none:
    /// the verdict is [`Verdict::Release`]. Work that panics is unknown if it had started.
    fn run(self, lease: &Lease) -> impl Future<Output = (Verdict, Self::Output)> + Send;
}

/// What [`Engine::execute`] comes to.
#[derive(Debug)]
pub enum Executed<W: Work> {
    /// The work was done here and now, and was settled so. Show its output only if it is recorded (S6).
    Ran(Settling, W::Output),
    /// The work panicked.
    Panicked(Settling),
    /// Somebody else did it: this is known of it. The work is given back.
    Answered(Answer, W),
    /// The engine could not even try, and the work did not begin. It is given back, unless the engine ended with it.
    Failed(EngineError, Option<W>),
}

impl Engine {
    /// Does the work of an operation, or tells what became of it before.
    ///
    /// It is done in a task of its own, which also claims and settles: a caller that goes away neither stops it nor
    /// loses its outcome. Nothing bounds how long it may take but the work itself; its lease is renewed for
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

    /// Claims the operation for the caller to run, or tells what became of it before.
    ///
    /// The future may be dropped at any time: a claim that is granted to nobody is released.
    ///
    /// # Errors
    /// If the engine could not even try; then nobody owns the operation on this caller's behalf.
    pub async fn begin(&self, operation: &Operation) -> Result<Begin, EngineError> {
        match self.resolve(operation, HandOver).await {
            Resolved::Proceeded(lease) => Ok(Begin::Run(lease)),
            Resolved::Answered(answer, _) => Ok(Begin::Answer(answer)),
            Resolved::Failed(error, _) => Err(error),
        }
    }
}

/// Hands the lease to whoever asked for it.
struct HandOver;

impl Granted for HandOver {
    type Told = Lease;

    async fn proceed(self, lease: Lease) -> Proceeded<Lease> {
        Proceeded { told: lease, rest: None }
    }
}

/// Does the work, and settles it.
struct Perform<W>(W);

impl<W: Work> Granted for Perform<W> {
    type Told = (Settling, Option<W::Output>);

    async fn proceed(self, lease: Lease) -> Proceeded<Self::Told> {
        let ran = AssertUnwindSafe(async { self.0.run(&lease).await }).catch_unwind().await;
        let (verb, output) = match ran {
            Ok((verdict, output)) => (verdict.into(), Some(output)),
            Err(_panic) => (lease.verb_if_dropped(), None),
        };
        let (settling, rest) = lease.settle_here(verb).await;
        Proceeded { told: (settling, output), rest }
    }
}

/// A function that may run for so long.
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
