//! Attempts whose owner went silent: reconciled, or rolled back.

use std::time::Duration;

use onetake_core::record::{Cause, OnUnknown, State};
use onetake_core::store::{Claim, Due, DueAttempt, Settled, Transition};

use super::bench::{Bench, Got, is, outcome};

fn claim_under(bench: &Bench, key: &str, on_unknown: OnUnknown) -> Claim {
    Claim { terms: bench.terms(on_unknown), ..bench.claim_of(key, "pay 10") }
}

/// Returns a key whose attempt reported an unknown outcome.
async fn unknown(bench: &Bench, key: &str, on_unknown: OnUnknown) -> Claim {
    let claim = claim_under(bench, key, on_unknown);
    bench.granted(&claim).await;
    bench.done(&claim, Transition::Unknown(Cause::TimedOut)).await;
    claim
}

async fn unsettled(bench: &Bench, limit: usize) -> Vec<DueAttempt> {
    bench.store.due(Due::Reconcile, limit).await.expect("the store tells what is unsettled")
}

fn named(claims: &[&Claim]) -> Vec<DueAttempt> {
    claims.iter().map(|claim| DueAttempt { id: claim.id, attempt: claim.attempt }).collect()
}

pub(super) async fn the_unsettled_are_found_in_order(bench: &Bench) {
    let mut claims = Vec::new();
    for key in ["first", "second", "third"] {
        claims.push(unknown(bench, key, OnUnknown::Reconcile).await);
        bench.pass(1).await;
    }
    // None of these is to be reconciled.
    unknown(bench, "fails", OnUnknown::Fail).await;
    unknown(bench, "is retried", OnUnknown::Retry).await;
    unknown(bench, "is rolled back", OnUnknown::Rollback).await;
    let runs = claim_under(bench, "runs", OnUnknown::Reconcile);
    bench.granted(&runs).await;
    let all: Vec<&Claim> = claims.iter().collect();
    assert_eq!(unsettled(bench, 10).await, named(&all));
    assert_eq!(unsettled(bench, 2).await, named(&all[..2]), "the longest due first");
    assert!(bench.store.due(Due::LeaseEnd, 10).await.unwrap().is_empty(), "nothing of it runs");

    // A settled record is not due for reconciliation, whatever settled it.
    bench.done(&claims[0], outcome("paid")).await;
    bench.done(&claims[1], Transition::Release).await;
    assert_eq!(unsettled(bench, 10).await, named(&all[2..]));
    if bench.can.forgets {
        bench.done(&claims[2], Transition::Forget).await;
        assert!(unsettled(bench, 10).await.is_empty());
    }
}

pub(super) async fn an_abandoned_one_is_asked_for(bench: &Bench) {
    let reaped = claim_under(bench, "reaped", OnUnknown::Reconcile);
    let met = claim_under(bench, "met", OnUnknown::Reconcile);
    for claim in [&reaped, &met] {
        bench.granted(claim).await;
    }
    bench.pass_just_over(4).await;
    assert!(unsettled(bench, 10).await.is_empty(), "it is not unknown yet");
    bench.done(&reaped, Transition::ExpireLease).await;
    let Got::Found(record) = bench.claim(&claim_under(bench, "met", OnUnknown::Reconcile)).await
    else {
        panic!("it ran again");
    };
    is(&record, "unknown");
    assert!(record.ask_at().is_some());
    let mut found = unsettled(bench, 10).await;
    found.sort_unstable_by_key(|found| found.id);
    let mut expected = named(&[&reaped, &met]);
    expected.sort_unstable_by_key(|found| found.id);
    assert_eq!(found, expected);
}

pub(super) async fn one_of_many_asks(bench: &Bench) {
    let claim = unknown(bench, "a", OnUnknown::Reconcile).await;
    let hold = bench.can.tick * 3;
    let before = bench.load("a").await.unwrap();
    let Settled::Done { record, now } =
        bench.settle(&claim, Transition::PostponeReconcile(hold)).await
    else {
        panic!("nobody may ask");
    };
    let State::Unknown { at, cause, ask_at } = &record.state else { panic!("not unknown") };
    let State::Unknown { at: at_before, .. } = &before.state else { panic!("not unknown") };
    assert_eq!((at, cause, *ask_at), (at_before, &Cause::TimedOut, now.plus(hold)));
    assert_eq!(bench.load("a").await.unwrap(), record);
    assert_eq!(record.expires_at(), before.expires_at(), "asking keeps nothing alive");

    let Settled::Stale { .. } = bench.settle(&claim, Transition::PostponeReconcile(hold)).await
    else {
        panic!("two ask at once");
    };
    assert!(unsettled(bench, 10).await.is_empty(), "somebody asks");
    bench.pass_just_over(3).await;
    assert_eq!(unsettled(bench, 10).await, named(&[&claim]), "it is due again");
    let other = claim_under(bench, "a", OnUnknown::Reconcile);
    let Settled::Stale { .. } = bench.settle(&other, Transition::PostponeReconcile(hold)).await
    else {
        panic!("another attempt was believed");
    };
    bench.done(&claim, Transition::PostponeReconcile(Duration::ZERO)).await;
    bench.done(&claim, outcome("found")).await;
    let Settled::Stale { .. } = bench.settle(&claim, Transition::PostponeReconcile(hold)).await
    else {
        panic!("what is settled was asked for");
    };
    is(&bench.load("a").await.unwrap(), "completed");
}

pub(super) async fn only_the_reconciled_are_asked_for(bench: &Bench) {
    for on_unknown in [OnUnknown::Fail, OnUnknown::Retry, OnUnknown::Rollback] {
        let key = format!("{on_unknown:?}");
        let claim = unknown(bench, &key, on_unknown).await;
        let Settled::Stale { .. } =
            bench.settle(&claim, Transition::PostponeReconcile(bench.can.tick)).await
        else {
            panic!("{key} was asked for");
        };
    }
    let runs = claim_under(bench, "runs", OnUnknown::Reconcile);
    bench.granted(&runs).await;
    let Settled::Stale { .. } =
        bench.settle(&runs, Transition::PostponeReconcile(bench.can.tick)).await
    else {
        panic!("what runs was asked for");
    };
}

pub(super) async fn the_unsettled_expire(bench: &Bench) {
    let claim = unknown(bench, "a", OnUnknown::Reconcile).await;
    bench.pass_just_over(20).await;
    assert!(unsettled(bench, 10).await.is_empty(), "it is expired");
    let Settled::Stale { .. } =
        bench.settle(&claim, Transition::PostponeReconcile(bench.can.tick)).await
    else {
        panic!("what expired was asked for");
    };
    bench.store.sweep(10).await.unwrap();
    bench.granted(&claim_under(bench, "a", OnUnknown::Reconcile)).await;
    assert!(unsettled(bench, 10).await.is_empty(), "its next life runs");
}

pub(super) async fn what_rolls_back_is_never_unknown(bench: &Bench) {
    // By the attempt's own report.
    let claim = unknown(bench, "says so", OnUnknown::Rollback).await;
    is(&bench.load("says so").await.unwrap(), "released");
    bench.done(&claim, Transition::Unknown(Cause::TimedOut)).await;
    let Settled::Stale { .. } = bench.settle(&claim, outcome("late")).await else {
        panic!("a late completion of what was rolled back was believed");
    };
    // By the reaper.
    let reaped = claim_under(bench, "reaped", OnUnknown::Rollback);
    let passed_over = claim_under(bench, "passed over", OnUnknown::Rollback);
    for claim in [&reaped, &passed_over] {
        bench.granted(claim).await;
    }
    bench.pass_just_over(4).await;
    bench.done(&reaped, Transition::ExpireLease).await;
    is(&bench.load("reaped").await.unwrap(), "released");
    // By the next claim.
    let first = bench.load("passed over").await.unwrap().fence;
    let next = claim_under(bench, "passed over", OnUnknown::Rollback);
    assert!(bench.granted(&next).await > first);
    let Settled::Stale { .. } = bench.settle(&passed_over, outcome("late")).await else {
        panic!("a late completion was believed (S3)");
    };
    bench.done(&next, outcome("once")).await;
}
