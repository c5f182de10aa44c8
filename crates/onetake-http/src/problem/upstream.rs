//! Problems of a proxy that got no response from its upstream.

use bytes::Bytes;
use http::Response;
use onetake_core::{Cause, Reference};

use super::{Code, Problem, ProblemFormat};
use crate::context::AttemptReport;
use crate::status::Disposition;

/// The reason why a proxy has no response of its upstream. It decides what becomes of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpstreamFailure {
    /// Nothing was sent: the attempt is released.
    NotSent,
    /// The request was sent, and the connection ended: the outcome is unknown.
    Interrupted,
    /// The request was sent, and no response came in time: the outcome is unknown.
    TimedOut,
}

impl UpstreamFailure {
    /// Returns the response to the client, with the report of the attempt. A request without a key
    /// has no reference.
    #[must_use]
    pub fn respond(self, format: ProblemFormat, reference: Option<Reference>) -> Response<Bytes> {
        let mut response = format.tell(self.problem(reference.is_some()), reference);
        self.report().attach(&mut response);
        response
    }

    fn problem(self, has_key: bool) -> Problem {
        let (code, detail) = match self {
            Self::NotSent => {
                let retry = if has_key { ". Retry with the same key" } else { "" };
                let detail =
                    format!("The upstream cannot be reached. The request was not sent{retry}.");
                return Problem::new(Code::UpstreamUnreachable, detail).retry_after(1);
            }
            Self::Interrupted => (
                Code::UpstreamInterrupted,
                "The upstream accepted the request and closed the connection without a response. The outcome is unknown. If the request has an idempotency key, retry with the same key.",
            ),
            Self::TimedOut => (
                Code::UpstreamTimeout,
                "The upstream did not respond in time. The outcome is unknown. If the request has an idempotency key, retry with the same key.",
            ),
        };
        // Without a key, a retry may run what was run already.
        Problem::new(code, detail).retryable(has_key)
    }

    fn report(self) -> AttemptReport {
        let (disposition, cause) = match self {
            Self::NotSent => (Disposition::Release, Cause::Interrupted),
            Self::Interrupted => {
                let cause = "the upstream closed the connection without a response";
                (Disposition::Unknown, Cause::Reported(cause.into()))
            }
            Self::TimedOut => (Disposition::Unknown, Cause::TimedOut),
        };
        AttemptReport::new(disposition).cause(cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_was_not_sent_can_be_repeated_without_a_key() {
        for (failure, code, disposition, is_retryable) in [
            (UpstreamFailure::NotSent, "upstream_unreachable", Disposition::Release, true),
            (UpstreamFailure::Interrupted, "upstream_interrupted", Disposition::Unknown, false),
            (UpstreamFailure::TimedOut, "upstream_timeout", Disposition::Unknown, false),
        ] {
            let mut response = failure.respond(ProblemFormat::default(), None);
            let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(
                (&problem["code"], &problem["retryable"]),
                (&code.into(), &is_retryable.into())
            );
            assert_eq!(AttemptReport::take(&mut response).disposition, Some(disposition));
            // With a key, each of them can be repeated.
            let reference = onetake_core::RecordId::from_bytes([7; 16]).reference();
            let response = failure.respond(ProblemFormat::default(), Some(reference));
            let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(problem["retryable"], true, "{failure:?}");
        }
    }
}
