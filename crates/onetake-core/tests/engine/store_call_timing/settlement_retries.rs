//! Settlements are retried until the store accepts them, and return the current record if it has
//! another outcome.

use std::sync::atomic::Ordering;

use onetake_core::engine::Settling;
use onetake_core::{Answer, AttemptId, Failure, NotDone, OnUnknown, Outcome, State, Terms};

use super::*;

fn completes(transition: &Transition) -> bool {
    matches!(transition, Transition::Complete(_))
}

fn terms(on_unknown: OnUnknown) -> Terms {
    Terms { on_unknown, lease: SECOND * 2, grace: SECOND, ..Terms::default() }
}

#[tokio::test]
async fn the_pauses_between_two_tries_double_up_to_half_a_second() {
    let world = World::new();
    let lease = world.lease(&operation("pauses")).await;
    lease.start().unwrap();
    world.store.refused.store(8, Ordering::SeqCst);
    let settling = tokio::spawn(lease.complete(Recording::new("paid")));
    world.pass(SECOND * 3, Duration::from_millis(10)).await;
    let times = world.store.times(completes);
    let pauses: Vec<u128> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500, 500]);
    assert!(matches!(settling.await.unwrap(), Settling::Recorded(_)));
}

#[tokio::test]
async fn a_late_attempt_is_told_what_stands_if_it_asked_the_same() {
    let world = World::new();
    let operation = operation("late").terms(terms(OnUnknown::Retry)).run_max(SECOND);
    let lease = world.lease(&operation).await;
    lease.start().unwrap();
    world.seconds(4).await;
    let other = engine(&world.clock, &world.store);
    let Begin::Run(next) = other.begin(&operation).await.unwrap() else { panic!() };
    next.start().unwrap();
    assert!(matches!(next.complete(Recording::new("by the next")).await, Settling::Recorded(_)));
    let Settling::Stale(Some(stands)) = lease.complete(Recording::new("late")).await else {
        panic!("the next attempt's outcome stands");
    };
    assert!(
        matches!(&stands.state, State::Completed { recording, .. } if *recording == Recording::new("by the next"))
    );
}

#[tokio::test]
async fn a_late_attempt_is_not_told_the_outcome_of_another_payload() {
    let world = World::new();
    let short = Terms { ttl: SECOND * 5, ..terms(OnUnknown::Rollback) };
    let operation = operation("another life").terms(short).run_max(SECOND);
    let lease = world.lease(&operation).await;
    lease.start().unwrap();
    world.seconds(4).await;
    // The attempt loses its lease, is released and expires; then the key is used again.
    assert_eq!(engine(&world.clock, &world.store).reap(10).await, 1);
    world.seconds(10).await;
    let mut other = operation.clone();
    other.fingerprint = Fingerprint::of(b"something else");
    let next_engine = engine(&world.clock, &world.store);
    let Begin::Run(next) = next_engine.begin(&other).await.unwrap() else { panic!() };
    next.start().unwrap();
    assert!(matches!(next.complete(Recording::new("secret")).await, Settling::Recorded(_)));
    let settling = lease.release().await;
    assert!(matches!(settling, Settling::Stale(None)), "{settling:?}");
}

#[tokio::test]
async fn an_attempt_that_completed_itself_is_replayed() {
    let world = World::new();
    let short = Terms { ttl: SECOND * 5, ..terms(OnUnknown::Rollback) };
    let operation = operation("itself").terms(short);
    let lease = world.lease(&operation).await;
    lease.start().unwrap();
    world.seconds(4).await;
    // The completion by the operation's own transaction.
    let transition = Transition::Complete(Recording::new("paid"));
    let own = Settlement { id: lease.id(), attempt: lease.attempt(), transition };
    world.store.memory.settle(vec![own]).await.remove(0).unwrap();
    let settling = lease.release().await;
    assert!(matches!(settling, Settling::Stale(Some(_))), "{settling:?}");
    let claims = world.store.claims.load(Ordering::SeqCst);
    // The store is asked once: only the store knows when the outcome expires.
    for _ in 0..2 {
        let again = world.engine.begin(&operation).await.unwrap();
        assert!(matches!(again, Begin::Answer(Answer::Replay(_))), "{again:?}");
    }
    assert_eq!(world.store.claims.load(Ordering::SeqCst), claims + 1);
    // The key expires five seconds after its completion, and not five after its claim.
    world.seconds(6).await;
    assert!(matches!(world.engine.begin(&operation).await.unwrap(), Begin::Run(_)));
}

#[tokio::test]
async fn a_completion_that_is_stale_is_not_taken_for_the_attempts_own() {
    let world = World::new();
    let operation = operation("stale").terms(terms(OnUnknown::Rollback));
    let lease = world.lease(&operation).await;
    lease.start().unwrap();
    let by_operator = Transition::Complete(Recording::new("by an operator"));
    let own = Settlement { id: lease.id(), attempt: lease.attempt(), transition: by_operator };
    world.store.memory.settle(vec![own]).await.remove(0).unwrap();
    let settling = lease.complete(Recording::new("by its owner")).await;
    assert!(matches!(settling, Settling::Stale(Some(_))), "{settling:?}");
    let record = world.record(&operation).await;
    assert!(
        matches!(&record.state, State::Completed { recording, .. } if *recording == Recording::new("by an operator"))
    );
}

/// Freezes a running attempt past its lease and grace, and lets another node take over.
async fn take_over(store: &Watched, clock: &ManualClock, operation: &Operation) -> AttemptId {
    clock.advance(SECOND * 4);
    let attempt = AttemptId::from_bytes([7; 16]);
    let claim = Claim {
        id: operation.id,
        attempt,
        fingerprint: operation.fingerprint,
        terms: operation.terms,
        origin: operation.origin.clone(),
    };
    store.memory.claim(vec![claim]).await.remove(0).unwrap();
    attempt
}

/// Runs an operation in its own transaction, which is committed by an attempt of this process or by
/// the attempt that took over.
async fn transacted(is_own: bool) -> Settling {
    let world = World::new();
    let operation = operation("transacted").terms(terms(OnUnknown::Rollback)).run_max(SECOND * 60);
    let (store, clock, next) =
        (Arc::clone(&world.store), Arc::clone(&world.clock), operation.clone());
    let outcome = world.engine.transact(operation, move |attempt| async move {
        let mut committing = attempt.attempt;
        if !is_own {
            committing = take_over(&store, &clock, &next).await;
        }
        let transition = Transition::Complete(Recording::new("committed"));
        let commit = Settlement { id: attempt.id, attempt: committing, transition };
        store.memory.settle(vec![commit]).await.remove(0).unwrap();
        Ok::<(), ()>(())
    });
    match outcome.await.unwrap() {
        Outcome::Ran(settling) => settling,
        Outcome::Answered(answer) => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn a_transaction_is_recorded_by_the_attempt_that_committed_it() {
    let own = transacted(true).await;
    assert!(matches!(own, Settling::Recorded(_)), "{own:?}");
    let taken_over = transacted(false).await;
    assert!(matches!(taken_over, Settling::Stale(Some(_))), "{taken_over:?}");
}

/// The writes of a large recording take longer.
#[tokio::test]
async fn the_wait_for_an_outcome_grows_with_its_size() {
    let step = Duration::from_millis(10);
    for (name, bytes, seconds) in [("small", 300, 5), ("large", 1 << 20, 6)] {
        let world = World::new();
        let lease = world.lease(&operation(name)).await;
        lease.start().unwrap();
        world.store.refused.store(usize::MAX, Ordering::SeqCst);
        let settling = tokio::spawn(lease.complete(Recording::new(vec![b'x'; bytes])));
        world.pass(SECOND * seconds - step * 10, step).await;
        assert!(!settling.is_finished(), "{name}");
        world.pass(step * 20, step).await;
        assert!(matches!(settling.await.unwrap(), Settling::Pending), "{name}");
    }
}

/// Work that returns success without a completion in the store may have had its effects.
#[tokio::test]
async fn a_transaction_without_a_completion_says_why() {
    let world = World::new();
    let transact = |key: &str, worked: Result<(), &'static str>| {
        world.engine.transact(operation(key), move |_| async move { worked })
    };
    let forgot = transact("forgot", Ok(())).await;
    assert!(matches!(forgot, Err(NotDone::NotCommitted)), "{forgot:?}");
    let failed = transact("failed", Err("no funds")).await;
    assert!(matches!(failed, Err(NotDone::Work("no funds"))), "{failed:?}");
    let panics = async |_| std::panic::resume_unwind(Box::new("panics"));
    let panicked = world.engine.transact::<(), _, _>(operation("panicked"), panics).await;
    assert!(matches!(panicked, Err(NotDone::Interrupted)), "{panicked:?}");
    // Only the first of them never runs again.
    let again = world.engine.begin(&operation("forgot")).await.unwrap();
    assert!(matches!(again, Begin::Answer(Answer::Failed(_))), "{again:?}");
    for key in ["failed", "panicked"] {
        assert!(matches!(world.engine.begin(&operation(key)).await.unwrap(), Begin::Run(_)));
    }
}

/// A failure in the store is the outcome, unless it is this attempt's own that it was not finished.
#[tokio::test]
async fn a_transaction_whose_key_failed_otherwise_is_told_so() {
    let failure = |code: &str| Failure { code: code.to_owned(), detail: String::new() };
    for (is_own, code) in [(true, "declined"), (false, "outcome_unknown")] {
        let world = World::new();
        let operation = operation("failed").terms(terms(OnUnknown::Rollback)).run_max(SECOND * 60);
        let (store, clock, next) =
            (Arc::clone(&world.store), Arc::clone(&world.clock), operation.clone());
        let outcome = world.engine.transact(operation, move |attempt| async move {
            let failing =
                if is_own { attempt.attempt } else { take_over(&store, &clock, &next).await };
            let transition = Transition::Fail(failure(code));
            let fail = Settlement { id: attempt.id, attempt: failing, transition };
            store.memory.settle(vec![fail]).await.remove(0).unwrap();
            Ok::<(), ()>(())
        });
        let Outcome::Ran(Settling::Stale(Some(record))) = outcome.await.unwrap() else {
            panic!("the failure in the store is the outcome")
        };
        assert_eq!(record.state.name(), "failed");
    }
}
