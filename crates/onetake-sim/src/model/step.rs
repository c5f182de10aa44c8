//! What each event is: who does what, and what they make of the answer.

use onetake_core::{Cause, Failure, Record, Recording, Timestamp, Verb};

use super::properties::{Invariant, Sight};
use super::state::{Asked, Index, Key, KeyState, Phase, Stage, State, Who, Word};
use super::store::Answer;
use super::{Action, Model};

impl Model {
    /// Applies `action`; whether anything changed.
    pub(super) fn apply(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::Tick => self.tick(state),
            Action::Claim(key, asked) => self.claim(state, key, asked),
            Action::Start(key, who) => self.start(state, key, who),
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

    /// The operation starts: the attempt looks at its own clock, and asks nobody.
    fn start(&self, state: &mut State, key: Key, who: Who) -> bool {
        let now = state.now;
        let KeyState { attempts, life, .. } = state.keys.get_mut(key);
        let Phase::Held(held) = attempts.get_mut(who) else {
            return false;
        };
        if held.started || !held.is_alive(now) {
            return false;
        }
        held.started = true;
        let Some(life) = life.as_mut().filter(|life| life.owner == who) else {
            // It started although the key is not its own any more.
            state.broken.note(true, Invariant::S1);
            return true;
        };
        state.broken.note(life.asked != held.asked, Invariant::S9);
        // Only what never started is released here (S16), so that a release does not add to it.
        let again = self.terms(key).on_unknown.runs_again();
        state.broken.note(life.spare == 0 || (life.started && !again), Invariant::S7);
        life.spare = life.spare.saturating_sub(1);
        life.started = true;
        true
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
        self.sights.see(finishes && others && answer == Answer::Stale, Sight::StaleRefused);
        let too_late = started == Some(false) && (late || unknown);
        self.sights.see(too_late && answer == Answer::Written, Sight::LateReleased);
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
        self.sights.see(answer == Answer::Stale && runs, Sight::ReaperRefused);
        answer == Answer::Written
    }
}

/// The settlement in an attempt's own words: its outcome names the attempt and what it was asked.
fn verb(who: Who, asked: Asked, word: Word) -> Verb {
    match word {
        Word::Complete => {
            Verb::Complete(Recording { head: asked.name().into(), body: Some(who.name().into()) })
        }
        Word::Fail => Verb::Fail(Failure { code: asked.name().into(), detail: who.name().into() }),
        Word::Release => Verb::Release,
        // The reaper's cause, so that what became unknown is alike however it did.
        Word::Unknown => Verb::Unknown(Cause::LeaseEnded),
    }
}
