//! The short form of the simulation: seeds that must pass, seeds that once failed, and the same run twice.
#![expect(clippy::panic, reason = "tests may panic")]

use onetake_sim::simulation::{Without, simulate};

/// How many seeds the short form runs on each of its threads.
const SEEDS: u64 = 150;

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

/// A claim that landed after lease and grace, although its process had given up on it, made the key unknown.
#[test]
fn seed_1984_a_late_claim_is_released() {
    passes(1984);
}

/// The handle of a 202 led to the outcome of another request under the same key, after the first one had expired.
#[test]
fn seed_26013_a_handle_is_for_its_request() {
    passes(26013);
}
