//! One attempt: start, call, capture, settle, and only then answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::response::Parts;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::OwnedSemaphorePermit;
use tower_service::Service;

use onetake_core::engine::Settling;
use onetake_core::{Cause, Clock, Lease, Record, Recording, Reference, State};

use crate::BoxError;
use crate::body::{self, Read, RequestBody, ResponseBody};
use crate::policy::Policy;
use crate::problem::{Code, IDEMPOTENCY_REFERENCE, Problem, insert};
use crate::recording::{ONETAKE_OUTCOME, record};
use crate::said::in_progress;
use crate::status::Disposition;
use crate::transaction::Finished;
use crate::typed::{Kept, Types};

/// An attempt that was granted.
pub(crate) struct Run<Req> {
    pub(crate) request: Request<RequestBody<Req>>,
    pub(crate) lease: Lease,
    pub(crate) policy: Arc<Policy>,
    /// For how long it may run: the route's own limit, or what the client's deadline leaves.
    pub(crate) run_max: Duration,
    /// On our own clock: from when on it is recorded, whatever it comes to.
    pub(crate) kept_from: Option<Duration>,
    pub(crate) reference: Reference,
    pub(crate) place: OwnedSemaphorePermit,
}

/// What the client is told in the end.
pub(crate) enum Reply<Res, E> {
    Response(Response<ResponseBody<Res>>),
    Problem(Problem),
    /// Another attempt's record stands.
    Record(Arc<Record>),
    Error(E),
}

impl<Req> Run<Req> {
    pub(crate) async fn perform<S, Res>(
        self,
        mut inner: S,
        clock: &dyn Clock,
        types: &Types,
    ) -> Reply<Res, S::Error>
    where
        S: Service<Request<RequestBody<Req>>, Response = Response<Res>>,
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
        let Self { request, lease, policy, run_max, kept_from, reference, place: _place } = self;
        if lease.start().is_err() {
            let settling = lease.release().await;
            return Reply::Problem(not_shown(&settling).unwrap_or_else(in_progress));
        }
        let deadline = clock.monotonic().saturating_add(run_max);
        let called = tokio::select! {
            biased;
            called = inner.call(request) => called,
            () = clock.sleep(run_max) => return timed_out(lease).await,
        };
        let mut response = match called {
            Ok(response) => response,
            Err(error) => {
                let cause = Cause::Reported("the service failed without an answer".to_owned());
                return match not_shown(&lease.unknown(cause).await) {
                    None => Reply::Error(error),
                    Some(problem) => Reply::Problem(problem),
                };
            }
        };
        let (disposition, cause) = fate(&mut response, &policy);
        let finished = response.extensions_mut().remove::<Finished>();
        insert(response.headers_mut(), IDEMPOTENCY_REFERENCE, &reference.to_string());
        if finished == Some(Finished(lease.attempt())) {
            return committed(lease, response).await;
        }
        let is_kept = kept_from.is_some_and(|from| clock.monotonic() >= from);
        match disposition {
            // Somebody was told to come back for an outcome, or may have been: then this is it.
            Disposition::Release if !is_kept && lease.may_release() => {
                passed_on(lease.release().await, response)
            }
            Disposition::Record | Disposition::Release => {
                let left = deadline.saturating_sub(clock.monotonic());
                let value = types.value_of(&mut response, policy.response_body_max);
                capture(lease, response, value, &policy, left, clock).await
            }
            Disposition::Unknown => passed_on(lease.unknown(cause).await, response),
        }
    }
}

/// How a cause begins that a status led to; the status follows.
pub(crate) const ANSWERED: &str = "the upstream answered ";

/// What becomes of the attempt, and why if that is unknown. The operation's own word counts first
/// (the header), then that of a service which knows more than its status says (the extensions),
/// then the route's rules.
fn fate<Res>(response: &mut Response<Res>, policy: &Policy) -> (Disposition, Cause) {
    let said = response.headers_mut().remove(ONETAKE_OUTCOME);
    let word = said.and_then(|value| value.to_str().ok().and_then(|text| text.parse().ok()));
    let extensions = response.extensions_mut();
    let (mark, cause) = (extensions.remove::<Disposition>(), extensions.remove::<Cause>());
    match (word, mark) {
        (Some(word), _) => {
            let cause = "the operation itself said that it does not know (Onetake-Outcome)";
            (word, Cause::Reported(cause.to_owned()))
        }
        (None, Some(mark)) => (mark, cause.unwrap_or(Cause::Interrupted)),
        (None, None) => {
            let status = response.status();
            let cause = format!("{ANSWERED}{}", status.as_u16());
            (policy.outcomes.classify(status), Cause::Reported(cause))
        }
    }
}

/// Reads the response, records it, and only then shows it (S6).
async fn capture<Res, E>(
    lease: Lease,
    response: Response<Res>,
    value: Option<Kept>,
    policy: &Policy,
    left: Duration,
    clock: &dyn Clock,
) -> Reply<Res, E>
where
    Res: Body<Data = Bytes>,
    Res::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    let max = (!is_stream(&parts.headers)).then_some(policy.response_body_max);
    let read = tokio::select! {
        biased;
        read = read_response(body, max) => read,
        () = clock.sleep(left) => return timed_out(lease).await,
    };
    let Ok(read) = read else {
        let cause =
            Cause::Reported("the upstream broke off in the middle of its answer".to_owned());
        let problem = not_shown(&lease.unknown(cause).await);
        return Reply::Problem(problem.unwrap_or_else(interrupted));
    };
    let (recording, body) = recording_of(&parts, read, value);
    match lease.complete(recording).await {
        Settling::Recorded(_) => Reply::Response(Response::from_parts(parts, body)),
        Settling::Stale(Some(record)) => Reply::Record(record),
        settling => Reply::Problem(not_shown(&settling).unwrap_or_else(in_progress)),
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

/// Shows a response whose outcome its own transaction recorded, if it did: what the handler says is not taken
/// for it. Nothing is recorded here, because what was not committed had no effect.
async fn committed<Res, E>(lease: Lease, response: Response<Res>) -> Reply<Res, E> {
    let attempt = lease.attempt();
    match lease.release().await {
        Settling::Stale(Some(record))
            if record.attempt == attempt && matches!(record.state, State::Completed { .. }) =>
        {
            Reply::Response(response.map(ResponseBody::untouched))
        }
        Settling::Stale(Some(record)) => Reply::Record(record),
        Settling::Recorded(_) => {
            tracing::error!(
                "a handler answered as if it had finished and committed its transaction, but did not"
            );
            Reply::Problem(not_committed())
        }
        settling => Reply::Problem(not_shown(&settling).unwrap_or_else(in_progress)),
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

/// Shows a response that is not an outcome, once what it means for the key is durable.
fn passed_on<Res, E>(settling: Settling, response: Response<Res>) -> Reply<Res, E> {
    match settling {
        Settling::Recorded(_) => Reply::Response(response.map(ResponseBody::untouched)),
        Settling::Stale(Some(record)) => Reply::Record(record),
        settling => Reply::Problem(not_shown(&settling).unwrap_or_else(in_progress)),
    }
}

async fn timed_out<Res, E>(lease: Lease) -> Reply<Res, E> {
    match lease.unknown(Cause::TimedOut).await {
        // Its transaction was committed all the same, or another attempt's was.
        Settling::Stale(Some(record)) => Reply::Record(record),
        settling => Reply::Problem(not_shown(&settling).unwrap_or_else(too_slow)),
    }
}

fn not_committed() -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        "The operation's transaction was not committed, so it had no effect. Retry with the same key.",
    )
    .retry_after(1)
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

/// What to say if the settlement does not let the response be shown.
fn not_shown(settling: &Settling) -> Option<Problem> {
    match settling {
        Settling::Recorded(_) => None,
        // Another attempt took over, or somebody settled it: ours is not the truth any more.
        Settling::Stale(_) => Some(in_progress()),
        Settling::Pending => Some(
            Problem::new(
                Code::OutcomePending,
                "The operation ran, but the store does not take its outcome at the moment, so it cannot be shown yet. It is being recorded; retry with the same key.",
            )
            .retry_after(2),
        ),
    }
}
