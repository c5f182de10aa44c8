//! The state of a model at one moment: the store, its users, and what was promised so far.

use std::sync::Arc;

use onetake_core::{AttemptId, Fence, Fingerprint, Record, RecordId, Timestamp};

use super::config::TermsChoice;
use super::invariants::InvariantSet;
use super::promise::KeyLife;

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelState {
    /// The store's time.
    pub now: Timestamp,
    /// The number of ticks by which the store's clock went back so far. Everybody's own clock never
    /// goes back.
    pub steps_back: u8,
    /// The highest fence that the store ever granted, for any key.
    pub floor: Fence,
    /// One for each key.
    pub keys: PerKey<KeyState>,
    /// The invariants that were broken on the way here.
    pub broken: InvariantSet,
}

/// The state of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyState {
    /// The record in the store.
    pub record: Option<Arc<Record>>,
    /// The entry of this key in the store's index of expiries.
    pub expiry_index: ExpiryIndex,
    /// Whether a reaper, at some moment, saw the record's attempt abandoned.
    pub reaper_saw: bool,
    /// The promise for this key. The store does not know of it.
    pub life: Option<KeyLife>,
    /// The highest fence that was granted for this key.
    pub fence: Fence,
    /// The attempts on this key.
    pub attempts: PerAttempt<AttemptPhase>,
}

impl KeyState {
    /// The promise for this key, unless it expired.
    #[must_use]
    pub fn live(&self, now: Timestamp) -> Option<KeyLife> {
        self.life.filter(|life| !life.is_over(now))
    }

    /// The number of attempts that asked for the key.
    #[must_use]
    pub fn attempts(&self) -> usize {
        self.asked().count()
    }

    /// The attempts that asked for the key.
    pub fn asked(&self) -> impl Iterator<Item = AttemptSlot> {
        let is_used = |slot: &AttemptSlot| *self.attempts.get(*slot) != AttemptPhase::Idle;
        AttemptSlot::ALL.into_iter().filter(is_used)
    }

    /// The next attempt to ask for the key. Idle attempts are all alike, so it is enough to look at
    /// one of them.
    #[must_use]
    pub fn idle(&self) -> Option<AttemptSlot> {
        let is_idle = |slot: &AttemptSlot| *self.attempts.get(*slot) == AttemptPhase::Idle;
        AttemptSlot::ALL.into_iter().find(is_idle)
    }
}

/// The entry of a key in the store's index of expiries, as a sweeper reads it. No entry is ever
/// cleaned up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpiryIndex {
    /// No record that could expire was ever written for this key.
    #[default]
    Empty,
    /// The earliest expiry that was ever written for this key.
    Due(Timestamp),
    /// That moment is over: a sweeper read the entry, and may come for the key at any time.
    Named,
}

/// The progress of one attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttemptPhase {
    /// It has not asked for the key yet.
    #[default]
    Idle,
    /// Its claim is on its way to the store. The claimer has given up waiting, and will run nothing.
    ClaimInFlight(Request),
    /// Its claim was granted after the claimer gave up. Nothing runs.
    Disowned(Request),
    /// It was granted the key, and has not reported how it ended.
    Held(HeldLease),
    /// It reported how it ended. The answer may be lost, so it reports again.
    Reported(Request, AttemptReport),
    /// It died, or it was told that it is stale.
    Gone,
}

/// The request that an attempt is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The payload.
    pub payload: RequestPayload,
    /// The terms, by the configuration of the node that took the request.
    pub terms: TermsChoice,
}

/// An attempt's own knowledge of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldLease {
    /// The request that it serves.
    pub request: Request,
    /// The number of ticks for which the lease is surely its own, by its own clock.
    pub ticks_left: u8,
    /// The progress of its operation.
    pub run: RunProgress,
}

/// The progress of an operation. Whether it has an effect is decided when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunProgress {
    /// It was not started.
    NotStarted,
    /// It was started, and has no effect: it was refused, or its effect commits with its
    /// completion.
    WithoutEffect,
    /// It was started, and has an effect.
    WithEffect,
}

/// The final report of an attempt, by itself or by another actor in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptReport {
    /// It has an outcome.
    Complete,
    /// It failed for good.
    Fail,
    /// It had no effect.
    Release,
    /// It started, and its outcome is unknown.
    Unknown,
}

/// One of the actors who can settle an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settler {
    /// The attempt itself.
    Owner,
    /// A reaper, which passes over abandoned attempts.
    Reaper,
    /// A reconciler.
    Reconciler,
    /// An operator.
    Operator,
}

impl Settler {
    /// The signature under the outcomes that it records for `slot`.
    #[must_use]
    pub const fn signature(self, slot: AttemptSlot) -> &'static str {
        match (self, slot) {
            (Self::Owner, AttemptSlot::First) => "first",
            (Self::Owner, AttemptSlot::Second) => "second",
            (Self::Owner, AttemptSlot::Third) => "third",
            (Self::Reaper, _) => "reaper",
            (Self::Reconciler, _) => "reconciler",
            (Self::Operator, _) => "operator",
        }
    }
}

/// A key of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelKey {
    /// The first key.
    A,
    /// The second key.
    B,
}

impl ModelKey {
    /// Both keys.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// The id of its record.
    #[must_use]
    pub const fn id(self) -> RecordId {
        RecordId::from_bytes([self as u8; RecordId::BYTES])
    }
}

/// One of the two payloads that are sent under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestPayload {
    /// The payload that is sent first.
    This,
    /// Another payload.
    That,
}

impl RequestPayload {
    /// Both payloads.
    pub const ALL: [Self; 2] = [Self::This, Self::That];

    /// The name of the payload in recorded outcomes.
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

/// One of the attempts on a key. They are numbered in the order in which they ask for it, and each
/// is on a node of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptSlot {
    /// The first attempt.
    First,
    /// The second attempt.
    Second,
    /// The third attempt.
    Third,
}

impl AttemptSlot {
    /// All attempts.
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Third];

    /// Its attempt id, on `key`.
    #[must_use]
    pub const fn id(self, key: ModelKey) -> AttemptId {
        AttemptId::from_bytes([(key as u8) << 4 | self as u8; AttemptId::BYTES])
    }
}

/// One value for each key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerKey<T> {
    /// The value for [`ModelKey::A`].
    pub a: T,
    /// The value for [`ModelKey::B`].
    pub b: T,
}

impl<T> PerKey<T> {
    /// The value for `key`.
    #[must_use]
    pub const fn get(&self, key: ModelKey) -> &T {
        match key {
            ModelKey::A => &self.a,
            ModelKey::B => &self.b,
        }
    }

    /// The value for `key`, to be changed.
    #[must_use]
    pub const fn get_mut(&mut self, key: ModelKey) -> &mut T {
        match key {
            ModelKey::A => &mut self.a,
            ModelKey::B => &mut self.b,
        }
    }
}

/// One value for each attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerAttempt<T> {
    /// The value for [`AttemptSlot::First`].
    pub first: T,
    /// The value for [`AttemptSlot::Second`].
    pub second: T,
    /// The value for [`AttemptSlot::Third`].
    pub third: T,
}

impl<T> PerAttempt<T> {
    /// The value for `slot`.
    #[must_use]
    pub const fn get(&self, slot: AttemptSlot) -> &T {
        match slot {
            AttemptSlot::First => &self.first,
            AttemptSlot::Second => &self.second,
            AttemptSlot::Third => &self.third,
        }
    }

    /// The value for `slot`, to be changed.
    #[must_use]
    pub const fn get_mut(&mut self, slot: AttemptSlot) -> &mut T {
        match slot {
            AttemptSlot::First => &mut self.first,
            AttemptSlot::Second => &mut self.second,
            AttemptSlot::Third => &mut self.third,
        }
    }
}
