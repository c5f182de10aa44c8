//! Requests that run nothing.

use std::sync::atomic::Ordering;

use onetake_core::engine::Settling;
use onetake_core::{Answer, EngineError, Failure, Outcome, Verdict};

use super::*;

#[tokio::test]
async fn a_key_is_known_to_this_process_or_to_the_store() {
    let world = World::new();
    let operation = operation("known");
    let loads = || world.store.loads.load(Ordering::SeqCst);
    assert!(!world.engine.is_known(&operation).await.unwrap());
    assert!(!world.engine.is_under_way(operation.id));
    assert_eq!(loads(), 1);
    let lease = world.lease(&operation).await;
    lease.start().unwrap();
    assert!(world.engine.is_known(&operation).await.unwrap());
    assert!(world.engine.is_under_way(operation.id));
    assert_eq!(loads(), 1, "it is under way here");
    drop(lease.complete(Recording::new("paid")).await);
    assert!(world.engine.is_known(&operation).await.unwrap());
    assert!(!world.engine.is_under_way(operation.id));
    assert_eq!(loads(), 1, "it was settled here a moment ago");
    let other = engine(&world.clock, &world.store);
    assert!(other.is_known(&operation).await.unwrap());
    assert_eq!(loads(), 2, "another node asks the store");
}

#[tokio::test]
async fn records_are_found_by_their_reference_and_read_together() {
    let world = World::new();
    let (one, other) = (operation("one"), operation("other"));
    let _leases = [world.lease(&one).await, world.lease(&other).await];
    let found = world.engine.find(one.id.reference()).await.unwrap();
    assert_eq!(found, [one.id]);
    let read = world.engine.inspect(vec![other.id, one.id]).await.unwrap();
    let ids: Vec<_> = read.into_iter().map(|record| record.unwrap().unwrap().id).collect();
    assert_eq!(ids, [other.id, one.id]);
}

#[tokio::test]
async fn a_secret_is_one_for_all_nodes_and_no_constant() {
    let world = World::new();
    let other = engine(&world.clock, &world.store);
    let secret = world.engine.secret("test").await.unwrap();
    assert_eq!(other.secret("test").await.unwrap(), secret);
    assert_ne!(engine_of_another_store().secret("test").await.unwrap(), secret);
}

fn engine_of_another_store() -> Engine {
    World::new().engine
}

#[tokio::test]
async fn an_engine_is_ready_when_its_store_is() {
    let world = World::new();
    world.engine.ready().await.unwrap();
    world.store.refused.store(1, Ordering::SeqCst);
    let error = world.engine.ready().await.unwrap_err();
    assert!(error.is_store_down(), "{error}");
    world.engine.ready().await.unwrap();
}

#[test]
fn only_a_store_that_is_away_is_down() {
    use StoreErrorKind::{Corrupt, Indeterminate, Invalid, Unavailable};
    for (kind, is_down) in
        [(Unavailable, true), (Indeterminate, true), (Invalid, false), (Corrupt, false)]
    {
        let error: EngineError = StoreError::new(kind, "test").into();
        assert_eq!(error.is_store_down(), is_down, "{kind:?}");
    }
    assert!(!EngineError::Overloaded.is_store_down() && !EngineError::Closing.is_store_down());
}

#[tokio::test]
async fn an_outcome_has_a_recording_if_one_is_recorded() {
    let world = World::new();
    let run = |key: &str, verdict: Verdict| {
        let (engine, operation) = (world.engine.clone(), operation(key));
        async move { engine.run(operation, async move |_| verdict).await.unwrap() }
    };
    let paid = Recording::new("paid");
    let ran = run("completed", Verdict::Complete(paid.clone())).await;
    assert_eq!(ran.recording(), Some(&paid));
    let again = run("completed", Verdict::Release).await;
    assert!(matches!(again, Outcome::Answered(Answer::Replay(_))));
    assert_eq!(again.recording(), Some(&paid));
    let failure = Failure { code: "declined".into(), detail: String::new() };
    assert_eq!(run("failed", Verdict::Fail(failure)).await.recording(), None);
    assert_eq!(Outcome::Ran(Settling::Pending).recording(), None);
    assert_eq!(Outcome::Answered(Answer::InFlight).recording(), None);
}
