//! The reaper and the sweeper.

use onetake_core::audit::AuditAction;
use onetake_core::engine::Housekeeping;
use onetake_core::{AttemptId, State, Terms};

use super::*;

const PLAN: Housekeeping = Housekeeping {
    reap_interval: SECOND,
    reap_batch: 2,
    sweep_interval: Duration::from_secs(100),
    sweep_batch: 2,
    sweep_pause: Duration::from_millis(500),
};

fn short() -> Terms {
    Terms { ttl: SECOND * 20, lease: SECOND, grace: SECOND, ..Terms::default() }
}

/// Claims keys for an owner that never returns.
async fn claim(world: &World, keys: &[&str]) {
    for key in keys {
        let operation = operation(key);
        let claim = Claim {
            id: operation.id,
            attempt: AttemptId::from_bytes([1; 16]),
            fingerprint: operation.fingerprint,
            terms: short(),
            origin: operation.origin.clone(),
        };
        world.store.memory.claim(vec![claim]).await.remove(0).unwrap();
    }
}

async fn is_unknown(world: &World, key: &str) -> bool {
    matches!(world.record(&operation(key)).await.state, State::Unknown { .. })
}

#[tokio::test]
async fn one_look_of_the_reaper_takes_all_that_is_due() {
    let world = World::new();
    let keys = ["a", "b", "c", "d", "e"];
    claim(&world, &keys).await;
    world.seconds(3).await;
    world.engine.keep_house(PLAN);
    breathe().await;
    for key in keys {
        assert!(is_unknown(&world, key).await, "{key}");
    }
    let entries = world.engine.audit_entries(None, None, 10).await.unwrap().entries;
    assert_eq!(entries.len(), 5);
    assert!(
        entries
            .iter()
            .all(|entry| entry.action == AuditAction::ExpireLease && entry.by == "reaper")
    );
    // The reaper looks again a second later.
    claim(&world, &["f"]).await;
    world.seconds(3).await;
    assert!(is_unknown(&world, "f").await);
}

#[tokio::test]
async fn a_sweep_goes_on_until_nothing_is_left_and_then_rests() {
    let world = World::new();
    claim(&world, &["a", "b", "c", "d", "e"]).await;
    world.engine.keep_house(PLAN);
    world.pass(SECOND * 150, Duration::from_millis(500)).await;
    let at = Duration::from_millis;
    assert_eq!(*world.store.sweeps.lock().unwrap(), [at(100_000), at(100_500), at(101_000)]);
    world.pass(SECOND * 100, Duration::from_millis(500)).await;
    assert_eq!(world.store.sweeps.lock().unwrap().len(), 4, "one more, of nothing");
}

#[tokio::test]
async fn nobody_keeps_house_after_the_end() {
    let world = World::new();
    world.engine.keep_house(PLAN);
    assert!(world.engine.shutdown(SECOND).await.unwrap());
    claim(&world, &["a"]).await;
    world.pass(SECOND * 150, SECOND).await;
    assert!(world.store.sweeps.lock().unwrap().is_empty());
    assert!(world.store.settlements.lock().unwrap().is_empty());
}
