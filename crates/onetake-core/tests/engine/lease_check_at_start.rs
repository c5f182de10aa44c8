//! The check of the lease before an attempt starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_conformance::{Faulty, StoreFault};
use onetake_core::store::{Answers, Claim, Claimed};
use onetake_core::{
    Answer, Begin, Cause, Clock, Limits, ManualClock, MemoryStore, Outcome, Settlement, Store,
    Transition, Verdict, delegate_store,
};

use super::{engine_on, memory, operation, pass, settle_down};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The default lease is 30 seconds: 7.5 seconds have to be left.
#[tokio::test]
async fn nothing_starts_on_a_lease_that_is_nearly_over() {
    for (milliseconds, may_start) in [(0, true), (22_500, true), (22_501, false), (31_000, false)] {
        let (clock, memory) = memory();
        let faulty = Faulty::around(memory);
        let engine = engine_on(Arc::clone(&faulty) as Arc<dyn Store>, &clock, Limits::default());
        let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
        // The lease cannot be renewed.
        faulty.fail_settlements(StoreFault::Unavailable);
        clock.advance(MILLISECOND * milliseconds);
        assert_eq!(lease.start().is_ok(), may_start, "after {milliseconds} ms");
    }
}

#[tokio::test]
async fn an_attempt_starts_late_on_a_lease_that_was_renewed() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let asked = operation("a").run_max(Duration::from_secs(120));
    let Begin::Run(lease) = engine.begin(&asked).await.unwrap() else { panic!() };
    pass(&clock, Duration::from_secs(1), 60).await;
    assert!(lease.start().is_ok());
}

#[tokio::test]
async fn nothing_starts_on_a_lease_that_somebody_else_ended() {
    let (clock, memory) = memory();
    let engine = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    let transition = Transition::Unknown(Cause::LeaseEnded);
    let passed_over = Settlement { id: lease.id(), attempt: lease.attempt(), transition };
    memory.settle(vec![passed_over]).await.remove(0).unwrap();
    assert!(lease.start().is_ok(), "nobody has told this engine yet");
    // The next renewal is due after a third of the lease.
    pass(&clock, Duration::from_secs(1), 11).await;
    assert!(lease.start().is_err());
}

#[tokio::test]
async fn nothing_starts_after_the_engine_stopped() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    let stopping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.shutdown(Duration::ZERO).await }
    });
    while !stopping.is_finished() {
        clock.advance(Duration::from_secs(1));
        settle_down().await;
    }
    assert!(lease.start().is_err());
}

/// A store whose claims are slow, by the engine's clock.
#[derive(Debug)]
pub(super) struct SlowClaims {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) takes: Duration,
}

impl Store for SlowClaims {
    delegate_store!(self => self.memory; name, settle, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let answers = self.memory.claim(batch).await;
            self.clock.sleep(self.takes).await;
            answers
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for SlowClaims, self => self.memory);

/// The lease counts from the time at which the claim was sent: the store granted it some time after
/// that.
#[tokio::test]
async fn nothing_starts_after_a_slow_claim() {
    for (seconds, runs) in [(20, true), (25, false)] {
        let (clock, memory) = memory();
        let takes = Duration::from_secs(seconds);
        let slow = SlowClaims { memory: Arc::clone(&memory), clock: Arc::clone(&clock), takes };
        let limits = Limits { claim_patience: Duration::from_secs(100), ..Limits::default() };
        let engine = engine_on(Arc::new(slow), &clock, limits);
        let has_run = Arc::new(AtomicBool::new(false));
        let ran = Arc::clone(&has_run);
        let running = tokio::spawn(async move {
            let work = async move |_| {
                ran.store(true, Ordering::SeqCst);
                Verdict::Release
            };
            engine.run(operation("a"), work).await
        });
        settle_down().await;
        // Time jumps, as for a process that was stopped: there is no renewal in between.
        clock.advance(takes);
        let outcome = running.await.unwrap().unwrap();
        assert_eq!(has_run.load(Ordering::SeqCst), runs, "after {seconds} s: {outcome:?}");
        if !runs {
            assert!(matches!(outcome, Outcome::Answered(Answer::InFlight)), "{outcome:?}");
        }
        // An attempt that never started leaves nothing behind.
        let record = memory.load(vec![operation("a").id]).await.remove(0).unwrap();
        let state = record.as_ref().map(|record| record.state.name());
        assert_eq!(state, runs.then_some("released"), "{record:?}");
    }
}
