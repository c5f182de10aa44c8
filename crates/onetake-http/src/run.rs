//! The fifth step of a keyed request: one attempt, from its lease to its verdict.
//!
//! It runs in the operation's own task. The engine settles the verdict there; only then may the response be shown
//! (see [`respond`](crate::respond)).

use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{
    ACCEPT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::request;
use http::response::Parts;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tower_service::Service;

use onetake_core::engine::{Verdict, Work};
use onetake_core::transaction::unfinished;
use onetake_core::{AttemptId, Cause, Clock, Key, Lease, Recording};

use crate::BoxError;
use crate::body::{self, Read, RequestBody, ResponseBody};
use crate::context::{AttemptReport, OperationContext};
use crate::deadline;
use crate::head::Head;
use crate::issued;
use crate::layer::Shared;
use crate::policy::Policy;
use crate::problem::from_engine::in_progress;
use crate::problem::{Code, IDEMPOTENCY_REFERENCE, Problem, insert, misconfigured};
use crate::recording::{ONETAKE_OUTCOME, record};
use crate::service::{IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_FENCE};
use crate::status::Disposition;
use crate::trace::Trace;
use crate::transaction::{Evidence, Progress, Recorder, Ruling, rule};
use crate::typed::Kept;
use crate::velocity::Pass;

/// A call of the inner service that is ready to be made.
pub(crate) struct Call {
    pub(crate) head: Box<Head>,
    pub(crate) parts: Box<request::Parts>,
    pub(crate) data: Bytes,
    pub(crate) key: Key,
}

/// The work of an operation: one call of the inner service.
pub(crate) struct Job<S, Req> {
    pub(crate) inner: S,
    pub(crate) call: Box<Call>,
    /// Held until the outcome is settled: request and response are in memory (S19).
    pub(crate) place: Option<OwnedSemaphorePermit>,
    pub(crate) pass: Pass,
    /// `false`: its key has expired, and nothing new runs under it, now or later.
    pub(crate) may_run: bool,
    /// On our own clock: from when on it is recorded, whatever it comes to.
    pub(crate) kept_from: Option<Duration>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) trace: Arc<Trace>,
    /// Alive for as long as the client waits.
    client: Weak<()>,
    /// Tells a client that does not wait for the end that it has started.
    pub(crate) started: Option<oneshot::Sender<()>>,
    body: PhantomData<fn(Req)>,
}

/// What an attempt leaves for its client.
pub(crate) enum Ran<Res, E> {
    /// It never started.
    NotStarted(Problem),
    /// The service answered.
    Responded(Response<ResponseBody<Res>>),
    /// The service answered, and completed the operation in a transaction of its own. If the outcome is not in the
    /// store, the problem is the answer.
    Committed(Response<ResponseBody<Res>>, AttemptId, Problem),
    /// The service ended without a whole answer.
    Broken(Problem),
    /// The service failed.
    Failed(E),
}

type Concluded<Res, E> = (Verdict, Ran<Res, E>);

impl<S, Req> Job<S, Req> {
    pub(crate) fn new(
        inner: S,
        call: Box<Call>,
        shared: &Arc<Shared>,
        trace: &Arc<Trace>,
        client: &Arc<()>,
    ) -> Self {
        Self {
            inner,
            call,
            place: None,
            pass: Pass::default(),
            may_run: true,
            kept_from: None,
            shared: Arc::clone(shared),
            trace: Arc::clone(trace),
            client: Arc::downgrade(client),
            started: None,
            body: PhantomData,
        }
    }

    /// Why it must not start although it was granted, and what becomes of its key.
    fn objection(&self, clock: &dyn Clock) -> Option<(Verdict, Problem)> {
        if self.client.strong_count() == 0 {
            return Some((Verdict::Release, in_progress()));
        }
        // It was granted too late to be of use.
        if self.call.head.is_over(clock) {
            return Some((Verdict::Release, deadline::over()));
        }
        if let Some(route) = self.call.transactional_route()
            && self.shared.misfits.has(&route)
        {
            tracing::error!(
                route,
                "an operation was refused: the handler of its transactional route does not take InTransaction"
            );
            return Some((Verdict::Release, misconfigured()));
        }
        // The outcome that was there a moment ago has expired.
        (!self.may_run).then(|| (Verdict::Fail(issued::spent()), issued::invalid()))
    }
}

impl<S, Req, Res> Work for Job<S, Req>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Req: Send + 'static,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError> + Send,
{
    type Output = (Ran<Res, S::Error>, Option<OwnedSemaphorePermit>);

    async fn run(mut self, lease: &Lease) -> (Verdict, Self::Output) {
        let place = self.place.take();
        let (verdict, ran) = self.attempt(lease).await;
        (verdict, (ran, place))
    }
}

impl<S, Req> Job<S, Req> {
    async fn attempt<Res>(self, lease: &Lease) -> Concluded<Res, S::Error>
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
        let Self { mut inner, call, kept_from, ref shared, started, .. } = self;
        let (policy, run_max) = (Arc::clone(&call.head.policy), call.head.run_max(clock));
        let route = call.transactional_route();
        let progress = route.is_some().then(Arc::<Progress>::default);
        let request = call.into_request(shared, lease, progress.clone());
        if lease.start().is_err() {
            return (Verdict::Release, Ran::NotStarted(in_progress()));
        }
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
                let answered =
                    Answered { lease, shared, policy, until, kept_from, transaction, route };
                answered.conclude(response).await
            }
            Some(Ok(Err(error))) => {
                let cause = Cause::Reported("the service failed without an answer".to_owned());
                (without_answer(transaction, cause), Ran::Failed(error))
            }
            Some(Err(_)) if transaction.is_some_and(Evidence::may_have_effect) => {
                (Verdict::Fail(unfinished()), Ran::Broken(outcome_unknown()))
            }
            // The engine settles it.
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => timed_out(transaction),
        }
    }
}

impl Call {
    /// The name of the route, if that is transactional: its label, and its path as the router matched it.
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

    /// The request as the inner service gets it.
    fn into_request<Req>(
        self,
        shared: &Arc<Shared>,
        lease: &Lease,
        progress: Option<Arc<Progress>>,
    ) -> Request<RequestBody<Req>> {
        let Self { head, mut parts, data, key } = self;
        let clock = &**shared.engine.clock();
        let headers = &mut parts.headers;
        // The body was read whole, the outcome is recorded as it is, and nothing is upgraded.
        for name in [EXPECT, TRANSFER_ENCODING, UPGRADE, IDEMPOTENCY_DERIVED_KEY] {
            headers.remove(name);
        }
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(IDEMPOTENCY_FENCE, HeaderValue::from(lease.fence().get()));
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
            .attach(&mut parts);
        Request::from_parts(*parts, RequestBody::read(data))
    }
}

/// An attempt whose service has answered.
struct Answered<'a> {
    lease: &'a Lease,
    shared: &'a Shared,
    policy: &'a Policy,
    /// On our own clock: until when it may run.
    until: Duration,
    /// See [`Job::kept_from`].
    kept_from: Option<Duration>,
    /// What is known of its transaction; `None` if the route is not transactional.
    transaction: Option<Evidence>,
    /// The name of a transactional route.
    route: Option<String>,
}

impl Answered<'_> {
    /// What becomes of the attempt by its response.
    async fn conclude<Res, E>(self, mut response: Response<Res>) -> Concluded<Res, E>
    where
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
        let clock = self.shared.engine.clock();
        let mut report = AttemptReport::take(&mut response);
        let Fate { mut disposition, cause, word } = fate(&mut response, &mut report, self.policy);
        let (reference, attempt) = (self.lease.id().reference(), self.lease.attempt());
        insert(response.headers_mut(), IDEMPOTENCY_REFERENCE, &reference.to_string());
        if report.finished == Some(attempt) {
            return self.look(response);
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
                        "a handler answered with success and did not commit its transaction, which is rolled back: the response is not shown. Return what tx.commit(response, messages) returns"
                    );
                    return (Verdict::Release, Ran::Broken(misconfigured()));
                }
                Ruling::Unfinished => {
                    return (Verdict::Fail(unfinished()), Ran::Broken(outcome_unknown()));
                }
            }
        }
        let is_kept = self.kept_from.is_some_and(|from| clock.monotonic() >= from);
        match disposition {
            // Somebody was told to come back for an outcome, or may have been: then this is it.
            Disposition::Release if !is_kept && self.lease.may_release() => {
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

    /// Shows a response whose transaction recorded it, if the outcome is in the store. Nothing is recorded here: the
    /// settlement finds the outcome, or takes the key.
    fn look<Res, E>(&self, response: Response<Res>) -> Concluded<Res, E> {
        let response = response.map(ResponseBody::untouched);
        let (verdict, otherwise) = match self.transaction {
            Some(evidence) if !evidence.may_have_effect() => (Verdict::Release, not_committed()),
            _ => (Verdict::Fail(unfinished()), outcome_unknown()),
        };
        (verdict, Ran::Committed(response, self.lease.attempt(), otherwise))
    }

    /// Reports a success that did not come from a transaction with its outcome. It is recorded, because it says what
    /// happened; but an attempt whose process dies would run again.
    fn report_unproven(&self, evidence: Evidence) {
        let (route, reference) = (self.route.clone(), self.lease.id().reference());
        if evidence != Evidence::NeverTaken {
            tracing::error!(
                route, %reference,
                "a handler of a transactional route answered with success outside of InTransaction: if its process dies, its effect may be repeated. Begin and commit its transaction through InTransaction"
            );
            return;
        }
        tracing::error!(
            route, %reference,
            "the handler of a transactional route does not take InTransaction: if its process dies, its effect may be repeated. The route refuses new operations until this process ends"
        );
        route.into_iter().for_each(|route| self.shared.misfits.add(route));
    }

    /// Reads the response as it is recorded.
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
        // A success whose body breaks off may have had its effect, unless the store knows.
        let transaction = match self.transaction {
            Some(Evidence::Unused) if parts.status.is_success() => Some(Evidence::NeverTaken),
            other => other,
        };
        let max = (!is_stream(&parts.headers)).then_some(self.policy.max_response_body);
        let read = tokio::select! {
            biased;
            read = read_response(body, max) => read,
            () = clock.sleep(self.until.saturating_sub(clock.monotonic())) => {
                return timed_out(transaction);
            }
        };
        let Ok(read) = read else {
            let cause = "the upstream broke off in the middle of its answer".to_owned();
            let verdict = without_answer(transaction, Cause::Reported(cause));
            return (verdict, Ran::Broken(interrupted()));
        };
        let (recording, body) = recording_of(&parts, read, value);
        (Verdict::Complete(recording), Ran::Responded(Response::from_parts(parts, body)))
    }
}

/// What becomes of an attempt by its response.
struct Fate {
    disposition: Disposition,
    /// Why it is unknown, if it is.
    cause: Cause,
    /// What the service said beside the status.
    word: Option<Disposition>,
}

/// What becomes of the attempt, and why if that is unknown. The operation's own word counts first
/// (the header), then that of a service which knows more than its status says (the report),
/// then the route's rules.
fn fate<Res>(response: &mut Response<Res>, report: &mut AttemptReport, policy: &Policy) -> Fate {
    let said = response.headers_mut().remove(ONETAKE_OUTCOME);
    let header = said.and_then(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
    let (disposition, cause) = match (header, report.disposition) {
        (Some(word), _) => {
            let cause = "the operation itself said that it does not know (Onetake-Outcome)";
            (word, Cause::Reported(cause.to_owned()))
        }
        (None, Some(reported)) => (reported, report.cause.take().unwrap_or(Cause::Interrupted)),
        (None, None) => {
            let status = response.status();
            (policy.outcomes.classify(status), Cause::Status(status.as_u16()))
        }
    };
    Fate { disposition, cause, word: header.or(report.disposition) }
}

/// The verdict on an attempt that ended without a whole answer.
fn without_answer(transaction: Option<Evidence>, cause: Cause) -> Verdict {
    match transaction {
        Some(evidence) if evidence.may_have_effect() => Verdict::Fail(unfinished()),
        _ => Verdict::Unknown(cause),
    }
}

/// Reads a response's body, up to `max`; none of it if there is no end to wait for.
pub(crate) async fn read_response<Res>(body: Res, max: Option<usize>) -> Result<Read<Res>, BoxError>
where
    Res: Body<Data = Bytes>,
    Res::Error: Into<BoxError>,
{
    match max {
        None => Ok(Read::TooLarge { read: Bytes::new(), rest: Box::pin(body) }),
        Some(max) => body::read(body, max).await.map_err(Into::into),
    }
}

/// What is recorded of a response, and its body.
pub(crate) fn recording_of<Res>(
    parts: &Parts,
    read: Read<Res>,
    value: Option<Kept>,
) -> (Recording, ResponseBody<Res>) {
    let (status, headers) = (parts.status, &parts.headers);
    match read {
        Read::Whole { data, trailers } => {
            let value = value.filter(|_| trailers.is_none());
            let value = value.and_then(|value| value.told_by(&data, true));
            let recording = value
                .unwrap_or_else(|| record(status, headers, Some(own(&data)), trailers.as_ref()));
            (recording, ResponseBody::whole(data, trailers))
        }
        // The outcome is known, though it cannot be replayed: that is durable before a byte flows.
        Read::TooLarge { read, rest } => {
            let value = value.and_then(|value| value.told_by(&read, false));
            let recording = value.unwrap_or_else(|| record(status, headers, None, None));
            (recording, ResponseBody::rest(read, rest))
        }
    }
}

/// Bytes in memory of their own: those that came from the network are part of a larger buffer, which
/// a remembered recording would keep alive.
fn own(data: &Bytes) -> Bytes {
    Bytes::copy_from_slice(data)
}

/// Event streams have no end to wait for.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type
        .is_some_and(|text| text.trim().to_ascii_lowercase().starts_with("text/event-stream"))
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

/// The problem of an attempt on a transactional route that nothing proves to be rolled back.
fn outcome_unknown() -> Problem {
    Problem::new(
        Code::PreviousAttemptFailed,
        "The operation ended without an outcome, and may have had its effect. It is not run again.",
    )
}

pub(crate) fn too_slow() -> Problem {
    Problem::new(
        Code::UpstreamTimeout,
        "The operation took longer than it may (upstream_timeout, or the request's own deadline). Its outcome is not known.",
    )
}

fn interrupted() -> Problem {
    Problem::new(
        Code::UpstreamInterrupted,
        "The upstream broke off in the middle of its answer. The outcome is not known.",
    )
}
