//! Shrinks a failing plan: leaves out operations, clients and faults as long as it still fails.

use super::history::Violation;
use super::plan::{Plan, UpstreamPlan};
use super::simulator::Simulator;

/// The parts of a seed's plan that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Operations, by their numbers.
    pub operations: Vec<usize>,
    /// Clients, by the numbers of their operations and their own.
    pub clients: Vec<(usize, usize)>,
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
        for operation in &mut plan.operations {
            let of = operation.number;
            operation.clients.retain(|client| !self.clients.contains(&(of, client.number)));
        }
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
        let numbers = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect();
        let clients = self.clients.iter().map(|(of, client)| format!("{of}:{client}")).collect();
        let lists: [(&str, Vec<String>); 3] = [
            ("--without-operations", numbers(&self.operations)),
            ("--without-clients", clients),
            ("--without-faults", numbers(&self.faults)),
        ];
        for (argument, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            text.push_str(&format!(" {argument} {}", list.join(",")));
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
    let breaks_the_same = |plan| {
        let found = Simulator::run(plan, false).violation?;
        (found.invariant == violation.invariant).then_some(found)
    };
    shrink_by(seed, violation.clone(), breaks_the_same)
}

/// Leaves out as much of a failing seed as possible while `check` still finds a violation.
/// `violation` is that of the whole plan.
#[must_use]
pub fn shrink_by(
    seed: u64,
    violation: Violation,
    check: impl Fn(Plan) -> Option<Violation>,
) -> (Without, Violation) {
    let mut best = (Without::default(), violation);
    while let Some(smaller) = candidates(&best.0, &best.0.plan(seed))
        .into_iter()
        .find_map(|candidate| check(candidate.plan(seed)).map(|found| (candidate, found)))
    {
        best = smaller;
    }
    best
}

/// Returns all candidates that leave out one more part of what is left of the plan.
fn candidates(without: &Without, left: &Plan) -> Vec<Without> {
    let mut candidates = Vec::new();
    for operation in &left.operations {
        let mut fewer = without.clone();
        // Its clients are left out with it.
        fewer.clients.retain(|(of, _)| *of != operation.number);
        insert(&mut fewer.operations, operation.number);
        candidates.push(fewer);
    }
    for fault in &left.faults {
        let mut fewer = without.clone();
        insert(&mut fewer.faults, fault.number);
        candidates.push(fewer);
    }
    for operation in &left.operations {
        for client in &operation.clients {
            let mut fewer = without.clone();
            insert(&mut fewer.clients, (operation.number, client.number));
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

fn insert<T: Ord>(parts: &mut Vec<T>, part: T) {
    parts.push(part);
    parts.sort_unstable();
}
