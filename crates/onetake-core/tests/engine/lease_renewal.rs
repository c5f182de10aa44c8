//! Renewal of leases on a store that is slow, or fails occasionally.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::engine::Settling;
use onetake_core::store::{Answers, Settled};
use onetake_core::{
    Begin, Clock, Fingerprint, Limits, ManualClock, MemoryStore, Operation, Recording, Settlement,
    Store, StoreError, StoreErrorKind, Transition, Verdict, delegate_store,
};

use super::{Pages, engine_on, engine_with_journal, memory, operation, pass, settle_down};

const SECOND: Duration = Duration::from_secs(1);

fn long(key: &str) -> Operation {
    operation(key).run_max(600 * SECOND)
}

#[tokio::test]
async fn a_lease_that_is_renewed_is_never_nearly_over() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let Begin::Run(lease) = engine.begin(&long("a")).await.unwrap() else { panic!() };
    for second in 0..120 {
        assert!(lease.start().is_ok(), "{second}");
        pass(&clock, SECOND, 1).await;
    }
}

/// A renewal that fails is tried again after a ninth of the lease.
#[tokio::test]
async fn a_renewal_that_fails_is_soon_tried_again() {
    let (clock, memory) = memory();
    let faulty = Faulty::around(memory);
    let engine = engine_on(Arc::clone(&faulty) as Arc<dyn Store>, &clock, Limits::default());
    let Begin::Run(lease) = engine.begin(&long("a")).await.unwrap() else { panic!() };
    pass(&clock, SECOND, 9).await;
    faulty.fail_settlements(StoreFault::Unavailable);
    pass(&clock, SECOND, 2).await;
    assert_eq!(faulty.failures(), 1);
    faulty.fail_settlements(StoreFault::None);
    for second in 11..60 {
        assert!(lease.start().is_ok(), "{second}");
        pass(&clock, SECOND, 1).await;
    }
}

/// Keeps the field `failures` of each log line that has it.
#[derive(Clone, Default)]
struct FailureLines(Arc<Mutex<Vec<u64>>>);

impl tracing::Subscriber for FailureLines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

impl tracing::field::Visit for FailureLines {
    fn record_u64(&mut self, field: &tracing::field::Field, value: u64) {
        if field.name() == "failures" {
            self.0.lock().unwrap().push(value);
        }
    }

    fn record_debug(&mut self, _: &tracing::field::Field, _: &dyn std::fmt::Debug) {}
}

/// In an outage the renewals of all leases fail, each several times a minute.
#[tokio::test]
async fn failed_renewals_have_one_log_line_a_minute() {
    let lines = FailureLines::default();
    // If only one subscriber were registered, a log statement that another test's thread reaches
    // first would be switched off for all threads.
    let _another = tracing::Dispatch::new(FailureLines::default());
    let _guard = tracing::subscriber::set_default(lines.clone());
    let (clock, memory) = memory();
    let faulty = Faulty::around(memory);
    let engine = engine_on(Arc::clone(&faulty) as Arc<dyn Store>, &clock, Limits::default());
    let mut leases = Vec::new();
    for key in 0..20 {
        let Begin::Run(lease) = engine.begin(&long(&key.to_string())).await.unwrap() else {
            panic!()
        };
        leases.push(lease);
    }
    faulty.fail_settlements(StoreFault::Unavailable);
    pass(&clock, SECOND, 200).await;
    let lines = lines.0.lock().unwrap().clone();
    // The first renewals are due after ten seconds.
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(lines[0], 1);
    assert!(lines[1..].iter().all(|failures| *failures > 200), "{lines:?}");
}

/// A store whose settlements are slow.
#[derive(Debug)]
struct SlowSettlements {
    memory: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    takes: Duration,
}

impl Store for SlowSettlements {
    delegate_store!(self => self.memory; name, claim, load, due, sweep, ready, close);

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            let answers = self.memory.settle(batch).await;
            self.clock.sleep(self.takes).await;
            answers
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for SlowSettlements, self => self.memory);

/// A renewal is sent at 10 s and answered at 25 s: the lease is certainly alive until 40 s.
#[tokio::test]
async fn a_renewed_lease_counts_from_the_question() {
    let (clock, memory) = memory();
    let takes = 15 * SECOND;
    let slow = SlowSettlements { memory, clock: Arc::clone(&clock), takes };
    let engine = engine_on(Arc::new(slow), &clock, Limits::default());
    let Begin::Run(lease) = engine.begin(&long("a")).await.unwrap() else { panic!() };
    pass(&clock, SECOND, 24).await;
    assert!(lease.start().is_err(), "only the first lease is sure");
    pass(&clock, SECOND, 2).await;
    assert!(lease.start().is_ok(), "renewed");
    pass(&clock, SECOND, 7).await;
    assert!(lease.start().is_err(), "33 s: seven are left");
}

/// After `run_max` the lease is not renewed: the reaper takes over.
#[tokio::test]
async fn an_operation_that_hangs_is_not_renewed_for_ever() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let asked = operation("a").run_max(100 * SECOND);
    let Begin::Run(lease) = engine.begin(&asked).await.unwrap() else { panic!() };
    lease.start().unwrap();
    for second in 0..150 {
        assert_eq!(engine.reap(10).await, 0, "{second}");
        pass(&clock, SECOND, 1).await;
    }
    pass(&clock, SECOND, 15).await;
    assert_eq!(engine.reap(10).await, 1, "lease and grace are over");
    drop(lease);
}

/// The key was used again, with another payload, while the first attempt was gone (S9).
#[tokio::test]
async fn a_late_outcome_is_not_told_what_another_payload_came_to() {
    for is_same in [false, true] {
        let (clock, store) = memory();
        let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
        let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
        lease.start().unwrap();
        for transition in
            [Transition::Complete(Recording::new("resolved by hand")), Transition::Forget]
        {
            let settlement = Settlement { id: lease.id(), attempt: lease.attempt(), transition };
            store.settle(vec![settlement]).await.remove(0).unwrap();
        }
        let next = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
        let mut asked = operation("a");
        if !is_same {
            asked.fingerprint = Fingerprint::of(b"something else");
        }
        let other = async |_| Verdict::Complete(Recording::new("the second life"));
        next.run(asked, other).await.unwrap();
        let settling = lease.complete(Recording::new("the first life, and late")).await;
        let Settling::Stale(told) = settling else { panic!("{settling:?}") };
        assert_eq!(told.is_some(), is_same);
    }
}

/// A store that becomes corrupt at its first settlement.
#[derive(Debug)]
struct Corrupt(Arc<MemoryStore>);

impl Store for Corrupt {
    delegate_store!(self => self.0; name, claim, load, due, sweep, ready, close);

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        let corrupt = || StoreError::new(StoreErrorKind::Corrupt, "the disk failed");
        std::future::ready(batch.iter().map(|_| Err(corrupt())).collect()).boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Corrupt, self => self.0);

#[tokio::test]
async fn an_outcome_that_a_corrupt_store_did_not_take_goes_to_the_journal() {
    let (clock, memory) = memory();
    let journal = Arc::new(Pages::default());
    let engine = engine_with_journal(Arc::new(Corrupt(memory)), &clock, &journal);
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let settling = lease.complete(Recording::new("paid")).await;
    assert!(matches!(settling, Settling::Pending), "{settling:?}");
    assert_eq!(engine.fatal().await.kind(), StoreErrorKind::Corrupt);
    engine.abort().await;
    settle_down().await;
    let pages = journal.pages.lock().unwrap();
    let kept: Vec<_> = pages.iter().flat_map(|(_, kept)| &kept.settlements).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].transition, Transition::Complete(Recording::new("paid")));
}
