//! Runs the checker, and tells what it found.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _};

use super::properties::{Invariant, NOT_VACUOUS, Sight};
use super::state::State;
use super::{Action, Model};

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
        write!(f, "{} states, {} steps, depth {}", self.states, self.steps, self.depth)
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
        self.actions.iter().try_for_each(|action| write!(f, "\n  {action:?}"))
    }
}

impl std::error::Error for Violation {}

/// Visits every state of `model`, or stops soon after the first violation.
///
/// # Errors
/// If an invariant can be broken, with a way to it that has no needless step.
pub fn check(model: &Model) -> Result<Stats, Violation> {
    // A model of its own, because it counts what it sees.
    let model = Model::new(model.config);
    let sights = Arc::clone(&model.sights);
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let checker = model
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();

    let model = checker.model();
    let states = checker.unique_state_count();
    let mut discoveries = checker.discoveries();
    let mut ways: Vec<_> = model
        .properties()
        .iter()
        .filter(|property| property.expectation == Expectation::Always)
        .filter_map(|property| Some((property.name, discoveries.remove(property.name)?)))
        .map(|(name, path)| (name, shorten(model, name, path.into_actions())))
        .collect();
    ways.sort_by_key(|(_, actions)| actions.len());
    if let Some((_, actions)) = ways.first().cloned() {
        let broken = ways.into_iter().map(|(name, _)| name).collect();
        return Err(Violation { broken, actions, states });
    }
    let can_see = |sight: &Sight| model.can_see(*sight);
    Ok(Stats {
        states,
        steps: checker.state_count(),
        depth: checker.max_depth(),
        sights: Sight::ALL.into_iter().filter(can_see).map(|s| (s, sights.count(s))).collect(),
        vacuous: !discoveries.contains_key(NOT_VACUOUS),
    })
}

/// Leaves out every step without which the property is broken all the same. With several threads,
/// the way that the checker found is not the shortest.
fn shorten(model: &Model, name: &'static str, mut actions: Vec<Action>) -> Vec<Action> {
    let mut at = 0;
    while at < actions.len() {
        let mut fewer = actions.clone();
        fewer.remove(at);
        if breaks(model, name, &fewer) {
            actions = fewer;
            at = 0;
        } else {
            at += 1;
        }
    }
    actions
}

/// Whether these steps can be taken, and break the property of this name.
fn breaks(model: &Model, name: &'static str, actions: &[Action]) -> bool {
    let end = actions.iter().try_fold(State::default(), |state, action| {
        let mut possible = Vec::new();
        model.actions(&state, &mut possible);
        if possible.contains(action) { model.next_state(&state, *action) } else { None }
    });
    end.is_some_and(|state| !(model.property(name).condition)(model, &state))
}
