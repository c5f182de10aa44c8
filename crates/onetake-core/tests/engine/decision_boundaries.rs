//! Decisions at the exact moment at which they change, and the state that the next attempt
//! inherits.

use std::time::Duration;

use onetake_core::decide::{self, ClaimEffect, Moment, Reading, SettleEffect};
use onetake_core::{
    AttemptId, Claim, Failure, Fence, OnUnknown, Record, Settlement, State, Terms, Timestamp,
    Transition,
};

use super::operation;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

/// A claim with a ttl of 1,000 seconds, a lease of 30 and a grace of 20.
fn claim(attempt: u8, on_unknown: OnUnknown) -> Claim {
    let asked = operation("a");
    Claim {
        id: asked.id,
        attempt: AttemptId::from_bytes([attempt; 16]),
        fingerprint: asked.fingerprint,
        terms: Terms { ttl: 1_000 * SECOND, lease: 30 * SECOND, grace: 20 * SECOND, on_unknown },
        origin: asked.origin,
    }
}

fn granted(found: Option<&Record>, claim: &Claim, now: Timestamp) -> Record {
    match decide::claim(found, claim, Moment::at(now), Fence::default()) {
        ClaimEffect::Grant(record) => record,
        effect => panic!("{effect:?}"),
    }
}

fn settled(record: &Record, transition: Transition, now: Timestamp) -> SettleEffect {
    let settlement = Settlement { id: record.id, attempt: record.attempt, transition };
    decide::settle(Some(record), &settlement, Moment::at(now))
}

fn written(record: &Record, transition: Transition, now: Timestamp) -> Record {
    match settled(record, transition, now) {
        SettleEffect::Write(record) => record,
        effect => panic!("{effect:?}"),
    }
}

#[test]
fn an_attempt_is_passed_over_exactly_at_the_end_of_its_grace() {
    let (just_before, end) = (Timestamp::from_micros(149_999_999), at(150));
    for (on_unknown, then) in [
        (OnUnknown::Fail, Reading::Abandoned),
        (OnUnknown::Reconcile, Reading::Abandoned),
        (OnUnknown::Retry, Reading::Free),
        (OnUnknown::Rollback, Reading::Free),
    ] {
        let record = granted(None, &claim(1, on_unknown), at(100));
        let read = |now| decide::read(Some(&record), &record.fingerprint, Moment::at(now));
        assert_eq!((read(just_before), read(end)), (Reading::InFlight, then), "{on_unknown:?}");
        assert_eq!(settled(&record, Transition::ExpireLease, just_before), SettleEffect::Stale);
        let passed_over = written(&record, Transition::ExpireLease, end).state.name();
        let expected = if on_unknown == OnUnknown::Rollback { "released" } else { "unknown" };
        assert_eq!(passed_over, expected, "{on_unknown:?}");
    }
}

#[test]
fn an_attempt_that_is_passed_over_while_it_runs_ends_when_the_next_one_begins() {
    let first = granted(None, &claim(1, OnUnknown::Retry), at(100));
    let second = granted(Some(&first), &claim(2, OnUnknown::Retry), at(200));
    let past: Vec<_> = second.history.attempts().collect();
    assert_eq!(past.len(), 1);
    assert_eq!((past[0].claimed_at, past[0].ended_at), (at(100), at(200)));
    assert_eq!((past[0].stood, past[0].fence), ("running", first.fence));
    assert_eq!((second.created_at, second.claimed_at), (at(100), at(200)));
    let released = written(&second, Transition::Release, at(210));
    let third = granted(Some(&released), &claim(3, OnUnknown::Retry), at(300));
    let last = third.history.attempts().last().unwrap();
    assert_eq!((last.ended_at, last.stood), (at(210), "released"));
}

#[test]
fn a_key_that_expired_begins_anew_with_a_higher_fence() {
    let first = granted(None, &claim(1, OnUnknown::Fail), at(100));
    let released = written(&first, Transition::Release, at(101));
    // The record is kept for 1,000 seconds from its claim or from its settlement, whichever ends
    // later.
    let again = granted(Some(&released), &claim(2, OnUnknown::Fail), at(1_100));
    assert_eq!((again.created_at, again.history.attempts().count()), (at(100), 1));
    let anew = granted(Some(&released), &claim(2, OnUnknown::Fail), at(1_101));
    assert_eq!((anew.created_at, anew.history.attempts().count()), (at(1_101), 0));
    // This also holds if the clock was set back meanwhile.
    let early = Record { fence: Fence::new(u64::MAX / 2), ..released };
    assert!(granted(Some(&early), &claim(2, OnUnknown::Fail), at(1_101)).fence > early.fence);
}

#[test]
fn a_settlement_that_is_sent_twice_is_its_own_success() {
    let record = granted(None, &claim(1, OnUnknown::Fail), at(100));
    // Longer than the texts that a record keeps.
    let failure = Failure { code: "c".repeat(600), detail: "d".repeat(600) };
    for transition in [
        Transition::Fail(failure),
        Transition::Release,
        Transition::Unknown(onetake_core::Cause::TimedOut),
    ] {
        let once = written(&record, transition.clone(), at(101));
        assert_eq!(
            settled(&once, transition.clone(), at(102)),
            SettleEffect::Already,
            "{transition:?}"
        );
    }
    let rolled_back = granted(None, &claim(1, OnUnknown::Rollback), at(100));
    let unknown = Transition::Unknown(onetake_core::Cause::TimedOut);
    let once = written(&rolled_back, unknown.clone(), at(101));
    assert_eq!(once.state, State::Released { at: at(101) });
    assert_eq!(settled(&once, unknown, at(102)), SettleEffect::Already);
}

#[test]
fn an_ask_is_taken_exactly_when_it_is_due() {
    let record = granted(None, &claim(1, OnUnknown::Reconcile), at(100));
    let unknown = written(&record, Transition::Unknown(onetake_core::Cause::TimedOut), at(110));
    let asked = written(&unknown, Transition::PostponeReconcile(20 * SECOND), at(110));
    assert_eq!(asked.ask_at(), Some(at(130)));
    let again = |now| settled(&asked, Transition::PostponeReconcile(SECOND), now);
    assert_eq!(again(Timestamp::from_micros(129_999_999)), SettleEffect::Stale);
    assert!(matches!(again(at(130)), SettleEffect::Write(_)));
}
