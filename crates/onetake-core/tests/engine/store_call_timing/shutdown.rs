//! Shutdown of an engine.

use std::sync::atomic::Ordering;

use onetake_core::EngineError;
use onetake_core::engine::Settling;

use super::*;

#[tokio::test]
async fn a_shutdown_says_whether_everything_ended_by_itself() {
    let world = World::new();
    let lease = world.lease(&operation("runs")).await;
    lease.start().unwrap();
    let engine = world.engine.clone();
    let shutdown = tokio::spawn(async move { engine.shutdown(SECOND * 5).await });
    world.seconds(4).await;
    assert!(!shutdown.is_finished(), "the operation still runs");
    let refused = world.engine.begin(&operation("new")).await;
    assert!(matches!(refused, Err(EngineError::Closing)), "{refused:?}");
    assert!(matches!(world.engine.ready().await, Err(EngineError::Closing)));
    world.seconds(2).await;
    assert!(!shutdown.await.unwrap().unwrap(), "it did not end in time");
    drop(lease);

    let world = World::new();
    let lease = world.lease(&operation("ends")).await;
    lease.start().unwrap();
    let engine = world.engine.clone();
    let shutdown = tokio::spawn(async move { engine.shutdown(SECOND * 5).await });
    breathe().await;
    assert!(matches!(lease.complete(Recording::new("paid")).await, Settling::Recorded(_)));
    breathe().await;
    assert!(shutdown.await.unwrap().unwrap());
}

#[tokio::test]
async fn only_a_corrupt_store_ends_the_engine() {
    for (kind, is_fatal) in [(StoreErrorKind::Unavailable, false), (StoreErrorKind::Corrupt, true)]
    {
        let world = World::new();
        let lease = world.lease(&operation("fatal")).await;
        lease.start().unwrap();
        *world.store.kind.lock().unwrap() = kind;
        world.store.refused.store(1, Ordering::SeqCst);
        let settling = tokio::spawn(lease.complete(Recording::new("paid")));
        world.seconds(1).await;
        assert_eq!(world.engine.fatal().now_or_never().is_some(), is_fatal, "{kind:?}");
        let settling = settling.await.unwrap();
        assert_eq!(matches!(settling, Settling::Recorded(_)), !is_fatal, "{settling:?}");
    }
}

#[tokio::test]
async fn an_engine_that_gave_up_takes_nothing_new_and_writes_nothing() {
    let world = World::new();
    let lease = world.lease(&operation("given up")).await;
    lease.start().unwrap();
    world.engine.abort().await;
    let refused = world.engine.begin(&operation("new")).await;
    assert!(matches!(refused, Err(EngineError::Closing)), "{refused:?}");
    let before = world.store.settlements.lock().unwrap().len();
    world.seconds(60).await;
    assert_eq!(world.store.settlements.lock().unwrap().len(), before, "nothing is renewed");
    drop(lease);
}
