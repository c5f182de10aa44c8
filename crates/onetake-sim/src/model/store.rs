//! The store: it decides by the functions under test, and its answers are held to what was
//! promised before, in the words of the design.

use std::sync::Arc;

use onetake_core::decide::{self, ClaimEffect, Reading, SettleEffect};
use onetake_core::origin::History;
use onetake_core::record::KEPT_AFTER_SETTLING;
use onetake_core::{AttemptId, Claim, OnUnknown, Record, Settlement, Timestamp, Verb};

use super::properties::{Invariant, Sight};
use super::state::{Asked, Held, Index, Key, KeyState, Life, Phase, Stage, State, Who};
use super::{ATTEMPTS_MAX, Model};

/// Somebody who asks but would not be given the key any more: the bound on attempts is reached.
const PASSER_BY: AttemptId = AttemptId::from_bytes([0xff; AttemptId::BYTES]);

/// How a settlement was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Written,
    Already,
    Stale,
}

impl Model {
    pub(super) fn claim(&self, state: &mut State, key: Key, asked: Asked) -> bool {
        let State { now, floor, .. } = *state;
        let key_state = state.keys.get(key);
        let KeyState { record: found, life, .. } = key_state;
        let room = state.grants() < ATTEMPTS_MAX && key_state.grants() < *self.config.room.get(key);
        let idle = key_state.idle().filter(|_| room);
        let claim = Claim {
            id: key.id(),
            attempt: idle.map_or(PASSER_BY, |who| who.id(key)),
            fingerprint: asked.fingerprint(),
            terms: self.terms(key),
            origin: onetake_core::Origin::default(),
        };
        match (decide::claim(found.as_deref(), &claim, now, floor), idle) {
            (ClaimEffect::Grant(record), Some(who)) => {
                self.grant(state, (key, who, asked), record);
                true
            }
            (ClaimEffect::Grant(_), None) => false,
            (ClaimEffect::BecomeUnknown(record), _) => {
                let due = life.is_some_and(|life| life.is_abandoned(now) && life.asked == asked);
                state.broken.note(!due, Invariant::S13);
                self.sights.see(true, Sight::ClaimMadeUnknown);
                let key_state = state.keys.get_mut(key);
                self.live_on(key_state, Stage::Unknown, now);
                put(key_state, record);
                true
            }
            (ClaimEffect::Keep, _) => {
                let reading = decide::read(found.as_deref(), &claim.fingerprint, now);
                self.sights.see(reading == Reading::Settled, Sight::Replayed);
                self.sights.see(reading == Reading::Mismatch, Sight::Mismatched);
                false
            }
        }
    }

    /// The store gave a key to an attempt.
    fn grant(&self, state: &mut State, (key, who, asked): (Key, Who, Asked), record: Record) {
        let now = state.now;
        let terms = self.terms(key);
        let key_state = state.keys.get_mut(key);
        let live = key_state.life;

        let again = terms.on_unknown.runs_again();
        let may_run = live.is_none_or(|life| match life.stage {
            Stage::Released => true,
            Stage::Unknown => again,
            Stage::Running => again && life.is_abandoned(now),
            Stage::Final => false,
        });
        state.broken.note(!may_run, Invariant::S12);
        state.broken.note(live.is_some_and(|life| life.asked != asked), Invariant::S9);
        let fence = record.fence;
        state.broken.note(fence <= key_state.fence, Invariant::S2);

        let stage = live.map(|life| life.stage);
        self.sights.see(stage == Some(Stage::Running), Sight::TakenOver);
        self.sights.see(stage == Some(Stage::Unknown), Sight::RetriedUnknown);
        self.sights.see(stage == Some(Stage::Released), Sight::ReleasedReused);
        let stored = key_state.record.is_some();
        self.sights.see(live.is_none() && stored, Sight::ExpiredReused);
        self.sights.see(who != Who::First && !stored, Sight::SweptReused);

        // As a store does, and what it has promised from now on.
        state.floor = state.floor.max(fence);
        put(key_state, record);
        key_state.reaper_saw = false;
        key_state.fence = key_state.fence.max(fence);
        key_state.life = Some(Life {
            owner: who,
            asked,
            created: live.map_or(now, |life| life.created),
            spare: live.map_or(0, |life| life.spare) + 1,
            started: live.is_some_and(|life| life.started),
            stage: Stage::Running,
            until: now.plus(terms.lease).plus(terms.grace),
        });
        // The attempt counts from when it asked. The worst case is that it took no time at all.
        let until = now.plus(terms.lease);
        *key_state.attempts.get_mut(who) = Phase::Held(Held { asked, until, started: false });
    }

    /// Settles by the function under test, and holds its answer to what was promised.
    pub(super) fn settle(&self, state: &mut State, key: Key, who: Who, verb: Verb) -> Answer {
        let now = state.now;
        let key_state = state.keys.get_mut(key);
        let live = key_state.life;
        let mine = live.filter(|life| life.owner == who);
        let settlement = Settlement { id: key.id(), attempt: who.id(key), verb };
        let effect = decide::settle(key_state.record.as_deref(), &settlement, now);
        let verb = settlement.verb;
        let written = matches!(effect, SettleEffect::Write(_));
        let stale = effect == SettleEffect::Stale;

        state.broken.note(mine.is_none() && !stale, Invariant::S3);
        // The reaper settles in another's name; all others in their own.
        let due = verb != Verb::Abandon || mine.is_some_and(|life| life.is_abandoned(now));
        state.broken.note(written && !due, Invariant::S13);
        let same = match (&effect, &key_state.record) {
            (SettleEffect::Write(after), Some(before)) => *after == **before,
            _ => !written,
        };
        let finished = live.is_some_and(|life| life.stage == Stage::Final);
        state.broken.note(finished && !same, Invariant::S4);
        let owed = mine.is_some_and(|life| match (life.stage, &verb) {
            (_, Verb::Defer(_)) => false,
            (Stage::Running, Verb::Abandon) => life.is_abandoned(now),
            (Stage::Running, _) => true,
            (_, Verb::Abandon | Verb::Renew) => false,
            // An attempt has but one word: if it is settled, it was by the same one.
            (Stage::Unknown | Stage::Final | Stage::Released, _) => true,
        });
        state.broken.note(owed && stale, Invariant::Believed);
        // A lease that was given up never lives again: somebody may have been told that it is over.
        let ended = live.is_none_or(|life| life.stage != Stage::Running);
        state.broken.note(written && ended && verb == Verb::Renew, Invariant::S1);

        let answer = match effect {
            SettleEffect::Write(record) => {
                self.live_on(key_state, stage(&verb), now);
                put(key_state, record);
                Answer::Written
            }
            SettleEffect::Already => Answer::Already,
            SettleEffect::Stale => return Answer::Stale,
        };
        let so = key_state.record.as_deref().is_some_and(|record| is_so(record, &verb));
        state.broken.note(!so, Invariant::Believed);
        answer
    }

    /// The sweep looks again at what its index named, and deletes it. It may come back, too.
    pub(super) fn sweep(&self, state: &mut State, key: Key) -> bool {
        let now = state.now;
        let key_state = state.keys.get_mut(key);
        let Some(record) = key_state.record.as_deref() else {
            return false;
        };
        if !decide::may_sweep(record, now) {
            self.sights.see(true, Sight::SweepRefused);
            return false;
        }
        let early = key_state.life.is_some();
        state.broken.note(early, Invariant::S12);
        state.broken.note(early, Invariant::S13);
        key_state.record = None;
        key_state.life = None;
        true
    }

    /// What the design promises for a life that comes to `stage` now.
    fn live_on(&self, key_state: &mut KeyState, stage: Stage, now: Timestamp) {
        let Some(life) = &mut key_state.life else {
            return;
        };
        let terms = self.config.terms(OnUnknown::Fail);
        life.stage = stage;
        life.until = match stage {
            Stage::Running => now.plus(terms.lease).plus(terms.grace),
            Stage::Final | Stage::Released => {
                let kept = now.plus(terms.ttl.min(KEPT_AFTER_SETTLING));
                life.created.plus(terms.ttl).max(kept)
            }
            Stage::Unknown => now.plus(terms.ttl),
        };
    }
}

/// Writes a record as a store does: with an entry in the index if it can expire, and without
/// cleaning up the entry before it.
fn put(key_state: &mut KeyState, mut record: Record) {
    // Nothing is decided by these, and they would tell states apart that are one.
    record.claimed_at = record.created_at;
    record.history = History::default();
    if let Some(at) = record.expires_at() {
        key_state.index = match key_state.index {
            Index::Empty => Index::Due(at),
            Index::Due(before) => Index::Due(before.min(at)),
            Index::Named => Index::Named,
        };
    }
    key_state.record = Some(Arc::new(record));
}

/// Where a life comes to by a settlement that was believed.
fn stage(verb: &Verb) -> Stage {
    match verb {
        Verb::Renew => Stage::Running,
        Verb::Complete(_) | Verb::Fail(_) => Stage::Final,
        Verb::Release | Verb::Forget => Stage::Released,
        Verb::Unknown(_) | Verb::Abandon | Verb::Defer(_) => Stage::Unknown,
    }
}

/// Whether the store holds what was answered as done.
fn is_so(record: &Record, verb: &Verb) -> bool {
    use onetake_core::State as Stored;
    match (&record.state, verb) {
        (Stored::Completed { recording, .. }, Verb::Complete(said)) => recording == said,
        (Stored::Failed { failure, .. }, Verb::Fail(said)) => failure == said,
        (Stored::Running { .. }, Verb::Renew)
        | (Stored::Released { .. }, Verb::Release)
        | (Stored::Unknown { .. }, Verb::Unknown(_) | Verb::Abandon | Verb::Defer(_)) => true,
        _ => false,
    }
}
