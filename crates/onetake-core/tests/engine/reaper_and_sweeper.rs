//! The reaper, the sweeper, and attempts that end without an outcome.

use std::sync::Arc;
use std::time::Duration;

use onetake_conformance::{Faulty, StoreFault};
use onetake_core::audit::AuditAction;
use onetake_core::engine::{Housekeeping, Settling};
use onetake_core::store::Swept;
use onetake_core::{
    Answer, Begin, Limits, MemoryStore, NotDone, Outcome, Recording, Store, Terms, Verdict,
};

use super::{engine_on, memory, operation, pass, settle_down};

const SECOND: Duration = Duration::from_secs(1);

async fn count(store: &MemoryStore, keys: &[&str], state: &str) -> usize {
    let ids = keys.iter().map(|key| operation(key).id).collect();
    let found = store.load(ids).await.into_iter().map(Result::unwrap);
    found.filter(|record| record.as_ref().is_some_and(|it| it.state.name() == state)).count()
}

/// All due records are reaped in one round and swept in one round, however small the batches are.
#[tokio::test]
async fn batches_follow_each_other_until_nothing_is_due() {
    let keys = ["a", "b", "c", "d", "e"];
    let (clock, store) = memory();
    let dead = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let terms = Terms { ttl: 100 * SECOND, ..Terms::default() };
    for key in keys {
        let asked = operation(key).terms(terms);
        let Begin::Run(lease) = dead.begin(&asked).await.unwrap() else { panic!() };
        // Its process died.
        std::mem::forget(lease);
    }
    // Past lease, grace and every renewal.
    clock.advance(200 * SECOND);
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    engine.keep_house(Housekeeping {
        reap_interval: 10_000 * SECOND,
        reap_batch: 2,
        sweep_interval: 300 * SECOND,
        sweep_batch: 2,
        sweep_pause: SECOND,
    });
    for _ in 0..10 {
        settle_down().await;
    }
    assert_eq!(count(&store, &keys, "unknown").await, 5);
    pass(&clock, SECOND, 299).await;
    assert_eq!(store.len(), 5, "it is not time to sweep");
    pass(&clock, SECOND, 5).await;
    assert_eq!(store.len(), 0);
}

/// A sweep deletes no more records than its limit, and says whether more are due.
#[tokio::test]
async fn a_sweep_has_a_limit() {
    let (clock, store) = memory();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let terms = Terms { ttl: 100 * SECOND, ..Terms::default() };
    for key in ["a", "b", "c"] {
        let paid = async |_| Verdict::Complete(Recording::new("paid"));
        engine.run(operation(key).terms(terms), paid).await.unwrap();
    }
    assert_eq!(engine.sweep(2).await, Swept::default(), "nothing has expired");
    clock.advance(200 * SECOND);
    assert_eq!(engine.sweep(2).await, Swept { removed: 2, unknown: 0, more: true });
    assert_eq!(engine.sweep(2).await, Swept { removed: 1, unknown: 0, more: false });
    assert_eq!(store.len(), 0);
}

/// A retry that finds an abandoned attempt does the reaper's work, and writes one audit entry.
#[tokio::test]
async fn an_attempt_that_a_retry_finds_abandoned_is_in_the_audit_log() {
    let (clock, store) = memory();
    let dead = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let Begin::Run(lease) = dead.begin(&operation("a")).await.unwrap() else { panic!() };
    std::mem::forget(lease);
    clock.advance(200 * SECOND);
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    for _ in 0..3 {
        let told = engine.begin(&operation("a")).await.unwrap();
        assert!(matches!(told, Begin::Answer(Answer::Unknown(_))), "{told:?}");
        pass(&clock, SECOND, 1).await;
    }
    let entries = engine.audit_entries(Some(operation("a").id), None, 10).await.unwrap().entries;
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].action, entries[0].by.as_str()), (AuditAction::ExpireLease, "reaper"));
}

/// Pauses grow to half a second while the store does not accept an outcome.
#[tokio::test]
async fn an_outcome_is_tried_about_twice_a_second() {
    let (clock, store) = memory();
    let faulty = Faulty::around(Arc::clone(&store) as Arc<dyn Store>);
    let engine = engine_on(Arc::clone(&faulty) as Arc<dyn Store>, &clock, Limits::default());
    let asked = operation("a").run_max(SECOND);
    let Begin::Run(lease) = engine.begin(&asked).await.unwrap() else { panic!() };
    lease.start().unwrap();
    faulty.fail_settlements(StoreFault::Unavailable);
    let settling = tokio::spawn(lease.complete(Recording::new("paid")));
    pass(&clock, SECOND / 20, 200).await;
    assert!(matches!(settling.await.unwrap(), Settling::Pending));
    let tries = faulty.failures();
    assert!((20..=30).contains(&tries), "{tries} in ten seconds");
    faulty.fail_settlements(StoreFault::None);
    pass(&clock, SECOND / 20, 20).await;
    assert_eq!(count(&store, &["a"], "completed").await, 1);
}

/// Work that returns success without a completion may have had its effect: it runs once.
#[tokio::test]
async fn a_transaction_without_a_completion_never_runs_again() {
    let (clock, store) = memory();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let lies = engine.transact(operation("a"), async |_| Ok::<(), String>(())).await;
    assert!(matches!(lies, Err(NotDone::NotCommitted)), "{lies:?}");
    assert_eq!(count(&store, &["a"], "failed").await, 1);
    let again = async |_| -> Result<(), String> { unreachable!("it ran already") };
    let again = engine.transact(operation("a"), again).await.unwrap();
    assert!(matches!(again, Outcome::Answered(Answer::Failed(_))), "{again:?}");
}

/// A transaction that was not committed had no effect: the key is free, whatever the operation's terms
/// say.
#[tokio::test]
async fn a_transaction_that_is_interrupted_lets_the_next_one_run() {
    let (clock, store) = memory();
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    let panics = async |_| -> Result<(), String> { std::panic::resume_unwind(Box::new("dies")) };
    let interrupted = engine.transact(operation("a"), panics).await;
    assert!(matches!(interrupted, Err(NotDone::Interrupted)), "{interrupted:?}");
    assert_eq!(count(&store, &["a"], "released").await, 1);
    let failed = engine.transact(operation("a"), async |_| Err("no funds")).await;
    assert!(matches!(failed, Err(NotDone::Work("no funds"))), "{failed:?}");
    let ran = engine.run(operation("a"), async |_| Verdict::Complete(Recording::new("paid"))).await;
    assert!(ran.unwrap().recording().is_some());
}
