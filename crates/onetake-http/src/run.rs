//! The fifth step of a keyed request: one attempt, from its lease to its verdict.
//!
//! The attempt runs in the operation's own task. The engine settles the verdict in the same task.
//! The response may be shown only after that (see [`respond`](crate::respond)).

use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{ACCEPT_ENCODING, EXPECT, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{Request, Response, request};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use onetake_core::engine::{Verdict, Work};
use onetake_core::transaction::unfinished;
use onetake_core::{AttemptId, Cause, Clock, Key, Lease};

use crate::BoxError;
use crate::answered_attempt::{AnsweredAttempt, outcome_unknown, timed_out, without_answer};
use crate::body::{RequestBody, ResponseBody};
use crate::context::OperationContext;
use crate::deadline;
use crate::duplicates::PayloadGuard;
use crate::head::Head;
use crate::issued;
use crate::layer::LayerState;
use crate::memory::BodyPermit;
use crate::problem::from_engine::in_progress;
use crate::problem::{Problem, insert_reference, misconfigured};
use crate::service::{IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE};
use crate::trace::Trace;
use crate::transaction::{Evidence, Progress, Recorder};
use crate::velocity::Pass;

/// The request of an operation, ready for the inner service.
pub(crate) struct InnerCall {
    pub(crate) head: Box<Head>,
    pub(crate) parts: Box<request::Parts>,
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) key: Key,
}

/// The client of an attempt. Either the attempt starts or the client leaves first: both change one
/// atomic word, and the first change counts.
#[derive(Debug, Default)]
pub(crate) struct Client(AtomicU8);

const WAITS: u8 = 0;
const STARTED: u8 = 1;
const LEFT: u8 = 2;

impl Client {
    /// Leaves. Returns false if the attempt has started.
    pub(crate) fn leave(&self) -> bool {
        self.change(LEFT)
    }

    fn start(&self) -> bool {
        self.change(STARTED)
    }

    pub(crate) fn has_started(&self) -> bool {
        self.0.load(Ordering::Acquire) == STARTED
    }

    fn change(&self, to: u8) -> bool {
        self.0.compare_exchange(WAITS, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The work of an operation: one call of the inner service.
pub(crate) struct OperationWork<S, Req> {
    pub(crate) inner: S,
    pub(crate) call: Box<InnerCall>,
    /// The permit for the memory of request and response. It is held until the outcome is settled
    /// (S19).
    pub(crate) place: Option<BodyPermit>,
    pub(crate) pass: Pass,
    pub(crate) payload: PayloadGuard,
    /// `false` if the issued key has expired and its record has an outcome. The operation must not
    /// run again, also if that record expires before the claim.
    pub(crate) may_run: bool,
    /// The time on the engine's monotonic clock from which the response is recorded even if its
    /// status says release. A client may have got a 202 by then.
    pub(crate) kept_from: Option<Duration>,
    pub(crate) shared: Arc<LayerState>,
    pub(crate) trace: Arc<Trace>,
    /// Alive while the client waits.
    client: Weak<Client>,
    /// Signals the start of the attempt to a client that does not wait for its end.
    pub(crate) started: Option<oneshot::Sender<()>>,
    body: PhantomData<fn(Req)>,
}

/// The result of an attempt, for its client.
pub(crate) enum Ran<Res, E> {
    /// The attempt did not start.
    NotStarted(Problem),
    /// The service answered.
    Responded(Response<ResponseBody<Res>>),
    /// The service answered, and completed the operation in its own transaction. If the outcome is
    /// not in the store, the client gets the problem.
    Committed(Response<ResponseBody<Res>>, AttemptId, Problem),
    /// The attempt ended without a complete response that may be shown.
    Broken(Problem),
    /// The service returned an error.
    Failed(E),
}

pub(crate) type Concluded<Res, E> = (Verdict, Ran<Res, E>);

impl<S, Req> OperationWork<S, Req> {
    pub(crate) fn new(
        inner: S,
        call: Box<InnerCall>,
        shared: &Arc<LayerState>,
        trace: &Arc<Trace>,
        client: &Arc<Client>,
    ) -> Self {
        Self {
            inner,
            call,
            place: None,
            pass: Pass::default(),
            payload: PayloadGuard::default(),
            may_run: true,
            kept_from: None,
            shared: Arc::clone(shared),
            trace: Arc::clone(trace),
            client: Arc::downgrade(client),
            started: None,
            body: PhantomData,
        }
    }

    /// Returns a verdict and a problem if the attempt must not start although its claim was
    /// granted.
    fn objection(&self, lease: &Lease, clock: &dyn Clock) -> Option<(Verdict, Problem)> {
        // An attempt whose outcome was promised to another client runs without its own.
        let released = |problem| lease.may_release().then_some((Verdict::Release, problem));
        // The claim was granted after the client's deadline.
        if self.call.head.is_over(clock)
            && let Some(objection) = released(deadline::exceeded())
        {
            return Some(objection);
        }
        if let Some(problem) = self.misfit() {
            return Some((Verdict::Release, problem));
        }
        // The issued key has expired. Its record had an outcome, and expired before the claim.
        if !self.may_run {
            return Some((Verdict::Fail(issued::expired_failure()), issued::invalid()));
        }
        // This is the last objection: from here on the client knows that the attempt starts.
        let starts = self.client.upgrade().is_some_and(|client| client.start());
        if starts { None } else { released(in_progress()) }
    }

    /// Returns a problem if the handler of a transactional route was found not to fit it.
    pub(crate) fn misfit(&self) -> Option<Problem> {
        let route =
            self.call.transactional_route().filter(|route| self.shared.misfits.has(route))?;
        tracing::error!(
            route,
            "an operation was refused: the handler of its transactional route has no InTransaction argument"
        );
        Some(misconfigured())
    }
}

impl<S, Req, Res> Work for OperationWork<S, Req>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError> + Send,
{
    type Output = (Ran<Res, S::Error>, Option<Arc<BodyPermit>>);

    async fn run(mut self, lease: &Lease) -> (Verdict, Self::Output) {
        let place = self.place.take().map(Arc::new);
        let memory = place.as_ref().map(Arc::downgrade).unwrap_or_default();
        let payload = self.payload.clone();
        let (verdict, ran) = self.attempt(lease, memory).await;
        if has_no_effect(&verdict, &ran) {
            payload.set_kept(false);
        }
        (verdict, (ran, place))
    }
}

impl<S, Req> OperationWork<S, Req> {
    async fn attempt<Res>(self, lease: &Lease, memory: Weak<BodyPermit>) -> Concluded<Res, S::Error>
    where
        S: Service<Request<RequestBody<Req>>, Response = Response<Res>>,
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
        self.pass.keep();
        self.trace.keyed("executed", lease.id().reference(), Some(lease.fence()));
        let clock = &**self.shared.engine.clock();
        if let Some((verdict, problem)) = self.objection(lease, clock) {
            return (verdict, Ran::NotStarted(problem));
        }
        let Self { mut inner, call, kept_from, ref shared, ref payload, started, .. } = self;
        let (policy, run_max) = (Arc::clone(&call.head.policy), call.head.run_max(clock));
        let (route, has_proof) = (call.transactional_route(), !call.head.proof.is_empty());
        let form = call.head.form;
        let progress = route.is_some().then(Arc::<Progress>::default);
        let request = call.into_request(shared, lease, progress.clone(), memory);
        if lease.start().is_err() {
            return (Verdict::Release, Ran::NotStarted(in_progress()));
        }
        payload.set_kept(true);
        let _gone = started.map(|started| started.send(()));
        let until = clock.monotonic().saturating_add(run_max);
        let calling = AssertUnwindSafe(async { inner.call(request).await }).catch_unwind();
        let called = tokio::select! {
            biased;
            called = calling => Some(called),
            () = clock.sleep(run_max) => None,
        };
        let transaction = progress.map(|progress| progress.evidence());
        match called {
            Some(Ok(Ok(response))) => {
                let policy = &*policy;
                let answered = AnsweredAttempt {
                    lease,
                    shared,
                    policy,
                    until,
                    kept_from,
                    transaction,
                    route,
                    has_proof,
                    form,
                };
                answered.conclude(response).await
            }
            Some(Ok(Err(error))) => {
                let cause = Cause::Reported("the service failed without a response".to_owned());
                (without_answer(transaction, cause), Ran::Failed(error))
            }
            Some(Err(_)) if transaction.is_some_and(Evidence::may_have_effect) => {
                (Verdict::Fail(unfinished()), Ran::Broken(outcome_unknown()))
            }
            // The engine catches the panic and settles the attempt.
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => timed_out(transaction),
        }
    }
}

/// Returns true if the attempt is known to have had no effect: it was released, or the service
/// refused it.
fn has_no_effect<Res, E>(verdict: &Verdict, ran: &Ran<Res, E>) -> bool {
    let is_refused = |response: &Response<ResponseBody<Res>>| response.status().is_client_error();
    match (verdict, ran) {
        (Verdict::Release, _) => true,
        (Verdict::Complete(_), Ran::Responded(response)) => is_refused(response),
        _ => false,
    }
}

impl InnerCall {
    /// Returns the name of a transactional route, or `None` for other routes. The name is the
    /// policy's label, followed by the path pattern that the axum router matched, if there is one.
    fn transactional_route(&self) -> Option<String> {
        let policy = &self.head.policy;
        if !policy.is_transactional {
            return None;
        }
        #[cfg(feature = "axum")]
        if let Some(path) = self.parts.extensions.get::<axum::extract::MatchedPath>() {
            return Some(format!("{} {}", policy.label, path.as_str()));
        }
        Some(policy.label.clone())
    }

    /// Returns the request for the inner service.
    fn into_request<Req>(
        self,
        shared: &Arc<LayerState>,
        lease: &Lease,
        progress: Option<Arc<Progress>>,
        memory: Weak<BodyPermit>,
    ) -> Request<RequestBody<Req>> {
        let Self { head, mut parts, data, trailers, key } = self;
        let clock = &**shared.engine.clock();
        let headers = &mut parts.headers;
        // The body was read whole already, and a connection is never upgraded. A client cannot set
        // the derived key. The response must not be compressed, because it is recorded as it is.
        for name in [EXPECT, TRANSFER_ENCODING, UPGRADE, IDEMPOTENCY_DERIVED_KEY] {
            headers.remove(name);
        }
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if head.is_grpc() {
            headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
        }
        headers.insert(IDEMPOTENCY_FENCE, HeaderValue::from(lease.fence().get()));
        // The service can log the name that clients and operators know.
        insert_reference(headers, lease.id().reference());
        let time_left = match head.deadline {
            Some(_) if head.is_async() => {
                deadline::remove(headers);
                None
            }
            deadline => deadline.map(|deadline| deadline.pass_on(headers, clock)),
        };
        let derived_key = shared.deriving_now().map(|secret| secret.derive(&head.scope, &key));
        let policy = Arc::clone(&head.policy);
        let recorder = Recorder { shared: Arc::clone(shared), policy, progress };
        OperationContext::new(key, derived_key)
            .with_attempt(lease.as_attempt(), recorder)
            .with_time_left(time_left)
            .with_memory(memory)
            .attach(&mut parts);
        Request::from_parts(*parts, RequestBody::read(data, trailers))
    }
}
