//! Rules for responses: recordings, problems and the final answer.

use std::collections::HashSet;

use super::check::{CheckInput, Findings, Rule};
use super::spans::{HistoryMoment, RequestSpan};
use super::{Chosen, OperatorDecision, Policy, Response, UpstreamAnswer};

/// The problem of another payload.
pub(super) const MISMATCH: &str = "idempotency_payload_mismatch";
/// The problem of an unknown outcome that is not run again.
const UNKNOWN: &str = "previous_attempt_failed";
/// The problem of an unknown outcome that is being reconciled.
const RECONCILING: &str = "outcome_unknown";
/// Problems that say that this request ran nothing.
const NOTHING_RAN: [&str; 4] =
    [MISMATCH, "idempotency_store_unavailable", "overloaded", "upstream_unreachable"];
/// Problems about an attempt: another request's, unless this request's own lost its key.
const OF_AN_ATTEMPT: [&str; 4] =
    [UNKNOWN, RECONCILING, "request_in_progress", "in_progress_timeout"];
/// Problems that say that this request or another one ran.
const RAN: [&str; 3] = ["outcome_pending", "upstream_interrupted", "upstream_timeout"];
/// Problems that a client may get after the recording was seen: it retries.
const RETRYABLE: [&str; 5] = [
    "request_in_progress",
    "in_progress_timeout",
    "idempotency_store_unavailable",
    "overloaded",
    "outcome_pending",
];

impl CheckInput<'_> {
    /// Returns true if the response is a recorded outcome.
    pub(super) fn is_recording(&self, response: &Response) -> bool {
        let Some(run) = response.run.and_then(|run| self.key.run(run)) else {
            // A replay of something else, or a run of another key.
            return response.code.is_empty() && (response.replayed || response.run.is_some());
        };
        response.replayed || matches!(run.chosen, Some(Chosen::Record { .. }))
    }
}

pub(super) fn nothing_ran(case: &CheckInput<'_>, found: &mut Findings) {
    for (request, moment, response) in case.key.responses() {
        let ran = case.key.runs.iter().find(|run| run.request == request.number);
        let overtaken = case.key.runs.len() > 1
            || !case.key.decisions.is_empty()
            || case.faults.between(request.sent, moment);
        let code = response.code.as_str();
        let says_so = NOTHING_RAN.contains(&code) || OF_AN_ATTEMPT.contains(&code) && !overtaken;
        if let Some(run) = ran.filter(|_| says_so) {
            let what = format!(
                "request {} is answered {}, and was run {}",
                request.number, response.code, run.number
            );
            found.push((Rule::NothingRan, what));
        }
    }
}

pub(super) fn recordings_are_true(case: &CheckInput<'_>, found: &mut Findings) {
    for (request, moment, response) in case.key.responses() {
        if !case.is_recording(response) {
            continue;
        }
        let number = request.number;
        let Some(run) = response.run.and_then(|run| case.key.run(run)) else {
            let what = format!("request {number} is shown the outcome of no run of this key");
            found.push((Rule::TrueRecording, what));
            continue;
        };
        let (status, body) = (response.status, response.body.clone());
        let effect = Some(UpstreamAnswer { run: run.number, status, body: body.clone() });
        let chosen = Some(Chosen::Record { status, body });
        let said = run.finished.is_some_and(|end| end < moment) && run.chosen == chosen;
        let mut answers = case.key.reconciled.iter();
        if !said && !answers.any(|(at, answer)| *at < moment && *answer == effect) {
            let what = format!("request {number} is not shown what run {} said", run.number);
            found.push((Rule::TrueRecording, what));
        }
        if run.payload != request.payload {
            let what = format!("request {number} is shown the outcome of another payload");
            found.push((Rule::OnePayload, what));
        }
        if !response.replayed && run.request != number {
            let what = format!("request {number} did not run {}, and has no mark", run.number);
            found.push((Rule::TrueRecording, what));
        }
    }
}

pub(super) fn not_recorded(case: &CheckInput<'_>, found: &mut Findings) {
    for (request, _, response) in case.key.responses() {
        let run = response.run.filter(|_| !case.is_recording(response));
        let run = run.and_then(|run| case.key.run(run));
        if run.is_some_and(|run| run.request != request.number) {
            let what = format!("request {} is shown what was not recorded", request.number);
            found.push((Rule::NotRecorded, what));
        }
    }
}

pub(super) fn problems_are_known(case: &CheckInput<'_>, found: &mut Findings) {
    let codes = [&NOTHING_RAN[..], &OF_AN_ATTEMPT, &RAN].concat();
    let known = |code: &str| codes.contains(&code);
    for (request, moment, response) in case.key.responses() {
        let number = request.number;
        if response.run.is_none() && !known(&response.code) {
            let what = format!("request {number}: {} {:?}", response.status, response.code);
            found.push((Rule::KnownProblem, what));
        }
        let started = case.key.runs.iter().any(|run| run.started < moment);
        if response.code == "outcome_pending" && !started {
            let what = format!("request {number}: the outcome is pending, and nothing ran");
            found.push((Rule::KnownProblem, what));
        }
    }
}

pub(super) fn one_reference(case: &CheckInput<'_>, found: &mut Findings) {
    let responses = case.key.responses();
    let said = responses.iter().map(|(_, _, response)| response.reference.as_str());
    let references: HashSet<&str> = said.filter(|reference| !reference.is_empty()).collect();
    if references.len() > 1 {
        found.push((Rule::OneReference, format!("{references:?}")));
    }
}

pub(super) fn one_recording(case: &CheckInput<'_>, found: &mut Findings) {
    let responses = case.key.responses();
    let mut recordings = responses.iter().filter(|(_, _, response)| case.is_recording(response));
    let Some((first, _, shown)) = recordings.next() else { return };
    for (request, _, response) in recordings {
        let seen = |response: &Response| (response.status, response.run, response.body.clone());
        if seen(shown) != seen(response) {
            let (one, two) = (first.number, request.number);
            let what = format!("requests {one} and {two} are shown different outcomes");
            found.push((Rule::OneRecording, what));
        }
    }
}

pub(super) fn no_run_after_recording(case: &CheckInput<'_>, found: &mut Findings) {
    let Some(shown) = case.first_recording() else { return };
    for run in case.key.runs.iter().filter(|run| run.started > shown) {
        if !case.faults.suspended_over(run.node, shown, run.started) {
            let what = format!("run {} started after the outcome was shown", run.number);
            found.push((Rule::NoRunAfterRecording, what));
        }
    }
}

pub(super) fn recording_stays(case: &CheckInput<'_>, found: &mut Findings) {
    let Some(shown) = case.first_recording() else { return };
    let ran: HashSet<u8> = case.key.runs.iter().map(|run| run.payload).collect();
    for (request, _, response) in case.key.responses() {
        let later = request.sent > shown && ran.contains(&request.payload);
        let denied = !case.is_recording(response) && !RETRYABLE.contains(&response.code.as_str());
        if later && denied {
            let what = format!(
                "request {} is answered {} {:?} after the outcome was shown",
                request.number, response.status, response.code
            );
            found.push((Rule::RecordingStays, what));
        }
    }
}

/// Returns the time at which the first client got the answer that the outcome is unknown for good.
pub(super) fn first_unknown(case: &CheckInput<'_>) -> Option<HistoryMoment> {
    let responses = case.key.responses();
    responses.iter().find(|(_, _, response)| response.code == UNKNOWN).map(|(_, at, _)| *at)
}

pub(super) fn unknown_has_a_cause(case: &CheckInput<'_>, found: &mut Findings) {
    let patience = case.history.lease + case.history.grace;
    for (request, moment, response) in case.key.responses() {
        let policy = match response.code.as_str() {
            UNKNOWN => Policy::Fail,
            RECONCILING => Policy::Reconcile,
            _ => continue,
        };
        let said = format!("request {} is answered {:?}", request.number, response.code);
        if case.key.key.policy != policy {
            found.push((Rule::UnknownHasACause, format!("{said} by a route with another policy")));
        }
        let Some(first) = case.key.requests.first() else { continue };
        let unknown = case.key.runs.iter().any(|run| run.unknown_before(moment));
        let faulty = case.faults.between(first.sent, moment);
        let stalled = case.key.requests.iter().any(|other| {
            let until = other.ended.filter(|end| *end < moment).unwrap_or(moment);
            other.sent < moment && until.at.saturating_sub(other.sent.at) >= patience
        });
        // A client that gives up leaves a run behind. It is not known how long that run took.
        let given_up =
            case.key.requests.iter().any(|other| {
                other.response.is_none() && other.ended.is_some_and(|end| end < moment)
            });
        if !unknown && !faulty && !stalled && !given_up {
            found.push((Rule::UnknownHasACause, format!("{said}, and nothing went wrong")));
        }
    }
}

pub(super) fn no_run_after_unknown(case: &CheckInput<'_>, found: &mut Findings) {
    let Some(unknown) = first_unknown(case) else { return };
    for run in case.key.runs.iter().filter(|run| run.started > unknown) {
        let released = case.key.decisions.iter().any(|(at, _)| *at < run.started);
        let late = case.faults.suspended_over(run.node, unknown, run.started);
        if !released && !late {
            let what = format!("run {} started after \"not run again\"", run.number);
            found.push((Rule::NoRunAfterUnknown, what));
        }
    }
}

pub(super) fn failure_stays(case: &CheckInput<'_>, found: &mut Findings) {
    let mut failures = case.key.decided.iter().filter(|(_, word)| *word == OperatorDecision::Fail);
    let Some((failed, _)) = failures.next() else { return };
    for run in case.key.runs.iter().filter(|run| run.started > *failed) {
        if !case.faults.suspended_over(run.node, *failed, run.started) {
            let what = format!("run {} started after an operator failed the key", run.number);
            found.push((Rule::FailureStays, what));
        }
    }
    for (request, _, response) in case.key.responses() {
        if request.sent > *failed && case.is_recording(response) {
            let number = request.number;
            let what = format!("request {number} is shown an outcome after the key failed");
            found.push((Rule::FailureStays, what));
        }
    }
}

/// Returns the final requests that have a definite answer.
fn definite<'a>(case: &'a CheckInput<'_>) -> impl Iterator<Item = (&'a RequestSpan, &'a Response)> {
    case.key.requests.iter().filter(|request| request.is_final).filter_map(|request| {
        let response = request.response.as_ref()?;
        let definite = case.is_recording(response) || response.code == UNKNOWN;
        definite.then_some((request, response))
    })
}

pub(super) fn settles(case: &CheckInput<'_>, found: &mut Findings) {
    if definite(case).next().is_none() {
        found.push((Rule::Settles, "the final read has no definite answer".to_owned()));
    }
}

/// Returns true if the final answer is "unknown".
pub(super) fn ends_unknown(case: &CheckInput<'_>) -> bool {
    definite(case).any(|(_, response)| response.code == UNKNOWN)
}

pub(super) fn effects(case: &CheckInput<'_>, found: &mut Findings) {
    let effects = case.key.runs.iter().filter(|run| run.effect).count();
    for (request, response) in definite(case) {
        let recorded = case.is_recording(response);
        let right = match case.key.key.policy {
            // An operator may release an attempt that had an effect. That is the operator's
            // decision.
            _ if !case.key.decisions.is_empty() => true,
            Policy::Retry => effects >= 1,
            Policy::Fail | Policy::Reconcile if recorded => effects == 1,
            Policy::Fail | Policy::Reconcile => effects <= 1,
        };
        if !right {
            let what = format!(
                "request {} is answered {} {:?}, and there are {effects} effects",
                request.number, response.status, response.code
            );
            found.push((Rule::Effects, what));
        }
    }
}
