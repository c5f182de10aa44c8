//! Expiry: exactly on time, and never for running records.

use std::time::Duration;

use super::bench::{Bench, Got, is, outcome, unknown};
use onetake_core::store::{Claim, Transition};

pub(super) async fn a_key_is_reusable_only_after_it_expires(bench: &Bench) {
    for (key, transition) in [("completed", outcome("x")), ("released", Transition::Release)] {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        bench.done(&claim, transition).await;
    }
    bench.pass(19).await;
    for key in ["completed", "released"] {
        bench.found(&bench.claim_of(key, "pay 99")).await;
    }
    bench.pass_just_over(1).await;
    for key in ["completed", "released"] {
        assert!(bench.load(key).await.is_none(), "expired is absent at once, without a sweep");
        bench.granted(&bench.claim_of(key, "pay 99")).await;
    }
}

pub(super) async fn running_never_expires(bench: &Bench) {
    let mut claim = bench.claim_of("a", "pay 10");
    claim.terms.ttl = bench.can.tick;
    bench.granted(&claim).await;
    bench.pass(3).await;
    assert_eq!(bench.sweep(10).await.removed, 0);
    is(&*bench.found(&bench.claim_of("a", "pay 10")).await, "running");
}

pub(super) async fn the_unknown_expires_a_full_ttl_later(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    bench.pass(10).await;
    bench.done(&claim, unknown()).await;
    bench.pass(19).await;
    is(&*bench.found(&bench.claim_of("a", "pay 10")).await, "unknown");
    bench.pass_just_over(1).await;
    bench.granted(&bench.claim_of("a", "pay 10")).await;
}

pub(super) async fn a_late_outcome_is_kept_for_a_while(bench: &Bench) {
    let mut claim = bench.claim_of("a", "pay 10");
    claim.terms.ttl = bench.can.tick * 6;
    bench.granted(&claim).await;
    bench.pass(30).await;
    bench.done(&claim, outcome("late")).await;
    let kept = claim.terms.ttl.min(Duration::from_secs(3600));
    assert_eq!(kept, bench.can.tick * 6, "the tick is short enough for this case");
    bench.pass(5).await;
    is(&*bench.found(&bench.claim_of("a", "pay 10")).await, "completed");
    bench.pass_just_over(1).await;
    bench.granted(&bench.claim_of("a", "pay 10")).await;
}

pub(super) async fn a_sweep_takes_what_expired_and_nothing_else(bench: &Bench) {
    for (key, transition) in [("old", outcome("x")), ("old unknown", unknown())] {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        bench.done(&claim, transition).await;
    }
    bench.granted(&bench.claim_of("old, running", "pay 10")).await;
    bench.pass(15).await;
    let young = bench.claim_of("young", "pay 10");
    bench.granted(&young).await;
    bench.done(&young, outcome("y")).await;
    assert_eq!(bench.sweep(10).await.removed, 0, "nothing has expired yet");
    bench.pass_just_over(5).await;
    let swept = bench.sweep(10).await;
    let expected = if bench.can.sweeps { (2, 1, false) } else { (0, 0, false) };
    assert_eq!((swept.removed, swept.unknown, swept.more), expected);
    assert!(bench.load("young").await.is_some());
    assert!(bench.load("old, running").await.is_some());
    assert_eq!(bench.sweep(10).await.removed, 0);
}

pub(super) async fn a_sweep_looks_again(bench: &Bench) {
    // When the sweep runs, the index of a store still names the first use of these keys.
    for (key, transition) in [("runs again", None), ("completed again", Some(outcome("second")))] {
        let first = bench.claim_of(key, "pay 10");
        bench.granted(&first).await;
        bench.done(&first, outcome("first")).await;
        bench.pass_just_over(20).await;
        let second = bench.claim_of(key, "pay 99");
        bench.granted(&second).await;
        if let Some(transition) = transition {
            bench.done(&second, transition).await;
        }
        let before = bench.load(key).await.expect("the second life");
        assert_eq!(bench.sweep(10).await.removed, 0, "{key}: the sweep did not look again (S13)");
        assert_eq!(bench.load(key).await, Some(before));
    }
}

pub(super) async fn a_sweep_is_bounded(bench: &Bench) {
    for at in 0..25 {
        let claim = bench.claim_of(&format!("key {at}"), "pay 10");
        bench.granted(&claim).await;
        bench.done(&claim, outcome("x")).await;
    }
    bench.pass_just_over(20).await;
    let mut removed = 0;
    for _ in 0..4 {
        let swept = bench.sweep(10).await;
        assert!(swept.removed <= 10, "no more than asked for");
        removed += swept.removed;
        assert_eq!(swept.more, bench.can.sweeps && removed < 25);
    }
    assert_eq!(removed, if bench.can.sweeps { 25 } else { 0 });
}

pub(super) async fn fences_rise_across_expiry_and_sweep(bench: &Bench) {
    let mut last = None;
    for round in 0..4 {
        let claim: Claim = bench.claim_of("a", "pay 10");
        let Got::Granted(fence) = bench.claim(&claim).await else { panic!("round {round}") };
        assert!(Some(fence) > last, "a fence was reused after expiry (S2)");
        last = Some(fence);
        bench.done(&claim, outcome("x")).await;
        bench.pass_just_over(20).await;
        if round % 2 == 1 {
            assert_eq!(bench.sweep(10).await.removed, usize::from(bench.can.sweeps));
        }
    }
}
