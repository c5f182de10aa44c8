//! The short form of the simulation: seeds that must pass, and the same run twice.
//!
//! A seed that fails is added here by name, with a sentence that says what went wrong. A change of the planner changes what
//! a seed means, so that each finding also gets a test of the part that was wrong.
#![expect(clippy::panic, reason = "tests may panic")]

use onetake_sim::simulation::{Without, simulate};

/// How many seeds the short form runs on each of its threads.
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
    let without = Without { operations: vec![0], noise: true, ..Without::default() };
    let (whole, fewer) = (Without::default().plan(3), without.plan(3));
    assert_eq!(whole.operations.len(), fewer.operations.len() + 1);
    assert_eq!(without.arguments(3), "--seed 3 --without-operations 0 --without-noise");
}
