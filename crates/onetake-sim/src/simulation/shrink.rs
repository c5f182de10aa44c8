//! Shrinks a failing plan: leaves out operations, clients and faults as long as it still fails.

use super::history::Violation;
use super::plan::{Plan, UpstreamPlan};
use super::simulator::Simulator;

/// The parts of a seed's plan that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Operations, by their numbers.
    pub operations: Vec<usize>,
    /// Faults, by their numbers.
    pub faults: Vec<usize>,
    /// The store's noise.
    pub noise: bool,
    /// The upstream's noise.
    pub upstream_noise: bool,
}

impl Without {
    /// Returns the plan of a seed without these parts.
    #[must_use]
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::new(seed);
        plan.operations.retain(|operation| !self.operations.contains(&operation.number));
        plan.faults.retain(|fault| !self.faults.contains(&fault.number));
        if self.noise {
            plan.noise_per_mille = 0;
        }
        if self.upstream_noise {
            plan.upstream = UpstreamPlan::default();
        }
        plan
    }

    /// Returns the arguments that repeat the run.
    #[must_use]
    pub fn arguments(&self, seed: u64) -> String {
        let mut text = format!("--seed {seed}");
        let list =
            |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        if !self.operations.is_empty() {
            text.push_str(&format!(" --without-operations {}", list(&self.operations)));
        }
        if !self.faults.is_empty() {
            text.push_str(&format!(" --without-faults {}", list(&self.faults)));
        }
        for (is_so, argument) in
            [(self.noise, " --without-noise"), (self.upstream_noise, " --without-upstream-noise")]
        {
            if is_so {
                text.push_str(argument);
            }
        }
        text
    }
}

/// Leaves out as much of a failing seed as possible while the same invariant is still broken.
#[must_use]
pub fn shrink(seed: u64, violation: &Violation) -> (Without, Violation) {
    let mut best = (Without::default(), violation.clone());
    let whole = Plan::new(seed);
    while let Some(smaller) = candidates(&best.0, &whole).into_iter().find_map(|candidate| {
        let found = Simulator::run(candidate.plan(seed), false).violation?;
        (found.invariant == violation.invariant).then_some((candidate, found))
    }) {
        best = smaller;
    }
    best
}

/// Returns all candidates that leave out one more part.
fn candidates(without: &Without, whole: &Plan) -> Vec<Without> {
    let mut candidates = Vec::new();
    for number in whole.operations.iter().map(|operation| operation.number) {
        if !without.operations.contains(&number) {
            let mut fewer = without.clone();
            fewer.operations.push(number);
            fewer.operations.sort_unstable();
            candidates.push(fewer);
        }
    }
    for number in whole.faults.iter().map(|fault| fault.number) {
        if !without.faults.contains(&number) {
            let mut fewer = without.clone();
            fewer.faults.push(number);
            fewer.faults.sort_unstable();
            candidates.push(fewer);
        }
    }
    if !without.noise {
        candidates.push(Without { noise: true, ..without.clone() });
    }
    if !without.upstream_noise {
        candidates.push(Without { upstream_noise: true, ..without.clone() });
    }
    candidates
}
