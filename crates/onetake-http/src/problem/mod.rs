//! Problems (RFC 9457): the answers to requests that get no outcome.
//!
//! docs/PROBLEMS.md explains each code. The layer serves that page at [`DOCUMENTATION`].

mod format;
pub(crate) mod from_engine;
mod upstream;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use onetake_core::Reference;

use crate::advice::Advice;

pub use format::{Dialect, ProblemFormat, ProblemStatuses};
pub use upstream::UpstreamFailure;

/// The path of the page that explains the problems.
pub const DOCUMENTATION: &str = "/.onetake/problems";

/// The header with the operation's reference, which is short enough to read out. Every answer to a
/// request with a key has it.
pub const IDEMPOTENCY_REFERENCE: HeaderName = HeaderName::from_static("idempotency-reference");

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $status:literal $text:literal $title:literal,)+) => {
        /// The `code` of a problem, for programs to decide by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name,)+ }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The code as it is written in the problem.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The documented status of the code.
            #[must_use]
            pub fn status(self) -> StatusCode {
                let code = match self { $(Self::$name => $status,)+ };
                StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }

            const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }
        }
    };
}

codes! {
    /// The route requires a key, and the request has none.
    IdempotencyKeyMissing = 400 "idempotency_key_missing" "Idempotency key missing",
    /// The key is malformed, too short or too long, or the request names several keys.
    IdempotencyKeyInvalid = 400 "idempotency_key_invalid" "Idempotency key invalid",
    /// The tenant of the request cannot be determined.
    TenantUnresolved = 401 "tenant_unresolved" "Tenant unresolved",
    /// The authorization service does not allow the request.
    AuthRefused = 403 "auth_refused" "Not allowed",
    /// The authorization service does not answer. Nothing was run or replayed.
    AuthUnavailable = 503 "auth_unavailable" "Authorization service unavailable",
    /// The credential changes with every request.
    TenantUnstable = 400 "tenant_unstable" "Credential changes with every request",
    /// The key was used before with another payload.
    IdempotencyPayloadMismatch = 422 "idempotency_payload_mismatch" "Key used with another payload",
    /// An attempt with this key is running.
    RequestInProgress = 409 "request_in_progress" "Request in progress",
    /// The attempt was still running at the end of the wait.
    InProgressTimeout = 504 "in_progress_timeout" "Request still in progress",
    /// An earlier attempt failed or has an unknown outcome. The operation is not run again.
    PreviousAttemptFailed = 500 "previous_attempt_failed" "Previous attempt failed",
    /// An earlier attempt's outcome is being reconciled.
    OutcomeUnknown = 409 "outcome_unknown" "Outcome being reconciled",
    /// The operation ran, but the store has not accepted its outcome yet.
    OutcomePending = 503 "outcome_pending" "Outcome not durable yet",
    /// The store is unavailable. Nothing was run.
    StoreUnavailable = 503 "idempotency_store_unavailable" "Idempotency store unavailable",
    /// The request's own deadline has passed. Nothing was run.
    DeadlineExceeded = 504 "deadline_exceeded" "Deadline exceeded",
    /// The request's deadline cannot be read. Nothing was run.
    DeadlineInvalid = 400 "deadline_invalid" "Deadline invalid",
    /// A velocity limit on new operations is reached. Nothing was claimed or run.
    VelocityLimitExceeded = 429 "velocity_limit_exceeded" "Too many new operations",
    /// The same payload was sent under another key. Nothing was run.
    DuplicatePayload = 409 "duplicate_payload" "Payload of another key",
    /// Too many operations are under way, or the node is shutting down. Nothing was run.
    Overloaded = 503 "overloaded" "Overloaded",
    /// The request's body is larger than the route accepts.
    RequestBodyTooLarge = 413 "request_body_too_large" "Request body too large",
    /// The request's body took too long to arrive, or ended early.
    RequestBodyIncomplete = 408 "request_body_incomplete" "Request body incomplete",
    /// The request's body cannot be read as the JSON that is expected.
    RequestBodyInvalid = 400 "request_body_invalid" "Request body invalid",
    /// The request's body has an encoding that the route cannot read.
    RequestEncodingUnsupported = 415 "request_encoding_unsupported" "Request encoding unsupported",
    /// The caller has no operation with this handle, or the operation has expired.
    OperationNotFound = 404 "operation_not_found" "Operation not found",
    /// The outcome is recorded, but its response cannot be replayed.
    ResponseNotReplayable = 410 "response_not_replayable" "Response not replayable",
    /// The upstream could not be reached. Nothing was sent.
    UpstreamUnreachable = 502 "upstream_unreachable" "Upstream unreachable",
    /// The upstream ended without a complete response.
    UpstreamInterrupted = 502 "upstream_interrupted" "Upstream interrupted",
    /// The upstream did not answer in time.
    UpstreamTimeout = 504 "upstream_timeout" "Upstream timeout",
    /// The route's policy cannot work, or its handler does not fit it. The operation had no effect.
    Misconfigured = 500 "misconfigured" "Service misconfigured",
    /// No route matches the request, and such requests are refused.
    NoRoute = 404 "no_route" "No route",
    /// The request has too many headers, or its headers are too large.
    RequestHeadTooLarge = 431 "request_head_too_large" "Request head too large",
    /// The request cannot be forwarded safely.
    RequestRefused = 400 "request_refused" "Request refused",
}

impl Code {
    /// Returns the code of the problem that a response tells, or `None` for other responses.
    #[must_use]
    pub fn of<B>(response: &Response<B>) -> Option<Self> {
        response.extensions().get::<ProblemFacts>().map(|facts| facts.code)
    }

    /// Returns true if the same request, with the same key, can get another answer later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::AuthUnavailable
            | Self::RequestInProgress
            | Self::InProgressTimeout
            | Self::OutcomeUnknown
            | Self::OutcomePending
            | Self::StoreUnavailable
            | Self::DeadlineExceeded
            | Self::VelocityLimitExceeded
            | Self::Overloaded
            | Self::RequestBodyIncomplete
            | Self::UpstreamUnreachable
            | Self::UpstreamInterrupted
            | Self::UpstreamTimeout => true,
            Self::IdempotencyKeyMissing
            | Self::IdempotencyKeyInvalid
            | Self::TenantUnresolved
            | Self::AuthRefused
            | Self::TenantUnstable
            | Self::IdempotencyPayloadMismatch
            | Self::PreviousAttemptFailed
            | Self::DeadlineInvalid
            | Self::DuplicatePayload
            | Self::RequestBodyTooLarge
            | Self::RequestBodyInvalid
            | Self::RequestEncodingUnsupported
            | Self::OperationNotFound
            | Self::ResponseNotReplayable
            | Self::Misconfigured
            | Self::NoRoute
            | Self::RequestHeadTooLarge
            | Self::RequestRefused => false,
        }
    }

    /// Returns true if many clients get the problem at once.
    const fn is_shared(self) -> bool {
        matches!(
            self,
            Self::AuthUnavailable
                | Self::OutcomePending
                | Self::StoreUnavailable
                | Self::Overloaded
                | Self::UpstreamUnreachable
        )
    }
}

/// One problem, ready to become a response.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    detail: Box<str>,
    /// The detail as the log has it, if that is another one.
    logged: Option<Box<LoggedDetail>>,
    retry_after: Option<u64>,
    retryable: bool,
    recorded: Option<(StatusCode, Option<HeaderValue>)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    advice: Option<Advice>,
}

/// The detail of a problem for the log. It is boxed, because most problems have none.
#[derive(Clone, Debug)]
struct LoggedDetail(String);

impl Problem {
    /// Creates a problem. `detail` is text for people, and must hold no key, credential or body.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let (detail, headers) = (detail.into().into_boxed_str(), Vec::new());
        let retryable = code.is_retryable();
        Self {
            code,
            detail,
            logged: None,
            retry_after: None,
            retryable,
            recorded: None,
            headers,
            advice: None,
        }
    }

    /// Sets the detail for the log. `detail` itself may then name parts of the client's own body.
    pub(crate) fn logged_as(mut self, detail: String) -> Self {
        self.logged = Some(Box::new(LoggedDetail(detail)));
        self
    }

    /// The detail for the log.
    fn logged_detail(&self) -> &str {
        self.logged.as_ref().map_or(&self.detail, |logged| &logged.0)
    }

    /// Adds advice for the operator, which goes to the log.
    pub(crate) fn advising(mut self, advice: Advice) -> Self {
        self.advice = Some(advice);
        self
    }

    /// The advice for the operator, if there is any.
    pub(crate) fn advice(&self) -> Option<Advice> {
        self.advice
    }

    /// Sets a header of the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets `Retry-After`, in seconds. Problems that many clients get at once add some seconds at
    /// random, so that these clients do not all return at the same moment.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Sets whether the same request can get another answer later. The default is that of the code:
    /// [`Code::is_retryable`].
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// Adds the status and the location of a recorded response that cannot be replayed.
    #[must_use]
    pub fn recorded(mut self, status: StatusCode, location: Option<HeaderValue>) -> Self {
        self.recorded = Some((status, location));
        self
    }

    /// The code of the problem.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Converts the problem to an RFC 9457 response with the documented status.
    #[must_use]
    pub fn into_response(self, reference: Option<Reference>) -> Response<Bytes> {
        ProblemFormat::default().tell(self, reference)
    }
}

/// The problem that a response tells, in the extensions of the response: see [`Code::of`]. A gRPC
/// client gets it in other words.
#[derive(Clone, Debug)]
pub(crate) struct ProblemFacts {
    pub(crate) code: Code,
    pub(crate) detail: Box<str>,
    /// The seconds of `Retry-After`, with those added at random.
    pub(crate) retry_after: Option<u64>,
    pub(crate) retryable: bool,
    pub(crate) recorded: Option<StatusCode>,
    pub(crate) reference: Option<Reference>,
    pub(crate) instance: String,
}

/// The problem of a policy that cannot work, or of a handler that does not fit its route: see
/// docs/TRANSACTIONS.md.
pub(crate) fn misconfigured() -> Problem {
    Problem::new(
        Code::Misconfigured,
        "This service is misconfigured for this operation. The operation had no effect. Report it to the operator of the service, whose log has the reason.",
    )
}

/// Inserts the reference of an operation, which clients and operators know it by.
pub(crate) fn insert_reference(headers: &mut HeaderMap, reference: Reference) {
    if let Ok(value) = HeaderValue::from_bytes(&reference.to_ascii()) {
        headers.insert(IDEMPOTENCY_REFERENCE, value);
    }
}

/// Inserts a header. A value that is not valid in a header is left out; callers pass visible ASCII.
pub(crate) fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained() {
        let page = include_str!("../problems.md");
        for code in Code::ALL {
            let heading = format!("## {}\n", code.as_str());
            assert!(page.contains(&heading), "docs/PROBLEMS.md does not explain {}", code.as_str());
            let status = format!("{}", code.status().as_u16());
            let section = page.split(&heading).nth(1).unwrap();
            assert!(
                section.lines().take(3).any(|line| line.contains(&status)),
                "{code:?}: {status}"
            );
        }
    }
}
