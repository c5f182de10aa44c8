//! Runs the checker, and reports its results.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::{Clock as _, SystemClock};
use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _};

use super::invariants::Invariant;
use super::scenarios::Scenario;
use super::{Action, Model};

/// The figures of a check that found no violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckStats {
    /// The number of different states.
    pub states: usize,
    /// The number of steps that led to a state, new or known.
    pub steps: usize,
    /// The length of the longest shortest path to a state.
    pub depth: usize,
    /// The duration of the check.
    pub took: Duration,
    /// The number of times that each possible scenario occurred.
    pub scenarios: Vec<(Scenario, u64)>,
}

impl CheckStats {
    /// Returns the scenarios that never occurred. If there is one, the bounds are too narrow, and
    /// the check proves nothing.
    pub fn missing(&self) -> impl Iterator<Item = Scenario> {
        self.scenarios.iter().filter(|(_, count)| *count == 0).map(|(scenario, _)| *scenario)
    }
}

impl fmt::Display for CheckStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, depth, took, scenarios } = self;
        let seconds = took.as_secs_f64();
        write!(f, "{states} states, {steps} steps, depth {depth}, {seconds:.1} s, ")?;
        write!(f, "{} scenarios", scenarios.len())
    }
}

/// A sequence of steps that breaks an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The names of all invariants that were broken before the check stopped.
    pub broken: Vec<&'static str>,
    /// One sequence of steps that leads there.
    pub actions: Vec<Action>,
    /// The number of states that were visited.
    pub states: usize,
}

impl Violation {
    /// True if `invariant` was broken.
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
/// If an invariant can be broken. The error has a sequence of steps in which none can be left out.
pub fn check(model: &Model) -> Result<CheckStats, Violation> {
    // A new model is needed, because it counts scenarios.
    let model = Model::with_decisions(model.config, model.decisions);
    let coverage = Arc::clone(&model.coverage);
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let began = SystemClock.monotonic();
    let checker = model
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let took = SystemClock.monotonic().saturating_sub(began);

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
    let possible = Scenario::ALL.iter().copied().filter(|scenario| model.is_possible(*scenario));
    Ok(CheckStats {
        states,
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took,
        scenarios: possible.map(|scenario| (scenario, coverage.count(scenario))).collect(),
    })
}

/// Removes every step that is not needed to break the property. With several threads, the sequence
/// that the checker found is not the shortest.
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

/// True if these steps can be taken, and break the property of this name.
fn breaks(model: &Model, name: &'static str, actions: &[Action]) -> bool {
    let Some(start) = model.init_states().pop() else { return false };
    let end = actions.iter().try_fold(start, |state, action| {
        let mut possible = Vec::new();
        model.actions(&state, &mut possible);
        if possible.contains(action) { model.next_state(&state, *action) } else { None }
    });
    end.is_some_and(|state| !(model.property(name).condition)(model, &state))
}
