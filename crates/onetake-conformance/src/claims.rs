//! Claims: the right to run, and the records that other callers find.

use bytes::Bytes;

use super::bench::{Bench, Got, body, failure, got, id, is, outcome, unknown};
use onetake_core::fingerprint::Fingerprint;
use onetake_core::record::{OnUnknown, Recording, State};
use onetake_core::store::{Claim, Transition};

pub(super) async fn absent_is_granted(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    assert!(bench.load("a").await.is_none());
    let fence = bench.granted(&claim).await;
    let record = bench.load("a").await.expect("the claim is there for everybody to see (S5)");
    is(&record, "running");
    assert_eq!((record.attempt, record.fence), (claim.attempt, fence));
    assert_eq!(record.fingerprint, claim.fingerprint);
    assert_eq!(record.terms, claim.terms);
}

pub(super) async fn a_second_claim_finds_the_first(bench: &Bench) {
    let first = bench.claim_of("a", "pay 10");
    bench.granted(&first).await;
    let record = bench.found(&bench.claim_of("a", "pay 10")).await;
    is(&record, "running");
    assert_eq!(record.attempt, first.attempt, "the first attempt keeps the lease (S1)");
}

pub(super) async fn another_payload_is_refused_in_any_state(bench: &Bench) {
    for (key, transition) in [
        ("running", None),
        ("completed", Some(outcome("done"))),
        ("failed", Some(failure())),
        ("released", Some(Transition::Release)),
        ("unknown", Some(unknown())),
    ] {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        if let Some(transition) = transition {
            bench.done(&claim, transition).await;
        }
        let before = bench.load(key).await;
        let record = bench.found(&bench.claim_of(key, "pay 99")).await;
        is(&record, key);
        assert_ne!(record.fingerprint, Fingerprint::of(b"pay 99"));
        assert_eq!(bench.load(key).await, before, "a mismatch changes nothing (S9)");
    }
    // The same holds past its lease and grace.
    let retry = Claim { terms: bench.terms(OnUnknown::Retry), ..bench.claim_of("late", "pay 10") };
    bench.granted(&retry).await;
    bench.pass(5).await;
    bench.found(&bench.claim_of("late", "pay 99")).await;
}

pub(super) async fn a_released_key_runs_again(bench: &Bench) {
    let first = bench.claim_of("a", "pay 10");
    let fence = bench.granted(&first).await;
    let released = bench.done(&first, Transition::Release).await;
    is(&released, "released");
    let second = bench.claim_of("a", "pay 10");
    assert!(bench.granted(&second).await > fence, "the fence rises (S2)");
    let record = bench.load("a").await.unwrap();
    assert_eq!(record.created_at, released.created_at, "the key is as old as it was");
    assert_eq!(record.attempt, second.attempt);
}

pub(super) async fn a_completed_key_is_replayed(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    bench.done(&claim, outcome("paid")).await;
    for _ in 0..3 {
        let record = bench.found(&bench.claim_of("a", "pay 10")).await;
        assert_eq!(body(&record), b"paid");
    }
}

pub(super) async fn a_failed_key_is_replayed(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    bench.done(&claim, failure()).await;
    let record = bench.found(&bench.claim_of("a", "pay 10")).await;
    let State::Failed { failure, .. } = &record.state else { panic!("not failed") };
    assert_eq!(
        (failure.code.as_str(), failure.detail.as_str()),
        ("declined", "the card was declined")
    );
}

pub(super) async fn an_unknown_key_is_answered_as_its_terms_say(bench: &Bench) {
    for (key, on_unknown) in [("fail", OnUnknown::Fail), ("reconcile", OnUnknown::Reconcile)] {
        let claim = Claim { terms: bench.terms(on_unknown), ..bench.claim_of(key, "pay 10") };
        bench.granted(&claim).await;
        bench.done(&claim, unknown()).await;
        // The terms of the record count, not those of the new claim.
        let other = Claim { terms: bench.terms(OnUnknown::Retry), ..bench.claim_of(key, "pay 10") };
        let record = bench.found(&other).await;
        let State::Unknown { cause, .. } = &record.state else { panic!("not unknown") };
        assert_eq!(cause.to_string(), "the upstream answered 500");
    }
    let retry = Claim { terms: bench.terms(OnUnknown::Retry), ..bench.claim_of("retry", "pay 10") };
    let fence = bench.granted(&retry).await;
    bench.done(&retry, unknown()).await;
    assert!(bench.granted(&bench.claim_of("retry", "pay 10")).await > fence);
}

pub(super) async fn an_ended_lease_is_respected_during_grace(bench: &Bench) {
    let fail = bench.claim_of("fail", "pay 10");
    let retry = Claim { terms: bench.terms(OnUnknown::Retry), ..bench.claim_of("retry", "pay 10") };
    bench.granted(&fail).await;
    let fence = bench.granted(&retry).await;
    bench.pass(3).await;
    is(&*bench.found(&bench.claim_of("fail", "pay 10")).await, "running");
    is(&*bench.found(&bench.claim_of("retry", "pay 10")).await, "running");
    bench.pass_just_over(1).await;
    is(&*bench.found(&bench.claim_of("fail", "pay 10")).await, "unknown");
    is(&bench.load("fail").await.unwrap(), "unknown");
    assert!(bench.granted(&bench.claim_of("retry", "pay 10")).await > fence);
}

pub(super) async fn the_same_key_many_times_in_one_batch(bench: &Bench) {
    let batch: Vec<Claim> = (0..20)
        .map(|at| bench.claim_of("a", if at % 5 == 3 { "pay 99" } else { "pay 10" }))
        .collect();
    let answers = bench.store.claim(batch.clone()).await;
    assert_eq!(answers.len(), batch.len());
    let answers: Vec<Got> = answers.into_iter().map(|answer| got(answer.unwrap())).collect();
    let owners: Vec<usize> = answers
        .iter()
        .enumerate()
        .filter_map(|(at, answer)| matches!(answer, Got::Granted(_)).then_some(at))
        .collect();
    assert_eq!(owners.len(), 1, "one of them runs");
    let owner = &batch[owners[0]];
    for answer in &answers {
        if let Got::Found(record) = answer {
            assert_eq!(record.attempt, owner.attempt, "the others find the one that runs");
        }
    }
    // The same settlement many times, beside that of another attempt.
    let own = onetake_core::store::Settlement {
        id: owner.id,
        attempt: owner.attempt,
        transition: outcome("x"),
    };
    let strange = onetake_core::store::Settlement { attempt: bench.attempt(), ..own.clone() };
    let answers = bench.store.settle(vec![strange.clone(), own.clone(), own, strange]).await;
    let done: Vec<bool> = answers
        .into_iter()
        .map(|answer| matches!(answer.unwrap(), onetake_core::store::Settled::Done { .. }))
        .collect();
    assert_eq!(done, [false, true, true, false]);
}

pub(super) async fn items_of_a_batch_are_independent(bench: &Bench) {
    let taken = bench.claim_of("taken", "pay 10");
    bench.granted(&taken).await;
    let batch: Vec<Claim> = ["new-1", "taken", "new-2", "taken", "new-3"]
        .iter()
        .map(|key| bench.claim_of(key, "pay 10"))
        .collect();
    let answers = bench.store.claim(batch.clone()).await;
    let granted: Vec<bool> =
        answers.into_iter().map(|a| matches!(got(a.unwrap()), Got::Granted(_))).collect();
    assert_eq!(granted, [true, false, true, false, true], "each its own answer, in order (S21)");

    let settle = |claim: &Claim, transition| onetake_core::store::Settlement {
        id: claim.id,
        attempt: claim.attempt,
        transition,
    };
    let answers = bench
        .store
        .settle(vec![
            settle(&batch[0], outcome("one")),
            settle(&batch[1], outcome("stranger")),
            settle(&batch[2], Transition::Release),
            settle(&bench.claim_of("absent", ""), outcome("nothing")),
            settle(&batch[4], unknown()),
        ])
        .await;
    let done: Vec<bool> = answers
        .into_iter()
        .map(|answer| matches!(answer.unwrap(), onetake_core::store::Settled::Done { .. }))
        .collect();
    assert_eq!(done, [true, false, true, false, true]);
    let ids = ["new-1", "taken", "new-2", "absent", "new-3"].map(id);
    let states: Vec<Option<&str>> = bench
        .store
        .load(ids.to_vec())
        .await
        .into_iter()
        .map(|answer| answer.unwrap().map(|record| record.state.name()))
        .collect();
    let expected = [Some("completed"), Some("running"), Some("released"), None, Some("unknown")];
    assert_eq!(states, expected);
}

pub(super) async fn an_empty_batch_is_nothing(bench: &Bench) {
    assert!(bench.store.claim(vec![]).await.is_empty());
    assert!(bench.store.settle(vec![]).await.is_empty());
    assert!(bench.store.load(vec![]).await.is_empty());
}

pub(super) async fn large_and_odd_recordings_are_kept_exactly(bench: &Bench) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> =
        every_byte.iter().copied().cycle().take(bench.can.body_bytes_max).collect();
    let recordings = [
        ("empty", Recording { head: Bytes::new(), body: Some(Bytes::new()) }),
        ("bytes", Recording { head: every_byte.clone().into(), body: Some(every_byte.into()) }),
        ("large", Recording { head: Bytes::from_static(b"h"), body: Some(large.into()) }),
        ("not kept", Recording { head: Bytes::from_static(b"h"), body: None }),
    ];
    for (key, recording) in recordings {
        let claim = bench.claim_of(key, "pay 10");
        bench.granted(&claim).await;
        bench.done(&claim, Transition::Complete(recording.clone())).await;
        let found = bench.found(&bench.claim_of(key, "pay 10")).await;
        let State::Completed { recording: kept, .. } = &found.state else { panic!("{key}") };
        assert!(*kept == recording, "{key}: replays are byte-equal (S4)");
    }
}

pub(super) async fn terms_travel_with_the_record(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    bench.granted(&claim).await;
    let mut other = bench.claim_of("a", "pay 10");
    other.terms.lease /= 2;
    other.terms.grace /= 2;
    other.terms.on_unknown = OnUnknown::Retry;
    bench.pass(3).await;
    is(&*bench.found(&other).await, "running");
    assert_eq!(bench.load("a").await.unwrap().terms, claim.terms);
}

pub(super) async fn a_claim_that_is_sent_again_is_its_own(bench: &Bench) {
    let claim = bench.claim_of("a", "pay 10");
    let fence = bench.granted(&claim).await;
    bench.pass(1).await;
    assert_eq!(bench.granted(&claim).await, fence, "the same attempt, the same fence");
    let renewed = bench.load("a").await.expect("it is there");
    assert_eq!(renewed.attempt, claim.attempt);
    bench.pass(3).await;
    is(&*bench.found(&bench.claim_of("a", "pay 10")).await, "running");
    let strange = Claim { fingerprint: Fingerprint::of(b"pay 11"), ..claim.clone() };
    is(&*bench.found(&strange).await, "running");
    for (key, settle) in [
        ("completed", outcome("x")),
        ("failed", failure()),
        ("released", Transition::Release),
        ("unknown", unknown()),
    ] {
        for on_unknown in [OnUnknown::Fail, OnUnknown::Retry] {
            let key = format!("{key} {on_unknown:?}");
            let claim = Claim { terms: bench.terms(on_unknown), ..bench.claim_of(&key, "pay") };
            bench.granted(&claim).await;
            let ended = bench.done(&claim, settle.clone()).await;
            assert_eq!(bench.found(&claim).await, ended, "{key}: an attempt that ended runs again");
        }
    }
}
