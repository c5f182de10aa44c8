//! Problems (RFC 9457): the answers to requests that get no outcome.
//!
//! docs/PROBLEMS.md explains each code. The layer serves that page at [`DOCUMENTATION`].

pub(crate) mod from_engine;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LINK, LOCATION, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use onetake_core::Reference;

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
    /// The request cannot be forwarded safely.
    RequestRefused = 400 "request_refused" "Request refused",
}

/// One problem, ready to become a response.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    detail: Box<str>,
    retry_after: Option<u64>,
    recorded: Option<(StatusCode, Option<HeaderValue>)>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// Creates a problem. `detail` is text for people, and must hold no key, credential or body.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let (detail, headers) = (detail.into().into_boxed_str(), Vec::new());
        Self { code, detail, retry_after: None, recorded: None, headers }
    }

    /// Sets a header of the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
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

/// The problem that a response tells, in the extensions of the response. A gRPC client gets it in
/// other words.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) code: Code,
    pub(crate) detail: Box<str>,
    pub(crate) retry_after: Option<u64>,
    pub(crate) recorded: Option<StatusCode>,
    pub(crate) reference: Option<Reference>,
}

/// The problem of a policy that cannot work, or of a handler that does not fit its route: see
/// docs/TRANSACTIONS.md.
pub(crate) fn misconfigured() -> Problem {
    Problem::new(
        Code::Misconfigured,
        "This service is misconfigured for this operation. The operation had no effect. Report it to the operator of the service, whose log has the reason.",
    )
}

/// The form and the statuses of a route's problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProblemFormat {
    /// The form of the body.
    pub dialect: Dialect,
    /// Statuses that replace those of the dialect.
    pub statuses: ProblemStatuses,
}

/// The form of a problem's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// RFC 9457.
    #[default]
    Problem,
    /// Stripe's error format. Stripe's SDKs read it and raise their own error types.
    Stripe,
}

/// Problem statuses that a route may choose. `None` is the dialect's own status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProblemStatuses {
    /// The key was used before with another payload. By default 422, in Stripe's dialect 400.
    pub mismatch: Option<StatusCode>,
    /// An attempt with this key is running. By default 409.
    pub in_flight: Option<StatusCode>,
    /// The attempt was still running at the end of the wait. By default 504.
    pub wait_timeout: Option<StatusCode>,
}

impl ProblemFormat {
    /// Converts a problem to a response in this format.
    #[must_use]
    pub fn tell(&self, mut problem: Problem, reference: Option<Reference>) -> Response<Bytes> {
        let status = self.status(problem.code);
        let code = problem.code.as_str();
        let documentation = format!("{DOCUMENTATION}#{code}");
        let mut headers: HeaderMap = std::mem::take(&mut problem.headers).into_iter().collect();
        insert(&mut headers, LINK, &format!("<{documentation}>; rel=\"describedby\""));
        if let Some(seconds) = problem.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some((_, Some(location))) = &problem.recorded {
            headers.insert(LOCATION, location.clone());
        }
        if let Some(reference) = reference {
            insert(&mut headers, IDEMPOTENCY_REFERENCE, &reference.to_string());
        }
        let body = match self.dialect {
            Dialect::Problem => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
                rfc9457(&problem, status, &documentation, reference)
            }
            Dialect::Stripe => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                if let Some(retry) = stripe_should_retry(&problem) {
                    headers.insert(STRIPE_SHOULD_RETRY, HeaderValue::from_static(retry));
                }
                stripe(&problem, status, &documentation, reference)
            }
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.extensions_mut().insert(Told {
            code: problem.code,
            detail: problem.detail,
            retry_after: problem.retry_after,
            recorded: problem.recorded.map(|(status, _)| status),
            reference,
        });
        response
    }

    fn status(&self, code: Code) -> StatusCode {
        let chosen = match code {
            Code::IdempotencyPayloadMismatch => self.statuses.mismatch,
            Code::RequestInProgress => self.statuses.in_flight,
            Code::InProgressTimeout => self.statuses.wait_timeout,
            _ => None,
        };
        chosen.unwrap_or_else(|| match (self.dialect, code) {
            (Dialect::Stripe, Code::IdempotencyPayloadMismatch) => StatusCode::BAD_REQUEST,
            _ => code.status(),
        })
    }
}

/// The header that tells Stripe's SDKs whether to retry.
const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

fn stripe_should_retry(problem: &Problem) -> Option<&'static str> {
    match problem.code {
        // `on_unknown` decides how a retry is answered. Without this header the SDK retries, and
        // gets that answer.
        Code::UpstreamInterrupted | Code::UpstreamTimeout => None,
        _ if problem.retry_after.is_some() => Some("true"),
        _ => Some("false"),
    }
}

fn rfc9457(
    problem: &Problem,
    status: StatusCode,
    documentation: &str,
    reference: Option<Reference>,
) -> Value {
    let mut members = Map::new();
    members.insert("type".into(), json!(documentation));
    members.insert("title".into(), json!(problem.code.title()));
    members.insert("status".into(), json!(status.as_u16()));
    members.insert("detail".into(), json!(problem.detail));
    members.insert("code".into(), json!(problem.code.as_str()));
    if let Some((status, _)) = &problem.recorded {
        members.insert("recorded_status".into(), json!(status.as_u16()));
    }
    if let Some(reference) = reference {
        members.insert("reference".into(), json!(reference.to_string()));
    }
    Value::Object(members)
}

/// Returns the body in Stripe's format. Stripe's SDKs raise a separate error for
/// `idempotency_error`. Other client errors are `invalid_request_error`, and all other problems are
/// `api_error`.
fn stripe(
    problem: &Problem,
    status: StatusCode,
    documentation: &str,
    reference: Option<Reference>,
) -> Value {
    let kind = match problem.code {
        Code::IdempotencyPayloadMismatch | Code::RequestInProgress => "idempotency_error",
        _ if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    let mut error = Map::new();
    error.insert("type".into(), json!(kind));
    error.insert("code".into(), json!(problem.code.as_str()));
    error.insert("message".into(), json!(problem.detail));
    error.insert("doc_url".into(), json!(documentation));
    if let Some((status, _)) = &problem.recorded {
        error.insert("recorded_status".into(), json!(status.as_u16()));
    }
    if let Some(reference) = reference {
        error.insert("reference".into(), json!(reference.to_string()));
    }
    json!({ "error": error })
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
    fn a_problem_tells_everything() {
        let problem = Problem::new(Code::RequestInProgress, "It runs.").retry_after(1);
        let response = problem.into_response(None);
        assert_eq!(response.status(), 409);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        let link = "</.onetake/problems#request_in_progress>; rel=\"describedby\"";
        assert_eq!(response.headers()[LINK], link);
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["code"], "request_in_progress");
        assert_eq!(body["status"], 409);
        assert_eq!(body["title"], "Request in progress");
        assert_eq!(body["detail"], "It runs.");
    }

    #[test]
    fn statuses_can_be_chosen() {
        let statuses = ProblemStatuses {
            mismatch: Some(StatusCode::CONFLICT),
            in_flight: Some(StatusCode::TOO_EARLY),
            wait_timeout: Some(StatusCode::ACCEPTED),
        };
        for dialect in [Dialect::Problem, Dialect::Stripe] {
            let answers = ProblemFormat { dialect, statuses };
            for (code, status) in [
                (Code::IdempotencyPayloadMismatch, 409),
                (Code::RequestInProgress, 425),
                (Code::InProgressTimeout, 202),
                (Code::Overloaded, 503),
            ] {
                let response = answers.tell(Problem::new(code, "x"), None);
                assert_eq!(response.status(), status, "{code:?}");
                if dialect == Dialect::Problem {
                    let body: Value = serde_json::from_slice(response.body()).unwrap();
                    assert_eq!(body["status"], status, "{code:?}");
                }
            }
        }
    }

    #[test]
    fn stripe_is_told_in_its_own_words() {
        let stripe = ProblemFormat { dialect: Dialect::Stripe, ..ProblemFormat::default() };
        for (code, retry, status, kind) in [
            (Code::IdempotencyPayloadMismatch, "false", 400, "idempotency_error"),
            (Code::RequestInProgress, "true", 409, "idempotency_error"),
            (Code::IdempotencyKeyMissing, "false", 400, "invalid_request_error"),
            (Code::PreviousAttemptFailed, "false", 500, "api_error"),
            (Code::StoreUnavailable, "true", 503, "api_error"),
            (Code::UpstreamInterrupted, "", 502, "api_error"),
            (Code::UpstreamTimeout, "", 504, "api_error"),
        ] {
            let problem = Problem::new(code, "What to do.");
            let problem = if retry == "true" { problem.retry_after(1) } else { problem };
            let response = stripe.tell(problem, None);
            assert_eq!(response.status(), status, "{code:?}");
            let headers = response.headers();
            let told = headers.get(STRIPE_SHOULD_RETRY).map(|told| told.to_str().unwrap());
            assert_eq!(told.unwrap_or_default(), retry, "{code:?}");
            assert_eq!(headers[CONTENT_TYPE], "application/json");
            let body: Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["error"]["type"], kind, "{code:?}");
            assert_eq!(body["error"]["code"], code.as_str());
            assert_eq!(body["error"]["message"], "What to do.");
        }
    }

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
