//! The engine on top of a store.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::bench::{Bench, ENDLESS, REAL_TIME_MAX, body, breathe, id, is};
use super::gate::Gate;
use onetake_core::clock::{Clock, SystemClock, SystemRng};
use onetake_core::engine::{
    Answer, Begin, Engine, EngineError, Limits, Operation, Outcome, Settling, Verdict, WhileRunning,
};
use onetake_core::fingerprint::Fingerprint;
use onetake_core::record::{OnUnknown, Record, Recording, State};
use onetake_core::store::Store;

pub(super) type Running = JoinHandle<Result<Outcome, EngineError>>;

impl Bench {
    fn engine(&self) -> Engine {
        self.engine_on(Arc::clone(&self.store))
    }

    pub(super) fn engine_on(&self, store: Arc<dyn Store>) -> Engine {
        self.engine_within(store, self.limits())
    }

    pub(super) fn engine_within(&self, store: Arc<dyn Store>, limits: Limits) -> Engine {
        Engine::with(self.for_engine(store), self.clock(), Arc::new(SystemRng), limits)
    }

    /// Returns limits without a cache, so that the store is tested. Time limits are endless; the
    /// cases that test them set their own.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            cache_bytes_max: 0,
            claim_patience: ENDLESS,
            settle_patience: ENDLESS,
            ..Limits::default()
        }
    }

    pub(super) fn operation(&self, key: &str, payload: &str) -> Operation {
        Operation {
            id: id(key),
            fingerprint: Fingerprint::of(payload.as_bytes()),
            earlier: Vec::new(),
            terms: self.terms(OnUnknown::Fail),
            origin: onetake_core::Origin::default(),
            in_flight: WhileRunning::Reject,
            run_max: ENDLESS,
            on_retry: None,
            keeps_untried: false,
            is_taken: false,
        }
    }

    /// Returns an operation that waits without a limit.
    pub(super) fn waiting(&self, key: &str, payload: &str) -> Operation {
        self.operation(key, payload).in_flight(WhileRunning::Wait(ENDLESS))
    }

    /// Returns an operation that waits for a few ticks.
    fn waiting_for(&self, key: &str, payload: &str, ticks: u32) -> Operation {
        self.operation(key, payload).in_flight(WhileRunning::Wait(self.can.tick * ticks))
    }

    /// Advances time in small steps until the future is ready.
    pub(super) async fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let until = SystemClock.monotonic() + REAL_TIME_MAX;
        while SystemClock.monotonic() < until {
            tokio::select! {
                biased;
                done = &mut future => return done,
                () = self.step() => {}
            }
        }
        panic!("it did not end within {REAL_TIME_MAX:?}");
    }
}

/// An operation that counts its runs and ends on request.
#[derive(Clone, Default)]
pub(super) struct Work {
    runs: Arc<AtomicUsize>,
    started: Arc<Notify>,
    pub(super) finish: Arc<Notify>,
}

impl Work {
    pub(super) fn run(&self, engine: &Engine, operation: Operation) -> Running {
        let (engine, work) = (engine.clone(), self.clone());
        tokio::spawn(async move {
            engine
                .run(operation, move |_| async move {
                    let run = work.runs.fetch_add(1, Ordering::SeqCst);
                    work.started.notify_one();
                    work.finish.notified().await;
                    Verdict::Complete(Recording::new(format!("outcome {run}")))
                })
                .await
        })
    }

    /// Waits until the operation runs. No simulated time passes meanwhile.
    pub(super) async fn has_started(&self) {
        tokio::select! {
            biased;
            () = self.started.notified() => {}
            () = SystemClock.sleep(REAL_TIME_MAX) => panic!("it did not start within {REAL_TIME_MAX:?}"),
        }
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

pub(super) fn said(outcome: &Outcome) -> &[u8] {
    match outcome.recording() {
        Some(recording) => recording.body.as_deref().unwrap(),
        None => panic!("no outcome: {outcome:?}"),
    }
}

pub(super) async fn many_callers_one_run(bench: &Bench) {
    let engine = bench.engine();
    let work = Work::default();
    let callers: Vec<Running> =
        (0..200).map(|_| work.run(&engine, bench.waiting("a", "pay"))).collect();
    work.has_started().await;
    work.finish.notify_waiters();
    work.finish.notify_one();
    for outcome in bench.drive(join_all(callers)).await {
        assert_eq!(said(&outcome.unwrap().unwrap()), b"outcome 0");
    }
    assert_eq!(work.runs(), 1);
}

pub(super) async fn nothing_is_shown_before_it_is_durable(bench: &Bench) {
    let gate = Gate::around(&bench.store);
    let engine = bench.engine_on(Arc::clone(&gate) as Arc<dyn Store>);
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay"));
    work.has_started().await;
    let waiter = work.run(&engine, bench.waiting("a", "pay"));
    gate.hold_settlements.store(1, Ordering::SeqCst);
    work.finish.notify_one();
    bench.drive(gate.settlement_came.notified()).await;
    for _ in 0..10 {
        breathe().await;
    }
    assert!(!first.is_finished(), "the outcome was shown before it was durable (S6)");
    assert!(!waiter.is_finished(), "a waiter saw the outcome before it was durable (S6)");
    gate.open.add_permits(1_000);
    assert_eq!(said(&bench.drive(first).await.unwrap().unwrap()), b"outcome 0");
    assert_eq!(said(&bench.drive(waiter).await.unwrap().unwrap()), b"outcome 0");
    assert_eq!(body(&bench.load("a").await.unwrap()), b"outcome 0");
}

pub(super) async fn nothing_runs_before_its_claim_is_durable(bench: &Bench) {
    let gate = Gate::around(&bench.store);
    gate.hold_claims.store(1, Ordering::SeqCst);
    let engine = bench.engine_on(Arc::clone(&gate) as Arc<dyn Store>);
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay"));
    bench.drive(gate.claim_came.notified()).await;
    for _ in 0..10 {
        breathe().await;
    }
    assert_eq!(work.runs(), 0, "it ran before its claim was durable (S5)");
    gate.open.add_permits(1_000);
    work.finish.notify_one();
    assert_eq!(said(&bench.drive(first).await.unwrap().unwrap()), b"outcome 0");
}

pub(super) async fn a_store_that_hangs_is_not_waited_for(bench: &Bench) {
    let gate = Gate::around(&bench.store);
    gate.hold_claims.store(1, Ordering::SeqCst);
    let limits = Limits { claim_patience: bench.can.tick, ..bench.limits() };
    let engine = bench.engine_within(Arc::clone(&gate) as Arc<dyn Store>, limits);
    let work = Work::default();
    // A caller that claims, a caller that joins it, and a caller that holds its own lease.
    let callers = [
        work.run(&engine, bench.operation("a", "pay")),
        work.run(&engine, bench.waiting("a", "pay")),
    ];
    let begin = bench.operation("b", "pay");
    let explicit = engine.begin(&begin);
    let (callers, explicit) =
        bench.drive(async { tokio::join!(join_all(callers), explicit) }).await;
    for caller in callers {
        assert!(matches!(caller.unwrap(), Err(EngineError::Store(_))), "nobody waits for ever");
    }
    assert!(matches!(explicit, Err(EngineError::Store(_))));
    assert_eq!(work.runs(), 0, "and nothing runs (S10)");
    // When the store answers again, claims without a caller are released, and leave nothing behind.
    gate.open.add_permits(1_000);
    let all_gone = async || bench.load("a").await.is_none() && bench.load("b").await.is_none();
    bench
        .drive(async {
            while gate.claimed.load(Ordering::SeqCst) < 2 || !all_gone().await {
                breathe().await;
            }
        })
        .await;
}

pub(super) async fn another_payload_is_refused_while_it_runs(bench: &Bench) {
    let engine = bench.engine();
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay 10"));
    work.has_started().await;
    for _ in 0..2 {
        // Time is advanced, so that a caller that waits instead of being refused ends too.
        let other = work.run(&engine, bench.waiting_for("a", "pay 99", 5));
        let other = bench.drive(other).await.unwrap().unwrap();
        assert!(matches!(other, Outcome::Answered(Answer::Mismatch)), "{other:?} (S9)");
        let same = work.run(&engine, bench.operation("a", "pay 10")).await.unwrap().unwrap();
        assert!(matches!(same, Outcome::Answered(Answer::InFlight)), "{same:?}");
    }
    work.finish.notify_one();
    bench.drive(first).await.unwrap().unwrap();
    let other = work.run(&engine, bench.operation("a", "pay 99")).await.unwrap().unwrap();
    assert!(matches!(other, Outcome::Answered(Answer::Mismatch)), "{other:?} (S9)");
    assert_eq!(work.runs(), 1);
}

pub(super) async fn waiters_get_the_outcome(bench: &Bench) {
    let engine = bench.engine();
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay"));
    work.has_started().await;
    let waiters: Vec<Running> =
        (0..20).map(|_| work.run(&engine, bench.waiting("a", "pay"))).collect();
    bench.step().await;
    work.finish.notify_one();
    bench.drive(first).await.unwrap().unwrap();
    for waiter in bench.drive(join_all(waiters)).await {
        assert_eq!(said(&waiter.unwrap().unwrap()), b"outcome 0");
    }
}

pub(super) async fn a_waiter_gives_up_at_its_deadline(bench: &Bench) {
    let engine = bench.engine();
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay"));
    work.has_started().await;
    let waiter = bench.drive(work.run(&engine, bench.waiting_for("a", "pay", 3))).await;
    assert!(matches!(waiter.unwrap().unwrap(), Outcome::Answered(Answer::WaitTimeout)));
    work.finish.notify_one();
    bench.drive(first).await.unwrap().unwrap();
}

pub(super) async fn a_caller_that_goes_away_changes_nothing(bench: &Bench) {
    let engine = bench.engine();
    let work = Work::default();
    let first = work.run(&engine, bench.operation("a", "pay"));
    work.has_started().await;
    first.abort();
    let _aborted = first.await;
    work.finish.notify_one();
    let retry = bench.drive(work.run(&engine, bench.waiting("a", "pay"))).await;
    assert_eq!(said(&retry.unwrap().unwrap()), b"outcome 0");
    assert_eq!(work.runs(), 1);
}

pub(super) async fn a_panic_is_unknown(bench: &Bench) {
    let engine = bench.engine();
    let run = engine.run(bench.operation("a", "pay"), |_| async {
        // `panic!` would print a message, although nothing is wrong here.
        std::panic::resume_unwind(Box::new("the operation panics"))
    });
    let Outcome::Ran(Settling::Recorded(record)) = bench.drive(run).await.unwrap() else {
        panic!("not recorded");
    };
    is(&record, "unknown");
    let retry = bench.drive(Work::default().run(&engine, bench.operation("a", "pay"))).await;
    assert!(matches!(retry.unwrap().unwrap(), Outcome::Answered(Answer::Unknown(_))));
}

pub(super) async fn too_long_is_unknown(bench: &Bench) {
    let engine = bench.engine();
    let work = Work::default();
    let run_max = bench.can.tick * 5;
    let run = work.run(&engine, bench.operation("a", "pay").run_max(run_max));
    let Outcome::Ran(Settling::Recorded(record)) = bench.drive(run).await.unwrap().unwrap() else {
        panic!("not recorded");
    };
    let State::Unknown { cause, .. } = &record.state else { panic!("not unknown") };
    assert_eq!(*cause, onetake_core::record::Cause::TimedOut);
}

pub(super) async fn a_dropped_lease_is_released_or_unknown(bench: &Bench) {
    let engine = bench.engine();
    for (key, start) in [("never started", false), ("started", true)] {
        let Begin::Run(lease) =
            bench.drive(engine.begin(&bench.operation(key, "pay"))).await.unwrap()
        else {
            panic!("not granted");
        };
        if start {
            lease.start().expect("the lease is fresh");
        }
        drop(lease);
        let is_open = |record: &Record| ["running", "released"].contains(&record.state.name());
        bench
            .drive(async {
                while bench.load(key).await.is_some_and(|record| is_open(&record)) {
                    breathe().await;
                }
            })
            .await;
        match bench.load(key).await {
            Some(record) => is(&record, "unknown"),
            // It leaves nothing behind, so that another payload may run.
            None => {
                assert!(!start, "an attempt that had started left nothing behind");
                let other = bench.operation(key, "pay more");
                bench.drive(may_run(&engine, &other)).await;
            }
        }
    }
}

/// Begins an operation as soon as the flight of an earlier attempt with another payload has landed.
/// The record is gone from the store a moment before that.
async fn may_run(engine: &Engine, operation: &Operation) {
    loop {
        match engine.begin(operation).await.unwrap() {
            Begin::Run(_) => return,
            Begin::Answer(Answer::Mismatch) => breathe().await,
            other @ Begin::Answer(_) => panic!("{other:?}"),
        }
    }
}

pub(super) async fn a_waiter_takes_over_what_never_started(bench: &Bench) {
    let engine = bench.engine();
    let work = Work::default();
    let operation = bench.operation("a", "pay");
    let Begin::Run(lease) = bench.drive(engine.begin(&operation)).await.unwrap() else {
        panic!("not granted");
    };
    let waiters: Vec<Running> =
        (0..20).map(|_| work.run(&engine, bench.waiting("a", "pay"))).collect();
    bench.step().await;
    drop(lease);
    work.has_started().await;
    work.finish.notify_one();
    for waiter in bench.drive(join_all(waiters)).await {
        assert_eq!(said(&waiter.unwrap().unwrap()), b"outcome 0");
    }
    assert_eq!(work.runs(), 1);
}

pub(super) async fn a_long_operation_keeps_its_lease(bench: &Bench) {
    let engine = bench.engine();
    let other_node = bench.engine();
    let work = Work::default();
    let operation = bench.operation("a", "pay");
    let retry = onetake_core::record::Terms { on_unknown: OnUnknown::Retry, ..operation.terms };
    let first = work.run(&engine, operation.terms(retry));
    work.has_started().await;
    // Work that would end at once if it ran.
    let hasty = Work::default();
    hasty.finish.notify_one();
    // Three times the length of lease and grace.
    for _ in 0..120 {
        bench.step().await;
        breathe().await;
        let other = bench.drive(hasty.run(&other_node, bench.operation("a", "pay"))).await;
        let other = other.unwrap().unwrap();
        assert!(matches!(other, Outcome::Answered(Answer::InFlight)), "preempted: {other:?}");
        assert_eq!(other_node.reap(10).await, 0, "a heartbeating owner was reaped");
    }
    work.finish.notify_one();
    assert_eq!(said(&bench.drive(first).await.unwrap().unwrap()), b"outcome 0");
    assert_eq!((work.runs(), hasty.runs()), (1, 0));
}

pub(super) async fn a_node_waits_for_another(bench: &Bench) {
    let (node, other_node) = (bench.engine(), bench.engine());
    let work = Work::default();
    let first = work.run(&node, bench.operation("a", "pay"));
    work.has_started().await;
    let waiters: Vec<Running> =
        (0..10).map(|_| work.run(&other_node, bench.waiting("a", "pay"))).collect();
    bench.step().await;
    work.finish.notify_one();
    bench.drive(first).await.unwrap().unwrap();
    for waiter in bench.drive(join_all(waiters)).await {
        assert_eq!(said(&waiter.unwrap().unwrap()), b"outcome 0");
    }
    assert_eq!(work.runs(), 1);
}
