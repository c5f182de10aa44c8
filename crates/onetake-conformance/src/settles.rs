//! Settlements: which attempts may settle, and which records no longer change.

use super::bench::{Bench, body, every_transition, failure, is, outcome, unknown};
use onetake_core::record::{OnUnknown, State};
use onetake_core::store::{Claim, Due, DueAttempt, Settled, Transition};

pub(super) async fn a_stale_attempt_changes_nothing(bench: &Bench) {
    let first = Claim { terms: bench.terms(OnUnknown::Retry), ..bench.claim_of("a", "pay 10") };
    bench.granted(&first).await;
    bench.pass_just_over(4).await;
    let second = bench.claim_of("a", "pay 10");
    bench.granted(&second).await;
    let running = bench.load("a").await;
    for transition in every_transition() {
        let Settled::Stale { current } = bench.settle(&first, transition.clone()).await else {
            panic!("a late finisher was believed after a takeover: {transition:?} (S3)");
        };
        assert_eq!(current.map(|record| record.attempt), Some(second.attempt));
        assert_eq!(bench.load("a").await, running, "{transition:?} changed something");
    }
    bench.done(&second, outcome("the second's")).await;
    for transition in every_transition() {
        let Settled::Stale { current } = bench.settle(&first, transition.clone()).await else {
            panic!("a late finisher was believed after the completion: {transition:?} (S3)");
        };
        assert_eq!(body(&current.unwrap()), b"the second's", "the late one is told what stands");
        assert_eq!(body(&bench.load("a").await.unwrap()), b"the second's");
    }
}

pub(super) async fn the_late_owner_is_believed(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    bench.pass(9).await;
    bench.done(&claim, outcome("late, but true")).await;
    let found = bench.found(&bench.claim_of("a", "pay 10")).await;
    assert_eq!(body(&found), b"late, but true");
}

pub(super) async fn an_unknown_record_is_completed_by_its_own_attempt(bench: &Bench) {
    for (key, transition, state) in [
        ("completed", outcome("x"), "completed"),
        ("failed", failure(), "failed"),
        ("released", Transition::Release, "released"),
    ] {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        bench.pass_just_over(4).await;
        is(&*bench.found(&bench.claim_of(key, "pay 10")).await, "unknown");
        is(&*bench.done(&claim, transition).await, state);
        is(&bench.load(key).await.unwrap(), state);
    }
}

pub(super) async fn a_settlement_sent_twice_is_done_once(bench: &Bench) {
    for (key, transition) in [
        ("completed", outcome("x")),
        ("failed", failure()),
        ("released", Transition::Release),
        ("unknown", unknown()),
    ] {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        let first = bench.done(&claim, transition.clone()).await;
        bench.pass(1).await;
        let second = bench.done(&claim, transition).await;
        assert_eq!(first, second, "{key}: the second time changes nothing, the moment included");
    }
}

pub(super) async fn long_texts_are_cut_the_same_way_every_time(bench: &Bench) {
    let failure =
        onetake_core::record::Failure { code: "c".repeat(2_000), detail: "ä".repeat(2_000) };
    let claim = bench.claim_of("long failure", "pay 10");
    bench.granted(&claim).await;
    let first = bench.done(&claim, Transition::Fail(failure.clone())).await;
    assert_eq!(bench.done(&claim, Transition::Fail(failure)).await, first, "sent again, done once");
    let claim = bench.claim_of("long cause", "pay 10");
    bench.granted(&claim).await;
    let cause = onetake_core::record::Cause::Reported("x".repeat(2_000));
    let first = bench.done(&claim, Transition::Unknown(cause)).await;
    assert_eq!(bench.load("long cause").await, Some(first));
}

pub(super) async fn a_settled_record_never_changes(bench: &Bench) {
    for (key, settle) in
        [("completed", outcome("x")), ("failed", failure()), ("released", Transition::Release)]
    {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        let before = bench.done(&claim, settle).await;
        for transition in every_transition() {
            let _either = bench.settle(&claim, transition.clone()).await;
            let after = bench.load(key).await.unwrap();
            assert_eq!(after, before, "{key} was changed by its own attempt: {transition:?} (S4)");
        }
    }
}

pub(super) async fn renewing_moves_the_end_of_the_lease(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    // Five ticks, which is two and a half leases, with a renewal in every tick.
    for _ in 0..5 {
        bench.pass(1).await;
        bench.done(&claim, Transition::Renew).await;
    }
    bench.pass(3).await;
    is(&*bench.found(&bench.claim_of("a", "pay 10")).await, "running");
    bench.pass_just_over(1).await;
    is(&*bench.found(&bench.claim_of("a", "pay 10")).await, "unknown");
}

pub(super) async fn renewing_does_not_revive_the_unknown(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    bench.done(&claim, unknown()).await;
    let Settled::Stale { .. } = bench.settle(&claim, Transition::Renew).await else {
        panic!("an unknown attempt was renewed");
    };
    is(&bench.load("a").await.unwrap(), "unknown");
}

pub(super) async fn settling_the_absent_is_stale(bench: &Bench) {
    for transition in every_transition() {
        let Settled::Stale { current: None } =
            bench.settle(&bench.claim_of("absent", ""), transition).await
        else {
            panic!("something absent was settled");
        };
    }
    assert!(bench.load("absent").await.is_none());
}

pub(super) async fn the_abandoned_are_found_in_order(bench: &Bench) {
    let mut claims = Vec::new();
    for key in ["first", "second", "third", "finished", "renewed"] {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        claims.push(claim);
        bench.pass(1).await;
    }
    bench.done(&claims[3], outcome("x")).await;
    bench.pass(2).await;
    bench.done(&claims[4], Transition::Renew).await;
    let names = |found: Vec<DueAttempt>| found.into_iter().map(|a| (a.id, a.attempt)).collect();
    let expected = |at: std::ops::Range<usize>| -> Vec<_> {
        claims[at].iter().map(|claim| (claim.id, claim.attempt)).collect()
    };
    let found: Vec<_> = names(bench.store.due(Due::LeaseEnd, 10).await.unwrap());
    assert_eq!(found, expected(0..3), "those whose lease and grace are over, and no others");
    let found: Vec<_> = names(bench.store.due(Due::LeaseEnd, 2).await.unwrap());
    assert_eq!(found, expected(0..2), "no more than asked for, the longest over first");
    for claim in &claims[..3] {
        bench.done(claim, Transition::ExpireLease).await;
    }
    assert!(bench.store.due(Due::LeaseEnd, 10).await.unwrap().is_empty());
    let State::Unknown { cause, .. } = &bench.load("first").await.unwrap().state else {
        panic!("not unknown");
    };
    assert_eq!(*cause, onetake_core::record::Cause::LeaseEnded);
}

pub(super) async fn the_reaper_looks_again(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    bench.pass_just_over(4).await;
    assert_eq!(bench.store.due(Due::LeaseEnd, 10).await.unwrap().len(), 1);
    // The owner returns between the reaper's search and its settlement.
    bench.done(&claim, Transition::Renew).await;
    let Settled::Stale { .. } = bench.settle(&claim, Transition::ExpireLease).await else {
        panic!("a live lease was reaped (S13)");
    };
    is(&bench.load("a").await.unwrap(), "running");
}
