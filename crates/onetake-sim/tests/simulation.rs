//! The short form of the simulation: seeds that must pass, and repeated runs.
//!
//! A seed that fails is added here by name, with a sentence about the error. A change of the
//! planner changes the meaning of a seed, so each finding also gets a test of the part that was
//! wrong.
#![expect(clippy::panic, reason = "tests may panic")]

use onetake_sim::simulation::plan::ClientPlan;
use onetake_sim::simulation::theme::Theme;
use onetake_sim::simulation::{Plan, Violation, Without, shrink_by, simulate};

/// The number of seeds on each thread of the short form.
const SEEDS: u64 = 600;

fn passes(seed: u64) {
    if let Some(violation) = simulate(seed).violation {
        panic!("seed {seed}: {violation}\nrepeat it with: cargo xtask sim --seed {seed} --trace");
    }
}

#[test]
fn even_seeds_hold_every_invariant() {
    (0..SEEDS).map(|number| 2 * number).for_each(passes);
}

#[test]
fn odd_seeds_hold_every_invariant() {
    (0..SEEDS).map(|number| 2 * number + 1).for_each(passes);
}

/// The checker was wrong about a run that answered too late: its process, suspended until then, had
/// already waited for the whole time of the shutdown.
#[test]
fn a_shutdown_that_is_over_keeps_no_outcome_that_comes_later() {
    passes(1541);
}

/// The checker was wrong about a node that showed an outcome after the store had forgotten it, and
/// before the node knew that.
#[test]
fn a_node_may_show_an_outcome_until_it_has_told_the_operator_that_it_is_forgotten() {
    passes(344);
}

/// The checker was wrong about an answer that was sent in the microsecond in which the store
/// decided, and before it: the process did not learn that its settlement was done.
#[test]
fn an_answer_that_leaves_before_the_decision_tells_nothing() {
    passes(737);
}

/// The checker was wrong about two operators who settled an unknown attempt at the same time: it
/// counted as settled by its process, because its lease had been renewed.
#[test]
fn two_operators_may_settle_an_unknown_attempt() {
    passes(90_004_339);
}

/// The checker was wrong about a request that waited for another node: its process had learned from
/// a poll that the key was free again.
#[test]
fn a_poll_tells_waiting_requests_that_the_key_is_free() {
    passes(200_181_141);
}

/// The checker was wrong about a request that had joined a lost claim, whose recovery the store then
/// refused because another transaction held the key.
#[test]
fn a_request_can_join_a_claim_that_was_lost_before_it_arrived() {
    passes(300_010_105);
}

#[test]
fn every_theme_occurs_and_half_of_the_plans_have_none() {
    let themes: Vec<Option<Theme>> = (0..600).map(|seed| Plan::new(seed).theme).collect();
    for theme in Theme::ALL {
        let count = themes.iter().filter(|it| **it == Some(theme)).count();
        assert!(count > 25, "{theme:?} occurs {count} times");
    }
    let without = themes.iter().filter(|theme| theme.is_none()).count();
    assert!((250..350).contains(&without), "{without} plans have no theme");
}

/// A claim whose answer was lost was sent again. The second copy arrived after the attempt, and
/// another one, had been released. The key was granted although no attempt ran, and became unknown.
#[test]
fn a_claim_is_not_on_its_way_twice() {
    passes(20_000_776);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let hashes: Vec<u64> = (0..40).map(|seed| simulate(seed).hash).collect();
    let again: Vec<u64> = (0..40).map(|seed| simulate(seed).hash).collect();
    assert_eq!(hashes, again);
    let mut different = hashes.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), hashes.len(), "other seeds are other runs");
}

#[test]
fn a_plan_without_parts_is_still_a_plan() {
    let without = Without {
        operations: vec![0],
        clients: vec![(1, 0), (1, 1)],
        noise: true,
        ..Without::default()
    };
    let (whole, fewer) = (Without::default().plan(3), without.plan(3));
    assert_eq!(whole.operations.len(), fewer.operations.len() + 1);
    assert_eq!(whole.operations[1].clients.len(), fewer.operations[0].clients.len() + 2);
    let arguments = "--seed 3 --without-operations 0 --without-clients 1:0,1:1 --without-noise";
    assert_eq!(without.arguments(3), arguments);
}

/// The numbers of the operations with those of their clients, and the numbers of the faults.
type Parts = (Vec<(usize, Vec<usize>)>, Vec<usize>);

fn parts(plan: &Plan) -> Parts {
    let clients = |clients: &[ClientPlan]| clients.iter().map(|client| client.number).collect();
    let operations = plan.operations.iter().map(|it| (it.number, clients(&it.clients))).collect();
    (operations, plan.faults.iter().map(|fault| fault.number).collect())
}

/// The result of shrinking has exactly the parts without which the plan passes.
#[test]
fn a_plan_is_shrunk_to_the_parts_that_make_it_fail() {
    let has_many = |plan: &Plan| {
        plan.noise_per_mille > 0
            && plan.operations.len() > 3
            && plan.operations[2].clients.len() > 2
            && plan.faults.len() > 4
    };
    let seed = (0..).find(|seed| has_many(&Plan::new(*seed))).unwrap();
    let whole = Plan::new(seed);
    let (operation, fault) = (whole.operations[2].number, whole.faults[3].number);
    let client = whole.operations[2].clients[1].number;
    let found = |at: usize| Violation {
        invariant: "the invariant",
        what: "a violation".to_owned(),
        at: at as u64,
    };
    let size = |(operations, faults): &Parts| operations.len() + faults.len();
    // Both checks need the operation and the fault. The second one also needs a client.
    for needs_client in [false, true] {
        let fails = |plan: Plan| {
            let left = parts(&plan);
            let (operations, faults) = &left;
            let (_, clients) = operations.iter().find(|(number, _)| *number == operation)?;
            let is_broken = faults.contains(&fault) && (!needs_client || clients.contains(&client));
            is_broken.then(|| found(size(&left)))
        };
        let (without, violation) = shrink_by(seed, found(size(&parts(&whole))), fails);
        let left = without.plan(seed);
        let clients = if needs_client { vec![client] } else { Vec::new() };
        assert_eq!(parts(&left), (vec![(operation, clients)], vec![fault]));
        assert_eq!(left.noise_per_mille, 0);
        assert_eq!(violation, found(2), "it is that of the smallest plan");
    }
    let (without, violation) = shrink_by(seed, found(0), |_| None);
    assert_eq!((without, violation), (Without::default(), found(0)), "every part is needed");
}
