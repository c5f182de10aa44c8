//! The fourth step of a keyed request: admission, and execution by the engine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use onetake_core::engine::{EngineError, Executed, Operation, Work};
use onetake_core::{Clock, DerivingSecret, Engine, Record, State};

use crate::BoxError;
use crate::accepted::{AsyncWait, Awaited};
use crate::body::{RequestBody, ResponseBody};
use crate::deadline::{self, Deadline};
use crate::duplicates::{self, PayloadGuard};
use crate::fail_open;
use crate::identify::Identity;
use crate::issued;
use crate::layer::LayerState;
use crate::problem::Problem;
use crate::problem::from_engine::problem_of_error;
use crate::respond::{Refusal, Responder, pending};
use crate::run::{Client, InnerCall, OperationWork};
use crate::trace::Trace;
use crate::velocity::{self, Pass};

/// An operation that may run, unless another request runs it or it has an outcome already.
pub(crate) struct Admitted {
    identity: Box<Identity>,
    /// The wait of this client, if the route answers 202.
    waiting: Option<Box<AsyncWait>>,
    pass: Pass,
    payload: PayloadGuard,
    /// False if the issued key has expired and the operation has an outcome. The outcome may be
    /// shown, but nothing runs.
    may_run: bool,
}

impl Identity {
    /// Checks the conditions of a run: the deadline, the expiry of an issued key, and the limits on
    /// new operations. The checks may ask the store, for no longer than until the deadline.
    pub(crate) async fn admit(self: Box<Self>, shared: &LayerState) -> Result<Admitted, Refusal> {
        let clock = &**shared.engine.clock();
        if self.head.is_over(clock) {
            return Err(self.refused(deadline::exceeded()));
        }
        let Some(deadline) = self.head.deadline else {
            return self.check(shared).await;
        };
        let late = self.refused(deadline::exceeded());
        tokio::select! {
            biased;
            checked = self.check(shared) => checked,
            () = clock.sleep(deadline.left(clock)) => Err(late),
        }
    }

    async fn check(self: Box<Self>, shared: &LayerState) -> Result<Admitted, Refusal> {
        let found = self.find_record(shared).await?;
        let waiting = AsyncWait::of(&self, shared).map(Box::new);
        let Self { head, parts, limits, operation, .. } = &*self;
        let (policy, scope) = (&head.policy, &head.scope);
        let guard = duplicates::check(shared, policy, scope, &parts.headers, operation).await;
        let guard = guard.map_err(|problem| self.refused(problem))?;
        let pass = velocity::pass(shared, policy, limits, operation).await;
        let pass = pass.map_err(|problem| self.refused(problem))?;
        let may_run = found.as_deref().is_none_or(may_run_again);
        Ok(Admitted { identity: self, waiting, pass, payload: guard, may_run })
    }

    /// Returns the record of an issued key that has expired. Other keys are not looked up.
    ///
    /// The expiry of an issued key counts only if the key has no record (S15) and none is about to
    /// be written. An attempt of this process is known before its record is written.
    async fn find_record(&self, shared: &LayerState) -> Result<Option<Arc<Record>>, Refusal> {
        let (engine, id) = (&shared.engine, self.operation.id);
        if !self.head.is_expired(&**engine.clock()) {
            return Ok(None);
        }
        let was_under_way = engine.is_under_way(id);
        match engine.look(id).await {
            Ok(None) if !was_under_way && !engine.is_under_way(id) => {
                Err(self.refused(issued::invalid()))
            }
            Ok(found) => Ok(found),
            Err(error) => Err(self.refused(problem_of_error(&error, id.reference()))),
        }
    }

    fn refused(&self, problem: Problem) -> Refusal {
        Refusal::new(&self.head.policy, problem).reference(self.operation.id.reference())
    }
}

/// False if the record has an outcome, or stays unknown. Such a record may expire between this look
/// and a claim, and nothing may run under its key then (S15).
fn may_run_again(record: &Record) -> bool {
    let stays_unknown =
        matches!(record.state, State::Unknown { .. }) && !record.terms.on_unknown.runs_again();
    !is_final(record) && !stays_unknown
}

pub(crate) fn is_final(record: &Record) -> bool {
    matches!(record.state, State::Completed { .. } | State::Failed { .. })
}

impl Admitted {
    /// Runs the operation or finds its earlier outcome, and answers.
    pub(crate) async fn execute<S, Req, Res>(
        self,
        shared: &Arc<LayerState>,
        inner: S,
        trace: &Arc<Trace>,
    ) -> Result<Response<ResponseBody<Res>>, S::Error>
    where
        S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        Req: Send + 'static,
        Res: Body<Data = Bytes> + Send + 'static,
        Res::Error: Into<BoxError> + Send,
    {
        let Self { identity, waiting, pass, payload: guard, may_run } = self;
        let Identity { head, parts, data, trailers, place, key, mut operation, .. } = *identity;
        let (engine, policy) = (&shared.engine, Arc::clone(&head.policy));
        operation.is_taken = pass.is_taken();
        let reference = operation.id.reference();
        let respond = Responder { shared, trace, policy: &policy, id: operation.id };
        let call = Box::new(InnerCall { head, parts, data, trailers, key });
        // If the client disconnects before the operation starts, the operation does not run: it
        // watches this value.
        let client = Arc::<Client>::default();
        let deadline = call.head.deadline;
        let mut job = OperationWork::new(inner, call, shared, trace, &client);
        (job.place, job.pass, job.may_run) = (Some(place), pass.clone(), may_run);
        job.payload = guard;
        job.kept_from = waiting.as_ref().map(|waiting| waiting.due);
        let asking = pass.asking();
        let awaiting = async {
            match deriving(shared, &pass).await {
                Err(error) => {
                    let unused = (!operation.is_taken).then_some(job);
                    Awaited::Executed(Executed::Failed(error, unused))
                }
                Ok(secret) => {
                    let InnerCall { head, parts, key, .. } = &*job.call;
                    operation.origin.memo = head.memo(key, secret, &parts.headers);
                    ask(engine, &mut operation, job, waiting.as_deref()).await
                }
            }
        };
        let awaited = tokio::select! {
            biased;
            awaited = awaiting => awaited,
            () = passes(deadline, &client, &**engine.clock()) => {
                // The operation's task goes on. It does not start any more, or records its outcome.
                let problem = if client.leave() { deadline::exceeded() } else { pending() };
                return Ok(respond.problem(problem));
            }
        };
        asking.answered();
        let executed = match awaited {
            Awaited::Accepted(waiting) => return Ok(respond.accepted(waiting)),
            Awaited::Executed(executed) => executed,
        };
        match executed {
            Executed::Ran(settling, (ran, _place)) => respond.ran(&settling, ran),
            Executed::Panicked(_) => Ok(respond.panicked_in_the_middle()),
            Executed::Answered(answer, _) => Ok(respond.answer(&answer)),
            Executed::Failed(error, Some(job)) if fail_open::is_open(&policy, &error) => {
                fail_open::run(job, pass, &error, &respond).await
            }
            Executed::Failed(error, _) => Ok(respond.problem(problem_of_error(&error, reference))),
        }
    }
}

/// The longest time after the client's deadline in which the outcome of a started attempt may still
/// be recorded before the client is answered. Usually that takes a few milliseconds.
const SETTLE_GRACE: Duration = Duration::from_millis(100);

/// Waits until the deadline passes. After the start of the attempt, its settlement gets
/// [`SETTLE_GRACE`] in addition.
async fn passes(deadline: Option<Deadline>, client: &Client, clock: &dyn Clock) {
    let Some(deadline) = deadline else {
        return std::future::pending().await;
    };
    clock.sleep(deadline.left(clock)).await;
    if client.has_started() {
        clock.sleep(SETTLE_GRACE).await;
    }
}

/// Asks the engine to run the operation, or for its earlier outcome.
async fn ask<'a, S, Req>(
    engine: &Engine,
    operation: &mut Operation,
    mut job: OperationWork<S, Req>,
    waiting: Option<&'a AsyncWait>,
) -> Awaited<'a, OperationWork<S, Req>>
where
    OperationWork<S, Req>: Work,
{
    let Some(waiting) = waiting else {
        return Awaited::Executed(engine.execute(operation, job).await);
    };
    let (tell, started) = oneshot::channel();
    job.started = Some(tell);
    // Boxed, so that the futures of other routes do not hold it.
    Box::pin(waiting.execute(engine, operation, job, started)).await
}

/// Returns the secret for derived keys. It is read before the claim, because every run must be able
/// to pass a derived key on.
async fn deriving<'a>(
    shared: &'a LayerState,
    pass: &Pass,
) -> Result<&'a DerivingSecret, EngineError> {
    match pass.store_error() {
        Some(error) => Err(error),
        None => shared.deriving().await,
    }
}
