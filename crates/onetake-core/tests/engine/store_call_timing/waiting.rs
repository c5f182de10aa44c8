//! Callers that wait for an attempt, here or on another node.

use std::sync::atomic::Ordering;

use onetake_core::{Answer, WhileRunning};

use super::*;

fn waiting(key: &str, seconds: u32) -> Operation {
    operation(key).in_flight(WhileRunning::Wait(SECOND * seconds))
}

#[tokio::test]
async fn the_store_is_read_only_while_somebody_waits() {
    let world = World::new();
    let other = engine(&world.clock, &world.store);
    let lease = world.lease(&operation("read")).await;
    lease.start().unwrap();
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { other.begin(&waiting("read", 5)).await.unwrap() }
    });
    world.pass(SECOND * 6, Duration::from_millis(25)).await;
    assert!(matches!(waiter.await.unwrap(), Begin::Answer(Answer::WaitTimeout)));
    let loads = world.store.loads.load(Ordering::SeqCst);
    assert!((150..=205).contains(&loads), "every 25 ms for five seconds: {loads}");
    world.pass(SECOND * 5, Duration::from_millis(25)).await;
    assert_eq!(world.store.loads.load(Ordering::SeqCst), loads, "nobody waits any more");
    // The reads start again with the next waiter.
    let waiter = tokio::spawn(async move { other.begin(&waiting("read", 5)).await.unwrap() });
    world.pass(SECOND, Duration::from_millis(25)).await;
    drop(lease.complete(Recording::new("paid")).await);
    world.pass(SECOND, Duration::from_millis(25)).await;
    assert!(matches!(waiter.await.unwrap(), Begin::Answer(Answer::Replay(_))));
}

#[tokio::test]
async fn a_store_that_panics_while_somebody_waits_is_asked_by_the_next() {
    let world = World::new();
    let other = engine(&world.clock, &world.store);
    let lease = world.lease(&operation("panics")).await;
    lease.start().unwrap();
    world.store.panics.store(1, Ordering::SeqCst);
    let first = tokio::spawn({
        let other = other.clone();
        async move { other.begin(&waiting("panics", 2)).await.unwrap() }
    });
    world.pass(SECOND, Duration::from_millis(25)).await;
    assert_eq!(world.store.panics.load(Ordering::SeqCst), 0, "it has panicked");
    let second = tokio::spawn(async move { other.begin(&waiting("panics", 60)).await.unwrap() });
    world.pass(SECOND * 2, Duration::from_millis(25)).await;
    drop(lease.complete(Recording::new("paid")).await);
    world.pass(SECOND, Duration::from_millis(25)).await;
    assert!(matches!(second.await.unwrap(), Begin::Answer(Answer::Replay(_))));
    assert!(matches!(first.await.unwrap(), Begin::Answer(_)));
}

/// Callers that wait for an attempt of their own node learn its outcome without the store.
#[tokio::test]
async fn waiters_on_the_node_of_the_attempt_cause_no_store_call() {
    const WAITERS: usize = 1_000;
    let world = World::new();
    let lease = world.lease(&operation("here")).await;
    lease.start().unwrap();
    let calls = || {
        let settlements = world.store.settlements.lock().unwrap().len();
        let count = |calls: &AtomicUsize| calls.load(Ordering::SeqCst);
        (count(&world.store.claims), count(&world.store.loads), settlements)
    };
    assert_eq!(calls(), (1, 0, 0), "the claim of the attempt");
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let engine = world.engine.clone();
            tokio::spawn(async move { engine.begin(&waiting("here", 60)).await.unwrap() })
        })
        .collect();
    // Shorter than the time until the first renewal.
    world.pass(SECOND * 5, Duration::from_millis(25)).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(calls(), (1, 0, 0), "while they wait");
    drop(lease.complete(Recording::new("paid")).await);
    world.pass(SECOND, Duration::from_millis(5)).await;
    for waiter in waiters {
        let answer = waiter.await.unwrap();
        assert!(matches!(answer, Begin::Answer(Answer::Replay(_))), "{answer:?}");
    }
    assert_eq!(calls(), (1, 0, 1), "the completion of the attempt");
}

#[tokio::test]
async fn surplus_waiters_of_one_key_are_refused() {
    let world = World::new();
    let limits = Limits { waiting_per_key_max: 2, ..Limits::default() };
    let (store, clock) = (Arc::clone(&world.store), Arc::clone(&world.clock));
    let engine =
        Engine::with(store as Arc<dyn Store>, clock as Arc<dyn Clock>, Arc::new(SystemRng), limits);
    let Begin::Run(lease) = engine.begin(&operation("surplus")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move { engine.begin(&waiting("surplus", 5)).await.unwrap() })
        })
        .collect();
    breathe().await;
    let third = engine.begin(&waiting("surplus", 5)).await.unwrap();
    assert!(matches!(third, Begin::Answer(Answer::InFlight)), "{third:?}");
    drop(lease.complete(Recording::new("paid")).await);
    for waiter in waiters {
        assert!(matches!(waiter.await.unwrap(), Begin::Answer(Answer::Replay(_))));
    }
}
