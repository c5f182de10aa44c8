//! The last step of a request: the response, from what was settled.

use bytes::Bytes;
use http::Response;

use std::sync::Arc;

use onetake_core::engine::{Answer, RecordWith, Settling};
use onetake_core::{Record, RecordId, Recording, Reference, State};

use crate::accepted::Waiting;
use crate::body::ResponseBody;
use crate::head::Name;
use crate::layer::Shared;
use crate::policy::Policy;
use crate::problem::from_engine::{in_progress, problem_of};
use crate::problem::{Code, Problem, ProblemFormat};
use crate::recording::replay;
use crate::run::Ran;
use crate::trace::Trace;

/// A problem that ends a request before its operation is run or replayed.
pub(crate) struct Refusal(Box<Refused>);

struct Refused {
    problem: Problem,
    reference: Option<Reference>,
    answers: ProblemFormat,
}

impl Refusal {
    /// A refusal in the words of a route.
    pub(crate) fn new(policy: &Policy, problem: Problem) -> Self {
        Self(Box::new(Refused { problem, reference: None, answers: policy.problem_format() }))
    }

    /// The same, with the operation's reference.
    pub(crate) fn reference(mut self, reference: Reference) -> Self {
        self.0.reference = Some(reference);
        self
    }

    /// The same, with the reference of an operation if it is known.
    pub(crate) fn referring(mut self, name: Option<&Name>) -> Self {
        self.0.reference = name.map(Name::reference);
        self
    }

    pub(crate) fn respond<Res>(self, trace: &Trace) -> Response<ResponseBody<Res>> {
        let Refused { problem, reference, answers } = *self.0;
        trace.told(problem.code(), reference);
        answers.tell(problem, reference).map(whole)
    }
}

fn whole<Res>(body: Bytes) -> ResponseBody<Res> {
    ResponseBody::whole(body, None)
}

/// ProblemFormat a request that names an operation.
#[derive(Clone, Copy)]
pub(crate) struct Responder<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) trace: &'a Trace,
    pub(crate) policy: &'a Policy,
    pub(crate) id: RecordId,
}

impl Responder<'_> {
    pub(crate) fn problem<Res>(&self, problem: Problem) -> Response<ResponseBody<Res>> {
        let reference = self.id.reference();
        self.trace.told(problem.code(), Some(reference));
        self.policy.problem_format().tell(problem, Some(reference)).map(whole)
    }

    /// The operation runs, takes long, and its outcome is fetched later.
    pub(crate) fn accepted<Res>(&self, waiting: &Waiting) -> Response<ResponseBody<Res>> {
        self.trace.keyed("accepted", self.id.reference(), None);
        waiting.accepted(self.id)
    }

    /// What the engine knows of the operation.
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

    /// The outcome that stands: another attempt's, or what an operator says.
    fn stands<Res>(&self, record: &Arc<Record>) -> Response<ResponseBody<Res>> {
        match Answer::of(record) {
            Some(answer @ (Answer::Replay(_) | Answer::Failed(_))) => self.answer(&answer),
            _ => self.problem(in_progress()),
        }
    }

    /// What the attempt left, if its settlement lets it be shown (S6).
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
            // Another attempt took over, or somebody settled it: ours is not the truth any more.
            (Settling::Stale(Some(record)), _) => self.stands(record),
            (Settling::Stale(None), _) => self.problem(in_progress()),
            (Settling::Pending, _) => self.problem(pending()),
        })
    }

    /// The attempt panicked.
    pub(crate) fn panicked_in_the_middle<Res>(&self) -> Response<ResponseBody<Res>> {
        self.panicked(if self.policy.terms.on_unknown.runs_again() {
            "Retry with the same key."
        } else {
            "It is not run again."
        })
    }

    /// The inner service panicked; `then` says what that means for a retry.
    pub(crate) fn panicked<Res>(&self, then: &str) -> Response<ResponseBody<Res>> {
        self.problem(Problem::new(
            Code::PreviousAttemptFailed,
            format!("The operation failed in the middle. Its outcome is not known. {then}"),
        ))
    }
}

fn pending() -> Problem {
    Problem::new(
        Code::OutcomePending,
        "The operation ran, but the store does not take its outcome at the moment, so it cannot be shown yet. It is being recorded; retry with the same key.",
    )
    .retry_after(2)
}
