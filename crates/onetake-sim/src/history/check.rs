//! The rules for the history of one key, from the text of the design.
//!
//! The rules know the design's promise, its table of states and its invariants. They know nothing
//! of the engine or the stores. All keys live longer than the history, so no record expires.

use std::collections::HashSet;
use std::fmt;

use super::render::render;
use super::settled;
use super::spans::{Faults, KeyHistory, OperationRun, gather};
use super::{History, Key, OperatorDecision, Policy};

/// A rule that a history broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A run starts after its request was sent, and before that request is answered. A request
    /// causes one run at most.
    RunHasARequest,
    /// A response that says "nothing was run" is true for its request (S10).
    NothingRan,
    /// A key has one payload: another one neither runs nor is answered with the outcome (S9).
    OnePayload,
    /// Fences rise in the order of runs (S2).
    FencesRise,
    /// One attempt runs at a time, and a run that may have had an effect is not repeated (S1, S16).
    OneRun,
    /// A recorded response is the response of a run of this key, byte for byte (S4).
    TrueRecording,
    /// All recordings that clients saw are the same (S4, S6).
    OneRecording,
    /// No run starts after a client saw the recording (S4, S17).
    NoRunAfterRecording,
    /// After a client saw the recording, it is not denied (S4, S6).
    RecordingStays,
    /// A response that is not recorded goes only to the request that ran.
    NotRecorded,
    /// "The outcome is unknown" is answered only if something went wrong, and only if the route's
    /// policy has that answer.
    UnknownHasACause,
    /// Nothing runs after the answer "the outcome is unknown and it is not run again".
    NoRunAfterUnknown,
    /// A failure that an operator decided stays (S4, S20).
    FailureStays,
    /// The final read of every key has a definite answer.
    Settles,
    /// The key has as many effects as its final answer says.
    Effects,
    /// All responses for a key carry the same reference.
    OneReference,
    /// Only documented problems are answered.
    KnownProblem,
}

/// A broken rule, and the history of its key.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The key.
    pub key: Key,
    /// The rule.
    pub rule: Rule,
    /// An explanation.
    pub what: String,
    /// The key's whole history, for people.
    pub history: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, rule, what, history } = self;
        write!(f, "key {} ({:?}): {rule:?}: {what}\n{history}", key.number, key.policy)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The number of requests.
    pub operations: usize,
    /// The number of keys.
    pub keys: usize,
    /// The number of runs at the upstream.
    pub runs: usize,
    /// The number of kills and suspensions of gateways, and of faults of the store and the network.
    pub faults: usize,
    /// The number of keys whose recording a client saw.
    pub recorded: usize,
    /// The number of keys whose final answer is "unknown".
    pub unknown: usize,
    /// The number of keys that a documented loss of acknowledged writes may have affected.
    pub excused: usize,
    /// The number of keys among them that broke a rule, which the loss excuses.
    pub lost: usize,
    /// The broken rules.
    pub violations: Vec<Violation>,
}

impl CheckReport {
    /// Returns the broken rules, each once.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = self.violations.iter().map(|found| found.rule).collect();
        rules.sort();
        rules.dedup();
        rules
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, keys, runs, faults, recorded, unknown, .. } = self;
        write!(
            f,
            "{operations} operations, {keys} keys, {runs} runs, {faults} faults, \
             {recorded} recorded, {unknown} unknown, "
        )?;
        if self.excused > 0 {
            write!(f, "{} exposed to a documented loss, {} lost, ", self.excused, self.lost)?;
        }
        write!(f, "{} violations", self.violations.len())
    }
}

/// Findings for one key.
pub(super) type Findings = Vec<(Rule, String)>;

/// The input of all rules.
pub(super) struct CheckInput<'a> {
    pub(super) key: &'a KeyHistory,
    pub(super) faults: &'a Faults,
    pub(super) history: &'a History,
}

/// Checks the history of every key.
#[must_use]
pub fn check(history: &History) -> CheckReport {
    let (keys, faults) = gather(history);
    let mut report = CheckReport {
        keys: keys.len(),
        faults: faults.outages.len() + faults.store.len(),
        ..CheckReport::default()
    };
    for (name, key) in &keys {
        report.operations += key.requests.len();
        report.runs += key.runs.len();
        let case = CheckInput { key, faults: &faults, history };
        report.recorded += usize::from(case.first_recording().is_some());
        report.unknown += usize::from(settled::ends_unknown(&case));
        let (always, mut unless_lost) = (always(&case), unless_lost(&case));
        if may_be_lost(&case) {
            report.excused += 1;
            report.lost += usize::from(!unless_lost.is_empty());
            unless_lost.clear();
        }
        let found = always.into_iter().chain(unless_lost);
        let violations = found.map(|(rule, what)| {
            let history = render(history, key, &faults);
            Violation { key: *name, rule, what, history }
        });
        report.violations.extend(violations);
    }
    report
}

/// Returns findings of rules that no store may break.
fn always(case: &CheckInput<'_>) -> Findings {
    let mut found = Findings::new();
    runs_have_requests(case, &mut found);
    settled::nothing_ran(case, &mut found);
    settled::recordings_are_true(case, &mut found);
    settled::not_recorded(case, &mut found);
    settled::problems_are_known(case, &mut found);
    settled::one_reference(case, &mut found);
    settled::settles(case, &mut found);
    found
}

/// Returns findings of rules that depend on the store's acknowledgements.
fn unless_lost(case: &CheckInput<'_>) -> Findings {
    let mut found = Findings::new();
    one_payload(case, &mut found);
    fences_rise(case, &mut found);
    one_run(case, &mut found);
    settled::one_recording(case, &mut found);
    settled::no_run_after_recording(case, &mut found);
    settled::recording_stays(case, &mut found);
    settled::unknown_has_a_cause(case, &mut found);
    settled::no_run_after_unknown(case, &mut found);
    settled::failure_stays(case, &mut found);
    settled::effects(case, &mut found);
    found
}

/// Returns true if the store may have lost a write for this key. That is so if the key was in use
/// before the loss, and no client had seen it settled for longer than the loss reaches back.
fn may_be_lost(case: &CheckInput<'_>) -> bool {
    let settled = case.first_recording().or_else(|| settled::first_unknown(case));
    case.faults.losses.iter().any(|(at, lag)| {
        let used = case.key.requests.iter().any(|request| request.sent < *at);
        used && settled.is_none_or(|settled| settled.at + *lag >= at.at)
    })
}

fn runs_have_requests(case: &CheckInput<'_>, found: &mut Findings) {
    let mut seen = HashSet::new();
    for run in &case.key.runs {
        let rule = Rule::RunHasARequest;
        let Some(request) = case.key.request(run.request) else {
            found.push((rule, format!("run {} was sent by nobody", run.number)));
            continue;
        };
        if request.sent > run.started || request.payload != run.payload {
            found.push((rule, format!("run {} is not what its request asked", run.number)));
        }
        let answered = request.ended.filter(|_| request.response.is_some());
        if answered.is_some_and(|end| end < run.started) {
            found.push((rule, format!("run {} started after its response", run.number)));
        }
        if !seen.insert(run.request) {
            found.push((rule, format!("request {} ran twice", run.request)));
        }
    }
}

fn one_payload(case: &CheckInput<'_>, found: &mut Findings) {
    let ran: HashSet<u8> = case.key.runs.iter().map(|run| run.payload).collect();
    if ran.len() > 1 {
        found.push((Rule::OnePayload, "two payloads ran".to_owned()));
    }
    for (request, moment, response) in case.key.responses() {
        if response.code != settled::MISMATCH {
            continue;
        }
        let other = |other: &super::spans::RequestSpan| {
            other.payload != request.payload && other.sent < moment
        };
        if !case.key.requests.iter().any(other) {
            let what =
                format!("request {} is refused, and no other payload was sent", request.number);
            found.push((Rule::OnePayload, what));
        }
        // An attempt that never started leaves no payload behind. So a payload can run although it
        // was refused earlier, while another one was about to start.
        let ran_before =
            |run: &OperationRun| run.payload == request.payload && run.started < request.sent;
        if case.key.runs.iter().any(ran_before) {
            let what = format!("request {} is refused, and its payload ran", request.number);
            found.push((Rule::OnePayload, what));
        }
    }
}

fn fences_rise(case: &CheckInput<'_>, found: &mut Findings) {
    for (place, later) in case.key.runs.iter().enumerate() {
        for earlier in case.key.runs.iter().take(place) {
            let rises = earlier.fence < later.fence;
            // A gateway that was suspended between its last check of the lease and the first byte
            // sends late. The fence lets the upstream detect that.
            let late = earlier.fence > later.fence && case.sent_late(later, earlier);
            if !rises && !late {
                let (first, second) = (earlier.number, later.number);
                let what = format!("run {second} has no higher fence than run {first}");
                found.push((Rule::FencesRise, what));
            }
        }
    }
}

fn one_run(case: &CheckInput<'_>, found: &mut Findings) {
    for (place, later) in case.key.runs.iter().enumerate() {
        for earlier in case.key.runs.iter().take(place) {
            if !may_run_after(case, earlier, later) && !case.sent_late(later, earlier) {
                let (first, second) = (earlier.number, later.number);
                let what = format!("run {second} started although run {first} was not released");
                found.push((Rule::OneRun, what));
            }
        }
    }
}

/// Returns true if `later` may start after `earlier` did, by the table of states.
fn may_run_after(case: &CheckInput<'_>, earlier: &OperationRun, later: &OperationRun) -> bool {
    let (from, to) = (earlier.started, later.started);
    let released = case
        .key
        .decisions
        .iter()
        .any(|(at, decision)| *decision == OperatorDecision::Release && *at > from && *at < to);
    if released || earlier.released_before(to) {
        return true;
    }
    match case.key.key.policy {
        Policy::Fail => false,
        // The lease begins when the attempt claims, up to one lease before it starts. So the grace
        // is the time that certainly lies between two starts, unless the owner is known to be gone.
        Policy::Retry => {
            // A request that is on its way when its gateway is killed arrives afterwards.
            let sent = case.key.request(earlier.request).map_or(from, |request| request.sent);
            earlier.unknown_before(to)
                || case.faults.killed_between(earlier.node, sent, to)
                || to.at.saturating_sub(from.at) >= case.history.grace
        }
        Policy::Reconcile => {
            let over = earlier.finished.is_some_and(|end| end < to) && !earlier.effect;
            let answers = case.key.reconciled.iter();
            let mut none = answers.filter(|(_, found)| found.is_none());
            over && none.any(|(at, _)| *at > from && *at < to)
        }
    }
}

impl CheckInput<'_> {
    /// Returns true if `run` was sent by a gateway that was suspended while `other` started.
    pub(super) fn sent_late(&self, run: &OperationRun, other: &OperationRun) -> bool {
        self.faults.suspended_over(run.node, other.started, run.started)
    }

    /// Returns the moment at which the first client saw the recording.
    pub(super) fn first_recording(&self) -> Option<super::spans::HistoryMoment> {
        let responses = self.key.responses();
        let mut shown = responses.iter().filter(|(_, _, response)| self.is_recording(response));
        shown.next().map(|(_, moment, _)| *moment)
    }
}
