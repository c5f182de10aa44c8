//! Checks of runs at the upstream, and of their effects.

use onetake_core::engine::Attempt;
use onetake_core::{AttemptId, OnUnknown, RecordId, State, Timestamp};

use super::{Facts, History, outcome_text};
use crate::simulation::plan::Mode;
use crate::simulation::timeline::Micros;

/// The number of a run.
pub type RunNumber = usize;

/// One call of the upstream.
pub(super) struct Run {
    pub(super) number: RunNumber,
    /// `None` if it is not recorded: its route is fail-open, and the store could not be reached.
    pub(super) attempt: Option<Attempt>,
    tenant: u8,
    key: String,
    payload: u8,
    pub(super) effect: Option<Micros>,
    /// Whether the upstream has heard of it.
    has_arrived: bool,
    /// When its node got its outcome.
    pub(super) answered_at: Option<Micros>,
    /// Whether it can still have an effect.
    is_open: bool,
    text: String,
}

impl Run {
    pub(super) fn is_of(&self, id: RecordId, attempt: AttemptId) -> bool {
        self.attempt.is_some_and(|own| own.id == id && own.attempt == attempt)
    }
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It had its effect: this is its outcome.
    Done(String),
    /// It is being worked on.
    Working,
    /// It was sent and has not arrived: the upstream cannot know of it.
    OnItsWay,
    /// It had no effect and never will.
    NotDone,
}

impl History {
    /// A node starts a run. Its number, and the outcome that it would have.
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
            None if mode != Mode::FailOpen => {
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

    /// A run has its effect now.
    pub fn effect(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "effect", &[number as u64], || format!("run {number}"));
        let Some(run) = facts.runs.get_mut(number) else { return };
        run.effect = Some(at);
        let Some(attempt) = run.attempt else { return };
        facts.check_effect(at, number, &attempt);
    }

    /// A run cannot have an effect any more, or never had one.
    pub fn run_ended(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "run_ended", &[number as u64], || format!("run {number}"));
        if let Some(run) = facts.runs.get_mut(number) {
            run.is_open = false;
        }
    }

    /// The upstream has heard of a run.
    pub fn arrived(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "arrived", &[number as u64], || format!("run {number}"));
        if let Some(run) = facts.runs.get_mut(number) {
            run.has_arrived = true;
        }
    }

    /// The node has the outcome of a run in hand.
    pub fn answered(&self, at: Micros, number: RunNumber) {
        let facts = &mut *self.lock();
        facts.event(at, "answered", &[number as u64], || format!("run {number}"));
        if let Some(run) = facts.runs.get_mut(number) {
            run.answered_at = Some(at);
        }
    }

    /// The truth about a record's present life, as far as the upstream can tell.
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
        if self.not_rolled_back.contains(&attempt.attempt) {
            let what = format!("{id:?} started although an earlier attempt was not rolled back");
            self.violate(at, "rollback before retry", what);
        }
        if self.runs.iter().any(|run| run.is_of(id, attempt.attempt)) {
            self.violate(at, "S7", format!("{id:?} started twice with fence {fence}"));
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

    /// Whether a run of this kind, with this outcome, had an effect that nothing records.
    pub(super) fn is_unrecorded(&self, text: &str) -> bool {
        self.runs.iter().any(|run| run.attempt.is_none() && run.text == text)
    }

    /// Whether any run was asked for this.
    pub(super) fn ran(&self, tenant: u8, key: &str, payload: u8, text: &str) -> bool {
        self.runs.iter().any(|run| {
            run.tenant == tenant
                && run.key == key
                && run.payload == payload
                && text.starts_with(&run.text)
        })
    }
}
