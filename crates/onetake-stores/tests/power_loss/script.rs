//! The steps of a worker, the same for the same seed.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use onetake_core::{
    AttemptId, Cause, Claim, Failure, Fingerprint, Key, Origin, RecordId, Recording, Scope,
    Settlement, Terms, Timestamp, Transition,
};

use crate::random::Random;

/// The start time of the first worker of a folder.
const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
/// The ttl of short-lived records. A clock step is longer, a run without one is shorter.
const BRIEF: Duration = Duration::from_secs(20);
/// A step of the clock: longer than the time for which fences are reserved.
const CLOCK_STEP: Duration = Duration::from_secs(61);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Embedded,
    Sqlite,
    Journal,
}

impl Subject {
    pub(crate) const EVERY: [Self; 3] = [Self::Embedded, Self::Sqlite, Self::Journal];
    pub(crate) const STORES: [Self; 2] = [Self::Embedded, Self::Sqlite];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A few dozen keys with small bodies.
    Small,
    /// Bodies of a mebibyte: tables are written, logs are checkpointed.
    Large,
    /// A few keys: for folders that a worker opened before.
    Again,
}

/// A subject, a shape and a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) subject: Subject,
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
    /// The start time of the worker, in seconds after [`START`].
    pub(crate) at: u64,
}

impl Script {
    pub(crate) fn new(subject: Subject, shape: Shape, seed: u64) -> Self {
        Self { subject, shape, seed, at: 0 }
    }

    /// The start time of the worker.
    pub(crate) fn start(self) -> Timestamp {
        START.plus(Duration::from_secs(self.at))
    }
}

impl fmt::Display for Script {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?} {:?} {} {}", self.subject, self.shape, self.seed, self.at)
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let [subject, shape, seed, at] = words[..] else { return Err(text.to_owned()) };
        let subjects = Subject::EVERY.into_iter().find(|each| format!("{each:?}") == subject);
        let shapes = [Shape::Small, Shape::Large, Shape::Again];
        let shapes = shapes.into_iter().find(|each| format!("{each:?}") == shape);
        match (subjects, shapes, seed.parse(), at.parse()) {
            (Some(subject), Some(shape), Ok(seed), Ok(at)) => Ok(Self { subject, shape, seed, at }),
            _ => Err(text.to_owned()),
        }
    }
}

/// A run of a key: its number, and the number of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) key: u32,
    pub(crate) attempt: u8,
}

impl Run {
    pub(crate) fn id(self) -> RecordId {
        RecordId::derive(&Scope::new("t"), &Key::new(format!("key {}", self.key)).unwrap())
    }

    pub(crate) fn attempt_id(self) -> AttemptId {
        AttemptId::from_bytes((u128::from(self.key) << 8 | u128::from(self.attempt)).to_be_bytes())
    }

    pub(crate) fn is_brief(self) -> bool {
        self.key % 5 == 4
    }

    pub(crate) fn claim(self) -> Claim {
        let mut terms = Terms::default();
        if self.is_brief() {
            terms.ttl = BRIEF;
        }
        Claim {
            id: self.id(),
            attempt: self.attempt_id(),
            fingerprint: Fingerprint::of(b"pay"),
            terms,
            origin: Origin::default(),
        }
    }

    pub(crate) fn recording(self, bytes: usize) -> Recording {
        let mut random = Random::new(u64::from(self.key) << 8 | u64::from(self.attempt));
        let block: Vec<u8> = (0..101).flat_map(|_| random.next().to_le_bytes()).collect();
        let mut body = block.repeat(bytes.div_ceil(block.len()));
        body.truncate(bytes);
        Recording { head: format!("head of {self:?}").into(), body: Some(body.into()) }
    }

    pub(crate) fn settlement(self, ending: Ending) -> Settlement {
        let transition = match ending {
            Ending::Complete(bytes) => Transition::Complete(self.recording(bytes)),
            Ending::Fail => Transition::Fail(Failure { code: "c".into(), detail: "d".into() }),
            Ending::Release => Transition::Release,
            Ending::Unknown => Transition::Unknown(Cause::TimedOut),
        };
        Settlement { id: self.id(), attempt: self.attempt_id(), transition }
    }
}

/// The ending of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Complete(usize),
    Fail,
    Release,
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Claim(Vec<Run>),
    Settle(Vec<(Run, Ending)>),
    Clock(Duration),
    Sweep,
    Secret,
    Note(u32),
    /// Closes and opens again.
    Reopen,
    /// Keeps the outcomes of these keys in the file journal.
    Keep(Vec<Run>),
    /// Deletes the journal file of these keys.
    LetGo(Vec<Run>),
}

impl Script {
    pub(crate) fn steps(self) -> Vec<Step> {
        match (self.subject, self.shape) {
            (Subject::Journal, _) => self.journal_steps(),
            (_, Shape::Large) => self.large_steps(),
            (_, Shape::Small) => self.store_steps(0, 9),
            (_, Shape::Again) => self.store_steps(1_000, 2),
        }
    }

    fn store_steps(self, first: u32, groups: u32) -> Vec<Step> {
        const SIZES: [usize; 6] = [0, 17, 400, 3_000, 9_000, 40_000];
        let mut random = Random::new(self.seed);
        let mut steps = vec![Step::Secret];
        for group in 0..groups {
            let run = |offset| Run { key: first + group * 5 + offset, attempt: 1 };
            let [a, b, c, d, brief] = [0, 1, 2, 3, 4].map(run);
            let mut size = || Ending::Complete(SIZES[random.below(SIZES.len())]);
            steps.push(Step::Claim(vec![a, b, c, d]));
            steps.push(Step::Settle(vec![(a, size())]));
            steps.push(Step::Claim(vec![brief]));
            steps.push(Step::Settle(vec![(b, size()), (brief, size()), (c, Ending::Fail)]));
            match group % 4 {
                // The attempt is left running.
                0 => {}
                1 => {
                    let again = Run { attempt: 2, ..d };
                    steps.push(Step::Settle(vec![(d, Ending::Release)]));
                    steps.push(Step::Claim(vec![again]));
                    steps.push(Step::Settle(vec![(again, size())]));
                }
                2 => steps.push(Step::Settle(vec![(d, Ending::Unknown)])),
                _ => steps.push(Step::Settle(vec![(d, Ending::Release)])),
            }
            steps.push(Step::Note(first + group));
            if group % 3 == 1 {
                let again = Run { attempt: 2, ..brief };
                steps.push(Step::Clock(CLOCK_STEP));
                steps.push(Step::Sweep);
                steps.push(Step::Claim(vec![again]));
                steps.push(Step::Settle(vec![(again, size())]));
                steps.push(Step::Secret);
            }
            if group % 4 == 2 {
                steps.push(Step::Reopen);
            }
        }
        steps
    }

    fn large_steps(self) -> Vec<Step> {
        let mut steps = vec![Step::Secret];
        // More than a table in memory holds, twice.
        for key in 0..76 {
            let run = Run { key: key * 5, attempt: 1 };
            steps.push(Step::Claim(vec![run]));
            steps.push(Step::Settle(vec![(run, Ending::Complete(1 << 20))]));
            if key == 40 {
                steps.push(Step::Reopen);
            }
        }
        steps
    }

    fn journal_steps(self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut random = Random::new(self.seed);
        let first = if self.shape == Shape::Again { 1_000 } else { 0 };
        for group in 0..6 {
            let count = 1 + random.below(4) as u32;
            let runs = |group: u32| {
                (0..count).map(|each| Run { key: first + group * 10 + each, attempt: 1 }).collect()
            };
            let kept: Vec<Run> = runs(group);
            steps.push(Step::Keep(kept.clone()));
            if group % 2 == 1 {
                steps.push(Step::LetGo(kept));
            }
            if group == 3 {
                steps.push(Step::Reopen);
            }
        }
        steps
    }
}

/// The settlements of some keys in the journal.
pub(crate) fn kept(runs: &[Run]) -> Vec<Settlement> {
    let ending = |run: &Run| match run.key % 3 {
        0 => Ending::Complete(5_000),
        1 => Ending::Fail,
        _ => Ending::Complete(10),
    };
    runs.iter().map(|run| run.settlement(ending(run))).collect()
}

impl Step {
    /// The keys of the step.
    pub(crate) fn keys(&self) -> Vec<u32> {
        match self {
            Self::Claim(runs) | Self::Keep(runs) | Self::LetGo(runs) => {
                runs.iter().map(|run| run.key).collect()
            }
            Self::Settle(endings) => endings.iter().map(|(run, _)| run.key).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the step without these keys, if something is left of it.
    pub(crate) fn without(mut self, keys: &BTreeSet<u32>) -> Option<Self> {
        match &mut self {
            Self::Claim(runs) => runs.retain(|run| !keys.contains(&run.key)),
            Self::Settle(endings) => endings.retain(|(run, _)| !keys.contains(&run.key)),
            // A file is kept and deleted as a whole.
            Self::Keep(runs) | Self::LetGo(runs) => {
                if runs.iter().any(|run| keys.contains(&run.key)) {
                    return None;
                }
            }
            _ => return Some(self),
        }
        (!self.keys().is_empty()).then_some(self)
    }
}
