//! An exhaustive model of what can happen to two keys.
//!
//! The store in this model changes its records by [`onetake_core::decide`] alone: the very
//! functions that the real stores apply or are held to. Around it, three attempts, a reaper and a
//! sweeper do everything that they may do, in every order, and time goes on in between. After each
//! event the invariants are checked, and the checker visits every state that can be reached.
//!
//! | event | what it stands for |
//! | --- | --- |
//! | claim | a request, with one of two payloads, on either key |
//! | start | the attempt looks at its own clock, and the first byte goes out |
//! | renew | a heartbeat; also one that arrives after the attempt's last word |
//! | say | complete, fail, unknown (once started) or release (if never started); again and again, because answers get lost; at any time, because processes freeze and come back late |
//! | die | the attempt never says anything again |
//! | reaper looks, reaper acts | the list of abandoned attempts, and an `Abandon` any time later |
//! | sweep looks, sweep acts | an entry of the index of expiries, which is never cleaned, and a deletion any time later |
//! | tick | leases, graces and records end |
//!
//! A pause needs no event of its own: whoever does nothing while time goes on is paused.
//!
//! # Bounds
//!
//! Three attempts are given a key, in every split over the two keys; further claims are looked at
//! only for what they do without being granted. Time ends at [`Config::ticks`]. Within that,
//! nothing is left out: there is no bound on the depth or on the number of renewals, repetitions,
//! looks and deletions.
//!
//! Three symmetries are used. Idle attempts are alike, so that the first of them claims; the two
//! payloads of a key are alike until one of them is granted; and so are two keys with the same
//! terms. What is settled is answered at once: an answer that is lost or late is modelled by what
//! the attempt does next.
//!
//! Not modelled: a reconciler or an operator who settles in another's name, a store whose clock
//! goes backwards, and terms that differ between the claims of one key.

pub mod properties;
pub mod state;
mod step;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::{OnUnknown, Terms};
use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _, Property};

use properties::{Invariant, NOT_VACUOUS, Sight, Sights};
use state::{Asked, Index, Key, PerKey, Phase, State, Who, Word};

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
            on_unknown: PerKey {
                a: OnUnknown::Retry,
                b: OnUnknown::Fail,
            },
            room: PerKey { a: 3, b: 1 },
            tick: Duration::from_micros(1),
            lease: 1,
            grace: 1,
            ttl: 2,
            ticks: 4,
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
        let terms = PerKey {
            a: config.terms(a),
            b: config.terms(b),
        };
        Self {
            config,
            terms,
            sights: Arc::default(),
        }
    }

    fn terms(&self, key: Key) -> Terms {
        *self.terms.get(key)
    }

    /// Whether a sight can be seen under these terms.
    fn can_see(&self, sight: Sight) -> bool {
        Key::ALL
            .into_iter()
            .any(|key| sight.needs(self.terms(key).on_unknown))
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
                    actions.extend([
                        Action::Start(key, who),
                        Action::Say(key, who, Word::Release),
                    ]);
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
            let others = Who::ALL
                .into_iter()
                .filter(|who| *key_state.attempts.get(*who) != Phase::Idle);
            let seen = others.filter(|who| key_state.reaper_saw || owner != Some(*who));
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
        let end = onetake_core::Timestamp::default().plus(self.config.tick * self.config.ticks);
        if state.now < end {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

/// What a check that found nothing wrong went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Different states.
    pub states: usize,
    /// Events that led from one to another, or back to one that was known.
    pub steps: usize,
    /// The most events in a row.
    pub depth: usize,
    /// How often each sight was seen, of those that can be seen under these terms.
    pub sights: Vec<(Sight, u64)>,
    /// Whether one of them was never seen: the bounds are too narrow to mean anything.
    pub vacuous: bool,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} states, {} steps, depth {}",
            self.states, self.steps, self.depth
        )
    }
}

/// A way to break an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The names of all invariants that were seen broken before the check stopped.
    pub broken: Vec<&'static str>,
    /// One way there.
    pub actions: Vec<Action>,
    /// How many states were visited.
    pub states: usize,
}

impl Violation {
    /// Whether `invariant` is among what was broken.
    #[must_use]
    pub fn breaks(&self, invariant: Invariant) -> bool {
        self.broken.contains(&invariant.name())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} states)", self.broken.join("; "), self.states)?;
        self.actions
            .iter()
            .try_for_each(|action| write!(f, "\n  {action:?}"))
    }
}

impl std::error::Error for Violation {}

/// Visits every state of `model`, or stops soon after the first violation.
///
/// # Errors
/// If an invariant can be broken, with one of the shortest ways to it.
pub fn check(model: &Model) -> Result<Stats, Violation> {
    // Sights are counted for each check by itself.
    let model = Model::new(model.config);
    let sights = Arc::clone(&model.sights);
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let checker = model
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();

    let states = checker.unique_state_count();
    let discoveries = checker.discoveries();
    let mut ways: Vec<_> = checker
        .model()
        .properties()
        .iter()
        .filter(|property| property.expectation == Expectation::Always)
        .filter_map(|property| Some((property.name, discoveries.get(property.name)?.clone())))
        .map(|(name, path)| (name, path.into_actions()))
        .collect();
    ways.sort_by_key(|(_, actions)| actions.len());
    if let Some((_, actions)) = ways.first().cloned() {
        let broken = ways.into_iter().map(|(name, _)| name).collect();
        return Err(Violation {
            broken,
            actions,
            states,
        });
    }
    let seen = |sight: &Sight| checker.model().can_see(*sight);
    Ok(Stats {
        states,
        steps: checker.state_count(),
        depth: checker.max_depth(),
        sights: Sight::ALL
            .into_iter()
            .filter(seen)
            .map(|s| (s, sights.count(s)))
            .collect(),
        vacuous: !discoveries.contains_key(NOT_VACUOUS),
    })
}
