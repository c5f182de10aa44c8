//! The fourth step of a keyed request: whether its operation may run now, and who runs it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use onetake_core::engine::{EngineError, Executed, Operation, Work};
use onetake_core::{DerivingSecret, Engine, Record, State};

use crate::BoxError;
use crate::accepted::{Awaited, Waiting};
use crate::body::{RequestBody, ResponseBody};
use crate::deadline;
use crate::fail_open;
use crate::identify::Identity;
use crate::issued;
use crate::layer::Shared;
use crate::problem::Problem;
use crate::problem::from_engine::problem_of_error;
use crate::respond::{Refusal, Responder};
use crate::run::{Call, Job};
use crate::trace::Trace;
use crate::velocity::{self, Pass};

/// An operation that may run, unless somebody else runs it or has run it.
pub(crate) struct Admitted {
    identity: Box<Identity>,
    /// Where the route answers 202: how long this client waits.
    waiting: Option<Box<Waiting>>,
    pass: Pass,
    /// `false`: its issued key has expired, and only an outcome that is recorded already may be shown.
    may_run: bool,
}

impl Identity {
    /// Checks what could keep the operation from running: its deadline, the expiry of its key, and limits on new
    /// operations.
    pub(crate) async fn admit(self: Box<Self>, shared: &Shared) -> Result<Admitted, Refusal> {
        if self.head.is_over(&**shared.engine.clock()) {
            return Err(self.refused(deadline::over()));
        }
        let may_run = self.may_run(shared).await?;
        let waiting = Waiting::of(&self, shared).map(Box::new);
        let Self { head, payload, operation, .. } = &*self;
        let pass = velocity::pass(shared, &head.policy, &head.scope, payload, operation).await;
        let pass = pass.map_err(|problem| self.refused(problem))?;
        Ok(Admitted { identity: self, waiting, pass, may_run })
    }

    /// Whether it may run although its key has expired. The expiry of an issued key counts only while there is no
    /// record (S15), and none is being made: an attempt of this process is known before its record is.
    async fn may_run(&self, shared: &Shared) -> Result<bool, Refusal> {
        let (engine, id) = (&shared.engine, self.operation.id);
        if !self.head.is_expired(&**engine.clock()) {
            return Ok(true);
        }
        let was_under_way = engine.is_under_way(id);
        match engine.look(id).await {
            Ok(Some(record)) => Ok(!is_final(&record)),
            Ok(None) if was_under_way || engine.is_under_way(id) => Ok(true),
            Ok(None) => Err(self.refused(issued::invalid())),
            Err(error) => Err(self.refused(problem_of_error(&error, id.reference()))),
        }
    }

    fn refused(&self, problem: Problem) -> Refusal {
        Refusal::new(&self.head.policy, problem).reference(self.operation.id.reference())
    }
}

fn is_final(record: &Record) -> bool {
    matches!(record.state, State::Completed { .. } | State::Failed { .. })
}

impl Admitted {
    /// Runs the operation, or finds out what became of it before; and answers.
    pub(crate) async fn execute<S, Req, Res>(
        self,
        shared: &Arc<Shared>,
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
        let Self { identity, waiting, pass, may_run } = self;
        let Identity { head, parts, payload, place, key, mut operation } = *identity;
        let (engine, policy) = (&shared.engine, Arc::clone(&head.policy));
        let reference = operation.id.reference();
        let respond = Responder { shared, trace, policy: &policy, id: operation.id };
        let call = Box::new(Call { head, parts, data: payload.into_data(), key });
        // Whoever goes away before the operation starts does not want it any more.
        let client = Arc::new(());
        let mut job = Job::new(inner, call, shared, trace, &client);
        (job.place, job.pass, job.may_run) = (Some(place), pass.clone(), may_run);
        job.kept_from = waiting.as_ref().map(|waiting| waiting.due);
        let asking = pass.asking();
        let awaited = match deriving(shared, &pass).await {
            Err(error) => Awaited::Executed(Executed::Failed(error, Some(job))),
            Ok(secret) => {
                let Call { head, parts, key, .. } = &*job.call;
                operation.origin.memo = head.memo(key, secret, &parts.headers);
                ask(engine, &mut operation, job, waiting.as_deref()).await
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
            Executed::Failed(error, Some(job))
                if fail_open::is_chosen(engine, &policy, reference, &error) =>
            {
                pass.keep();
                fail_open::run(job, &respond).await
            }
            Executed::Failed(error, _) => Ok(respond.problem(problem_of_error(&error, reference))),
        }
    }
}

/// Has the engine run the operation, or tell what became of it before.
async fn ask<'a, S, Req>(
    engine: &Engine,
    operation: &mut Operation,
    mut job: Job<S, Req>,
    waiting: Option<&'a Waiting>,
) -> Awaited<'a, Job<S, Req>>
where
    Job<S, Req>: Work,
{
    let Some(waiting) = waiting else {
        return Awaited::Executed(engine.execute(operation, job).await);
    };
    let (tell, started) = oneshot::channel();
    job.started = Some(tell);
    // Boxed, so that other routes do not have to hold it.
    Box::pin(waiting.execute(engine, operation, job, started)).await
}

/// The secret for derived keys: what is run must be able to pass a key on, so that is known first.
async fn deriving<'a>(shared: &'a Shared, pass: &Pass) -> Result<&'a DerivingSecret, EngineError> {
    match pass.store_error() {
        Some(error) => Err(error),
        None => shared.deriving().await,
    }
}
