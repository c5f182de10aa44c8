//! Keyed requests that run without a record, because the store is unreachable and the route is
//! fail-open.
//!
//! Such a route accepts that an operation can run twice, rather than not at all (S10).

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;
use tracing::Instrument;

use onetake_core::engine::EngineError;

use crate::BoxError;
use crate::body::{RequestBody, ResponseBody};
use crate::context::OperationContext;
use crate::deadline;
use crate::identify::remove_attempt;
use crate::policy::{OnStoreDown, Policy};
use crate::problem::from_engine::problem_of_error;
use crate::problem::{Code, Problem, insert_reference};
use crate::recording::ONETAKE_OUTCOME;
use crate::respond::Responder;
use crate::run::{InnerCall, OperationWork};
use crate::velocity::Pass;

/// The sentence about a retry in problems of operations that ran without a record.
const UNRECORDED: &str = "The idempotency store is unavailable, so nothing was recorded: a retry runs the operation again.";

/// Returns true if the route is fail-open and the error means that the store is unavailable.
pub(crate) fn is_open(policy: &Policy, error: &EngineError) -> bool {
    policy.on_store_down == OnStoreDown::FailOpen && error.is_store_down()
}

/// Returns a problem if the operation must not run although the route is fail-open.
fn obstacle<S, Req>(
    job: &OperationWork<S, Req>,
    error: &EngineError,
    respond: &Responder<'_>,
) -> Option<Problem> {
    let clock = &**respond.shared.engine.clock();
    // The client does not wait any more, so that a run would only have effects.
    if job.call.head.is_over(clock) {
        return Some(deadline::exceeded());
    }
    // The issued key has expired, or the operation has an outcome (S15). Or this process has the key
    // (S10): the engine may not have been asked.
    let is_taken = respond.shared.engine.is_taken_here(respond.id);
    if !job.may_run || is_taken || job.call.head.is_expired(clock) {
        return Some(problem_of_error(error, respond.id.reference()));
    }
    job.misfit()
}

/// Runs the operation in a task of its own, which outlives its client, unless there is an obstacle.
/// No record is kept of it. `error` says that the store is unavailable.
pub(crate) async fn run<S, Req, Res>(
    mut job: OperationWork<S, Req>,
    pass: Pass,
    error: &EngineError,
    respond: &Responder<'_>,
) -> Result<Response<ResponseBody<Res>>, S::Error>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError> + Send,
{
    let (engine, reference) = (&respond.shared.engine, respond.id.reference());
    if let Some(problem) = obstacle(&job, error, respond) {
        return Ok(respond.problem(problem));
    }
    // A node that ends or has too much to do was perhaps not asked: the store's error came first.
    let bypass = match engine.bypass() {
        Ok(bypass) => bypass,
        Err(error) => return Ok(respond.problem(problem_of_error(&error, reference))),
    };
    tracing::warn!(
        route = respond.policy.label, %reference, %error,
        "the store is unreachable and the route is fail-open: an operation runs without a record, so a retry runs it again"
    );
    respond.trace.keyed("bypassed", reference, None);
    // The counts are kept. The decision is not: requests with the same key during the run find out
    // anew whether the store is unreachable.
    pass.keep();
    job.payload.set_kept(true);
    drop((pass, std::mem::take(&mut job.pass)));
    let OperationWork { mut inner, call, place, shared, .. } = job;
    let clock = Arc::clone(shared.engine.clock());
    // The client's deadline counts on async routes too: an unrecorded outcome cannot be fetched
    // later.
    let run_max = call.head.within(call.head.policy.upstream_timeout, &*clock);
    let InnerCall { head, mut parts, data, trailers, key } = *call;
    let derived_key = shared.deriving_now().map(|secret| secret.derive(&head.scope, &key));
    let time_left = head.deadline.map(|deadline| deadline.pass_on(&mut parts.headers, &*clock));
    let place = place.map(Arc::new);
    let memory = place.as_ref().map(Arc::downgrade).unwrap_or_default();
    let context = OperationContext::new(key, derived_key).with_time_left(time_left);
    let context = context.with_memory(memory);
    remove_attempt(&mut parts);
    context.attach(&mut parts);
    let request = Request::from_parts(*parts, RequestBody::read(data, trailers));
    let (sender, receiver) = oneshot::channel();
    let work = async move {
        let called = tokio::select! {
            biased;
            called = inner.call(request) => Some(called),
            () = clock.sleep(run_max) => None,
        };
        drop((place, bypass));
        let _receiver_dropped = sender.send(called);
    };
    shared.engine.spawn(work.instrument(respond.trace.span()));
    match receiver.await {
        Ok(Some(Ok(mut response))) => {
            response.headers_mut().remove(ONETAKE_OUTCOME);
            insert_reference(response.headers_mut(), reference);
            Ok(response.map(ResponseBody::untouched))
        }
        Ok(Some(Err(error))) => Err(error),
        Ok(None) => {
            let detail = format!(
                "The operation exceeded its time limit. Its outcome is unknown. {UNRECORDED}"
            );
            let problem = Problem::new(Code::UpstreamTimeout, detail);
            Ok(respond.problem(problem.retryable(false)))
        }
        Err(_panicked) => Ok(respond.panicked(UNRECORDED, false)),
    }
}
