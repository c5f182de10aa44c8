//! The span of a request: which route, which reference, and what became of it.
//!
//! What a client sent is not in it, but for its method: a path, a query or a header may hold anything. Without
//! a subscriber that wants it there is no span, and nothing here costs more than looking at that.

use std::sync::{Mutex, PoisonError};

use http::{Method, Response};
use tracing::field::{Empty, display};
use tracing::{Span, debug_span};

use onetake_core::engine::SPANS;
use onetake_core::{Fence, Reference};

use crate::problem::Code;

/// The span of one request. What became of it is written when this is dropped, once: exporters keep every
/// value of a field that is recorded again.
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
    /// Begins it under the current span, if there is one: then that is the server's.
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

    /// The route as it is configured. It stands for the path, which may hold anything. Said once, and before
    /// anything else begins under this span: exporters fix its name then.
    pub(crate) fn route(&self, label: &str) {
        self.span.record("onetake.route", label);
        if label.contains('/') {
            self.span.record("otel.name", label);
        }
    }

    /// What became of the request, in one word.
    pub(crate) fn became(&self, outcome: &'static str) {
        self.note(|noted| noted.outcome = Some(outcome));
    }

    /// As [`Self::became`], of a request with a key.
    pub(crate) fn keyed(&self, outcome: &'static str, reference: Reference, fence: Option<Fence>) {
        self.note(|noted| {
            noted.outcome = Some(outcome);
            noted.reference = Some(reference);
            noted.fence = fence.or(noted.fence);
        });
    }

    pub(crate) fn told(&self, code: Code, reference: Option<Reference>) {
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
        // Signed, because exporters know no other numbers.
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

/// A method as logs and traces name it: one that nobody knows is the client's own text, and could be anything.
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

/// What became of a request that a problem was the answer to.
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
