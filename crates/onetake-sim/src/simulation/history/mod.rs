//! The history of a simulation, and the invariants that it is checked against.
//!
//! The history sees more than any engine: every change of the store in the order in which it
//! happened, every run and effect of the upstream, and every response. Each event is checked when
//! it happens, by the text of the design and not by the engine's own functions. The first violation
//! ends the simulation.

mod bypass;
mod responses;
mod runs;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use onetake_core::{AttemptId, Cause, OnUnknown, Record, RecordId, State, Timestamp};

use super::plan::{Fault, Mode, Plan};
use super::timeline::Micros;

pub use bypass::{BypassedRun, Question, StoreNews};
pub use responses::{ClientRequest, ReceivedResponse};
pub use runs::{RunNumber, Truth};
pub use store::Actor;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the invariant.
    pub invariant: &'static str,
    /// A description of the violation.
    pub what: String,
    /// The time.
    pub at: Micros,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, what, at } = self;
        write!(f, "{invariant} is broken at {}.{:06} s: {what}", at / 1_000_000, at % 1_000_000)
    }
}

/// All events so far.
pub struct History {
    facts: Mutex<Facts>,
}

/// The state of the history.
pub(super) struct Facts {
    violation: Option<Violation>,
    hash: u64,
    events: u64,
    trace: Option<Vec<String>>,
    keys: BTreeMap<RecordId, KeyHistory>,
    runs: Vec<runs::Run>,
    /// The payloads of each operation, by tenant and key, to detect a false mismatch.
    payloads: BTreeMap<(u8, String), BTreeSet<u8>>,
    /// Attempts whose earlier attempt could not be rolled back: they must not start.
    not_rolled_back: BTreeSet<AttemptId>,
    /// Processes that crashed, or that ended without a journal for unsaved outcomes.
    lossy: BTreeSet<(usize, u64)>,
    /// The times until which processes that shut down wait for running operations.
    patient_until: BTreeMap<(usize, u64), Micros>,
    clocks_agree: bool,
    /// True if nothing goes wrong between the nodes and the store.
    is_faultless: bool,
    /// The time for which each node renews a lease.
    run_max: Vec<Duration>,
    /// The most operations that each node may run at once.
    running_max: Vec<usize>,
    /// Attempts that were running until a settlement gave them an outcome, or released them.
    settled_while_running: BTreeSet<AttemptId>,
    /// Attempts whose process learns at this time that they are settled.
    told: BTreeMap<AttemptId, Micros>,
    /// The total by which the store's clock is set back.
    set_back: Micros,
    /// The total by which the store's clock is set forward.
    set_ahead: Micros,
    cache_age_max: Micros,
    /// What the processes know of the store, for runs without a record.
    knowledge: bypass::Knowledge,
    /// The time for which each node waits for the answer to a claim.
    claim_patience: Vec<Micros>,
    /// True if routes of the mode `retry` are fail-open.
    retry_fails_open: bool,
}

/// The history of one key.
#[derive(Default)]
struct KeyHistory {
    /// The record in the store, expired or not.
    record: Option<Record>,
    fence_max: u64,
    grants: Vec<Grant>,
    recorded: Vec<Recorded>,
    /// Intervals in which the outcome was unknown or failed: beginning and end.
    refused: Vec<(Micros, Micros)>,
    released: BTreeSet<AttemptId>,
    promised: BTreeSet<AttemptId>,
    /// The time at which an operator last forgot the key. Earlier events do not count for later
    /// requests.
    forgotten_at: Option<Micros>,
    /// The processes that claimed the attempts, so that checks can leave out processes that are
    /// gone.
    owners: BTreeMap<AttemptId, Actor>,
}

/// A claim that was granted.
#[derive(Clone, Copy)]
struct Grant {
    attempt: AttemptId,
    fence: u64,
    /// Identifies one use of the key, until its expiry.
    created_at: Timestamp,
    on_unknown: OnUnknown,
}

/// A recorded outcome, and the time in which it may be shown.
struct Recorded {
    body: Bytes,
    from: Micros,
    /// The time at which it expires or was forgotten.
    until: Micros,
    attempt: AttemptId,
    /// The node that forgot it, and the time at which its operator got the answer. From then on
    /// that node must not show it. Other nodes may show it while it is in their caches.
    forgotten_by: Option<(usize, Micros)>,
}

impl History {
    /// Creates an empty history.
    #[must_use]
    pub fn new(plan: &Plan, traces: bool) -> Self {
        let set_clocks = plan.faults.iter().any(|planned| {
            matches!(planned.fault, Fault::WallClock { .. } | Fault::StoreClock { .. })
        });
        let steps = || {
            plan.faults.iter().map(|planned| match planned.fault {
                Fault::StoreClock { by } => by,
                _ => 0,
            })
        };
        let ages = plan.nodes.iter().map(|node| node.limits.cache_age_max);
        let patiences =
            plan.nodes.iter().map(|node| onetake_core::clock::micros(node.limits.claim_patience));
        let facts = Facts {
            violation: None,
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            trace: traces.then(Vec::new),
            keys: BTreeMap::new(),
            runs: Vec::new(),
            payloads: BTreeMap::new(),
            not_rolled_back: BTreeSet::new(),
            lossy: BTreeSet::new(),
            patient_until: BTreeMap::new(),
            is_faultless: plan.faults.is_empty() && plan.noise_per_mille == 0,
            run_max: plan.nodes.iter().map(|node| node.run_max).collect(),
            running_max: plan.nodes.iter().map(|node| node.limits.running_max).collect(),
            settled_while_running: BTreeSet::new(),
            told: BTreeMap::new(),
            set_back: steps().filter(|by| *by < 0).map(i64::unsigned_abs).sum(),
            set_ahead: steps().filter(|by| *by > 0).map(i64::unsigned_abs).sum(),
            clocks_agree: plan.is_uniform && !set_clocks,
            cache_age_max: ages.max().map_or(0, onetake_core::clock::micros),
            knowledge: bypass::Knowledge::default(),
            claim_patience: patiences.collect(),
            retry_fails_open: plan.retry_fails_open,
        };
        Self { facts: Mutex::new(facts) }
    }

    /// Records an event: it becomes part of the trace and of its hash.
    pub fn event(&self, at: Micros, kind: &str, numbers: &[u64], text: impl FnOnce() -> String) {
        self.lock().event(at, kind, numbers, text);
    }

    /// Records a violation. Only the first one counts.
    pub fn violate(&self, at: Micros, invariant: &'static str, what: String) {
        self.lock().violate(at, invariant, what);
    }

    /// Returns the violation, if there is one.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        self.lock().violation.clone()
    }

    /// Returns true if an invariant was broken.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.lock().violation.is_some()
    }

    /// Returns a digest of all events, in their order.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash
    }

    /// Returns the number of events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.lock().events
    }

    /// Returns the events as text, if they are kept.
    #[must_use]
    pub fn take_trace(&self) -> Vec<String> {
        self.lock().trace.take().unwrap_or_default()
    }

    /// Records that a client will send a payload.
    pub fn will_ask(&self, tenant: u8, key: &str, payload: u8) {
        let mut facts = self.lock();
        facts.payloads.entry((tenant, key.to_owned())).or_default().insert(payload);
    }

    /// Returns all keys that the store knows.
    #[must_use]
    pub fn ids(&self) -> Vec<RecordId> {
        self.lock().keys.keys().copied().collect()
    }

    /// Returns the keys whose attempt still runs, by the store.
    #[must_use]
    pub fn unfinished(&self) -> Vec<(RecordId, &'static str)> {
        let facts = self.lock();
        let records = facts.keys.iter().filter_map(|(id, key)| Some((*id, key.record.as_ref()?)));
        let running = records.filter(|(_, record)| matches!(record.state, State::Running { .. }));
        running.map(|(id, record)| (id, record.state.name())).collect()
    }

    /// Returns the keys whose lease ended although their attempt, of a process that still lives,
    /// never started.
    #[must_use]
    pub fn unknown_but_never_started(&self, of: Actor) -> Vec<(RecordId, AttemptId)> {
        let facts = self.lock();
        let records =
            facts.keys.iter().filter_map(|(id, key)| Some((*id, key, key.record.as_ref()?)));
        records
            .filter(|(id, key, record)| {
                matches!(record.state, State::Unknown { cause: Cause::LeaseEnded, .. })
                    && key.owners.get(&record.attempt) == Some(&of)
                    && !facts.runs.iter().any(|run| run.is_of(*id, record.attempt))
            })
            .map(|(id, _, record)| (id, record.attempt))
            .collect()
    }

    /// Records that an earlier attempt could not be rolled back.
    pub fn not_rolled_back(&self, attempt: AttemptId) {
        self.lock().not_rolled_back.insert(attempt);
    }

    /// Records that a node answered an operator that an outcome is forgotten.
    pub fn told_forgotten(&self, at: Micros, node: usize, id: RecordId, attempt: AttemptId) {
        let mut facts = self.lock();
        for recorded in facts.key(id).recorded.iter_mut().filter(|it| it.attempt == attempt) {
            if let Some((_, from)) = recorded.forgotten_by.as_mut().filter(|(by, _)| *by == node) {
                *from = at.min(*from);
            }
        }
    }

    /// Records that a process ended, and lost its unsaved outcomes.
    pub fn lost_process(&self, node: usize, incarnation: u64) {
        self.lock().lossy.insert((node, incarnation));
    }

    /// Records that a process shuts down. It waits until `patient_until` for running operations,
    /// and keeps nothing of those that take longer.
    pub fn shuts_down(&self, node: usize, incarnation: u64, patient_until: Micros) {
        let mut facts = self.lock();
        let until = facts.patient_until.entry((node, incarnation)).or_insert(Micros::MAX);
        *until = patient_until.min(*until);
    }

    /// Returns runs that had answered, but whose outcome the store does not have. Runs are left out
    /// if their process crashed, ended without a journal, or had waited for them for its whole
    /// patience.
    #[must_use]
    pub fn lost_outcomes(&self) -> Vec<(RecordId, RunNumber)> {
        let facts = self.lock();
        let is_kept = |key: &KeyHistory, attempt: AttemptId, answered_at: Micros| {
            let Some(Actor::Node(node, incarnation)) = key.owners.get(&attempt) else {
                return false;
            };
            let process = (*node, *incarnation);
            let patient_until = facts.patient_until.get(&process);
            !facts.lossy.contains(&process) && patient_until.is_none_or(|it| answered_at < *it)
        };
        facts
            .runs
            .iter()
            .filter_map(|run| {
                let (attempt, answered_at) = (run.attempt?, run.answered_at?);
                let key = facts.keys.get(&attempt.id)?;
                let record = key.record.as_ref()?;
                let is_open = record.attempt == attempt.attempt
                    && matches!(record.state, State::Unknown { .. } | State::Running { .. });
                (is_open && is_kept(key, attempt.attempt, answered_at))
                    .then_some((attempt.id, run.number))
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Facts {
    fn event(&mut self, at: Micros, kind: &str, numbers: &[u64], text: impl FnOnce() -> String) {
        self.events += 1;
        self.mix(at);
        for byte in kind.bytes() {
            self.mix(u64::from(byte));
        }
        for number in numbers {
            self.mix(*number);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:4}.{:06} {kind:12} {}", at / 1_000_000, at % 1_000_000, text()));
        }
    }

    fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
    }

    fn violate(&mut self, at: Micros, invariant: &'static str, what: String) {
        if self.violation.is_none() {
            self.event(at, "VIOLATION", &[], || format!("{invariant}: {what}"));
            self.violation = Some(Violation { invariant, what, at });
        }
    }
}

/// Returns the outcome text of a run. A client can see from it whose outcome it got.
#[must_use]
pub fn outcome_text(tenant: u8, key: &str, payload: u8, run: usize, word: &str) -> String {
    format!("{tenant}|{key}|{payload}|{run}|{word}")
}

/// Returns the beginning of the outcomes for this client.
fn outcome_prefix(tenant: u8, key: &str, payload: u8) -> String {
    format!("{tenant}|{key}|{payload}|")
}

/// Returns the key of an operation.
#[must_use]
pub fn key_text(operation: usize, mode: Mode) -> String {
    format!("operation-{operation:04}{}", mode.path().replace('/', "-"))
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}
