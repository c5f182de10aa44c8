//! Late events: engines that start long after an outcome became unknown, keys that expire before a
//! reconciliation is allowed, outcomes that other processes left, and promises.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::engine::{Promise, Settling};
use onetake_core::store::Answers;
use onetake_core::{
    Begin, Cause, Engine, OnUnknown, ReconcileAnswer, ReconcileOptions, State, Store, StoreError,
    StoreErrorKind, Terms, Verdict,
};

use super::{MINUTE, Paper, Scripted, World, end_with_an_outcome_in_hand, operation};

fn another(world: &World) -> Engine {
    World::engine(&world.clock, Arc::clone(&world.store) as Arc<dyn Store>)
}

/// All processes were down, and the service to ask is not up yet. That is not an answer.
#[tokio::test]
async fn who_began_a_moment_ago_asks_some_more() {
    let world = World::new();
    world.unknown("a").await;
    world.clock.advance(120 * MINUTE);
    let late = another(&world);
    let unclear = Scripted::saying([]);
    assert_eq!(late.reconcile(&*unclear, ReconcileOptions::default()).await, 1);
    assert_eq!(world.state("a").await.name(), "unknown", "the limit was over before it began");
    for _ in 0..29 {
        world.clock.advance(Duration::from_secs(1));
        late.reconcile(&*unclear, ReconcileOptions::default()).await;
    }
    assert!(unclear.asked() > 2, "{}", unclear.asked());
    assert_eq!(world.state("a").await.name(), "unknown");
    for _ in 0..10 {
        world.clock.advance(Duration::from_secs(1));
        late.reconcile(&*unclear, ReconcileOptions::default()).await;
    }
    assert_eq!(world.state("a").await.name(), "failed");
}

#[tokio::test]
async fn who_was_not_asked_has_not_answered() {
    let world = World::new();
    world.unknown("a").await;
    let not_asked =
        Scripted::saying((0..2_000).map(|_| ReconcileAnswer::NotAsked("left alone".to_owned())));
    for _ in 0..60 {
        world.clock.advance(MINUTE);
        world.tick(&*not_asked).await;
    }
    assert!(not_asked.asked() > 30);
    // After the limit, too, there is an ask every 35 seconds at most: a pause, and the time for an
    // answer.
    let before = not_asked.asked();
    for _ in 0..350 {
        world.clock.advance(Duration::from_secs(1));
        world.tick(&*not_asked).await;
    }
    let asked = not_asked.asked() - before;
    assert!((9..=11).contains(&asked), "{asked}");
    assert_eq!(world.state("a").await.name(), "unknown", "far behind the limit");
    // Before the key expires, and could run again, the record becomes failed nevertheless.
    for _ in 0..18 * 60 {
        world.clock.advance(MINUTE);
        world.tick(&*not_asked).await;
    }
    assert_eq!(world.state("a").await.name(), "failed");
}

/// The ttl of the key is shorter than the time before the first ask.
#[tokio::test]
async fn what_expires_before_it_may_be_asked_for_does_not_run_again() {
    let world = World::new();
    let (ttl, on_unknown) = (Duration::from_secs(40), OnUnknown::Reconcile);
    let short = operation("a").terms(Terms { ttl, on_unknown, ..Terms::default() });
    let unknown = async move |_| Verdict::Unknown(Cause::TimedOut);
    world.engine.run(short, unknown).await.unwrap();
    let found = Scripted::saying([ReconcileAnswer::NotExecuted]);
    for _ in 0..35 {
        world.tick(&*found).await;
        world.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(found.asked(), 0, "it is too early for that");
    let State::Failed { failure, .. } = world.state("a").await else { panic!("not failed") };
    assert!(
        failure.detail.contains("expires before the first reconciliation is due"),
        "{failure:?}"
    );
}

/// A process ends and leaves an outcome, while another process with the same folder runs already.
#[tokio::test]
async fn what_another_process_leaves_is_settled_by_who_runs() {
    let world = World::new();
    let journal = Arc::new(Paper::default());
    let _next = world.next_engine(&journal);
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    end_with_an_outcome_in_hand(&world, &journal).await;
    for _ in 0..1_000 {
        world.clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    assert!(journal.0.lock().unwrap().is_empty(), "nobody looked again");
    assert_eq!(world.state("a").await.name(), "completed");
}

/// A promised outcome exists in the end, also if unknown attempts are rolled back.
#[tokio::test]
async fn what_was_promised_ends_with_an_outcome() {
    let world = World::new();
    let terms = Terms { on_unknown: OnUnknown::Rollback, ..Terms::default() };
    for is_promised in [false, true] {
        let of = operation(if is_promised { "a" } else { "b" }).terms(terms);
        let Begin::Run(lease) = world.engine.begin(&of).await.unwrap() else { panic!() };
        lease.start().unwrap();
        if is_promised {
            assert!(matches!(world.engine.promise(&of), Promise::Given));
        }
        let settled = lease.unknown(Cause::Interrupted).await;
        let Settling::Recorded(record) = settled else { panic!("{settled:?}") };
        let expected = if is_promised { "failed" } else { "released" };
        assert_eq!(record.state.name(), expected);
    }
}

/// An attempt may start long after its claim, on a renewed lease. The time that its request may
/// take counts from its start.
#[tokio::test]
async fn nobody_asks_too_early_for_an_attempt_that_started_late() {
    let world = World::new();
    let asked = operation("a").run_max(10 * MINUTE);
    let Begin::Run(lease) = world.engine.begin(&asked).await.unwrap() else { panic!() };
    for _ in 0..59 {
        world.clock.advance(Duration::from_secs(1));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    lease.start().unwrap();
    let settled = lease.unknown(Cause::Interrupted).await;
    assert!(matches!(settled, Settling::Recorded(_)), "{settled:?}");
    let found = Scripted::saying([ReconcileAnswer::NotExecuted]);
    for second in 0..60 {
        world.tick(&*found).await;
        assert_eq!(found.asked(), 0, "{second} seconds after it started");
        world.clock.advance(Duration::from_secs(1));
    }
    world.tick(&*found).await;
    assert_eq!((found.asked(), world.state("a").await.name()), (1, "released"));
}

/// The limit counts from the moment at which the first ask is allowed.
#[tokio::test]
async fn the_limit_begins_when_it_may_be_asked_for() {
    let world = World::new();
    world.unknown("a").await;
    let unclear = Scripted::saying([]);
    let mut seconds = 0;
    while world.state("a").await.name() == "unknown" && seconds < 2_000 {
        world.tick(&*unclear).await;
        world.clock.advance(Duration::from_secs(1));
        seconds += 1;
    }
    assert!(
        (660..=670).contains(&seconds),
        "a minute before, and ten minutes of asking: {seconds}"
    );
}

/// The limit is at most half of the ttl: an ask every few seconds for 300 seconds, after the first
/// minute.
#[tokio::test]
async fn the_limit_is_no_longer_than_half_of_what_the_key_is_kept_for() {
    let world = World::new();
    let terms = Terms { ttl: 10 * MINUTE, on_unknown: OnUnknown::Reconcile, ..Terms::default() };
    let unknown = async move |_| Verdict::Unknown(Cause::TimedOut);
    world.engine.run(operation("a").terms(terms), unknown).await.unwrap();
    let unclear = Scripted::saying([]);
    let mut seconds = 0;
    while world.state("a").await.name() == "unknown" && seconds < 2_000 {
        world.tick(&*unclear).await;
        world.clock.advance(Duration::from_secs(1));
        seconds += 1;
    }
    assert!((360..=370).contains(&seconds), "{seconds}");
}

/// A record that the reconciler knows nothing about is due again after as long as it has been
/// unknown.
#[tokio::test]
async fn pauses_grow_for_a_key_that_nobody_knows() {
    let world = World::new();
    world.unknown("a").await;
    let ignorant = Scripted { knows_nothing: true, ..Scripted::default() };
    let mut looks = Vec::new();
    for second in 0..2_000 {
        if world.tick(&ignorant).await == 1 {
            looks.push(second);
        }
        world.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(looks, [0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 812, 1_112, 1_412, 1_712]);
}

/// The clocks of a node and its store differ: the ask is made when it is due by both.
#[tokio::test]
async fn nobody_asks_too_early_by_either_clock() {
    let world = World::new();
    world.unknown("a").await;
    // The store's clock advances, and this node's does not.
    let behind = Arc::new(onetake_core::ManualClock::default());
    let node = World::engine(&behind, Arc::clone(&world.store) as Arc<dyn Store>);
    let found = Scripted::saying([ReconcileAnswer::NotExecuted]);
    world.clock.advance(2 * MINUTE);
    assert_eq!(node.reconcile(&*found, ReconcileOptions::default()).await, 1);
    assert_eq!(found.asked(), 0, "by this node's clock it is too early");
    world.clock.advance(2 * MINUTE);
    behind.advance(MINUTE);
    assert_eq!(node.reconcile(&*found, ReconcileOptions::default()).await, 1);
    assert_eq!((found.asked(), world.state("a").await.name()), (1, "released"));
}

/// A record that cannot be read is postponed by five minutes, so that it does not block others.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_postponed() {
    let world = World::new();
    world.unknown("a").await;
    let node = World::engine(&world.clock, Arc::new(Unreadable(Arc::clone(&world.store))));
    let found = Scripted::saying([ReconcileAnswer::NotExecuted]);
    world.clock.advance(2 * MINUTE);
    node.reconcile(&*found, ReconcileOptions::default()).await;
    assert_eq!(world.tick(&*found).await, 0, "it is not due");
    world.clock.advance(5 * MINUTE);
    assert_eq!(world.tick(&*found).await, 1);
    assert_eq!(world.state("a").await.name(), "released");
}

/// A store whose records cannot be read.
#[derive(Debug)]
struct Unreadable(Arc<onetake_core::MemoryStore>);

impl Store for Unreadable {
    onetake_core::delegate_store!(self => self.0; name, claim, settle, due, sweep, ready, close);

    fn load(
        &self,
        ids: Vec<onetake_core::RecordId>,
    ) -> BoxFuture<'_, Answers<Option<Arc<onetake_core::Record>>>> {
        let damaged = || StoreError::new(StoreErrorKind::Invalid, "the record is damaged");
        std::future::ready(ids.iter().map(|_| Err(damaged())).collect()).boxed()
    }
}

onetake_core::delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Unreadable, self => self.0);
