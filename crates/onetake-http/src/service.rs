//! The service: from a request to its one outcome.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;
use tracing::Instrument;

use onetake_core::engine::Answer;
use onetake_core::{Key, Record, Reference, State};

use crate::BoxError;
use crate::admit::{Admitted, admit};
use crate::asked::Asked;
use crate::body::{RequestBody, ResponseBody};
use crate::extract::Layered;
use crate::issued::TOKENS;
use crate::later::{self, OPERATIONS};
use crate::layer::Shared;
use crate::policy::Policy;
use crate::problem::{Code, DOCUMENTATION, Problem};
use crate::recording::{ONETAKE_OUTCOME, replay};
use crate::run::Reply;
use crate::said::{in_progress, problem_of};
use crate::tokens::tokens;
use crate::trace::Trace;

/// Tells the inner service which attempt this is: a number that is higher for every later one.
pub const IDEMPOTENCY_FENCE: HeaderName = HeaderName::from_static("idempotency-fence");
/// The key for the inner service's own calls, the same in every attempt; never taken from a client.
pub const IDEMPOTENCY_DERIVED_KEY: HeaderName = HeaderName::from_static("idempotency-derived-key");

/// A service that is safe to retry.
#[derive(Clone)]
pub struct Onetake<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Onetake<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<S> std::fmt::Debug for Onetake<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Onetake").finish_non_exhaustive()
    }
}

impl<S, Req, Res> Service<Request<Req>> for Onetake<S>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Req: Body<Data = Bytes> + Send + 'static,
    Req::Error: Send,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError> + Send,
{
    type Response = Response<ResponseBody<Res>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        // The one that was polled ready is the one that is called.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        // Begun here and not when it is first polled: whoever calls may have said under what.
        let trace = Trace::begin(request.method());
        let span = trace.span();
        let answering = async move {
            let answer = answer(inner, &shared, request, &trace).await;
            trace.answered(&answer);
            answer
        };
        Box::pin(answering.instrument(span))
    }
}

async fn answer<S, Req, Res>(
    mut inner: S,
    shared: &Arc<Shared>,
    request: Request<Req>,
    trace: &Trace,
) -> Result<Response<ResponseBody<Res>>, S::Error>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Req: Body<Data = Bytes> + Send + 'static,
    Req::Error: Send,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError> + Send,
{
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(Layered);
    let is_inside = parts.extensions.get::<Key>().is_some();
    if parts.method == Method::GET && parts.uri.path() == DOCUMENTATION {
        trace.became("documentation");
        return Ok(documentation());
    }
    if parts.method == Method::POST && parts.uri.path() == TOKENS && shared.issues_keys() {
        trace.route("POST /idempotency-tokens");
        trace.became("issued");
        let response = tokens(shared, &parts, body).await;
        return Ok(response.map(|body| ResponseBody::whole(body, None)));
    }
    if parts.method == Method::GET
        && let Some(handle) = parts.uri.path().strip_prefix(OPERATIONS)
    {
        trace.route("GET /.onetake/operations/{handle}");
        trace.became("looked_up");
        return Ok(later::look(shared, &parts, handle).await);
    }
    let keyed = match Asked::of(shared, &parts, trace).await {
        Ok(keyed) => keyed,
        Err(((problem, reference), policy)) => {
            return Ok(told(trace, &policy, problem, reference));
        }
    };
    let Some(asked) = keyed else {
        if !is_inside {
            // There is no attempt, so nobody may name one.
            parts.headers.remove(IDEMPOTENCY_FENCE);
            parts.headers.remove(IDEMPOTENCY_DERIVED_KEY);
        }
        trace.became("passed_on");
        let untouched = Request::from_parts(parts, RequestBody::untouched(body));
        return Ok(passed_on(inner.call(untouched).await?, is_inside));
    };
    let policy = Arc::clone(&asked.policy);
    match admit(shared, asked, parts, body).await {
        Err((problem, reference)) => Ok(told(trace, &policy, problem, reference)),
        Ok(Admitted::Passing(request, _place)) => {
            trace.became("passed_on");
            Ok(passed_on(inner.call(request).await?, is_inside))
        }
        Ok(Admitted::Replay(record)) => Ok(replayed(shared, trace, &policy, &record)),
        Ok(Admitted::Later(later)) => {
            trace.keyed("accepted", later.operation.id.reference(), None);
            Ok(later.accepted())
        }
        Ok(Admitted::Run(run, later)) => {
            let (clock, reference) = (Arc::clone(shared.engine.clock()), run.reference);
            trace.keyed("executed", reference, Some(run.lease.fence()));
            let types = Arc::clone(shared);
            let work = async move { run.perform(inner, &*clock, &types.types).await };
            let panicked = if policy.terms.on_unknown.runs_again() {
                "Retry with the same key."
            } else {
                "It is not run again."
            };
            let carried = carry_out(shared, trace, &policy, reference, panicked, work);
            let Some(later) = later else { return carried.await };
            tokio::select! {
                biased;
                carried = carried => carried,
                () = later.is_due(&shared.engine) => {
                    trace.keyed("accepted", reference, None);
                    Ok(later.accepted())
                }
            }
        }
        Ok(Admitted::Bypass(bypass)) => {
            let (clock, reference) = (Arc::clone(shared.engine.clock()), bypass.reference);
            trace.keyed("bypassed", reference, None);
            let work = async move { bypass.perform(inner, &*clock).await };
            let panicked = "The store is away, so nothing was recorded.";
            carry_out(shared, trace, &policy, reference, panicked, work).await
        }
    }
}

/// The response to a request that is not keyed here. What a service says of its attempt is for layers alone: for
/// the one around this one, if there is one that runs it.
fn passed_on<Res>(mut response: Response<Res>, is_inside: bool) -> Response<ResponseBody<Res>> {
    if !is_inside {
        response.headers_mut().remove(ONETAKE_OUTCOME);
    }
    response.map(ResponseBody::untouched)
}

/// Runs the operation in a task of its own: a client that goes away neither stops it nor loses its
/// outcome.
async fn carry_out<Res, E>(
    shared: &Shared,
    trace: &Trace,
    policy: &Policy,
    reference: Reference,
    panicked: &str,
    work: impl Future<Output = Reply<Res, E>> + Send + 'static,
) -> Result<Response<ResponseBody<Res>>, E>
where
    Res: Send + 'static,
    E: Send + 'static,
{
    let (tell, tells) = oneshot::channel();
    let work = async move {
        let _gone = tell.send(work.await);
    };
    shared.engine.spawn(work.instrument(trace.span()));
    match tells.await {
        Ok(Reply::Response(response)) => Ok(response),
        Ok(Reply::Problem(problem)) => Ok(told(trace, policy, problem, Some(reference))),
        Ok(Reply::Record(record)) => Ok(match record.state {
            State::Completed { .. } => replayed(shared, trace, policy, &record),
            State::Failed { .. } => {
                told(trace, policy, problem_of(&Answer::Failed(record)), Some(reference))
            }
            _ => told(trace, policy, in_progress(), Some(reference)),
        }),
        Ok(Reply::Error(error)) => Err(error),
        // The task panicked; its lease, if it had one, was dropped and is unknown.
        Err(_) => Ok(told(
            trace,
            policy,
            Problem::new(
                Code::PreviousAttemptFailed,
                format!("The operation failed in the middle. Its outcome is not known. {panicked}"),
            ),
            Some(reference),
        )),
    }
}

fn told<Res>(
    trace: &Trace,
    policy: &Policy,
    problem: Problem,
    reference: Option<Reference>,
) -> Response<ResponseBody<Res>> {
    trace.told(problem.code(), reference);
    policy.answers.tell(problem, reference).map(|body| ResponseBody::whole(body, None))
}

fn replayed<Res>(
    shared: &Shared,
    trace: &Trace,
    policy: &Policy,
    record: &Record,
) -> Response<ResponseBody<Res>> {
    let reference = record.id.reference();
    let State::Completed { recording, .. } = &record.state else {
        return told(trace, policy, in_progress(), Some(reference));
    };
    trace.keyed("replayed", reference, Some(record.fence));
    replay(recording, reference, &shared.types)
        .unwrap_or_else(|problem| told(trace, policy, problem, Some(reference)))
}

fn documentation<Res>() -> Response<ResponseBody<Res>> {
    let page = Bytes::from_static(include_bytes!("problems.md"));
    let mut response = Response::new(ResponseBody::whole(page, None));
    let markdown = HeaderValue::from_static("text/markdown; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, markdown);
    response
}
