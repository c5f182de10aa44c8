//! The fifth step of a keyed request: one attempt, from its lease to its verdict.
//!
//! The attempt runs in the operation's own task. The engine settles the verdict in the same task.
//! The response may be shown only after that (see [`respond`](crate::respond)).

use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{
    ACCEPT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::request;
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use onetake_core::engine::{Verdict, Work};
use onetake_core::transaction::unfinished;
use onetake_core::{AttemptId, Cause, Clock, Key, Lease, Recording};

use crate::BoxError;
use crate::body::{self, BodyRead, RequestBody, ResponseBody};
use crate::context::{AttemptReport, OperationContext};
use crate::deadline;
use crate::duplicates::PayloadGuard;
use crate::grpc::{CallForm, GRPC_STATUS, GrpcCode};
use crate::head::Head;
use crate::issued;
use crate::layer::LayerState;
use crate::memory::BodyPermit;
use crate::policy::Policy;
use crate::problem::from_engine::in_progress;
use crate::problem::{Code, Problem, insert_reference, misconfigured};
use crate::recording::{ONETAKE_OUTCOME, record};
use crate::service::{IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE};
use crate::status::Disposition;
use crate::trace::Trace;
use crate::transaction::{Evidence, Progress, Recorder, Ruling, rule};
use crate::typed::Kept;
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

type Concluded<Res, E> = (Verdict, Ran<Res, E>);

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
    fn objection(&self, clock: &dyn Clock) -> Option<(Verdict, Problem)> {
        // The claim was granted after the client's deadline.
        if self.call.head.is_over(clock) {
            return Some((Verdict::Release, deadline::exceeded()));
        }
        if self.client.strong_count() == 0 {
            return Some((Verdict::Release, in_progress()));
        }
        if let Some(route) = self.call.transactional_route()
            && self.shared.misfits.has(&route)
        {
            tracing::error!(
                route,
                "an operation was refused: the handler of its transactional route has no InTransaction argument"
            );
            return Some((Verdict::Release, misconfigured()));
        }
        // The issued key has expired. Its record had an outcome, and expired before the claim.
        if !self.may_run {
            return Some((Verdict::Fail(issued::expired_failure()), issued::invalid()));
        }
        // This is the last objection: from here on the client knows that the attempt starts.
        let starts = self.client.upgrade().is_some_and(|client| client.start());
        (!starts).then(|| (Verdict::Release, in_progress()))
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
        if let Some((verdict, problem)) = self.objection(clock) {
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
                let answered = Answered {
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

/// An attempt that got a response from the service.
struct Answered<'a> {
    lease: &'a Lease,
    shared: &'a LayerState,
    policy: &'a Policy,
    /// The time on the engine's monotonic clock until which the attempt may run.
    until: Duration,
    /// See [`OperationWork::kept_from`].
    kept_from: Option<Duration>,
    /// The evidence of the attempt's transaction, or `None` if the route is not transactional.
    transaction: Option<Evidence>,
    /// The name of a transactional route.
    route: Option<String>,
    /// True if the fingerprint has a proof of the caller: [`Caller::proof`].
    ///
    /// [`Caller::proof`]: crate::tenant::Caller::proof
    has_proof: bool,
    /// The form of a gRPC call. `None` for other requests.
    form: Option<CallForm>,
}

impl Answered<'_> {
    /// Returns the verdict on the attempt by its response, and the answer to the client.
    async fn conclude<Res, E>(self, mut response: Response<Res>) -> Concluded<Res, E>
    where
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
        let clock = self.shared.engine.clock();
        let mut report = AttemptReport::take(&mut response);
        let ResponseResult { mut disposition, cause, word } =
            disposition_of(&mut response, &mut report, self.policy, self.form);
        let (reference, attempt) = (self.lease.id().reference(), self.lease.attempt());
        insert_reference(response.headers_mut(), reference);
        if report.finished == Some(attempt) {
            return self.conclude_committed(response);
        }
        if let Some(evidence) = self.transaction {
            match rule(evidence, response.status(), word, disposition) {
                Ruling::AsUsual(as_usual) => disposition = as_usual,
                Ruling::RecordUnproven => {
                    self.report_unproven(evidence);
                    disposition = Disposition::Record;
                }
                Ruling::Look => return (Verdict::Release, Ran::Broken(not_committed())),
                Ruling::NotCommitted => {
                    let (route, status) = (self.route, response.status().as_u16());
                    tracing::error!(
                        route, %reference, status,
                        "a handler answered with success but did not commit its transaction: the transaction is rolled back, and the response is not sent. Return the result of tx.commit(response, messages)"
                    );
                    return (Verdict::Release, Ran::Broken(misconfigured()));
                }
                Ruling::Unfinished => {
                    return (Verdict::Fail(unfinished()), Ran::Broken(outcome_unknown()));
                }
            }
        }
        if let Some(form) = self.form.filter(|_| word.is_none() && self.transaction.is_none())
            && response.status() == StatusCode::OK
            && !response.headers().contains_key(GRPC_STATUS)
        {
            return self.conclude_call(response, form).await;
        }
        let is_kept = self.kept_from.is_some_and(|from| clock.monotonic() >= from);
        match disposition {
            // If a client got a 202, or may have got one, the response is recorded instead: the
            // outcome was promised.
            Disposition::Release if !is_kept && self.lease.may_release() => {
                // The fingerprint has the password, which the service refused. The retry with the
                // right one must not be a mismatch.
                let is_refused = response.status() == StatusCode::UNAUTHORIZED
                    || GrpcCode::of(response.headers()) == Some(GrpcCode::Unauthenticated);
                if self.has_proof && is_refused {
                    self.lease.disown();
                }
                (Verdict::Release, Ran::Responded(response.map(ResponseBody::untouched)))
            }
            Disposition::Unknown => {
                (Verdict::Unknown(cause), Ran::Responded(response.map(ResponseBody::untouched)))
            }
            Disposition::Record | Disposition::Release => {
                let max = self.policy.max_response_body;
                let value = self.shared.types.value_of(report.value, &response, max);
                self.capture(response, value).await
            }
        }
    }

    /// Concludes a gRPC call by the status at the end of its response. The response is read first,
    /// up to its limit.
    async fn conclude_call<Res, E>(
        self,
        response: Response<Res>,
        form: CallForm,
    ) -> Concluded<Res, E>
    where
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
        let clock = self.shared.engine.clock();
        let (parts, body) = response.into_parts();
        let read = tokio::select! {
            biased;
            read = read_response(body, Some(self.policy.max_response_body)) => read,
            () = clock.sleep(self.until.saturating_sub(clock.monotonic())) => {
                return timed_out(None);
            }
        };
        let without_status = || {
            let cause = "the upstream ended the call without a status".to_owned();
            (Verdict::Unknown(Cause::Reported(cause)), Ran::Broken(interrupted()))
        };
        let (data, mut trailers) = match read {
            Err(_) => return without_status(),
            Ok(BodyRead::Whole { data, trailers }) => (data, trailers),
            // The status comes after the part that fits. The call is not run again, whatever its
            // status is.
            Ok(large @ BodyRead::TooLarge { .. }) => {
                let (recording, body) = recording_of(&parts, large, None);
                let response = Response::from_parts(parts, body);
                return (Verdict::Complete(recording), Ran::Responded(response));
            }
        };
        let Some(code) = form.code(&data, trailers.as_ref()) else {
            return without_status();
        };
        let said = trailers.as_mut().and_then(|trailers| trailers.remove(ONETAKE_OUTCOME));
        let said = said.and_then(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
        let disposition = said.unwrap_or(self.policy.outcomes.classify_grpc(code));
        let verdict = match disposition {
            Disposition::Release if self.lease.may_release() => {
                if self.has_proof && code == GrpcCode::Unauthenticated {
                    self.lease.disown();
                }
                Verdict::Release
            }
            Disposition::Unknown => Verdict::Unknown(answered_with(code)),
            Disposition::Record | Disposition::Release => {
                let read = BodyRead::<Res>::Whole { data, trailers };
                let (recording, body) = recording_of(&parts, read, None);
                let response = Response::from_parts(parts, body);
                return (Verdict::Complete(recording), Ran::Responded(response));
            }
        };
        let body = ResponseBody::whole(data, trailers);
        (verdict, Ran::Responded(Response::from_parts(parts, body)))
    }

    /// Concludes an attempt whose response was recorded by its own transaction. The response is
    /// shown only if the outcome is in the store. The verdict applies only if it is not: a
    /// settlement cannot change a completed record.
    fn conclude_committed<Res, E>(&self, response: Response<Res>) -> Concluded<Res, E> {
        let response = response.map(ResponseBody::untouched);
        let (verdict, otherwise) = match self.transaction {
            Some(evidence) if !evidence.may_have_effect() => (Verdict::Release, not_committed()),
            _ => (Verdict::Fail(unfinished()), outcome_unknown()),
        };
        (verdict, Ran::Committed(response, self.lease.attempt(), otherwise))
    }

    /// Logs a success that was not committed together with its outcome. The response is recorded,
    /// because the operation ran. But if the process had died before that, the operation would have
    /// run again.
    fn report_unproven(&self, evidence: Evidence) {
        let (route, reference) = (self.route.clone(), self.lease.id().reference());
        if evidence != Evidence::NeverTaken {
            tracing::error!(
                route, %reference,
                "a handler of a transactional route answered with success outside InTransaction: if its process dies, its effect may be repeated. Begin and commit the transaction through InTransaction"
            );
            return;
        }
        tracing::error!(
            route, %reference,
            "the handler of a transactional route has no InTransaction argument: if its process dies, its effect may be repeated. The route refuses new operations until this process is restarted with a corrected handler"
        );
        route.into_iter().for_each(|route| self.shared.misfits.add(route));
    }

    /// Reads the response and makes its recording.
    async fn capture<Res, E>(
        self,
        response: Response<Res>,
        value: Option<Kept>,
    ) -> Concluded<Res, E>
    where
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
        let clock = self.shared.engine.clock();
        let (parts, body) = response.into_parts();
        // The handler answered with success without a transaction. If the body ends early, the
        // attempt may have had its effect.
        let transaction = match self.transaction {
            Some(Evidence::NotBegun) if parts.status.is_success() => Some(Evidence::Unused),
            other => other,
        };
        let max = (!is_stream(&parts.headers)).then_some(self.policy.max_response_body);
        let mut reading = pin!(read_response(body, max));
        // A small body is there with its head, and needs no timer.
        let read = match reading.as_mut().now_or_never() {
            Some(read) => read,
            None => tokio::select! {
                biased;
                read = reading => read,
                () = clock.sleep(self.until.saturating_sub(clock.monotonic())) => {
                    return timed_out(transaction);
                }
            },
        };
        let Ok(read) = read else {
            let cause =
                "the upstream closed the connection before the end of its response".to_owned();
            let verdict = without_answer(transaction, Cause::Reported(cause));
            return (verdict, Ran::Broken(interrupted()));
        };
        let (recording, body) = recording_of(&parts, read, value);
        (Verdict::Complete(recording), Ran::Responded(Response::from_parts(parts, body)))
    }
}

/// The disposition of an attempt by its response, with its reasons.
struct ResponseResult {
    disposition: Disposition,
    /// The cause, if the disposition is unknown.
    cause: Cause,
    /// The disposition that the service named itself, by header or report.
    word: Option<Disposition>,
}

/// Returns the disposition of the attempt, and its cause if that is unknown. The header
/// `Onetake-Outcome` counts first. Second is the report of a service that knows more than its
/// status says. Last are the route's status rules.
fn disposition_of<Res>(
    response: &mut Response<Res>,
    report: &mut AttemptReport,
    policy: &Policy,
    form: Option<CallForm>,
) -> ResponseResult {
    let said = response.headers_mut().remove(ONETAKE_OUTCOME);
    let header = said.and_then(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
    let (disposition, cause) = match (header, report.disposition) {
        (Some(word), _) => {
            let cause = "the service reported an unknown outcome (Onetake-Outcome: unknown)";
            (word, Cause::Reported(cause.to_owned()))
        }
        (None, Some(reported)) => (reported, report.cause.take().unwrap_or(Cause::Interrupted)),
        (None, None) => match form.and_then(|_| GrpcCode::of(response.headers())) {
            Some(code) => (policy.outcomes.classify_grpc(code), answered_with(code)),
            None => {
                let status = response.status();
                (policy.outcomes.classify(status), Cause::Status(status.as_u16()))
            }
        },
    };
    ResponseResult { disposition, cause, word: header.or(report.disposition) }
}

fn answered_with(code: GrpcCode) -> Cause {
    Cause::Reported(format!("the service answered with the gRPC code {code}"))
}

/// Returns the verdict on an attempt that ended without a complete response.
fn without_answer(transaction: Option<Evidence>, cause: Cause) -> Verdict {
    match transaction {
        Some(evidence) if evidence.may_have_effect() => Verdict::Fail(unfinished()),
        _ => Verdict::Unknown(cause),
    }
}

/// Reads a response's body, up to `max` bytes. With `None` it reads nothing, because the body is a
/// stream without an end.
pub(crate) async fn read_response<Res>(
    body: Res,
    max: Option<usize>,
) -> Result<BodyRead<Res>, BoxError>
where
    Res: Body<Data = Bytes>,
    Res::Error: Into<BoxError>,
{
    match max {
        None => Ok(BodyRead::TooLarge { read: Bytes::new(), rest: Box::pin(body) }),
        Some(max) => body::read(body, max).await.map_err(Into::into),
    }
}

/// Returns the recording of a response, and the body to send.
pub(crate) fn recording_of<Res>(
    parts: &Parts,
    read: BodyRead<Res>,
    value: Option<Kept>,
) -> (Recording, ResponseBody<Res>) {
    let (status, headers) = (parts.status, &parts.headers);
    match read {
        BodyRead::Whole { data, trailers, .. } => {
            let value = value.filter(|_| trailers.is_none());
            let value = value.and_then(|value| value.recording_if_body_is(&data, true));
            let recording = value
                .unwrap_or_else(|| record(status, headers, Some(own(&data)), trailers.as_ref()));
            (recording, ResponseBody::whole(data, trailers))
        }
        // The outcome is recorded without its body, so it cannot be replayed. The recording is
        // durable before a byte of the response is sent.
        BodyRead::TooLarge { read, rest } => {
            let value = value.and_then(|value| value.recording_if_body_is(&read, false));
            let recording = value.unwrap_or_else(|| record(status, headers, None, None));
            (recording, ResponseBody::rest(read, rest))
        }
    }
}

/// Copies bytes. Bytes from the network are part of a larger buffer, which a cached recording would
/// keep in memory.
fn own(data: &Bytes) -> Bytes {
    Bytes::copy_from_slice(data)
}

/// Returns true for event streams, which have no end to wait for.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    const EVENT_STREAM: &[u8] = b"text/event-stream";
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.as_bytes().trim_ascii());
    content_type
        .and_then(|text| text.get(..EVENT_STREAM.len()))
        .is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM))
}

fn timed_out<Res, E>(transaction: Option<Evidence>) -> Concluded<Res, E> {
    (without_answer(transaction, Cause::TimedOut), Ran::Broken(too_slow()))
}

fn not_committed() -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        "The operation's transaction was not committed, so it had no effect. Retry with the same key.",
    )
    .retry_after(1)
}

/// The problem of an attempt on a transactional route that has no outcome and no proof of a
/// rollback.
fn outcome_unknown() -> Problem {
    Problem::new(
        Code::PreviousAttemptFailed,
        "The operation ended without an outcome, and may have had its effect. It is not run again. Find out its outcome before you use a new key.",
    )
}

fn too_slow() -> Problem {
    Problem::new(
        Code::UpstreamTimeout,
        "The operation exceeded its time limit or the deadline of the request. Its outcome is unknown. Retry with the same key, and do not use a new one.",
    )
}

fn interrupted() -> Problem {
    Problem::new(
        Code::UpstreamInterrupted,
        "The upstream closed the connection before the end of its response. The outcome is unknown. Retry with the same key, and do not use a new one.",
    )
}
