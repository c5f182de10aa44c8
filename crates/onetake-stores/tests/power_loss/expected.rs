//! The expected content after a power loss, from the reports of a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onetake_core::Timestamp;

use crate::script::{Ending, Run, Script, Shape, Step};

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Absent,
    Running(Run),
    Settled(Run, Ending),
}

/// A key, as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct KeyState {
    /// The last acknowledged state.
    pub(crate) sure: Known,
    /// The state that was requested since, and may have been written.
    pub(crate) maybe: Option<Known>,
    /// The highest fence that was granted.
    pub(crate) fence: u64,
}

/// The certainty of something that was requested once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Certainty {
    Maybe,
    Sure,
}

/// Everything that a worker reported.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) script: Script,
    steps: Vec<Step>,
    failed: BTreeSet<u32>,
    pub(crate) keys: BTreeMap<u32, KeyState>,
    pub(crate) secret: Option<Certainty>,
    pub(crate) entries: BTreeMap<u32, Certainty>,
    /// Files of the journal. `Sure`: the file exists. `Maybe`: it may exist.
    pub(crate) kept: BTreeMap<Vec<Run>, Certainty>,
    pub(crate) clock: Duration,
    /// True if the worker reported that the subject is open.
    pub(crate) opened: bool,
    /// Answers that are always wrong.
    pub(crate) wrong: Vec<String>,
    /// Steps that were refused.
    pub(crate) errors: Vec<String>,
}

impl Expected {
    pub(crate) fn new(script: Script) -> Self {
        Self {
            script,
            steps: script.steps(),
            failed: BTreeSet::new(),
            keys: BTreeMap::new(),
            secret: None,
            entries: BTreeMap::new(),
            kept: BTreeMap::new(),
            clock: Duration::ZERO,
            opened: false,
            wrong: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// The same facts, before a second worker continues in the same folder.
    pub(crate) fn continued(&self) -> Self {
        let at = self.script.at + self.clock.as_secs();
        let script = Script { shape: Shape::Again, at, ..self.script };
        let (steps, clock) = (script.steps(), Duration::ZERO);
        let mut continued = Self { script, steps, clock, opened: false, ..self.clone() };
        continued.reopened();
        continued
    }

    /// The store was opened again. A short-lived record that was running becomes unknown then, and
    /// expires at the next step of the clock, so its state is no longer known.
    fn reopened(&mut self) {
        let is_settled = |key: &KeyState| {
            matches!(key.sure, Known::Settled(..) | Known::Absent) && key.maybe.is_none()
        };
        let is_brief = |number: u32| Run { key: number, attempt: 0 }.is_brief();
        self.keys.retain(|number, key| is_settled(key) || !is_brief(*number));
    }

    /// The time at the last report.
    pub(crate) fn now(&self) -> Timestamp {
        self.script.start().plus(self.clock)
    }

    /// The number of acknowledged outcomes and claims.
    pub(crate) fn acknowledged(&self) -> usize {
        let sure = |key: &&KeyState| key.sure != Known::Absent;
        let kept = self.kept.values().filter(|kept| **kept == Certainty::Sure).count();
        self.keys.values().filter(sure).count() + kept
    }

    /// Applies a report of the worker.
    pub(crate) fn report(&mut self, mark: &str) {
        let mut words = mark.splitn(3, ' ');
        let (kind, what) = (words.next().unwrap(), words.next().unwrap());
        let rest = words.next().unwrap_or_default();
        if kind == "wrong" {
            self.wrong.push(format!("step {what}: {rest}"));
        }
        if kind == "err" {
            self.errors.push(format!("step {what}: {rest}"));
        }
        let Ok(number) = what.parse::<usize>() else {
            self.opened |= (kind, what) == ("ok", "open");
            return;
        };
        let Some(step) = self.steps[number].clone().without(&self.failed) else { return };
        match kind {
            "ask" => self.asked(&step),
            "ok" => self.done(&step, rest),
            _ => self.failed.extend(step.keys()),
        }
    }

    fn key(&mut self, run: Run) -> &mut KeyState {
        let absent = KeyState { sure: Known::Absent, maybe: None, fence: 0 };
        self.keys.entry(run.key).or_insert(absent)
    }

    fn asked(&mut self, step: &Step) {
        match step {
            Step::Claim(runs) => {
                runs.iter().for_each(|run| self.key(*run).maybe = Some(Known::Running(*run)));
            }
            Step::Settle(endings) => endings.iter().for_each(|(run, ending)| {
                self.key(*run).maybe = Some(Known::Settled(*run, *ending));
            }),
            Step::Secret => self.secret = self.secret.max(Some(Certainty::Maybe)),
            Step::Note(number) => drop(self.entries.insert(*number, Certainty::Maybe)),
            Step::Keep(runs) | Step::LetGo(runs) => {
                self.kept.insert(runs.clone(), Certainty::Maybe);
            }
            Step::Clock(_) | Step::Sweep | Step::Reopen => {}
        }
    }

    fn done(&mut self, step: &Step, said: &str) {
        match step {
            Step::Claim(runs) => {
                for (run, fence) in runs.iter().zip(said.split(' ')) {
                    let fence: u64 = fence.parse().unwrap();
                    let key = self.key(*run);
                    let before = std::mem::replace(&mut key.fence, fence);
                    (key.sure, key.maybe) = (Known::Running(*run), None);
                    if fence <= before {
                        self.wrong.push(format!("{run:?}: fence {fence} after {before} (S2)"));
                    }
                }
            }
            Step::Settle(endings) => endings.iter().for_each(|(run, ending)| {
                let key = self.key(*run);
                (key.sure, key.maybe) = (Known::Settled(*run, *ending), None);
            }),
            Step::Secret => self.secret = Some(Certainty::Sure),
            Step::Note(number) => drop(self.entries.insert(*number, Certainty::Sure)),
            Step::Keep(runs) => drop(self.kept.insert(runs.clone(), Certainty::Sure)),
            Step::Clock(by) => {
                self.clock += *by;
                // Short-lived records have expired.
                for key in self.keys.values_mut() {
                    if let Known::Settled(run, _) = key.sure
                        && run.is_brief()
                    {
                        key.sure = Known::Absent;
                    }
                }
                // The state of a short-lived record that may have been settled is unknown: it runs,
                // or it has expired too.
                self.keys.retain(
                    |_, key| !matches!(key.maybe, Some(Known::Settled(run, _)) if run.is_brief()),
                );
            }
            Step::Reopen => self.reopened(),
            // A deleted journal file may come back after a power loss. Settling it twice changes
            // nothing.
            Step::LetGo(_) | Step::Sweep => {}
        }
    }
}
