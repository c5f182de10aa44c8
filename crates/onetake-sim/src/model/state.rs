//! The state of a model at one moment: the store, the actors, and the promises so far.

use std::sync::Arc;

use onetake_core::{AttemptId, Fence, Fingerprint, Record, RecordId, Timestamp};

use super::config::TermsChoice;
use super::invariants::InvariantSet;
use super::promise::KeyLife;

/// The whole state at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelState {
    /// The store's time.
    pub now: Timestamp,
    /// The number of ticks by which the store's clock went back so far. The actors' own clocks
    /// never go back.
    pub steps_back: u8,
    /// The highest fence that the store ever granted, for any key.
    pub floor: Fence,
    /// The states of the keys.
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
    /// True if a reaper, at some moment, saw the record's attempt abandoned.
    pub reaper_saw: bool,
    /// The promise for this key. The store does not know it.
    pub life: Option<KeyLife>,
    /// The highest fence that was granted for this key.
    pub fence: Fence,
    /// The attempts on this key.
    pub attempts: PerAttempt<AttemptPhase>,
}

impl KeyState {
    /// Returns the promise for this key, unless it expired.
    #[must_use]
    pub fn live(&self, now: Timestamp) -> Option<KeyLife> {
        self.life.filter(|life| !life.is_over(now))
    }

    /// Returns the number of attempts that claimed the key.
    #[must_use]
    pub fn attempts(&self) -> usize {
        self.asked().count()
    }

    /// Returns the attempts that claimed the key.
    pub fn asked(&self) -> impl Iterator<Item = AttemptSlot> {
        let is_used = |slot: &AttemptSlot| *self.attempts.get(*slot) != AttemptPhase::Idle;
        AttemptSlot::ALL.into_iter().filter(is_used)
    }

    /// Returns the next attempt to claim the key. Idle attempts are all alike, so it is enough to
    /// consider one of them.
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
    /// That moment is over: a sweeper read the entry, and may act on it at any time.
    Named,
}

/// The progress of one attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttemptPhase {
    /// The attempt has not claimed the key yet.
    #[default]
    Idle,
    /// The claim is on its way to the store. The claimer has given up waiting, and will run
    /// nothing.
    ClaimInFlight(Request),
    /// The claim was granted after the claimer gave up. Nothing runs.
    Disowned(Request),
    /// The attempt was granted the key, and has not reported its end.
    Held(HeldLease),
    /// The attempt reported its end. The answer may be lost, so it reports again.
    Reported(Request, AttemptReport),
    /// The attempt died, or got the answer that it is stale.
    Gone,
}

/// The request that an attempt is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The payload.
    pub payload: RequestPayload,
    /// The terms, by the configuration of the node that received the request.
    pub terms: TermsChoice,
}

/// An attempt's own knowledge of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldLease {
    /// The request that it serves.
    pub request: Request,
    /// The number of ticks for which the lease is certainly held, by the attempt's own clock.
    pub ticks_left: u8,
    /// The progress of its operation.
    pub run: RunProgress,
}

/// The progress of an operation. It is decided at the start whether it has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunProgress {
    /// The operation was not started.
    NotStarted,
    /// The operation was started, and has no effect: it was refused, or its effect commits with its
    /// completion.
    WithoutEffect,
    /// The operation was started, and has an effect.
    WithEffect,
}

/// The final report of an attempt, by itself or by another actor in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptReport {
    /// The operation has an outcome.
    Complete,
    /// The operation failed permanently.
    Fail,
    /// The operation had no effect.
    Release,
    /// The operation started, and its outcome is unknown.
    Unknown,
}

/// One of the actors that can settle an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settler {
    /// The attempt itself.
    Owner,
    /// A reaper, which ends abandoned attempts.
    Reaper,
    /// A reconciler.
    Reconciler,
    /// An operator.
    Operator,
}

impl Settler {
    /// Returns the signature of the outcomes that this actor records for `slot`.
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

    /// Returns the id of the record.
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

    /// Returns the name of the payload in recorded outcomes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::This => "this",
            Self::That => "that",
        }
    }

    /// Returns the fingerprint.
    #[must_use]
    pub const fn fingerprint(self) -> Fingerprint {
        Fingerprint::from_parts(Fingerprint::SCHEME, [self as u8; 32])
    }
}

/// One of the attempts on a key. They are numbered in the order of their claims, and each is on a
/// node of its own.
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

    /// Returns the attempt id on `key`.
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
    /// Returns the value for `key`.
    #[must_use]
    pub const fn get(&self, key: ModelKey) -> &T {
        match key {
            ModelKey::A => &self.a,
            ModelKey::B => &self.b,
        }
    }

    /// Returns the value for `key`, to be changed.
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
    /// Returns the value for `slot`.
    #[must_use]
    pub const fn get(&self, slot: AttemptSlot) -> &T {
        match slot {
            AttemptSlot::First => &self.first,
            AttemptSlot::Second => &self.second,
            AttemptSlot::Third => &self.third,
        }
    }

    /// Returns the value for `slot`, to be changed.
    #[must_use]
    pub const fn get_mut(&mut self, slot: AttemptSlot) -> &mut T {
        match slot {
            AttemptSlot::First => &mut self.first,
            AttemptSlot::Second => &mut self.second,
            AttemptSlot::Third => &mut self.third,
        }
    }
}
