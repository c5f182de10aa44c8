//! Renewal of leases while their attempts may run.

use std::sync::atomic::Ordering;

use onetake_core::Terms;

use super::*;

/// Returns terms with a lease of this many seconds.
fn terms(lease: u32) -> Terms {
    Terms { lease: SECOND * lease, ..Terms::default() }
}

/// Returns an operation that may run for a long time.
fn long(key: &str) -> Operation {
    operation(key).run_max(SECOND * 10_000)
}

#[tokio::test]
async fn a_lease_is_renewed_at_each_third_of_its_length() {
    let world = World::new();
    let lease = world.lease(&long("thirds").terms(terms(30))).await;
    lease.start().unwrap();
    world.seconds(35).await;
    assert_eq!(world.store.renewals(), [SECOND * 10, SECOND * 20, SECOND * 30]);
}

#[tokio::test]
async fn a_renewal_that_fails_is_tried_again_soon() {
    let world = World::new();
    let _lease = world.lease(&long("again").terms(terms(90))).await;
    world.store.refused.store(2, Ordering::SeqCst);
    world.seconds(60).await;
    // A ninth of the lease after each failure, a third of it after the success.
    assert_eq!(world.store.renewals(), [30, 40, 50].map(|seconds| SECOND * seconds));
    world.seconds(20).await;
    assert_eq!(world.store.renewals().last(), Some(&(SECOND * 80)));
}

#[tokio::test]
async fn a_short_lease_is_renewed_beside_a_long_one() {
    let world = World::new();
    let _long = world.lease(&long("long").terms(terms(3_000))).await;
    breathe().await;
    let _short = world.lease(&long("short").terms(terms(30))).await;
    world.seconds(11).await;
    assert_eq!(world.store.renewals(), [SECOND * 10]);
}

#[tokio::test]
async fn an_attempt_that_may_not_run_any_longer_is_not_renewed() {
    let world = World::new();
    let _lease = world.lease(&operation("bounded").terms(terms(30)).run_max(SECOND * 15)).await;
    world.seconds(29).await;
    assert_eq!(world.store.renewals(), [SECOND * 10]);
}

#[tokio::test]
async fn a_settled_attempt_is_not_renewed() {
    let world = World::new();
    let lease = world.lease(&operation("settled").terms(terms(30))).await;
    lease.start().unwrap();
    world.seconds(11).await;
    drop(lease.complete(Recording::new("paid")).await);
    world.seconds(60).await;
    assert_eq!(world.store.renewals(), [SECOND * 10]);
}

#[tokio::test]
async fn an_attempt_that_lost_its_lease_does_not_start() {
    let world = World::new();
    let operation = operation("lost").terms(terms(40));
    let lease = world.lease(&operation).await;
    let transition = Transition::Release;
    let (id, attempt) = (lease.id(), lease.attempt());
    world
        .store
        .memory
        .settle(vec![Settlement { id, attempt, transition }])
        .await
        .remove(0)
        .unwrap();
    assert!(lease.start().is_ok(), "nobody has told it yet");
    world.seconds(14).await;
    assert!(lease.start().is_err(), "its renewal was stale");
}
