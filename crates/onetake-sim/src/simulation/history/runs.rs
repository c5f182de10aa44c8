//! Checks of runs at the upstream, and of their effects.

use onetake_core::engine::Attempt;
use onetake_core::{AttemptId, OnUnknown, RecordId, State, Timestamp};

use super::{Actor, Facts, History, outcome_text};
use crate::simulation::plan::Mode;
use crate::simulation::timeline::Micros;

/// The number of a run.
pub type RunNumber = usize;

/// One call of the upstream.
pub(super) struct Run {
    pub(super) number: RunNumber,
    /// `None` if it is not recorded: its route is fail-open, and the store was unreachable.
    pub(super) attempt: Option<Attempt>,
    tenant: u8,
    key: String,
    payload: u8,
    pub(super) effect: Option<Micros>,
    /// True if the request has arrived at the upstream.
    has_arrived: bool,
    /// The time at which its node got its outcome.
    pub(super) answered_at: Option<Micros>,
    /// True if it can still have an effect.
    is_open: bool,
    text: String,
}

impl Run {
    pub(super) fn is_of(&self, id: RecordId, attempt: AttemptId) -> bool {
        self.attempt.is_some_and(|own| own.id == id && own.attempt == attempt)
    }
}

/// The truth about an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It had its effect: the outcome.
    Done(String),
    /// It is being worked on.
    Working,
    /// It was sent and has not arrived: the upstream cannot know of it.
    OnItsWay,
    /// It had no effect and never will.
    NotDone,
}

impl History {
    /// Records that a node starts a run. Returns its number, and the outcome that it would have.
    pub fn started(
        &self,
        at: Micros,
        node: usize,
        attempt: Option<Attempt>,
        (tenant, key, payload): (u8, &str, u8),
        mode: Mode,
    ) -> (RunNumber, String) {
        let facts = &mut *self.lock();
        let number = facts.runs.len();
        let fence = attempt.map_or(0, |attempt| attempt.fence.get());
        facts.event(at, "start", &[node as u64, number as u64, fence], || {
            let id = attempt.map(|attempt| (attempt.id, attempt.attempt));
            format!("node {node} run {number} {id:?} fence {fence} {key}/{payload}")
        });
        match attempt {
            Some(attempt) => facts.check_start(at, &attempt),
            None if !facts.fails_open(mode) => {
                let what = format!("run {number} of {key} has no attempt");
                facts.violate(at, "S10", what);
            }
            None => {}
        }
        let text = outcome_text(tenant, key, payload, number, "done");
        let key = key.to_owned();
        let run = Run {
            number,
            attempt,
            tenant,
            key,
            payload,
            effect: None,
            answered_at: None,
            has_arrived: false,
            is_open: true,
            text,
        };
        let text = run.text.clone();
        facts.runs.push(run);
        (number, text)
    }

    /// Records that a run has its effect now.
    pub fn effect(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "effect", &[number as u64], || format!("run {number}"));
        let Some(run) = facts.runs.get_mut(number) else { return };
        run.effect = Some(at);
        let Some(attempt) = run.attempt else { return };
        facts.check_effect(at, number, &attempt);
    }

    /// Records that a run can no longer have an effect, or never had one.
    pub fn run_ended(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "run_ended", &[number as u64], || format!("run {number}"));
        if let Some(run) = facts.runs.get_mut(number) {
            run.is_open = false;
        }
    }

    /// Records that a run has arrived at the upstream.
    pub fn arrived(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "arrived", &[number as u64], || format!("run {number}"));
        if let Some(run) = facts.runs.get_mut(number) {
            run.has_arrived = true;
        }
    }

    /// Records that the node has received the outcome of a run.
    pub fn answered(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "answered", &[number as u64], || format!("run {number}"));
        if let Some(run) = facts.runs.get_mut(number) {
            run.answered_at = Some(at);
        }
    }

    /// Returns the truth about the present use of a key, as far as the upstream knows.
    #[must_use]
    pub fn truth(&self, id: RecordId, created_at: Timestamp) -> Truth {
        let facts = self.lock();
        let lives = |attempt: AttemptId| {
            let grants = facts.keys.get(&id).map(|key| key.grants.as_slice()).unwrap_or_default();
            grants.iter().any(|grant| grant.attempt == attempt && grant.created_at == created_at)
        };
        let runs: Vec<&Run> = facts
            .runs
            .iter()
            .filter(|run| run.attempt.is_some_and(|own| own.id == id && lives(own.attempt)))
            .collect();
        if let Some(run) = runs.iter().find(|run| run.effect.is_some()) {
            return Truth::Done(run.text.clone());
        }
        let mut open = runs.iter().filter(|run| run.is_open).peekable();
        if open.peek().is_none() {
            return Truth::NotDone;
        }
        if open.any(|run| run.has_arrived) { Truth::Working } else { Truth::OnItsWay }
    }
}

impl Facts {
    /// Returns true if the route runs operations without a record while the store is unreachable.
    pub(super) fn fails_open(&self, mode: Mode) -> bool {
        mode == Mode::FailOpen || (mode == Mode::Retry && self.retry_fails_open)
    }

    fn check_start(&mut self, at: Micros, attempt: &Attempt) {
        let (id, fence) = (attempt.id, attempt.fence.get());
        let key = self.key(id);
        let is_granted =
            key.grants.iter().any(|grant| grant.attempt == attempt.attempt && grant.fence == fence);
        let owns = key.record.as_ref().is_some_and(|record| {
            record.attempt == attempt.attempt && matches!(record.state, State::Running { .. })
        });
        let stands = key.record.as_ref().map_or("absent", |record| record.state.name());
        if !is_granted {
            self.violate(at, "S5", format!("{id:?} started with fence {fence}, never granted"));
        } else if !owns {
            let what = format!("{id:?} started with fence {fence}, but the store has it {stands}");
            self.violate(at, "S1", what);
        }
        if let Some(owner) = self.owner_if_running(attempt) {
            self.check_running(at, owner);
        }
        if self.not_rolled_back.contains(&attempt.attempt) {
            let what = format!("{id:?} started although an earlier attempt was not rolled back");
            self.violate(at, "rollback before retry", what);
        }
        if self.runs.iter().any(|run| run.is_of(id, attempt.attempt)) {
            self.violate(at, "S7", format!("{id:?} started twice with fence {fence}"));
        }
    }

    /// Returns the process of an attempt that has not been settled.
    fn owner_if_running(&self, attempt: &Attempt) -> Option<Actor> {
        let key = self.keys.get(&attempt.id)?;
        let record = key.record.as_ref()?;
        let is_running =
            record.attempt == attempt.attempt && matches!(record.state, State::Running { .. });
        key.owners.get(&attempt.attempt).copied().filter(|_| is_running)
    }

    /// Checks the number of operations of a process that have started and are not settled, with the
    /// run that starts now. Runs without a record count too.
    pub(super) fn check_running(&mut self, at: Micros, owner: Actor) {
        let Actor::Node(node, _) = owner else { return };
        let recorded = self.runs.iter().filter_map(|run| run.attempt.as_ref());
        let recorded = recorded.filter(|other| self.owner_if_running(other) == Some(owner));
        let running = 1 + recorded.count() + self.bypassed(owner);
        let max = self.running_max.get(node).copied().unwrap_or(usize::MAX);
        if running > max {
            let what = format!("node {node} runs {running} operations, and {max} are allowed");
            self.violate(at, "S19", what);
        }
    }

    fn check_effect(&mut self, at: Micros, number: RunNumber, attempt: &Attempt) {
        let id = attempt.id;
        let key = self.key(id);
        if key.released.contains(&attempt.attempt) {
            let what = format!("run {number} of {id:?} had its effect after it was released");
            self.violate(at, "S16", what);
            return;
        }
        let (grants, forgotten_at) = (key.grants.clone(), key.forgotten_at);
        let life = |attempt: AttemptId| {
            grants.iter().find(|grant| grant.attempt == attempt).map(|grant| grant.created_at)
        };
        let may_repeat = |attempt: AttemptId| {
            let grant = grants.iter().find(|grant| grant.attempt == attempt);
            grant.is_some_and(|grant| grant.on_unknown == OnUnknown::Retry)
        };
        let this = life(attempt.attempt);
        let twice = self.runs.iter().find(|run| {
            run.number != number
                && run.effect.is_some_and(|effect| forgotten_at.is_none_or(|at| effect > at))
                && run.attempt.is_some_and(|other| {
                    other.id == id
                        && life(other.attempt) == this
                        && !may_repeat(other.attempt)
                        && !may_repeat(attempt.attempt)
                })
        });
        if let Some(other) = twice {
            let what = format!("{id:?} had its effect twice: runs {} and {number}", other.number);
            self.violate(at, "one effect", what);
        }
    }

    /// Returns true if a run with this outcome ran without a record.
    pub(super) fn is_unrecorded(&self, text: &str) -> bool {
        self.runs.iter().any(|run| run.attempt.is_none() && run.text == text)
    }

    /// Returns true if there was a run for this request.
    pub(super) fn ran(&self, tenant: u8, key: &str, payload: u8, text: &str) -> bool {
        self.runs.iter().any(|run| {
            run.tenant == tenant
                && run.key == key
                && run.payload == payload
                && text.starts_with(&run.text)
        })
    }
}
