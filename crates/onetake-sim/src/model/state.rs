//! What the model knows at one moment: the store, those who use it, and what was promised so far.

use std::sync::Arc;

use onetake_core::{AttemptId, Fence, Fingerprint, Record, RecordId, Timestamp};

use super::properties::Broken;

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The store's time. Everybody's own clock goes at the same speed.
    pub now: Timestamp,
    /// The highest fence that the store ever granted, for any key.
    pub floor: Fence,
    /// One for each key.
    pub keys: PerKey<KeyState>,
    /// The invariants that were broken on the way here.
    pub broken: Broken,
}

impl State {
    /// How many attempts were given a key.
    #[must_use]
    pub fn grants(&self) -> usize {
        Key::ALL.into_iter().map(|key| self.keys.get(key).grants()).sum()
    }
}

/// What there is for one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyState {
    /// What the store holds.
    pub record: Option<Arc<Record>>,
    /// What the store's index of expiries says of it.
    pub index: Index,
    /// Whether the reaper, at some moment, saw the record's attempt abandoned.
    pub reaper_saw: bool,
    /// What is promised for this key; the store does not know of it.
    pub life: Option<Life>,
    /// The highest fence that was granted for this key.
    pub fence: Fence,
    /// Those who were given the key, and those who may be.
    pub attempts: PerAttempt<Phase>,
}

impl KeyState {
    /// How many attempts were given the key.
    #[must_use]
    pub fn grants(&self) -> usize {
        Who::ALL.into_iter().filter(|who| *self.attempts.get(*who) != Phase::Idle).count()
    }

    /// The next attempt to be given the key. Idle attempts are all alike, so it is enough to look
    /// at one of them.
    #[must_use]
    pub fn idle(&self) -> Option<Who> {
        Who::ALL.into_iter().find(|who| *self.attempts.get(*who) == Phase::Idle)
    }
}

/// What a sweep is told by the index of expiries. Nobody cleans it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Index {
    /// Nothing was ever written for this key that could expire.
    #[default]
    Empty,
    /// The earliest expiry that was ever written for this key.
    Due(Timestamp),
    /// That moment is over: a sweep read the entry, and may come for the key at any time.
    Named,
}

/// What was promised for a key, from its first claim to its expiry, in the words of the design.
///
/// The model keeps it beside the store and from the answers alone, so that a wrong decision shows
/// as a difference between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    /// Who was given the key last.
    pub owner: Who,
    /// What was asked.
    pub asked: Asked,
    /// Since when.
    pub created: Timestamp,
    /// How many more fences were issued in this life than operations were started.
    pub spare: u8,
    /// Whether an operation was started in this life.
    pub started: bool,
    /// Where it stands.
    pub stage: Stage,
    /// Until when: the end of lease and grace while it runs, the expiry otherwise.
    pub until: Timestamp,
}

impl Life {
    /// Whether it has expired. A life never expires while it runs.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.stage != Stage::Running && self.until <= now
    }

    /// Whether its owner may be taken for lost.
    #[must_use]
    pub fn is_abandoned(&self, now: Timestamp) -> bool {
        self.stage == Stage::Running && self.until <= now
    }
}

/// Where a life stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// An attempt was given the key.
    Running,
    /// Completed or failed.
    Final,
    /// Another attempt may run.
    Released,
    /// Nobody knows.
    Unknown,
}

/// Where an attempt stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It was given nothing yet.
    #[default]
    Idle,
    /// It was given the key, and has not said yet what became of it.
    Held(Held),
    /// It said what became of it. The answer may have got lost, so that it says it again.
    Said {
        /// What it was asked.
        asked: Asked,
        /// What it said.
        word: Word,
    },
    /// It died, or it was told that it is stale.
    Gone,
}

/// What an attempt knows of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// What it was asked.
    pub asked: Asked,
    /// By its own clock, until when the lease is surely its own; zero once that is over.
    pub until: Timestamp,
    /// Whether its operation was started.
    pub started: bool,
}

impl Held {
    /// Whether the lease is alive by the attempt's own clock, which shows `now`.
    #[must_use]
    pub fn is_alive(&self, now: Timestamp) -> bool {
        self.until > now
    }
}

/// What an attempt says of itself, once and for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// It has an outcome.
    Complete,
    /// It failed for good.
    Fail,
    /// It never started.
    Release,
    /// It started, and its outcome is not known.
    Unknown,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// One.
    A,
    /// The other.
    B,
}

impl Key {
    /// Both.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// Where its record is kept.
    #[must_use]
    pub const fn id(self) -> RecordId {
        RecordId::from_bytes([self as u8; RecordId::BYTES])
    }
}

/// One of the two things that may be asked under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    /// One.
    This,
    /// The other.
    That,
}

impl Asked {
    /// Both.
    pub const ALL: [Self; 2] = [Self::This, Self::That];

    /// What it is called in the outcomes of what was asked.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::This => "this",
            Self::That => "that",
        }
    }

    /// Its fingerprint.
    #[must_use]
    pub const fn fingerprint(self) -> Fingerprint {
        Fingerprint::from_parts(Fingerprint::SCHEME, [self as u8; 32])
    }
}

/// An attempt on a key. They are numbered in the order in which they are given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// The one that was given it first.
    First,
    /// The one after it.
    Second,
    /// The last one.
    Third,
}

impl Who {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Third];

    /// What it is called in the outcomes that it records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
            Self::Third => "third",
        }
    }

    /// Its attempt id, on `key`.
    #[must_use]
    pub const fn id(self, key: Key) -> AttemptId {
        AttemptId::from_bytes([(key as u8) << 4 | self as u8; AttemptId::BYTES])
    }
}

/// One thing for each key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerKey<T> {
    /// For [`Key::A`].
    pub a: T,
    /// For [`Key::B`].
    pub b: T,
}

impl<T> PerKey<T> {
    /// The one for `key`.
    #[must_use]
    pub const fn get(&self, key: Key) -> &T {
        match key {
            Key::A => &self.a,
            Key::B => &self.b,
        }
    }

    /// The one for `key`, to be changed.
    #[must_use]
    pub const fn get_mut(&mut self, key: Key) -> &mut T {
        match key {
            Key::A => &mut self.a,
            Key::B => &mut self.b,
        }
    }
}

/// One thing for each attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerAttempt<T> {
    /// For [`Who::First`].
    pub first: T,
    /// For [`Who::Second`].
    pub second: T,
    /// For [`Who::Third`].
    pub third: T,
}

impl<T> PerAttempt<T> {
    /// The one for `who`.
    #[must_use]
    pub const fn get(&self, who: Who) -> &T {
        match who {
            Who::First => &self.first,
            Who::Second => &self.second,
            Who::Third => &self.third,
        }
    }

    /// The one for `who`, to be changed.
    #[must_use]
    pub const fn get_mut(&mut self, who: Who) -> &mut T {
        match who {
            Who::First => &mut self.first,
            Who::Second => &mut self.second,
            Who::Third => &mut self.third,
        }
    }
}
