//! An exhaustive model of what can happen to two keys.
//!
//! The store in this model changes its records by [`onetake_core::decide`] alone: the very
//! functions that the real stores apply or are held to. Around it, attempts, a reaper and a
//! sweeper do everything that they may do, in every order, while time goes on. Beside it, the
//! model keeps what was promised for each key, from the store's answers and the design's words;
//! a wrong decision shows as a difference between the two. The checker visits every state that can
//! be reached.
//!
//! | event | what it stands for |
//! | --- | --- |
//! | [`Claim`](Action::Claim) | a request, with one of two payloads, on either key |
//! | [`Start`](Action::Start) | the attempt looks at its own clock, and the first byte goes out |
//! | [`Renew`](Action::Renew) | a heartbeat; also one that arrives after the attempt's last word |
//! | [`Say`](Action::Say) | an outcome or unknown (once started), release (if never started); at any time, because processes freeze and come back late; again and again, because answers get lost |
//! | [`Die`](Action::Die) | the attempt never says anything again |
//! | [`Reap`](Action::Reap) | the reaper acts on what it saw at an earlier look |
//! | [`Sweep`](Action::Sweep) | the sweep acts on what its index named at an earlier look |
//! | [`Tick`](Action::Tick) | leases, graces and records end |
//!
//! A pause needs no event of its own: whoever does nothing while time goes on is paused. Nor do
//! the first looks of reaper and sweep: each look is taken as soon as it can be, and never
//! forgotten, so that the second step may come at any moment after it. A later look could only
//! allow less.
//!
//! # Bounds
//!
//! Three attempts are given a key; further claims are looked at for what they do without being
//! granted. Time ends at [`Config::ticks`]. Within that nothing is left out: there is no bound on
//! the depth, nor on the number of renewals, repetitions, looks and deletions. The operations of
//! one run that end well all end alike, by [`Config::outcome`].
//!
//! Of two keys, one is given to at most one of three attempts. So [`Config::room`] is three and
//! one, and two runs, with the terms exchanged, are all there is for two keys with different
//! terms. A room of three and none follows one key alone, further in time.
//!
//! Two symmetries are used: idle attempts are alike, so that they are given a key in order; and
//! the two payloads of a key are alike until one of them is granted.
//!
//! Not modelled: a reconciler or an operator who settles in another's name, a store whose clock
//! goes backwards, and claims on one key with different terms.

mod check;
pub mod properties;
pub mod state;
mod step;
mod store;

use std::sync::Arc;
use std::time::Duration;

use onetake_core::{OnUnknown, Terms, Timestamp};
use stateright::Property;

use properties::{Sight, Sights};
use state::{Asked, Index, Key, PerKey, Phase, State, Who, Word};

pub use check::{Stats, Violation, check};

/// How many attempts are given a key, over both keys.
pub const ATTEMPTS_MAX: usize = Who::ALL.len();

/// The bounds and terms of a model. Durations are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What each key's terms say of unknown outcomes.
    pub on_unknown: PerKey<OnUnknown>,
    /// To how many attempts each key may be given, within [`ATTEMPTS_MAX`] for both.
    pub room: PerKey<usize>,
    /// How long a tick takes. With an hour, records are kept for a tick after they were settled
    /// (`KEPT_AFTER_SETTLING`), and a tick outruns all fences. With a microsecond, fences outrun
    /// the clock.
    pub tick: Duration,
    /// The lease.
    pub lease: u32,
    /// The grace.
    pub grace: u32,
    /// The time to live.
    pub ttl: u32,
    /// When time ends.
    pub ticks: u32,
    /// How an operation ends that ends well: completed, or failed for good.
    pub outcome: Word,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            on_unknown: PerKey { a: OnUnknown::Retry, b: OnUnknown::Fail },
            room: PerKey { a: 3, b: 1 },
            tick: Duration::from_micros(1),
            lease: 1,
            grace: 1,
            ttl: 1,
            ticks: 3,
            outcome: Word::Complete,
        }
    }
}

impl Config {
    fn terms(&self, on_unknown: OnUnknown) -> Terms {
        Terms {
            ttl: self.tick * self.ttl,
            lease: self.tick * self.lease,
            grace: self.tick * self.grace,
            on_unknown,
        }
    }
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    terms: PerKey<Terms>,
    sights: Arc<Sights>,
}

impl Model {
    /// A model within the bounds of `config`.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let PerKey { a, b } = config.on_unknown;
        let terms = PerKey { a: config.terms(a), b: config.terms(b) };
        Self { config, terms, sights: Arc::default() }
    }

    fn terms(&self, key: Key) -> Terms {
        *self.terms.get(key)
    }

    /// Whether a sight can be seen within these bounds.
    fn can_see(&self, sight: Sight) -> bool {
        let Config { on_unknown, room, .. } = &self.config;
        Key::ALL.into_iter().any(|key| sight.can_be(*on_unknown.get(key), *room.get(key)))
    }

    fn attempt_actions(&self, key: Key, who: Who, phase: &Phase, actions: &mut Vec<Action>) {
        match phase {
            Phase::Idle | Phase::Gone => {}
            Phase::Held(held) => {
                actions.extend([Action::Renew(key, who), Action::Die(key, who)]);
                if held.started {
                    let words = [self.config.outcome, Word::Unknown];
                    actions.extend(words.map(|word| Action::Say(key, who, word)));
                } else {
                    actions.extend([Action::Start(key, who), Action::Say(key, who, Word::Release)]);
                }
            }
            Phase::Said { word, .. } => {
                actions.extend([Action::Renew(key, who), Action::Say(key, who, *word)]);
            }
        }
    }

    fn key_actions(&self, state: &State, key: Key, actions: &mut Vec<Action>) {
        let key_state = state.keys.get(key);
        for who in Who::ALL {
            self.attempt_actions(key, who, key_state.attempts.get(who), actions);
        }
        // Nobody is ever given it: nothing can happen to it.
        if *self.config.room.get(key) == 0 {
            return;
        }
        actions.push(Action::Claim(key, Asked::This));
        if *key_state.attempts.get(Who::First) != Phase::Idle {
            actions.push(Action::Claim(key, Asked::That));
        }
        if key_state.record.is_some() {
            let owner = key_state.life.map(|life| life.owner);
            let granted =
                Who::ALL.into_iter().filter(|who| *key_state.attempts.get(*who) != Phase::Idle);
            // Whoever lost the key may have been seen at any time before.
            let seen = granted.filter(|who| key_state.reaper_saw || owner != Some(*who));
            actions.extend(seen.map(|who| Action::Reap(key, who)));
            if key_state.index == Index::Named {
                actions.push(Action::Sweep(key));
            }
        }
    }
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time goes on.
    Tick,
    /// The next attempt asks for a key.
    Claim(Key, Asked),
    /// An attempt starts its operation.
    Start(Key, Who),
    /// An attempt renews its lease.
    Renew(Key, Who),
    /// An attempt says what became of it.
    Say(Key, Who, Word),
    /// An attempt dies.
    Die(Key, Who),
    /// The reaper settles for an attempt that it saw abandoned, maybe long ago.
    Reap(Key, Who),
    /// The sweep deletes what its index named, maybe long ago.
    Sweep(Key),
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Behind a violation nothing means anything.
        if !state.broken.is_empty() {
            return;
        }
        for key in Key::ALL {
            self.key_actions(state, key, actions);
        }
        let end = Timestamp::default().plus(self.config.tick * self.config.ticks);
        if state.now < end {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let changed = self.apply(&mut next, action);
        // An answer alone can break an invariant, too.
        (changed || next.broken != state.broken).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
