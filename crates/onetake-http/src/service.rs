//! The service: from a request to its one outcome.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderName, HeaderValue,
    TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use onetake_core::InFlight as Engaged;
use onetake_core::engine::{Answer, Attempt, Begin, EngineError, Operation};
use onetake_core::{
    Clock, Fingerprint, Key, Lease, Record, RecordId, Reference, Scope, State, StoreErrorKind,
};

use crate::BoxError;
use crate::body::{self, Read, RequestBody, ResponseBody};
use crate::bypass::{self, Bypass};
use crate::deadline::{self, Deadline, TimeLeft};
use crate::fingerprint::fingerprint;
use crate::issued::{self, TOKENS, Use};
use crate::key::{key, key_of_body};
use crate::later::{self, Began, Later, OPERATIONS};
use crate::layer::Shared;
use crate::payload::Payload;
use crate::policy::{InFlight, KeySource, Policy};
use crate::prefer::Prefer;
use crate::problem::{Code, DOCUMENTATION, Problem};
use crate::recording::replay;
use crate::run::{ANSWERED, Reply, Run};
use crate::tenant::Caller;
use crate::velocity;

/// Tells the inner service which attempt this is: a number that is higher for every later one.
pub const IDEMPOTENCY_FENCE: HeaderName = HeaderName::from_static("idempotency-fence");
/// Reserved for the key of the inner service's own calls; never taken from a client.
pub const IDEMPOTENCY_DERIVED_KEY: HeaderName = HeaderName::from_static("idempotency-derived-key");

/// The shortest lease that a deadline leads to: a shorter one would be nothing but heartbeats.
const LEASE_MIN: Duration = Duration::from_millis(100);

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
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            if parts.method == Method::GET && parts.uri.path() == DOCUMENTATION {
                return Ok(documentation());
            }
            if parts.method == Method::POST && parts.uri.path() == TOKENS && shared.issues_keys() {
                let response = tokens(&shared, &parts, body).await;
                return Ok(response.map(|body| ResponseBody::whole(body, None)));
            }
            if parts.method == Method::GET
                && let Some(handle) = parts.uri.path().strip_prefix(OPERATIONS)
            {
                return Ok(later::look(&shared, &parts, handle).await);
            }
            let asked = match Asked::of(&shared, &parts) {
                Ok(asked) => asked,
                Err((problem, policy)) => {
                    return Ok(told(&policy, problem, named_by_head(&policy, &parts)));
                }
            };
            let Some(asked) = asked else {
                let untouched = Request::from_parts(parts, RequestBody::untouched(body));
                let response = inner.call(untouched).await?;
                return Ok(response.map(ResponseBody::untouched));
            };
            let policy = Arc::clone(&asked.policy);
            match admit(&shared, asked, parts, body).await {
                Err((problem, reference)) => Ok(told(&policy, problem, reference)),
                Ok(Admitted::Unnamed(request)) => {
                    let response = inner.call(request).await?;
                    Ok(response.map(ResponseBody::untouched))
                }
                Ok(Admitted::Replay(record)) => Ok(replayed(&policy, &record)),
                Ok(Admitted::Later(later)) => Ok(later.accepted()),
                Ok(Admitted::Run(run, later)) => {
                    let (clock, reference) = (Arc::clone(shared.engine.clock()), run.reference);
                    let work = async move { run.perform(inner, &*clock).await };
                    let panicked = "It is not run again.";
                    let carried = carry_out(&shared, &policy, reference, panicked, work);
                    let Some(later) = later else { return carried.await };
                    tokio::select! {
                        biased;
                        carried = carried => carried,
                        () = later.is_due(&shared.engine) => Ok(later.accepted()),
                    }
                }
                Ok(Admitted::Bypass(bypass)) => {
                    let (clock, reference) = (Arc::clone(shared.engine.clock()), bypass.reference);
                    let work = async move { bypass.perform(inner, &*clock).await };
                    let panicked = "The store is away, so nothing was recorded.";
                    carry_out(&shared, &policy, reference, panicked, work).await
                }
            }
        })
    }
}

/// What can be told of a request by its head: what applies to it, and who asks.
struct Asked {
    policy: Arc<Policy>,
    caller: Caller,
    /// `None`: it is in the body.
    key: Option<Key>,
    /// It was issued, and may not be used for the first time any more.
    is_expired: bool,
    deadline: Option<Deadline>,
}

impl Asked {
    /// `None`: the request is not keyed, and passes through untouched.
    fn of(shared: &Shared, parts: &Parts) -> Result<Option<Self>, (Problem, Arc<Policy>)> {
        let Some(policy) = shared.policies.resolve(parts) else {
            return Ok(None);
        };
        if !policy.methods.contains(&parts.method) || parts.method == Method::GET {
            return Ok(None);
        }
        let asked = Self::under(&policy, parts, shared);
        asked.map_err(|problem| (problem, policy))
    }

    fn under(
        policy: &Arc<Policy>,
        parts: &Parts,
        shared: &Shared,
    ) -> Result<Option<Self>, Problem> {
        let key = match policy.key.source {
            KeySource::Header | KeySource::Issued => match key(&parts.headers, &policy.key)? {
                Some(key) => Some(key),
                None => return Ok(None),
            },
            KeySource::Json(_) | KeySource::Derive(_) => None,
        };
        let clock = &**shared.engine.clock();
        let deadline = Deadline::of(&parts.headers, clock)?;
        let caller = policy.tenant.resolve(parts)?;
        let is_expired = match (&policy.key.source, &key) {
            (KeySource::Issued, Some(key)) => {
                let (method, path) = (&parts.method, parts.uri.path());
                let used = Use::of(policy, &caller.tenant, method, path);
                let expires_at = issued::verify(&shared.secrets.issued_keys, &used, key);
                expires_at.ok_or_else(issued::invalid)? <= clock.now()
            }
            _ => false,
        };
        let policy = Arc::clone(policy);
        Ok(Some(Self { policy, caller, key, is_expired, deadline }))
    }

    fn scope(&self) -> Scope {
        scope(&self.policy, &self.caller)
    }

    /// How long something may take that may take `max` by itself.
    fn within(&self, max: Duration, clock: &dyn Clock) -> Duration {
        self.deadline.map_or(max, |deadline| deadline.left(clock).min(max))
    }

    fn operation(&self, key: &Key, print: Fingerprint, shared: &Shared) -> Operation {
        let clock = &**shared.engine.clock();
        let policy = &self.policy;
        let (current, earlier) = shared.secrets.seal(print);
        let mut terms = policy.terms;
        // Nobody waits for what runs longer, so nobody should wait for its lease either; unless they come
        // back for it.
        if !self.is_async() {
            terms.lease = self.within(terms.lease, clock).max(LEASE_MIN.min(terms.lease));
        }
        let in_flight = match policy.in_flight {
            InFlight::Wait(wait) | InFlight::Async(wait) => Engaged::Wait(self.within(wait, clock)),
            InFlight::Reject => Engaged::Reject,
        };
        Operation::new(&self.scope(), key, current)
            .earlier(earlier)
            .terms(terms)
            .in_flight(in_flight)
            .run_max(self.run_max(clock))
    }

    fn is_async(&self) -> bool {
        matches!(self.policy.in_flight, InFlight::Async(_))
    }

    /// For how long the operation may run if it begins now. Where the client need not wait for it, its
    /// deadline is how long it waits for an answer.
    fn run_max(&self, clock: &dyn Clock) -> Duration {
        let max = self.policy.run_max;
        if self.is_async() { max } else { self.within(max, clock) }
    }

    /// Whether it is too late to begin.
    fn is_over(&self, clock: &dyn Clock) -> bool {
        self.run_max(clock).is_zero() || self.within(Duration::MAX, clock).is_zero()
    }

    /// What an async route owes this client.
    fn later(&self, operation: &Operation, parts: &Parts, shared: &Shared) -> Option<Box<Later>> {
        let InFlight::Async(wait) = self.policy.in_flight else {
            return None;
        };
        let clock = &**shared.engine.clock();
        let handle = shared.handles.of(operation.id, &self.caller);
        let left = self.deadline.map(|deadline| deadline.left(clock));
        let waits = (wait, Prefer::of(&parts.headers));
        let later = Later::new(operation.clone(), handle, waits, left, clock.monotonic());
        Some(Box::new(later))
    }
}

fn scope(policy: &Policy, caller: &Caller) -> Scope {
    Scope::new(caller.tenant.clone()).namespace(&policy.namespace)
}

fn reference(scope: &Scope, key: &Key) -> Reference {
    RecordId::derive(scope, key).reference()
}

/// What a request refers to that is refused by its head, as far as that can be told without its body.
fn named_by_head(policy: &Policy, parts: &Parts) -> Option<Reference> {
    if !matches!(policy.key.source, KeySource::Header | KeySource::Issued) {
        return None;
    }
    let key = key(&parts.headers, &policy.key).ok()??;
    let caller = policy.tenant.resolve(parts).ok()?;
    Some(reference(&scope(policy, &caller), &key))
}

enum Admitted<Req> {
    /// To be run here; if it takes long, the client is told later.
    Run(Run<Req>, Option<Box<Later>>),
    /// It runs, and takes long.
    Later(Box<Later>),
    /// The store is away, and the route is fail-open.
    Bypass(Bypass<Req>),
    Replay(Arc<Record>),
    /// Its body names no operation, and need not.
    Unnamed(Request<RequestBody<Req>>),
}

type Refused = (Problem, Option<Reference>);

/// Issues a key, to whoever the route that it is for would take for its tenant.
async fn tokens<Req>(shared: &Shared, parts: &Parts, body: Req) -> Response<Bytes>
where
    Req: Body<Data = Bytes>,
{
    let clock = shared.engine.clock();
    let read = tokio::select! {
        biased;
        read = body::read(body, issued::BODY_MAX) => read,
        () = clock.sleep(Policy::default().request_timeout) => {
            return incomplete("did not arrive in time").into_response(None);
        }
    };
    let data = match read {
        Ok(Read::Whole { data, .. }) => data,
        Ok(Read::TooLarge { .. }) => {
            let detail = format!("The body has more than {} bytes.", issued::BODY_MAX);
            return Problem::new(Code::RequestBodyTooLarge, detail).into_response(None);
        }
        Err(_) => return incomplete("broke off").into_response(None),
    };
    let wanted = match issued::wanted(&data) {
        Ok(wanted) => wanted,
        Err(problem) => return problem.into_response(None),
    };
    let policy = shared.policies.resolve_for(&wanted.method, &wanted.path, parts);
    let policy = policy.filter(|policy| {
        policy.key.source == KeySource::Issued && policy.methods.contains(&wanted.method)
    });
    let Some(policy) = policy else {
        let detail =
            "No route takes issued keys for this method and path (key = { from = \"issued\" }).";
        return Problem::new(Code::RequestBodyInvalid, detail).into_response(None);
    };
    match policy.tenant.resolve(parts) {
        Err(problem) => policy.answers.tell(problem, None),
        Ok(caller) => {
            let used = Use::of(&policy, &caller.tenant, &wanted.method, &wanted.path);
            match shared.secrets.issued_keys.first() {
                Some(key) => {
                    let ttl = policy.terms.ttl;
                    let (key, expires_at) =
                        issued::issue(key, &used, ttl, clock.now(), &**shared.engine.rng());
                    issued::issued(&key, expires_at)
                }
                None => policy.answers.tell(issued::invalid(), None),
            }
        }
    }
}

/// Reads the request and asks the engine who runs it.
async fn admit<Req>(
    shared: &Shared,
    asked: Asked,
    mut parts: Parts,
    body: Req,
) -> Result<Admitted<Req>, Refused>
where
    Req: Body<Data = Bytes> + Send + 'static,
    Req::Error: Send,
{
    let policy = &asked.policy;
    let refer = |key: &Key| reference(&asked.scope(), key);
    let early = asked.key.as_ref().map(refer);
    let refused = |problem| (problem, early);
    let place =
        Arc::clone(&shared.bodies).try_acquire_owned().map_err(|_| refused(overloaded()))?;
    let data = read_request(shared, &asked, body).await.map_err(refused)?;
    whole(&parts, &data).map_err(refused)?;
    let payload = Payload::new(&parts.headers, data, policy.request_body_max);
    let key = match &asked.key {
        Some(key) => Some(key.clone()),
        None => key_of_body(&payload, &policy.key).map_err(refused)?,
    };
    let Some(key) = key else {
        return Ok(Admitted::Unnamed(bypass::forwarded(parts, payload.into_data())));
    };
    let reference = refer(&key);
    let refused = |problem| (problem, Some(reference));
    let print =
        fingerprint(&parts, &payload, &policy.fingerprint, &asked.caller.proof).map_err(refused)?;
    let operation = asked.operation(&key, print, shared);
    let clock = &**shared.engine.clock();
    if asked.is_over(clock) {
        return Err(refused(deadline::over()));
    }
    let mut may_run = true;
    if asked.is_expired {
        // Its own expiry counts only while there is no record (S15).
        match shared.engine.look(operation.id).await {
            Ok(Some(record)) => may_run = !is_final(&record),
            Ok(None) => return Err(refused(issued::invalid())),
            Err(error) => return Err(refused(problem_of_error(&error, reference))),
        }
    }
    let later = asked.later(&operation, &parts, shared);
    let pass = velocity::pass(shared, policy, &asked.scope(), &payload, &operation).await;
    let pass = pass.map_err(refused)?;
    let begun = match pass.store_error() {
        Some(error) => Err(error),
        None => begin(shared, &operation, later.as_deref()).await,
    };
    match (asked.deadline, &begun) {
        (Some(_), Ok(Began::Run(_))) if later.is_some() => deadline::remove(&mut parts.headers),
        (Some(deadline), Ok(Began::Run(_)) | Err(_)) => {
            deadline.pass_on(&mut parts.headers, clock);
            parts.extensions.insert(TimeLeft(deadline.left(clock)));
        }
        _ => {}
    }
    match begun {
        // It was granted too late to be of use: nothing runs, and the lease is released.
        Ok(Began::Run(lease)) if asked.is_over(clock) => {
            drop(lease);
            Err(refused(deadline::over()))
        }
        // The outcome that was there a moment ago has expired: nothing new runs under this key.
        Ok(Began::Run(lease)) if !may_run => {
            drop(lease);
            Err(refused(issued::invalid()))
        }
        Ok(Began::Run(lease)) => {
            pass.keep();
            let request = forwarded(parts, payload.into_data(), &lease);
            let (policy, run_max) = (Arc::clone(policy), asked.run_max(clock));
            let kept_from = later.as_ref().map(|later| later.due);
            let run = Run { request, lease, policy, run_max, kept_from, reference, place };
            Ok(Admitted::Run(run, later))
        }
        Ok(Began::Answer(Answer::Replay(record))) => Ok(Admitted::Replay(record)),
        Ok(Began::Answer(answer)) => Err(refused(problem_of(&answer))),
        Ok(Began::Accepted) => later.map(Admitted::Later).ok_or_else(|| refused(in_progress())),
        Err(error) if bypass::is_chosen(&shared.engine, policy, reference, &error) => {
            pass.keep();
            let request = bypass::forwarded(parts, payload.into_data());
            // Nobody can come back for what is not recorded.
            let run_max = asked.within(policy.run_max, clock);
            Ok(Admitted::Bypass(Bypass { request, run_max, reference, place }))
        }
        Err(error) => Err(refused(problem_of_error(&error, reference))),
    }
}

fn is_final(record: &Record) -> bool {
    matches!(record.state, State::Completed { .. } | State::Failed { .. })
}

/// Asks the engine who runs the operation.
async fn begin(
    shared: &Shared,
    operation: &Operation,
    later: Option<&Later>,
) -> Result<Began, EngineError> {
    match later {
        Some(later) => later.begin(&shared.engine).await,
        None => Ok(match shared.engine.begin(operation).await? {
            Begin::Run(lease) => Began::Run(lease),
            Begin::Answer(answer) => Began::Answer(answer),
        }),
    }
}

async fn read_request<Req>(shared: &Shared, asked: &Asked, body: Req) -> Result<Bytes, Problem>
where
    Req: Body<Data = Bytes>,
{
    let (policy, clock) = (&asked.policy, shared.engine.clock());
    let max = policy.request_body_max;
    let read = tokio::select! {
        biased;
        read = body::read(body, max) => read,
        () = clock.sleep(asked.within(policy.request_timeout, &**clock)) => {
            let is_over = asked.deadline.is_some_and(|deadline| deadline.left(&**clock).is_zero());
            return Err(if is_over { deadline::over() } else { incomplete("did not arrive in time") });
        }
    };
    match read {
        Ok(Read::Whole { data, .. }) => Ok(data),
        Ok(Read::TooLarge { .. }) => Err(Problem::new(
            Code::RequestBodyTooLarge,
            format!(
                "The body has more than {max} bytes, the most that this route accepts with a key (max_request_body). Nothing was run."
            ),
        )),
        Err(_) => Err(incomplete("broke off")),
    }
}

/// An HTTP/2 stream that is reset in the middle can look like the end of a body.
fn whole(parts: &Parts, data: &Bytes) -> Result<(), Problem> {
    let Some(length) = parts.headers.get(CONTENT_LENGTH) else {
        return Ok(());
    };
    let length = length.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    if length == Some(data.len()) { Ok(()) } else { Err(incomplete("broke off")) }
}

fn incomplete(what: &str) -> Problem {
    Problem::new(
        Code::RequestBodyIncomplete,
        format!("The request's body {what}. Nothing was run; retry with the same key."),
    )
}

/// The request as the inner service gets it.
fn forwarded<Req>(mut parts: Parts, data: Bytes, lease: &Lease) -> Request<RequestBody<Req>> {
    let headers = &mut parts.headers;
    // The body was read whole, the outcome is recorded as it is, and nothing is upgraded.
    for name in [EXPECT, TRANSFER_ENCODING, UPGRADE, IDEMPOTENCY_DERIVED_KEY] {
        headers.remove(name);
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(IDEMPOTENCY_FENCE, HeaderValue::from(lease.fence().get()));
    let attempt = Attempt { id: lease.id(), attempt: lease.attempt(), fence: lease.fence() };
    parts.extensions.insert(attempt);
    Request::from_parts(parts, RequestBody::read(data))
}

/// Runs the operation in a task of its own: a client that goes away neither stops it nor loses its
/// outcome.
async fn carry_out<Res, E>(
    shared: &Shared,
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
    shared.engine.spawn(async move {
        let _gone = tell.send(work.await);
    });
    match tells.await {
        Ok(Reply::Response(response)) => Ok(response),
        Ok(Reply::Problem(problem)) => Ok(told(policy, problem, Some(reference))),
        Ok(Reply::Record(record)) => Ok(match record.state {
            State::Completed { .. } => replayed(policy, &record),
            _ => told(policy, in_progress(), Some(reference)),
        }),
        Ok(Reply::Error(error)) => Err(error),
        // The task panicked; its lease, if it had one, was dropped and is unknown.
        Err(_) => Ok(told(
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
    policy: &Policy,
    problem: Problem,
    reference: Option<Reference>,
) -> Response<ResponseBody<Res>> {
    policy.answers.tell(problem, reference).map(|body| ResponseBody::whole(body, None))
}

fn replayed<Res>(policy: &Policy, record: &Record) -> Response<ResponseBody<Res>> {
    let reference = record.id.reference();
    let State::Completed { recording, .. } = &record.state else {
        return told(policy, in_progress(), Some(reference));
    };
    replay(recording, reference).unwrap_or_else(|problem| told(policy, problem, Some(reference)))
}

fn documentation<Res>() -> Response<ResponseBody<Res>> {
    let page = Bytes::from_static(include_bytes!("problems.md"));
    let mut response = Response::new(ResponseBody::whole(page, None));
    let markdown = HeaderValue::from_static("text/markdown; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, markdown);
    response
}

pub(crate) fn overloaded() -> Problem {
    let detail =
        "Too many operations are under way at once. Nothing was run; retry with the same key.";
    Problem::new(Code::Overloaded, detail).retry_after(1)
}

pub(crate) fn in_progress() -> Problem {
    Problem::new(
        Code::RequestInProgress,
        "An attempt with this key is running, or has just ended without an outcome. Retry with the same key.",
    )
    .retry_after(1)
}

pub(crate) fn problem_of(answer: &Answer) -> Problem {
    match answer {
        Answer::Mismatch => Problem::new(
            Code::IdempotencyPayloadMismatch,
            "This key came with another request before (another method, path, query, content type or encoding, body, or password). Use a new key for a new operation. Nothing was run.",
        ),
        Answer::WaitTimeout => Problem::new(
            Code::InProgressTimeout,
            "An attempt with this key is still running. Retry with the same key.",
        )
        .retry_after(1),
        Answer::Unknown(record) => unknown(record),
        Answer::Failed(record) => match &record.state {
            State::Failed { failure, .. } => Problem::new(
                Code::PreviousAttemptFailed,
                format!("An earlier attempt with this key failed for good: {}", failure.detail),
            ),
            _ => in_progress(),
        },
        Answer::InFlight | Answer::Replay(_) => in_progress(),
    }
}

/// Says what led there, and which line of configuration would change it.
fn unknown(record: &Record) -> Problem {
    let State::Unknown { cause, .. } = &record.state else {
        return in_progress();
    };
    if record.terms.on_unknown == onetake_core::OnUnknown::Reconcile {
        let detail = "An earlier attempt's outcome is being looked up. Retry with the same key.";
        return Problem::new(Code::OutcomeUnknown, detail).retry_after(5);
    }
    let cause = cause.to_string();
    let status = cause.strip_prefix(ANSWERED);
    let released = status.map_or(String::new(), |status| {
        format!(
            "release = [\"{status}\"] on this route, if that status means that nothing was changed; or "
        )
    });
    Problem::new(
        Code::PreviousAttemptFailed,
        format!(
            "An earlier attempt with this key started, and its outcome is not known: {cause}. It is not run again, because it may have had its effect. What would change that: {released}on_unknown = \"retry\", if the operation is safe to run twice."
        ),
    )
}

pub(crate) fn problem_of_error(error: &EngineError, reference: Reference) -> Problem {
    match error {
        // It answers, but not for this key: nobody notices, unless it is said.
        EngineError::Store(store) if store.kind() == StoreErrorKind::Invalid => {
            tracing::error!(%reference, %error, "the store cannot serve this key");
            let detail = "The store that remembers keys cannot serve this one, so nothing was run. The operator finds the reason in the log.";
            Problem::new(Code::StoreUnavailable, detail).retry_after(2)
        }
        EngineError::Store(store) if store.kind() == StoreErrorKind::Busy => in_progress(),
        EngineError::Overloaded => overloaded(),
        EngineError::Closing => Problem::new(
            Code::Overloaded,
            "This node is shutting down. Nothing was run; retry with the same key.",
        )
        .retry_after(1),
        _ => Problem::new(
            Code::StoreUnavailable,
            "The store that remembers keys does not answer, so nothing was run. Retry with the same key.",
        )
        .retry_after(2),
    }
}
