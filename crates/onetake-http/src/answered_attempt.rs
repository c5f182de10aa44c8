//! The end of an attempt that got a response: its verdict, and the answer to its client.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::response::Parts;
use http::{Response, StatusCode};
use http_body::Body;

use onetake_core::engine::Verdict;
use onetake_core::transaction::unfinished;
use onetake_core::{Cause, Lease, Recording};

use crate::BoxError;
use crate::body::{self, BodyRead, ResponseBody};
use crate::context::AttemptReport;
use crate::grpc::{CallForm, GRPC_STATUS, GrpcCode};
use crate::layer::LayerState;
use crate::policy::Policy;
use crate::problem::{Code, Problem, insert_reference, misconfigured};
use crate::recording::{ONETAKE_OUTCOME, record};
use crate::run::{Concluded, Ran};
use crate::status::Disposition;
use crate::transaction::{Evidence, Ruling, rule};
use crate::typed::Kept;

/// An attempt that got a response from the service.
pub(crate) struct AnsweredAttempt<'a> {
    pub(crate) lease: &'a Lease,
    pub(crate) shared: &'a LayerState,
    pub(crate) policy: &'a Policy,
    /// The time on the engine's monotonic clock until which the attempt may run.
    pub(crate) until: Duration,
    /// See [`OperationWork::kept_from`].
    pub(crate) kept_from: Option<Duration>,
    /// The evidence of the attempt's transaction, or `None` if the route is not transactional.
    pub(crate) transaction: Option<Evidence>,
    /// The name of a transactional route.
    pub(crate) route: Option<String>,
    /// True if the fingerprint has a proof of the caller: [`Caller::proof`].
    ///
    /// [`Caller::proof`]: crate::tenant::Caller::proof
    pub(crate) has_proof: bool,
    /// The form of a gRPC call. `None` for other requests.
    pub(crate) form: Option<CallForm>,
}

impl AnsweredAttempt<'_> {
    /// Returns the verdict on the attempt by its response, and the answer to the client.
    pub(crate) async fn conclude<Res, E>(self, mut response: Response<Res>) -> Concluded<Res, E>
    where
        Res: Body<Data = Bytes>,
        Res::Error: Into<BoxError>,
    {
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
        let is_refused = response.status() == StatusCode::UNAUTHORIZED
            || GrpcCode::of(response.headers()) == Some(GrpcCode::Unauthenticated);
        match disposition {
            Disposition::Release if self.may_release(is_refused) => {
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
            Disposition::Release if self.may_release(code == GrpcCode::Unauthenticated) => {
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

    /// Decides to release the attempt. Returns false if a client got a 202, or may have got one: the
    /// outcome was promised, so the response is recorded instead.
    ///
    /// If the service refused the credential, and the fingerprint has its password, the record is
    /// given up in any case. Otherwise a stranger's password would block the key for its owner.
    fn may_release(&self, is_refused: bool) -> bool {
        if self.has_proof && is_refused {
            self.lease.disown();
            return true;
        }
        let now = self.shared.engine.clock().monotonic();
        let is_kept = self.kept_from.is_some_and(|from| now >= from);
        !is_kept && self.lease.may_release()
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
pub(crate) fn without_answer(transaction: Option<Evidence>, cause: Cause) -> Verdict {
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

pub(crate) fn timed_out<Res, E>(transaction: Option<Evidence>) -> Concluded<Res, E> {
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
pub(crate) fn outcome_unknown() -> Problem {
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
