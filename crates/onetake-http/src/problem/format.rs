//! The form of problems as responses.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LINK, LOCATION, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use onetake_core::{Reference, Rng, SystemRng, hex};

use super::{Code, DOCUMENTATION, Problem, ProblemFacts, insert, insert_reference};

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
    pub fn tell(&self, problem: Problem, reference: Option<Reference>) -> Response<Bytes> {
        self.tell_with(problem, reference, &SystemRng)
    }

    /// Converts a problem to a response in this format. The response has the [`Code`] as an
    /// extension, by which an outer service tells it from other responses. `rng` gives the
    /// identifier of a request without a reference, and the seconds that are added to
    /// `Retry-After`.
    #[must_use]
    pub fn tell_with(
        &self,
        mut problem: Problem,
        reference: Option<Reference>,
        rng: &dyn Rng,
    ) -> Response<Bytes> {
        let status = self.status(problem.code);
        let instance = instance(&problem, reference, rng);
        let code = problem.code.as_str();
        let documentation = format!("{DOCUMENTATION}#{code}");
        let mut headers: HeaderMap = std::mem::take(&mut problem.headers).into_iter().collect();
        insert(&mut headers, LINK, &format!("<{documentation}>; rel=\"describedby\""));
        let retry_after = problem.retry_after.map(|seconds| {
            let jitter = if problem.code.is_shared() { jitter(seconds, rng) } else { 0 };
            seconds.saturating_add(jitter)
        });
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some((_, Some(location))) = &problem.recorded {
            headers.insert(LOCATION, location.clone());
        }
        if let Some(reference) = reference {
            insert_reference(&mut headers, reference);
        }
        let body = match self.dialect {
            Dialect::Problem => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
                rfc9457(&problem, status, &documentation, (reference, &instance))
            }
            Dialect::Stripe => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                if let Some(retry) = stripe_should_retry(&problem) {
                    headers.insert(STRIPE_SHOULD_RETRY, HeaderValue::from_static(retry));
                }
                stripe(&problem, status, &documentation, (reference, &instance))
            }
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.extensions_mut().insert(ProblemFacts {
            code: problem.code,
            detail: problem.detail,
            retry_after,
            retryable: problem.retryable,
            recorded: problem.recorded.map(|(status, _)| status),
            reference,
            instance,
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

/// Returns the URN of this problem. It names the operation by its reference. A request without a
/// reference gets an identifier of its own, which the log has, too.
fn instance(problem: &Problem, reference: Option<Reference>, rng: &dyn Rng) -> String {
    if let Some(reference) = reference {
        return format!("urn:onetake:reference:{reference}");
    }
    let mut id = [0; 16];
    rng.fill(&mut id);
    let request = hex::encode(&id);
    tracing::debug!(
        request,
        code = problem.code.as_str(),
        detail = problem.logged_detail(),
        "a request without a reference was answered with a problem"
    );
    format!("urn:onetake:request:{request}")
}

/// Returns a random number of seconds to add to `Retry-After`: at most as many as it has, and at
/// least up to 2.
fn jitter(seconds: u64, rng: &dyn Rng) -> u64 {
    let mut random = [0; 8];
    rng.fill(&mut random);
    u64::from_be_bytes(random) % (seconds.max(2).saturating_add(1))
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
    (reference, instance): (Option<Reference>, &str),
) -> Value {
    let mut members = Map::new();
    members.insert("type".into(), json!(documentation));
    members.insert("title".into(), json!(problem.code.title()));
    members.insert("status".into(), json!(status.as_u16()));
    members.insert("detail".into(), json!(problem.detail));
    members.insert("instance".into(), json!(instance));
    members.insert("code".into(), json!(problem.code.as_str()));
    members.insert("retryable".into(), json!(problem.retryable));
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
    (reference, instance): (Option<Reference>, &str),
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
    error.insert("instance".into(), json!(instance));
    error.insert("retryable".into(), json!(problem.retryable));
    if let Some((status, _)) = &problem.recorded {
        error.insert("recorded_status".into(), json!(status.as_u16()));
    }
    if let Some(reference) = reference {
        error.insert("reference".into(), json!(reference.to_string()));
    }
    json!({ "error": error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

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

    /// Counts up.
    #[derive(Debug, Default)]
    struct Counting(AtomicU64);

    impl Rng for Counting {
        fn fill(&self, into: &mut [u8]) {
            let next = self.0.fetch_add(1, Ordering::Relaxed);
            let number = next.to_be_bytes();
            into.iter_mut().rev().zip(number.iter().rev()).for_each(|(to, from)| *to = *from);
        }
    }

    #[test]
    fn every_problem_has_an_instance_and_says_whether_to_retry() {
        let reference: Reference = "2SBD-Q7F4-ABCD".parse().unwrap();
        let rng = Counting::default();
        for dialect in [Dialect::Problem, Dialect::Stripe] {
            let format = ProblemFormat { dialect, ..ProblemFormat::default() };
            for code in Code::ALL {
                let body = |reference, rng: &dyn Rng| {
                    let told = format.tell_with(Problem::new(*code, "x"), reference, rng);
                    let mut body: Value = serde_json::from_slice(told.body()).unwrap();
                    if dialect == Dialect::Stripe { body["error"].take() } else { body }
                };
                let known = body(Some(reference), &rng);
                assert_eq!(known["instance"], "urn:onetake:reference:2SBD-Q7F4-ABCD", "{code:?}");
                assert_eq!(known["retryable"], code.is_retryable(), "{code:?}");
                let (first, second) = (body(None, &rng), body(None, &rng));
                let (first, second) = (first["instance"].as_str(), second["instance"].as_str());
                let id = first.unwrap().strip_prefix("urn:onetake:request:").unwrap();
                assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
                assert_ne!(first, second, "{code:?}");
            }
        }
        let again = Problem::new(Code::PreviousAttemptFailed, "x").retryable(true);
        let body: Value = serde_json::from_slice(again.into_response(None).body()).unwrap();
        assert_eq!(body["retryable"], true);
    }

    #[test]
    fn clients_of_a_shared_condition_are_spread_over_whole_seconds() {
        let rng = Counting::default();
        let waits = |code, seconds| {
            let mut waits = std::collections::BTreeSet::new();
            for _ in 0..100 {
                let problem = Problem::new(code, "x").retry_after(seconds);
                let told = ProblemFormat::default().tell_with(problem, None, &rng);
                waits.insert(told.headers()[RETRY_AFTER].to_str().unwrap().parse().unwrap());
            }
            waits.into_iter().collect::<Vec<u64>>()
        };
        assert_eq!(waits(Code::Overloaded, 1), [1, 2, 3]);
        assert_eq!(waits(Code::StoreUnavailable, 2), [2, 3, 4]);
        // The time of one key or of one limit is exact.
        assert_eq!(waits(Code::RequestInProgress, 1), [1]);
        assert_eq!(waits(Code::VelocityLimitExceeded, 7), [7]);
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
}
