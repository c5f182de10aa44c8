//! The last step of a request: the response, by the settlement.

use bytes::Bytes;
use http::Response;

use std::sync::Arc;

use onetake_core::engine::{Answer, RecordWith, Settling};
use onetake_core::{Record, RecordId, Recording, Reference, State};

use crate::accepted::AsyncWait;
use crate::advice::Advice;
use crate::body::ResponseBody;
use crate::head::Name;
use crate::layer::LayerState;
use crate::policy::Policy;
use crate::problem::from_engine::{in_progress, problem_of};
use crate::problem::{Code, Problem, ProblemFormat};
use crate::recording::replay;
use crate::run::Ran;
use crate::trace::Trace;

/// A problem that ends a request before its operation is run or replayed.
pub(crate) struct Refusal(Box<RefusedRequest>);

struct RefusedRequest {
    problem: Problem,
    reference: Option<Reference>,
    answers: ProblemFormat,
    /// Advice for the operator, and the route that it is about.
    advice: Option<(Advice, Box<str>)>,
}

impl Refusal {
    /// Creates a refusal in the problem format of a route.
    pub(crate) fn new(policy: &Policy, problem: Problem) -> Self {
        let advice = problem.advice().map(|advice| (advice, policy.label.as_str().into()));
        let answers = policy.problem_format();
        Self(Box::new(RefusedRequest { problem, reference: None, answers, advice }))
    }

    /// Adds the reference of an operation.
    pub(crate) fn reference(mut self, reference: Reference) -> Self {
        self.0.reference = Some(reference);
        self
    }

    /// Adds the reference of an operation, if its name is known.
    pub(crate) fn referring(mut self, name: Option<&Name>) -> Self {
        self.0.reference = name.map(Name::reference);
        self
    }

    pub(crate) fn respond<Res>(
        self,
        shared: &LayerState,
        trace: &Trace,
    ) -> Response<ResponseBody<Res>> {
        let RefusedRequest { problem, reference, answers, advice } = *self.0;
        if let Some((advice, route)) = advice {
            shared.warnings.warn(advice, &route);
        }
        trace.set_problem(problem.code(), reference);
        let rng = &**shared.engine.rng();
        answers.tell_with(problem, reference, rng).map(whole)
    }
}

fn whole<Res>(body: Bytes) -> ResponseBody<Res> {
    ResponseBody::whole(body, None)
}

/// Builder of the responses to a request with an operation.
#[derive(Clone, Copy)]
pub(crate) struct Responder<'a> {
    pub(crate) shared: &'a LayerState,
    pub(crate) trace: &'a Trace,
    pub(crate) policy: &'a Policy,
    pub(crate) id: RecordId,
}

impl Responder<'_> {
    pub(crate) fn problem<Res>(&self, problem: Problem) -> Response<ResponseBody<Res>> {
        let reference = self.id.reference();
        self.trace.set_problem(problem.code(), Some(reference));
        let rng = &**self.shared.engine.rng();
        self.policy.problem_format().tell_with(problem, Some(reference), rng).map(whole)
    }

    /// Answers 202: the operation runs, and the client fetches its outcome later.
    pub(crate) fn accepted<Res>(&self, waiting: &AsyncWait) -> Response<ResponseBody<Res>> {
        self.trace.keyed("accepted", self.id.reference(), None);
        waiting.accepted(self.id)
    }

    /// Answers by the engine's knowledge of the operation: a replay or a problem.
    pub(crate) fn answer<Res>(&self, answer: &Answer) -> Response<ResponseBody<Res>> {
        match answer {
            Answer::Replay(completed) => self.replay(completed),
            other => self.problem(problem_of(other)),
        }
    }

    fn replay<Res>(&self, completed: &RecordWith<Recording>) -> Response<ResponseBody<Res>> {
        let reference = completed.id.reference();
        self.trace.keyed("replayed", reference, Some(completed.fence));
        replay(completed.part(), reference, &self.shared.types)
            .unwrap_or_else(|problem| self.problem(problem))
    }

    /// Answers by a record that another attempt, a reconciler or an operator has changed.
    fn answer_by_record<Res>(&self, record: &Arc<Record>) -> Response<ResponseBody<Res>> {
        match Answer::of(record) {
            Some(answer @ (Answer::Replay(_) | Answer::Failed(_))) => self.answer(&answer),
            _ => self.problem(in_progress()),
        }
    }

    /// Answers with the attempt's own result, if its settlement allows that (S6).
    pub(crate) fn ran<Res, E>(
        &self,
        settling: &Settling,
        ran: Ran<Res, E>,
    ) -> Result<Response<ResponseBody<Res>>, E> {
        Ok(match (settling, ran) {
            (_, Ran::NotStarted(problem)) => self.problem(problem),
            (Settling::Stale(Some(record)), Ran::Committed(response, attempt, _))
                if record.attempt == attempt && matches!(record.state, State::Completed { .. }) =>
            {
                response
            }
            (Settling::Recorded(_), Ran::Responded(response)) => response,
            (Settling::Recorded(_), Ran::Broken(problem) | Ran::Committed(.., problem)) => {
                self.problem(problem)
            }
            (Settling::Recorded(_), Ran::Failed(error)) => return Err(error),
            // Another attempt took over, or this one was settled elsewhere. This result is not the
            // outcome.
            (Settling::Stale(Some(record)), _) => self.answer_by_record(record),
            (Settling::Stale(None), _) => self.problem(in_progress()),
            (Settling::Pending, _) => self.problem(pending()),
        })
    }

    /// Answers that the attempt panicked. The terms' `on_unknown` decides whether the answer asks
    /// for a retry.
    pub(crate) fn panicked_in_the_middle<Res>(&self) -> Response<ResponseBody<Res>> {
        match self.policy.terms.on_unknown.runs_again() {
            true => self.panicked("Retry with the same key.", true),
            false => self.panicked("The operation is not run again.", false),
        }
    }

    /// Answers that the inner service panicked. `then` is the sentence about a retry.
    pub(crate) fn panicked<Res>(&self, then: &str, retryable: bool) -> Response<ResponseBody<Res>> {
        let detail =
            format!("The operation failed while it was running. Its outcome is unknown. {then}");
        self.problem(Problem::new(Code::PreviousAttemptFailed, detail).retryable(retryable))
    }
}

/// The problem of an operation that ran and whose outcome is not in the store yet.
pub(crate) fn pending() -> Problem {
    Problem::new(
        Code::OutcomePending,
        "The operation ran, but its outcome could not be saved yet, so it cannot be shown. Retry with the same key, and do not use a new one.",
    )
    .retry_after(2)
}
