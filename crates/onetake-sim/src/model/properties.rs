//! What must always hold, and what must happen at least once for the model to mean anything.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onetake_core::OnUnknown;
use onetake_core::decide::{self, Reading};
use stateright::Property;

use super::Model;
use super::state::{Asked, Held, Key, KeyState, Phase, State, Who};

/// What must always hold, by its name in the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Invariant {
    /// At most one live lease for each key.
    S1,
    /// Fences strictly increase and are never reused.
    S2,
    /// A stale settlement changes nothing, and says so.
    S3,
    /// A completed or failed record never changes until it expires.
    S4,
    /// No more starts than fences; and one for each life, unless the terms allow more.
    S7,
    /// Another payload never runs and never replays.
    S9,
    /// No key is reused before it expires; and from then on it is free.
    S12,
    /// Sweeper and reaper act only on what is still due when they act.
    S13,
    /// An owner is believed for as long as nobody else was given its key; what is answered as done
    /// is what the store holds. The design's section 3 asks for it; it has no number there.
    Believed,
}

impl Invariant {
    /// The name of its property. Short, because the checker hashes it in every state.
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
            Self::Believed => "owner",
        }
    }

    fn holds(self, state: &State) -> bool {
        !state.broken.contains(self)
            && Key::ALL.into_iter().all(|key| match self {
                Self::S1 => one_live_lease(state, key),
                Self::S9 => strangers_are_refused(state, key),
                Self::S12 => expired_is_absent(state, key),
                _ => true,
            })
    }
}

/// A set of invariants: those that a step broke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Broken(u16);

impl Broken {
    /// Adds `invariant`, if `yes`.
    pub const fn note(&mut self, yes: bool, invariant: Invariant) {
        if yes {
            self.0 |= 1 << invariant as u8;
        }
    }

    /// Whether `invariant` is among them.
    #[must_use]
    pub const fn contains(self, invariant: Invariant) -> bool {
        self.0 & (1 << invariant as u8) != 0
    }

    /// Whether none was broken.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Those who hold the key, and what they know.
fn holders(key_state: &KeyState) -> impl Iterator<Item = (Who, &Held)> {
    Who::ALL.into_iter().filter_map(|who| match key_state.attempts.get(who) {
        Phase::Held(held) => Some((who, held)),
        _ => None,
    })
}

/// Whoever believes by its own clock that its lease is alive is right: the store names it, and
/// names a lease that has not ended. As the store names one attempt at a time, no two can believe
/// it at once.
fn one_live_lease(state: &State, key: Key) -> bool {
    let key_state = state.keys.get(key);
    let lease = key_state.record.as_deref().and_then(|record| match record.state {
        onetake_core::State::Running { lease_until } => Some((record.attempt, lease_until)),
        _ => None,
    });
    holders(key_state).filter(|(_, held)| held.is_alive(state.now)).all(|(who, _)| {
        lease.is_some_and(|(attempt, until)| attempt == who.id(key) && until > state.now)
    })
}

/// Whoever asks for something else under a live key is told so, in any state; and whoever is
/// answered with an outcome gets the one of what it asked for.
fn strangers_are_refused(state: &State, key: Key) -> bool {
    let KeyState { record, life, .. } = state.keys.get(key);
    let Some(life) = life else { return true };
    Asked::ALL.into_iter().all(|asked| {
        let reading = decide::read(record.as_deref(), &asked.fingerprint(), state.now);
        match reading {
            Reading::Mismatch => asked != life.asked,
            _ if asked != life.asked => false,
            Reading::Settled => record.as_deref().is_some_and(|record| answers(record, asked)),
            _ => true,
        }
    })
}

/// Once its life is over, a key is free for anybody, whether or not a sweep came by.
fn expired_is_absent(state: &State, key: Key) -> bool {
    let KeyState { record, life, .. } = state.keys.get(key);
    let read = |asked: Asked| decide::read(record.as_deref(), &asked.fingerprint(), state.now);
    life.is_some() || Asked::ALL.into_iter().all(|asked| read(asked) == Reading::Free)
}

/// Whether the recorded outcome is one of what was asked: an attempt's outcome names it.
fn answers(record: &onetake_core::Record, asked: Asked) -> bool {
    match &record.state {
        onetake_core::State::Completed { recording, .. } => {
            recording.head.as_ref() == asked.name().as_bytes()
        }
        onetake_core::State::Failed { failure, .. } => failure.code == asked.name(),
        _ => false,
    }
}

/// Something that happened, as a sign that the model gets where the invariants are at stake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Sight {
    /// A key was taken from an attempt whose lease and grace were over.
    TakenOver,
    /// A key was given again after its attempt had said that it does not know.
    RetriedUnknown,
    /// A claim made an abandoned record unknown.
    ClaimMadeUnknown,
    /// The reaper made an abandoned record unknown.
    Reaped,
    /// The reaper's second look spared an attempt that had come back in between.
    ReaperRefused,
    /// An attempt finished after its lease and grace, and was believed.
    LateBelieved,
    /// An attempt finished after the record had become unknown, and was believed.
    UnknownSettled,
    /// An attempt finished after its key had been given to another, and was refused.
    StaleRefused,
    /// An attempt died after it had started.
    DiedRunning,
    /// An attempt came back too late to start, and its release was believed.
    LateReleased,
    /// A settlement came twice, and the second one counted as done.
    SaidTwice,
    /// A released key was given again.
    ReleasedReused,
    /// An expired key was given again before any sweep came by.
    ExpiredReused,
    /// A swept key was given again.
    SweptReused,
    /// The sweep's second look spared a record that its index had named.
    SweepRefused,
    /// An outcome was replayed.
    Replayed,
    /// Another payload was refused.
    Mismatched,
}

impl Sight {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::TakenOver,
        Self::RetriedUnknown,
        Self::ClaimMadeUnknown,
        Self::Reaped,
        Self::ReaperRefused,
        Self::LateBelieved,
        Self::UnknownSettled,
        Self::StaleRefused,
        Self::DiedRunning,
        Self::LateReleased,
        Self::SaidTwice,
        Self::ReleasedReused,
        Self::ExpiredReused,
        Self::SweptReused,
        Self::SweepRefused,
        Self::Replayed,
        Self::Mismatched,
    ];

    /// The name of its property.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TakenOver => "an abandoned key is taken over",
            Self::RetriedUnknown => "an unknown outcome is retried",
            Self::ClaimMadeUnknown => "a claim makes an abandoned record unknown",
            Self::Reaped => "the reaper makes an abandoned record unknown",
            Self::ReaperRefused => "the reaper spares an attempt that came back",
            Self::LateBelieved => "a late finisher is believed",
            Self::UnknownSettled => "an unknown record is settled by its own attempt",
            Self::StaleRefused => "a stale finisher is refused",
            Self::DiedRunning => "an attempt dies after it started",
            Self::LateReleased => "an attempt comes back too late to start, and releases",
            Self::SaidTwice => "a settlement is said twice",
            Self::ReleasedReused => "a released key is given again",
            Self::ExpiredReused => "an expired key is given again",
            Self::SweptReused => "a swept key is given again",
            Self::SweepRefused => "the sweep spares a record that its index named",
            Self::Replayed => "an outcome is replayed",
            Self::Mismatched => "another payload is refused",
        }
    }

    /// Whether it can happen at all to a key under these terms that so many attempts are given.
    #[must_use]
    pub const fn can_be(self, on_unknown: OnUnknown, room: usize) -> bool {
        let again = on_unknown.runs_again();
        match self {
            Self::TakenOver | Self::RetriedUnknown => again && room > 1,
            Self::StaleRefused | Self::ReleasedReused | Self::ExpiredReused | Self::SweptReused => {
                room > 1
            }
            Self::ClaimMadeUnknown => !again && room > 0,
            _ => room > 0,
        }
    }
}

/// How often each sight was seen. The checker's threads share it; no step depends on it.
#[derive(Debug, Default)]
pub(super) struct Sights {
    counts: [AtomicU64; Sight::ALL.len()],
    told: AtomicBool,
}

impl Sights {
    pub(super) fn see(&self, yes: bool, sight: Sight) {
        if let Some(count) = self.counts.get(sight as usize).filter(|_| yes) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self, sight: Sight) -> u64 {
        self.counts.get(sight as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Whether all that `model` can see was seen. Says so once: the checker asks in every state.
    fn tell(&self, model: &Model) -> bool {
        !self.told.load(Ordering::Relaxed)
            && Sight::ALL.into_iter().all(|sight| !model.can_see(sight) || self.count(sight) > 0)
            && !self.told.swap(true, Ordering::Relaxed)
    }
}

/// The name of the one property that must hold somewhere: everything worth seeing was seen.
pub(super) const NOT_VACUOUS: &str = "seen";

macro_rules! always {
    ($($invariant:ident)*) => {
        vec![$(Property::always(Invariant::$invariant.name(), |_: &Model, state| {
            Invariant::$invariant.holds(state)
        })),*]
    };
}

/// The properties of the model. A property is a plain function, hence the macro.
pub(super) fn all() -> Vec<Property<Model>> {
    let mut properties = always![S1 S2 S3 S4 S7 S9 S12 S13 Believed];
    // One for all sights: the checker looks up each property's name in every state.
    properties.push(Property::sometimes(NOT_VACUOUS, |model, _| model.sights.tell(model)));
    properties
}
