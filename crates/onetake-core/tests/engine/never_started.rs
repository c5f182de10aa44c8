//! Attempts that never started leave no payload behind.

use std::time::Duration;

use onetake_core::engine::{Answer, Begin};
use onetake_core::{Cause, Engine, Fingerprint, Key, Limits, OnUnknown, Operation, Scope, Terms};

use super::{engine_on, memory, operation, settle_down};

fn other_payload(key: &str) -> Operation {
    Operation::new(&Scope::new("engine"), &Key::new(key).unwrap(), Fingerprint::of(b"refund"))
}

async fn begin(engine: &Engine, operation: &Operation) -> Begin {
    engine.begin(operation).await.unwrap()
}

fn is_mismatch(begin: &Begin) -> bool {
    matches!(begin, Begin::Answer(Answer::Mismatch))
}

#[tokio::test]
async fn a_lease_that_is_dropped_before_its_start_leaves_no_payload() {
    let (clock, store) = memory();
    let engine = engine_on(store, &clock, Limits::default());
    let Begin::Run(lease) = begin(&engine, &operation("dropped")).await else { panic!("it runs") };
    let fence = lease.fence();
    drop(lease);
    settle_down().await;
    let Begin::Run(lease) = begin(&engine, &other_payload("dropped")).await else {
        panic!("nothing ran under this key, so any payload may run")
    };
    assert!(lease.fence() > fence, "S2");
    drop(lease.release().await);
    let Begin::Run(lease) = begin(&engine, &operation("dropped")).await else { panic!("it runs") };
    lease.start().unwrap();
    drop(lease.release().await);
    // This attempt ran. It had no effect, but its payload stays the one of the key (S9).
    assert!(is_mismatch(&begin(&engine, &other_payload("dropped")).await));
    assert!(matches!(begin(&engine, &operation("dropped")).await, Begin::Run(_)));
}

#[tokio::test]
async fn an_earlier_attempt_that_ran_keeps_its_payload() {
    let (clock, store) = memory();
    let engine = engine_on(store, &clock, Limits::default());
    let terms = Terms { on_unknown: OnUnknown::Retry, ..Terms::default() };
    let pay = operation("earlier").terms(terms);
    let Begin::Run(first) = begin(&engine, &pay).await else { panic!("it runs") };
    first.start().unwrap();
    drop(first.unknown(Cause::TimedOut).await);
    let Begin::Run(second) = begin(&engine, &pay).await else { panic!("it runs again") };
    drop(second);
    settle_down().await;
    // The first attempt may have had its effect.
    assert!(is_mismatch(&begin(&engine, &other_payload("earlier")).await));
    assert!(matches!(begin(&engine, &pay).await, Begin::Run(_)));
}

/// A waiter with the same payload runs after the attempt that never started, and so does the next
/// payload.
#[tokio::test]
async fn a_waiter_runs_after_an_attempt_that_never_started() {
    let (clock, store) = memory();
    let engine = engine_on(store, &clock, Limits::default());
    let wait = onetake_core::WhileRunning::Wait(Duration::from_secs(5));
    let waiting = operation("waiter").in_flight(wait);
    let Begin::Run(lease) = begin(&engine, &waiting).await else { panic!("it runs") };
    let (own, second) = (engine.clone(), waiting.clone());
    let waiter = tokio::spawn(async move { own.begin(&second).await.unwrap() });
    settle_down().await;
    drop(lease);
    let Begin::Run(lease) = waiter.await.unwrap() else { panic!("the waiter runs") };
    lease.start().unwrap();
    drop(lease.complete(onetake_core::Recording::new("done")).await);
    assert!(is_mismatch(&begin(&engine, &other_payload("waiter")).await));
}

/// Callers that count new keys need the record, to count each key once.
#[tokio::test]
async fn an_attempt_that_never_started_keeps_its_payload_if_the_caller_wants_it() {
    let (clock, store) = memory();
    let engine = engine_on(store, &clock, Limits::default());
    let pay = operation("counted").keeping_untried();
    let Begin::Run(lease) = begin(&engine, &pay).await else { panic!("it runs") };
    drop(lease);
    settle_down().await;
    assert!(is_mismatch(&begin(&engine, &other_payload("counted")).await));
    assert!(matches!(begin(&engine, &pay).await, Begin::Run(_)));
}

/// A caller with a wrong password does not block the key for the right payload.
#[tokio::test]
async fn a_disowned_attempt_leaves_no_payload_only_if_it_is_released() {
    let (clock, store) = memory();
    let engine = engine_on(store, &clock, Limits::default());
    for (key, releases) in [("released", true), ("unknown", false)] {
        let pay = operation(key).keeping_untried();
        let Begin::Run(lease) = begin(&engine, &pay).await else { panic!("it runs") };
        lease.start().unwrap();
        lease.disown();
        if releases {
            drop(lease.release().await);
        } else {
            drop(lease.unknown(Cause::TimedOut).await);
        }
        let other = begin(&engine, &other_payload(key)).await;
        assert_eq!(matches!(other, Begin::Run(_)), releases, "{other:?}");
        assert_eq!(is_mismatch(&other), !releases, "{other:?}");
    }
}
