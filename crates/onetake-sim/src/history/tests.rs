//! Histories that the checker accepts, and histories that it refuses.

use std::time::Duration;

use bytes::Bytes;

use super::check::Rule;
use super::{
    CheckReport, Chosen, Event, History, Key, OperatorDecision, Policy, Response, TimedEvent,
    UpstreamAnswer, check,
};

const LEASE: Duration = Duration::from_secs(1);

/// A history in the making: one event every millisecond.
struct Script {
    key: Key,
    history: History,
    /// The time before the next event.
    pause: Duration,
}

impl Script {
    fn new(policy: Policy) -> Self {
        let history = History { entries: Vec::new(), lease: LEASE, grace: LEASE };
        Self { key: Key { number: 7, policy }, history, pause: Duration::ZERO }
    }

    fn event(mut self, event: Event) -> Self {
        let at = self.history.entries.last().map(|entry| entry.at).unwrap_or_default();
        let at = at + Duration::from_millis(1) + std::mem::take(&mut self.pause);
        self.history.entries.push(TimedEvent { at, event });
        self
    }

    fn wait(mut self, time: Duration) -> Self {
        self.pause = time;
        self
    }

    fn sent(self, request: u64) -> Self {
        self.sent_to(request, 0, b'a')
    }

    fn sent_to(self, request: u64, node: usize, payload: u8) -> Self {
        let (key, is_final) = (self.key, request >= 100);
        self.event(Event::Sent { request, key, payload, node, is_final })
    }

    fn starts(self, run: u64, request: u64, fence: u64) -> Self {
        let key = self.key;
        self.event(Event::Started { run, request, key, payload: b'a', fence })
    }

    fn ends(self, run: u64, chosen: Chosen) -> Self {
        let effect = matches!(chosen, Chosen::Record { .. });
        self.event(Event::Finished { run, chosen, effect })
    }

    fn records(self, run: u64) -> Self {
        self.ends(run, Chosen::Record { status: 201, body: body(run) })
    }

    /// A first answer, or a replay.
    fn shown(self, request: u64, run: u64, replayed: bool) -> Self {
        let shown = Response { run: Some(run), body: body(run), replayed, ..problem(201, "") };
        self.response(request, shown)
    }

    fn refused(self, request: u64, status: u16, code: &str) -> Self {
        self.response(request, problem(status, code))
    }

    fn response(self, request: u64, response: Response) -> Self {
        self.event(Event::Received { request, response: Some(response) })
    }

    fn lost(self, request: u64) -> Self {
        self.event(Event::Received { request, response: None })
    }

    /// The final read shows the recording of `run`.
    fn finally_shows(self, run: u64) -> Self {
        self.sent(100).shown(100, run, true)
    }

    fn finally_unknown(self) -> Self {
        self.sent(100).refused(100, 500, "previous_attempt_failed")
    }

    fn report(self) -> CheckReport {
        check(&self.history)
    }

    #[track_caller]
    fn holds(self) {
        let report = self.report();
        assert!(report.violations.is_empty(), "{}", report.violations[0]);
    }

    #[track_caller]
    fn breaks(self, rule: Rule) {
        let report = self.report();
        assert!(report.rules().contains(&rule), "{rule:?} is not among {:?}", report.rules());
    }
}

fn body(run: u64) -> Bytes {
    format!("run {run}").into()
}

fn problem(status: u16, code: &str) -> Response {
    let (code, reference) = (code.to_owned(), "AAAA-BBBB-CCCC".to_owned());
    Response { status, code, run: None, body: Bytes::new(), replayed: false, reference }
}

/// One request that ran, and was shown its outcome.
fn plain(policy: Policy) -> Script {
    Script::new(policy).sent(1).starts(1, 1, 5).records(1).shown(1, 1, false)
}

#[test]
fn a_run_a_replay_and_a_refusal_hold() {
    let history = plain(Policy::Fail).sent(2).shown(2, 1, true);
    let history = history.sent_to(3, 1, b'b').refused(3, 422, "idempotency_payload_mismatch");
    history.sent(4).refused(4, 503, "idempotency_store_unavailable").finally_shows(1).holds();
}

#[test]
fn a_lost_response_and_a_later_replay_hold() {
    let history = Script::new(Policy::Fail).sent(1).lost(1).sent(2).starts(1, 1, 5);
    history.refused(2, 409, "request_in_progress").records(1).finally_shows(1).holds();
}

#[test]
fn a_killed_gateway_leaves_an_unknown_outcome() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).event(Event::Killed(0));
    history.lost(1).records(1).event(Event::Ready(0)).finally_unknown().holds();
}

#[test]
fn an_owner_that_comes_late_is_believed() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).event(Event::Suspended(0));
    let history = history.sent_to(2, 1, b'a').refused(2, 500, "previous_attempt_failed");
    let history = history.event(Event::Resumed(0)).records(1).shown(1, 1, false);
    history.finally_shows(1).holds();
}

#[test]
fn a_released_key_runs_again() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).ends(1, Chosen::Release);
    let answer = Response { run: Some(1), ..problem(503, "") };
    let history = history.response(1, answer).sent(2).starts(2, 2, 6).records(2);
    history.shown(2, 2, false).finally_shows(2).holds();
}

#[test]
fn a_run_that_was_not_released_is_not_repeated() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).ends(1, Chosen::Unknown);
    let history = history.lost(1).sent(2).starts(2, 2, 6).records(2).shown(2, 2, false);
    history.finally_shows(2).breaks(Rule::OneRun);
}

#[test]
fn a_run_does_not_begin_before_the_release() {
    let history = Script::new(Policy::Fail).sent(1).sent(2).starts(1, 1, 5).starts(2, 2, 6);
    let history = history.ends(1, Chosen::Release).records(2).shown(2, 2, false).lost(1);
    history.finally_shows(2).breaks(Rule::OneRun);
}

#[test]
fn a_route_that_retries_runs_again_after_an_unknown_outcome() {
    let history = Script::new(Policy::Retry).sent(1).starts(1, 1, 5).ends(1, Chosen::Unknown);
    let history = history.lost(1).sent(2).starts(2, 2, 6).records(2).shown(2, 2, false);
    history.finally_shows(2).holds();
}

#[test]
fn a_route_that_retries_does_not_overlap_with_a_live_lease() {
    let history = Script::new(Policy::Retry).sent(1).starts(1, 1, 5);
    let history = history.sent_to(2, 1, b'a').starts(2, 2, 6).records(2).shown(2, 2, false);
    history.records(1).lost(1).finally_shows(2).breaks(Rule::OneRun);
}

#[test]
fn a_route_that_retries_may_overlap_once_the_lease_is_over() {
    let history = Script::new(Policy::Retry).sent(1).starts(1, 1, 5).wait(LEASE + LEASE);
    let history = history.sent_to(2, 1, b'a').starts(2, 2, 6).records(2).shown(2, 2, false);
    history.records(1).lost(1).finally_shows(2).holds();
}

#[test]
fn a_route_that_reconciles_runs_again_only_if_there_was_no_effect() {
    let start = || {
        let history = Script::new(Policy::Reconcile).sent(1).starts(1, 1, 5);
        history.ends(1, Chosen::Unknown).lost(1).sent(2)
    };
    let again = |history: Script| {
        let history = history.starts(2, 2, 6).records(2).shown(2, 2, false);
        history.finally_shows(2)
    };
    let key = start().key;
    again(start()).breaks(Rule::OneRun);
    again(start().event(Event::Reconciled { key, found: None })).holds();
}

#[test]
fn a_reconciled_outcome_is_the_recording() {
    let history = Script::new(Policy::Reconcile).sent(1).starts(1, 1, 5);
    let key = history.key;
    let history = history.event(Event::Finished { run: 1, chosen: Chosen::Unknown, effect: true });
    let found = UpstreamAnswer { run: 1, status: 201, body: body(1) };
    let history = history.lost(1).sent(2).refused(2, 409, "outcome_unknown");
    history.event(Event::Reconciled { key, found: Some(found) }).finally_shows(1).holds();
}

#[test]
fn a_fence_that_does_not_rise_is_refused() {
    let history = Script::new(Policy::Retry).sent(1).starts(1, 1, 5).ends(1, Chosen::Unknown);
    let history = history.lost(1).sent(2).starts(2, 2, 5).records(2).shown(2, 2, false);
    history.finally_shows(2).breaks(Rule::FencesRise);
}

#[test]
fn a_suspended_gateway_may_send_late_with_its_old_fence() {
    let history = Script::new(Policy::Retry).sent(1).event(Event::Suspended(0));
    let history = history.sent_to(2, 1, b'a').starts(2, 2, 6).records(2).shown(2, 2, false);
    let history = history.event(Event::Resumed(0)).starts(1, 1, 5).records(1);
    history.shown(1, 2, true).finally_shows(2).holds();
}

#[test]
fn a_second_outcome_is_refused() {
    let history = Script::new(Policy::Retry).sent(1).starts(1, 1, 5).wait(LEASE + LEASE);
    let history = history.sent_to(2, 1, b'a').starts(2, 2, 6).records(2).shown(2, 2, false);
    let history = history.records(1).shown(1, 1, false).finally_shows(2);
    history.breaks(Rule::OneRecording);
}

#[test]
fn another_body_than_the_recorded_one_is_refused() {
    let history = plain(Policy::Fail).sent(2);
    let shown = Response { run: Some(1), body: body(9), replayed: true, ..problem(201, "") };
    history.response(2, shown).finally_shows(1).breaks(Rule::TrueRecording);
}

#[test]
fn an_outcome_of_another_key_is_refused() {
    plain(Policy::Fail).sent(2).shown(2, 9, true).finally_shows(1).breaks(Rule::TrueRecording);
    plain(Policy::Fail).sent(2).shown(2, 9, false).finally_shows(1).breaks(Rule::TrueRecording);
}

#[test]
fn an_outcome_before_the_run_ended_is_refused() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).shown(1, 1, true).records(1);
    history.finally_shows(1).breaks(Rule::TrueRecording);
}

#[test]
fn a_run_after_the_outcome_was_shown_is_refused() {
    let history = plain(Policy::Retry).sent(2).starts(2, 2, 6).records(2).lost(2);
    history.finally_shows(1).breaks(Rule::NoRunAfterRecording);
}

#[test]
fn an_outcome_that_was_shown_is_not_denied() {
    let history = plain(Policy::Fail).event(Event::Killed(0)).event(Event::Ready(0));
    history.finally_unknown().breaks(Rule::RecordingStays);
    let history = plain(Policy::Fail).sent(2).refused(2, 409, "outcome_unknown");
    history.finally_shows(1).breaks(Rule::RecordingStays);
}

#[test]
fn another_payload_neither_runs_nor_is_shown_the_outcome() {
    let key = Key { number: 7, policy: Policy::Fail };
    let other = Event::Started { run: 2, request: 2, key, payload: b'b', fence: 6 };
    let history = plain(Policy::Fail).sent_to(2, 0, b'b').event(other).records(2);
    history.shown(2, 2, false).finally_shows(1).breaks(Rule::OnePayload);
    let history = plain(Policy::Fail).sent_to(2, 0, b'b').shown(2, 1, true);
    history.finally_shows(1).breaks(Rule::OnePayload);
}

#[test]
fn the_payload_that_ran_is_no_mismatch() {
    let history = plain(Policy::Fail).sent_to(2, 0, b'b').lost(2);
    let history = history.sent(3).refused(3, 422, "idempotency_payload_mismatch");
    history.finally_shows(1).breaks(Rule::OnePayload);
}

#[test]
fn a_payload_that_was_refused_beside_one_that_never_started_may_run() {
    let history = Script::new(Policy::Fail).sent_to(2, 0, b'b').lost(2);
    let history = history.sent(3).refused(3, 422, "idempotency_payload_mismatch");
    let history = history.sent(1).starts(1, 1, 5).records(1).shown(1, 1, false);
    history.finally_shows(1).holds();
}

#[test]
fn nothing_ran_means_that_nothing_ran() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5);
    let history = history.refused(1, 503, "idempotency_store_unavailable").records(1);
    history.finally_shows(1).breaks(Rule::NothingRan);
    let history = Script::new(Policy::Fail).sent(1);
    let history = history.refused(1, 503, "idempotency_store_unavailable").starts(1, 1, 5);
    history.records(1).finally_shows(1).breaks(Rule::NothingRan);
}

#[test]
fn a_run_without_a_request_is_refused() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 9, 5).records(1).lost(1);
    history.finally_shows(1).breaks(Rule::RunHasARequest);
    let history = Script::new(Policy::Retry).sent(1).starts(1, 1, 5).ends(1, Chosen::Unknown);
    let history = history.starts(2, 1, 6).records(2).shown(1, 2, false);
    history.finally_shows(2).breaks(Rule::RunHasARequest);
}

#[test]
fn what_was_not_recorded_is_not_replayed() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).ends(1, Chosen::Release);
    let history = history.lost(1).sent(2);
    let answer = Response { run: Some(1), ..problem(503, "") };
    history.response(2, answer).finally_unknown().breaks(Rule::NotRecorded);
}

#[test]
fn an_unknown_outcome_needs_a_cause() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).records(1).sent(2);
    let history = history.refused(2, 500, "previous_attempt_failed").shown(1, 1, false);
    history.finally_shows(1).breaks(Rule::UnknownHasACause);
}

#[test]
fn nothing_runs_after_it_was_said_so_unless_an_operator_releases() {
    let start = || {
        let history = Script::new(Policy::Fail).sent(1).event(Event::Killed(0)).lost(1);
        let history = history.event(Event::Ready(0)).sent(2);
        history.refused(2, 500, "previous_attempt_failed")
    };
    let again = |history: Script| {
        history.sent(3).starts(1, 3, 6).records(1).shown(3, 1, false).finally_shows(1)
    };
    let key = start().key;
    again(start()).breaks(Rule::NoRunAfterUnknown);
    let decision = OperatorDecision::Release;
    again(start().event(Event::Deciding { key, decision })).holds();
}

#[test]
fn a_failure_that_an_operator_decided_on_stays() {
    let start = || {
        let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5).event(Event::Killed(0));
        let history = history.event(Event::Ready(0)).lost(1).records(1);
        let (key, decision) = (history.key, OperatorDecision::Fail);
        let history = history.event(Event::Deciding { key, decision });
        history.event(Event::Decided { key, decision })
    };
    start().finally_unknown().holds();
    start().finally_shows(1).breaks(Rule::FailureStays);
}

#[test]
fn a_key_that_never_settles_is_refused() {
    let history = plain(Policy::Fail).sent(100).refused(100, 503, "overloaded");
    history.breaks(Rule::Settles);
}

#[test]
fn effects_are_counted() {
    let history = Script::new(Policy::Fail).sent(1).starts(1, 1, 5);
    let chosen = Chosen::Record { status: 201, body: body(1) };
    let history = history.event(Event::Finished { run: 1, chosen, effect: false });
    history.shown(1, 1, false).finally_shows(1).breaks(Rule::Effects);
}

#[test]
fn a_reference_that_changes_is_refused() {
    let reference = "DDDD-EEEE-FFFF".to_owned();
    let other = Response { reference, ..problem(409, "request_in_progress") };
    let history = plain(Policy::Fail).sent(2).response(2, other).finally_shows(1);
    history.breaks(Rule::OneReference);
}

#[test]
fn an_unknown_problem_is_refused() {
    let history = plain(Policy::Fail).sent(2).refused(2, 410, "response_not_replayable");
    history.finally_shows(1).breaks(Rule::KnownProblem);
}

#[test]
fn a_documented_loss_excuses_young_writes_alone() {
    let loss = || Event::MayHaveLost { lag: LEASE };
    let again = |history: Script| {
        let history = history.event(loss()).sent(2).starts(2, 2, 6).records(2);
        history.shown(2, 2, false).finally_shows(2).report()
    };
    let young = again(plain(Policy::Fail));
    assert_eq!((young.excused, young.lost), (1, 1));
    assert!(young.violations.is_empty(), "{}", young.violations[0]);
    let old = again(plain(Policy::Fail).wait(LEASE + LEASE));
    assert_eq!((old.excused, old.lost), (0, 0));
    assert!(old.rules().contains(&Rule::OneRun), "{:?}", old.rules());
}
