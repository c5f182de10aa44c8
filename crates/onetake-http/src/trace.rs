//! The span of a request, with its route, its reference and its result.
//!
//! Of the values that a client sent, the span holds only the method. Path, query and headers may
//! hold secrets. If no subscriber is interested, there is no span, and the cost is one check of
//! that.

use std::sync::{Mutex, PoisonError};

use http::{Method, Response};
use tracing::field::{Empty, display};
use tracing::{Span, debug_span};

use onetake_core::engine::SPANS;
use onetake_core::{Fence, Reference};

use crate::problem::Code;

/// The span of one request. The fields of its result are recorded once, on drop, because exporters
/// keep every value of a field that is recorded more than once.
pub(crate) struct Trace {
    span: Span,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    reference: Option<Reference>,
    fence: Option<Fence>,
    outcome: Option<&'static str>,
    problem: Option<Code>,
    status: Option<u16>,
    has_failed: bool,
}

impl Trace {
    /// Begins the span under the current span, if there is one. In that case the outer span is the
    /// server span, and this one is internal.
    pub(crate) fn begin(method: &Method) -> Self {
        let span = debug_span!(
            target: SPANS,
            "request",
            otel.name = Empty,
            otel.kind = if Span::current().is_disabled() { "server" } else { "internal" },
            otel.status_code = Empty,
            http.request.method = method_word(method),
            http.response.status_code = Empty,
            onetake.route = Empty,
            onetake.reference = Empty,
            onetake.fence = Empty,
            onetake.outcome = Empty,
            onetake.problem = Empty,
        );
        Self { span, noted: Mutex::default() }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Records the label of the route, in place of the path, which may hold secrets. Call it once,
    /// and before another span begins under this one, because exporters fix the name of this span
    /// then.
    pub(crate) fn route(&self, label: &str) {
        self.span.record("onetake.route", label);
        if label.contains('/') {
            self.span.record("otel.name", label);
        }
    }

    /// Notes the result of the request, in one word.
    pub(crate) fn set_outcome(&self, outcome: &'static str) {
        self.note(|noted| noted.outcome = Some(outcome));
    }

    /// Notes the result of a request with a key, like [`Self::set_outcome`].
    pub(crate) fn keyed(&self, outcome: &'static str, reference: Reference, fence: Option<Fence>) {
        self.note(|noted| {
            noted.outcome = Some(outcome);
            noted.reference = Some(reference);
            noted.fence = fence.or(noted.fence);
        });
    }

    pub(crate) fn set_problem(&self, code: Code, reference: Option<Reference>) {
        self.note(|noted| {
            noted.outcome = Some(outcome(code));
            noted.problem = Some(code);
            noted.reference = reference.or(noted.reference);
        });
    }

    pub(crate) fn answered<B, E>(&self, answer: &Result<Response<B>, E>) {
        self.note(|noted| {
            let status = answer.as_ref().ok().map(Response::status);
            noted.status = status.map(|status| status.as_u16());
            noted.has_failed = status.is_none_or(|status| status.is_server_error());
        });
    }

    fn note(&self, note: impl FnOnce(&mut Noted)) {
        if !self.span.is_disabled() {
            note(&mut self.noted.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let noted = self.noted.get_mut().unwrap_or_else(PoisonError::into_inner);
        let span = &self.span;
        noted.reference.map(|reference| span.record("onetake.reference", display(reference)));
        // Signed, because exporters support no unsigned integers.
        let fence = noted.fence.and_then(|fence| i64::try_from(fence.get()).ok());
        fence.map(|fence| span.record("onetake.fence", fence));
        noted.outcome.map(|outcome| span.record("onetake.outcome", outcome));
        noted.problem.map(|problem| span.record("onetake.problem", problem.as_str()));
        noted.status.map(|status| span.record("http.response.status_code", i64::from(status)));
        if noted.has_failed {
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// Returns the name of a method for logs and traces. A method that is not standard is `_OTHER`,
/// because it is text of the client's choice.
#[must_use]
pub fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "_OTHER",
    }
}

/// Returns the result, in one word, of a request that was answered with a problem.
fn outcome(code: Code) -> &'static str {
    match code {
        Code::IdempotencyPayloadMismatch => "mismatch",
        Code::RequestInProgress | Code::InProgressTimeout => "in_flight",
        Code::PreviousAttemptFailed | Code::OutcomeUnknown => "unknown",
        Code::OutcomePending | Code::UpstreamInterrupted | Code::UpstreamTimeout => "executed",
        Code::ResponseNotReplayable => "replayed",
        _ => "refused",
    }
}
