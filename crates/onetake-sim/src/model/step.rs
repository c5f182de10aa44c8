//! What each event does: to the store by the functions under test, and to what was promised by
//! the words of the design.

use std::sync::Arc;

use onetake_core::decide::{self, ClaimEffect, Reading, SettleEffect};
use onetake_core::record::KEPT_AFTER_SETTLING;
use onetake_core::{
    AttemptId, Cause, Claim, Failure, OnUnknown, Record, Recording, Settlement, Timestamp, Verb,
};

use super::properties::{Invariant, Sight};
use super::state::{Asked, Held, Index, Key, KeyState, Life, Phase, Stage, State, Who, Word};
use super::{ATTEMPTS_MAX, Action, Model};

/// Somebody who asks but would not be given the key any more: the bound on attempts is reached.
const PASSER_BY: AttemptId = AttemptId::from_bytes([0xff; AttemptId::BYTES]);

impl Model {
    /// Applies `action`; whether anything changed.
    pub(super) fn apply(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::Tick => self.tick(state),
            Action::Claim(key, asked) => self.claim(state, key, asked),
            Action::Start(key, who) => start(state, key, who),
            Action::Renew(key, who) => self.renew(state, key, who),
            Action::Say(key, who, word) => self.say(state, key, who, word),
            Action::Die(key, who) => self.die(state, key, who),
            Action::Reap(key, who) => self.reap(state, key, who),
            Action::Sweep(key) => self.sweep(state, key),
        }
    }

    /// Time goes on for everybody: leases, graces and lives end by it, and it is noted who could
    /// have been seen by the reaper and by the sweep.
    fn tick(&self, state: &mut State) -> bool {
        let now = state.now.plus(self.config.tick);
        state.now = now;
        for key in Key::ALL {
            let key_state = state.keys.get_mut(key);
            key_state.life = key_state.life.filter(|life| !life.is_over(now));
            let abandoned = key_state.record.as_deref().and_then(Record::abandoned_at);
            key_state.reaper_saw |= abandoned.is_some_and(|end| end <= now);
            if matches!(key_state.index, Index::Due(at) if at <= now) {
                key_state.index = Index::Named;
            }
            for who in Who::ALL {
                // Only whether a lease is alive matters: ended ones are all alike.
                if let Phase::Held(held) = key_state.attempts.get_mut(who)
                    && !held.is_alive(now)
                {
                    held.until = Timestamp::default();
                }
            }
        }
        true
    }

    fn claim(&self, state: &mut State, key: Key, asked: Asked) -> bool {
        let State { now, floor, .. } = *state;
        let key_state = state.keys.get(key);
        let KeyState {
            record: found,
            life,
            ..
        } = key_state;
        let room = state.grants() < ATTEMPTS_MAX && key_state.grants() < *self.config.room.get(key);
        let idle = key_state.idle().filter(|_| room);
        let claim = Claim {
            id: key.id(),
            attempt: idle.map_or(PASSER_BY, |who| who.id(key)),
            fingerprint: asked.fingerprint(),
            terms: self.terms(key),
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
                self.sights
                    .see(reading == Reading::Settled, Sight::Replayed);
                self.sights
                    .see(reading == Reading::Mismatch, Sight::Mismatched);
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

        let again = terms.on_unknown == OnUnknown::Retry;
        let may_run = live.is_none_or(|life| match life.stage {
            Stage::Released => true,
            Stage::Unknown => again,
            Stage::Running => again && life.is_abandoned(now),
            Stage::Final => false,
        });
        state.broken.note(!may_run, Invariant::S12);
        state
            .broken
            .note(live.is_some_and(|life| life.asked != asked), Invariant::S9);
        let fence = record.fence;
        state.broken.note(fence <= key_state.fence, Invariant::S2);

        let stage = live.map(|life| life.stage);
        self.sights
            .see(stage == Some(Stage::Running), Sight::TakenOver);
        self.sights
            .see(stage == Some(Stage::Unknown), Sight::RetriedUnknown);
        self.sights
            .see(stage == Some(Stage::Released), Sight::ReleasedReused);
        let stored = key_state.record.is_some();
        self.sights
            .see(live.is_none() && stored, Sight::ExpiredReused);
        self.sights
            .see(who != Who::First && !stored, Sight::SweptReused);

        // As a store does, and what it has promised from now on.
        state.floor = state.floor.max(fence);
        put(key_state, record);
        key_state.reaper_saw = false;
        key_state.fence = key_state.fence.max(fence);
        key_state.life = Some(Life {
            owner: who,
            asked,
            created: live.map_or(now, |life| life.created),
            fences: live.map_or(0, |life| life.fences) + 1,
            starts: live.map_or(0, |life| life.starts),
            stage: Stage::Running,
            until: now.plus(terms.lease).plus(terms.grace),
        });
        // The attempt counts from when it asked. The worst case is that it took no time at all.
        let until = now.plus(terms.lease);
        *key_state.attempts.get_mut(who) = Phase::Held(Held {
            asked,
            fence,
            until,
            started: false,
        });
    }

    fn renew(&self, state: &mut State, key: Key, who: Who) -> bool {
        let before = *state.keys.get(key).attempts.get(who);
        let answer = self.settle(state, key, who, Verb::Renew);
        let until = match answer {
            Answer::Stale => Timestamp::default(),
            Answer::Written | Answer::Already => state.now.plus(self.terms(key).lease),
        };
        let attempt = state.keys.get_mut(key).attempts.get_mut(who);
        if let Phase::Held(held) = attempt {
            held.until = until;
        }
        answer == Answer::Written || *attempt != before
    }

    /// The attempt says what became of it: for the first time, or again because no answer came.
    fn say(&self, state: &mut State, key: Key, who: Who, word: Word) -> bool {
        let now = state.now;
        let before = *state.keys.get(key).attempts.get(who);
        let (asked, started) = match before {
            Phase::Held(held) => (held.asked, Some(held.started)),
            Phase::Said { asked, .. } => (asked, None),
            Phase::Idle | Phase::Gone => return false,
        };
        let life = state.keys.get(key).life;
        let answer = self.settle(state, key, who, verb(who, asked, word));
        let attempt = state.keys.get_mut(key).attempts.get_mut(who);
        *attempt = match answer {
            Answer::Stale => Phase::Gone,
            Answer::Written | Answer::Already => Phase::Said { asked, word },
        };

        let finishes = matches!(word, Word::Complete | Word::Fail);
        let believed = finishes && answer == Answer::Written;
        let late = life.is_some_and(|life| life.is_abandoned(now));
        let unknown = life.is_some_and(|life| life.stage == Stage::Unknown);
        self.sights.see(believed && late, Sight::LateBelieved);
        self.sights.see(believed && unknown, Sight::UnknownSettled);
        let others = life.is_some_and(|life| life.owner != who);
        self.sights.see(
            finishes && others && answer == Answer::Stale,
            Sight::StaleRefused,
        );
        let too_late = started == Some(false) && (late || unknown);
        self.sights
            .see(too_late && answer == Answer::Written, Sight::LateReleased);
        self.sights.see(answer == Answer::Already, Sight::SaidTwice);
        answer == Answer::Written || *attempt != before
    }

    fn die(&self, state: &mut State, key: Key, who: Who) -> bool {
        let attempt = state.keys.get_mut(key).attempts.get_mut(who);
        if let Phase::Held(held) = attempt {
            self.sights.see(held.started, Sight::DiedRunning);
        }
        *attempt = Phase::Gone;
        true
    }

    /// The reaper acts on what it saw, maybe long ago. It forgets nothing: it may come back.
    fn reap(&self, state: &mut State, key: Key, who: Who) -> bool {
        let answer = self.settle(state, key, who, Verb::Abandon);
        self.sights.see(answer == Answer::Written, Sight::Reaped);
        let life = state.keys.get(key).life;
        let runs = life.is_some_and(|life| life.owner == who && life.stage == Stage::Running);
        self.sights
            .see(answer == Answer::Stale && runs, Sight::ReaperRefused);
        answer == Answer::Written
    }

    /// The sweep looks again at what its index named, and deletes it. It may come back, too.
    fn sweep(&self, state: &mut State, key: Key) -> bool {
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

    /// Settles by the function under test, and holds its answer to what was promised.
    fn settle(&self, state: &mut State, key: Key, who: Who, verb: Verb) -> Answer {
        let now = state.now;
        let key_state = state.keys.get_mut(key);
        let live = key_state.life;
        let mine = live.filter(|life| life.owner == who);
        let settlement = Settlement {
            id: key.id(),
            attempt: who.id(key),
            verb,
        };
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
            (Stage::Running, Verb::Abandon) => life.is_abandoned(now),
            (Stage::Running, _) => true,
            (Stage::Unknown, verb) => !matches!(verb, Verb::Abandon | Verb::Renew),
            (Stage::Final | Stage::Released, _) => false,
        });
        state.broken.note(owed && stale, Invariant::Believed);

        let answer = match effect {
            SettleEffect::Write(record) => {
                self.live_on(key_state, stage(&verb), now);
                put(key_state, record);
                Answer::Written
            }
            SettleEffect::Already => Answer::Already,
            SettleEffect::Stale => return Answer::Stale,
        };
        let so = key_state
            .record
            .as_deref()
            .is_some_and(|record| is_so(record, &verb));
        state.broken.note(!so, Invariant::Believed);
        answer
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

/// How a settlement was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Written,
    Already,
    Stale,
}

/// The operation starts: the attempt looks at its own clock, and asks nobody.
fn start(state: &mut State, key: Key, who: Who) -> bool {
    let now = state.now;
    let KeyState { attempts, life, .. } = state.keys.get_mut(key);
    let Phase::Held(held) = attempts.get_mut(who) else {
        return false;
    };
    if held.started || !held.is_alive(now) {
        return false;
    }
    held.started = true;
    match life {
        Some(life) if life.owner == who => {
            state.broken.note(life.asked != held.asked, Invariant::S9);
            life.starts += 1;
        }
        // It started although the key is not its own any more.
        _ => state.broken.note(true, Invariant::S1),
    }
    true
}

/// Writes a record as a store does: with an entry in the index if it can expire, and without
/// cleaning up the entry before it.
fn put(key_state: &mut KeyState, record: Record) {
    if let Some(at) = record.expires_at() {
        key_state.index = match key_state.index {
            Index::Empty => Index::Due(at),
            Index::Due(before) => Index::Due(before.min(at)),
            Index::Named => Index::Named,
        };
    }
    key_state.record = Some(Arc::new(record));
}

/// The settlement in an attempt's own words: its outcome names the attempt and what it was asked.
fn verb(who: Who, asked: Asked, word: Word) -> Verb {
    match word {
        Word::Complete => Verb::Complete(Recording {
            head: asked.name().into(),
            body: Some(who.name().into()),
        }),
        Word::Fail => Verb::Fail(Failure {
            code: asked.name().into(),
            detail: who.name().into(),
        }),
        Word::Release => Verb::Release,
        Word::Unknown => Verb::Unknown(Cause::Interrupted),
    }
}

/// Where a life comes to by a settlement that was believed.
fn stage(verb: &Verb) -> Stage {
    match verb {
        Verb::Renew => Stage::Running,
        Verb::Complete(_) | Verb::Fail(_) => Stage::Final,
        Verb::Release => Stage::Released,
        Verb::Unknown(_) | Verb::Abandon => Stage::Unknown,
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
        | (Stored::Unknown { .. }, Verb::Unknown(_) | Verb::Abandon) => true,
        _ => false,
    }
}
