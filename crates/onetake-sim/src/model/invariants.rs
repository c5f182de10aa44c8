//! The invariants of the model.

use onetake_core::decide::Reading;
use onetake_core::{OnUnknown, Record, State};
use stateright::Property;

use super::Model;
use super::state::{
    AttemptPhase, AttemptSlot, HeldLease, KeyState, ModelKey, ModelState, RequestPayload,
};

/// A rule that must always hold, by its name in the design where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Invariant {
    /// At most one live lease for each key.
    S1,
    /// Fences strictly increase and are never reused.
    S2,
    /// A stale settlement changes nothing, and its answer says so.
    S3,
    /// A completed or failed record never changes until it expires or is forgotten.
    S4,
    /// No more starts than fences. One effect for each use of a key, unless the terms of the
    /// attempt that had it allow more.
    S7,
    /// Another payload never runs and never replays.
    S9,
    /// No key is reused before it expires. From then on it is free.
    S12,
    /// Sweeper and reaper act only on records that are still due when they act.
    S13,
    /// A key is released only if its attempt had no effect, or if the effect is rolled back.
    S16,
    /// Settlements by operators and reconcilers obey S3 and S4, and leave running keys alone.
    S20,
    /// The owner's report is accepted until the record is settled or granted to another attempt.
    /// The store holds every settlement that it answered as done. Section 3 of the design requires
    /// it.
    Believed,
    /// A claim is answered as the table in section 3 of the design says, and settlements make no
    /// transition that its state machine lacks.
    StateMachine,
    /// A forgotten record is absent at once, and its outcome is gone.
    ForgottenIsAbsent,
    /// At most one reconciler takes the turn to ask for each due time.
    OneAsker,
    /// A key under [`OnUnknown::Rollback`] is never unknown.
    RollbackIsKnown,
}

impl Invariant {
    /// Returns the name of the property. It is short, because the checker hashes it in every state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::S1 => "S1",
            Self::S2 => "S2",
            Self::S3 => "S3",
            Self::S4 => "S4",
            Self::S7 => "S7",
            Self::S9 => "S9",
            Self::S12 => "S12",
            Self::S13 => "S13",
            Self::S16 => "S16",
            Self::S20 => "S20",
            Self::Believed => "believed",
            Self::StateMachine => "machine",
            Self::ForgottenIsAbsent => "forgotten",
            Self::OneAsker => "one asker",
            Self::RollbackIsKnown => "rollback",
        }
    }

    fn holds(self, model: &Model, state: &ModelState) -> bool {
        !state.broken.contains(self)
            && ModelKey::ALL.into_iter().all(|key| match self {
                Self::S1 => one_live_lease(state, key),
                Self::S9 => other_payloads_are_refused(model, state, key),
                Self::S12 => expired_is_absent(model, state, key),
                Self::RollbackIsKnown => rollback_is_known(model, state, key),
                _ => true,
            })
    }
}

/// A set of invariants that a step broke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InvariantSet(u16);

impl InvariantSet {
    /// Adds `invariant` if `is_broken`.
    pub const fn note(&mut self, is_broken: bool, invariant: Invariant) {
        if is_broken {
            self.0 |= 1 << invariant as u8;
        }
    }

    /// True if `invariant` is in the set.
    #[must_use]
    pub const fn contains(self, invariant: Invariant) -> bool {
        self.0 & (1 << invariant as u8) != 0
    }

    /// True if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Returns the attempts that hold the key, with their own knowledge of the lease.
fn holders(key_state: &KeyState) -> impl Iterator<Item = (AttemptSlot, &HeldLease)> {
    AttemptSlot::ALL.into_iter().filter_map(|slot| match key_state.attempts.get(slot) {
        AttemptPhase::Held(held) => Some((slot, held)),
        _ => None,
    })
}

/// True if every attempt whose lease is alive by its own clock is right: the store names this
/// attempt, and a lease that has not ended. The store names one attempt at a time, so no two
/// attempts can hold the lease at once.
fn one_live_lease(state: &ModelState, key: ModelKey) -> bool {
    let key_state = state.keys.get(key);
    let lease = key_state.record.as_deref().and_then(|record| match record.state {
        State::Running { lease_until } => Some((record.attempt, lease_until)),
        _ => None,
    });
    holders(key_state).filter(|(_, held)| held.ticks_left > 0).all(|(slot, _)| {
        lease.is_some_and(|(attempt, until)| attempt == slot.id(key) && until > state.now)
    })
}

/// True if a claim with another payload under a live key is refused in any state, and a replayed
/// outcome belongs to the payload that was sent.
fn other_payloads_are_refused(model: &Model, state: &ModelState, key: ModelKey) -> bool {
    let key_state = state.keys.get(key);
    let Some(life) = key_state.live(state.now) else { return true };
    let record = key_state.record.as_deref();
    RequestPayload::ALL.into_iter().all(|payload| {
        match (model.decisions.read)(record, &payload.fingerprint(), state.now) {
            Reading::Mismatch => payload != life.request.payload,
            _ if payload != life.request.payload => false,
            Reading::Settled => record.is_some_and(|record| answers(record, payload)),
            _ => true,
        }
    })
}

/// True if an expired key is free for any payload, before and after a sweep.
fn expired_is_absent(model: &Model, state: &ModelState, key: ModelKey) -> bool {
    state.keys.get(key).live(state.now).is_some() || is_free(model, state, key)
}

/// True if the key may run with any payload.
pub(super) fn is_free(model: &Model, state: &ModelState, key: ModelKey) -> bool {
    let record = state.keys.get(key).record.as_deref();
    let is_free = |payload: RequestPayload| {
        (model.decisions.read)(record, &payload.fingerprint(), state.now) == Reading::Free
    };
    RequestPayload::ALL.into_iter().all(is_free)
}

/// True if a key that was claimed under [`OnUnknown::Rollback`] has no unknown record.
fn rollback_is_known(model: &Model, state: &ModelState, key: ModelKey) -> bool {
    let KeyState { record, life, .. } = state.keys.get(key);
    let is_unknown =
        record.as_deref().is_some_and(|record| matches!(record.state, State::Unknown { .. }));
    let rolls_back =
        life.is_some_and(|life| model.on_unknown(key, life.request) == OnUnknown::Rollback);
    !(is_unknown && rolls_back)
}

/// True if the recorded outcome belongs to `payload`: outcomes name their payload.
fn answers(record: &Record, payload: RequestPayload) -> bool {
    match &record.state {
        State::Completed { recording, .. } => recording.head.as_ref() == payload.name().as_bytes(),
        State::Failed { failure, .. } => failure.code == payload.name(),
        _ => false,
    }
}

macro_rules! always {
    ($($invariant:ident)*) => {
        vec![$(Property::always(Invariant::$invariant.name(), |model: &Model, state| {
            Invariant::$invariant.holds(model, state)
        })),*]
    };
}

/// Returns the properties of all invariants. A property is a plain function, hence the macro.
pub(super) fn properties() -> Vec<Property<Model>> {
    always![
        S1 S2 S3 S4 S7 S9 S12 S13 S16 S20
        Believed StateMachine ForgottenIsAbsent OneAsker RollbackIsKnown
    ]
}
