//! What clients are told when there is no outcome to tell: RFC 9457 problems.
//!
//! docs/PROBLEMS.md explains each code; the layer serves that page at [`DOCUMENTATION`].

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LINK, LOCATION, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use onetake_core::Reference;

/// Where the page that explains the problems is served.
pub const DOCUMENTATION: &str = "/.onetake/problems";

/// Every keyed answer carries this: a short reference that a person can read out.
pub const IDEMPOTENCY_REFERENCE: HeaderName = HeaderName::from_static("idempotency-reference");

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $status:literal $text:literal $title:literal,)+) => {
        /// The `code` of a problem: what a program goes by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name,)+ }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The word that stands in the problem.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The status that goes with it.
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
    /// A key is required, and there is none.
    IdempotencyKeyMissing = 400 "idempotency_key_missing" "Idempotency key missing",
    /// The key is malformed, too short, too long, or was sent twice.
    IdempotencyKeyInvalid = 400 "idempotency_key_invalid" "Idempotency key invalid",
    /// It cannot be told whose key it is.
    TenantUnresolved = 401 "tenant_unresolved" "Tenant cannot be told",
    /// The credential changes with every request.
    TenantUnstable = 400 "tenant_unstable" "Credential changes with every request",
    /// The same key came with another payload before.
    IdempotencyPayloadMismatch = 422 "idempotency_payload_mismatch" "Same key, other payload",
    /// An attempt with this key is running.
    RequestInProgress = 409 "request_in_progress" "Request in progress",
    /// It was still running after the whole wait.
    InProgressTimeout = 504 "in_progress_timeout" "Request still in progress",
    /// An earlier attempt's outcome is unknown, and it is not run again.
    PreviousAttemptFailed = 500 "previous_attempt_failed" "Previous attempt failed",
    /// An earlier attempt's outcome is being reconciled.
    OutcomeUnknown = 409 "outcome_unknown" "Outcome being reconciled",
    /// It ran, and its outcome cannot be made durable yet.
    OutcomePending = 503 "outcome_pending" "Outcome not durable yet",
    /// The store does not answer; nothing was run.
    StoreUnavailable = 503 "idempotency_store_unavailable" "Idempotency store unavailable",
    /// Too much at once; nothing was run.
    Overloaded = 503 "overloaded" "Overloaded",
    /// The request's body is larger than the route accepts.
    RequestBodyTooLarge = 413 "request_body_too_large" "Request body too large",
    /// The request's body took too long to arrive, or broke off.
    RequestBodyIncomplete = 408 "request_body_incomplete" "Request body incomplete",
    /// The request's body is not what the route compares: not JSON.
    RequestBodyInvalid = 400 "request_body_invalid" "Request body invalid",
    /// The request's body is compressed, which the route cannot compare.
    RequestEncodingUnsupported = 415 "request_encoding_unsupported" "Request encoding unsupported",
    /// The outcome is recorded, but its body was not kept.
    ResponseNotReplayable = 410 "response_not_replayable" "Response not replayable",
    /// The upstream could not be reached; nothing was sent.
    UpstreamUnreachable = 502 "upstream_unreachable" "Upstream unreachable",
    /// The upstream broke off without a whole answer.
    UpstreamInterrupted = 502 "upstream_interrupted" "Upstream interrupted",
    /// The upstream did not answer in time.
    UpstreamTimeout = 504 "upstream_timeout" "Upstream timeout",
    /// The request cannot be forwarded safely.
    RequestRefused = 400 "request_refused" "Request refused",
}

/// One problem, ready to become a response.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    detail: String,
    retry_after: Option<u64>,
    recorded: Option<(StatusCode, Option<HeaderValue>)>,
}

impl Problem {
    /// A problem with a sentence for people. It must hold no key, credential or body.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), retry_after: None, recorded: None }
    }

    /// Says after how many seconds a retry makes sense.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Says what was recorded, though it cannot be replayed.
    #[must_use]
    pub fn recorded(mut self, status: StatusCode, location: Option<HeaderValue>) -> Self {
        self.recorded = Some((status, location));
        self
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The response that tells it.
    #[must_use]
    pub fn into_response(self, reference: Option<Reference>) -> Response<Bytes> {
        let code = self.code.as_str();
        let documentation = format!("{DOCUMENTATION}#{code}");
        let mut members = Map::new();
        members.insert("type".into(), json!(documentation));
        members.insert("title".into(), json!(self.code.title()));
        members.insert("status".into(), json!(self.code.status().as_u16()));
        members.insert("detail".into(), json!(self.detail));
        members.insert("code".into(), json!(code));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        insert(&mut headers, LINK, &format!("<{documentation}>; rel=\"describedby\""));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some((status, location)) = self.recorded {
            members.insert("recorded_status".into(), json!(status.as_u16()));
            if let Some(location) = location {
                headers.insert(LOCATION, location);
            }
        }
        if let Some(reference) = reference {
            let reference = reference.to_string();
            insert(&mut headers, IDEMPOTENCY_REFERENCE, &reference);
            members.insert("reference".into(), json!(reference));
        }
        let mut response = Response::new(Bytes::from(Value::Object(members).to_string()));
        *response.status_mut() = self.code.status();
        *response.headers_mut() = headers;
        response
    }
}

/// Inserts a value that is made of visible ASCII by construction.
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
    fn every_code_is_explained() {
        let page = include_str!("problems.md");
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
