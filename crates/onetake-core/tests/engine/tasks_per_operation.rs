//! The tasks and the messages between tasks that an operation costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::{Answers, Claim, Claimed, Settled};
use onetake_core::{
    Answer, Begin, Engine, Executed, Lease, Limits, MemoryStore, Outcome, Recording, Settlement,
    Settling, Store, SystemClock, SystemRng, Verdict, Work, delegate_store,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::{engine_on, memory, operation, settle_down};

fn engine() -> Engine {
    let store = Arc::new(MemoryStore::new());
    Engine::with(store, Arc::new(SystemClock), Arc::new(SystemRng), Limits::default())
}

/// The tasks and messages since `before`.
fn since(engine: &Engine, before: onetake_core::Traffic) -> (u64, u64) {
    let now = engine.traffic();
    (now.tasks - before.tasks, now.hops - before.hops)
}

#[tokio::test]
async fn a_fresh_operation_takes_one_task_and_a_replay_none() {
    let engine = engine();
    tokio::task::yield_now().await;
    for key in ["first", "second"] {
        let (before, alive) = (engine.traffic(), Handle::current().metrics().num_alive_tasks());
        let ran = engine.run(operation(key), move |_| async move {
            let alive_now = Handle::current().metrics().num_alive_tasks();
            assert!(alive_now <= alive + 1, "{alive_now} tasks instead of {alive}");
            Verdict::Complete(Recording::new("paid"))
        });
        let ran = ran.await.unwrap();
        assert!(matches!(ran, Outcome::Ran(Settling::Recorded(_))));
        let (tasks, hops) = since(&engine, before);
        // The first lease of an idle engine also wakes the task that renews leases.
        assert_eq!(tasks, 1, "{key}");
        assert_eq!(hops, if key == "first" { 2 } else { 1 }, "{key}");
        let before = engine.traffic();
        let replayed = engine.run(operation(key), |_| async { Verdict::Release }).await.unwrap();
        assert!(matches!(replayed, Outcome::Answered(_)));
        assert_eq!(since(&engine, before), (0, 0), "{key}");
    }
}

#[tokio::test]
async fn an_operation_in_its_callers_task_takes_none() {
    let engine = Engine::builder(Arc::new(MemoryStore::new())).run_in_callers_task().build();
    tokio::task::yield_now().await;
    let before = engine.traffic();
    let done = || Verdict::Complete(Recording::new("paid"));
    let ran = engine.run(operation("a"), async move |_| done()).await.unwrap();
    assert!(matches!(ran, Outcome::Ran(Settling::Recorded(_))));
    // One message: the first lease of an idle engine wakes the task that renews leases.
    assert_eq!(since(&engine, before), (0, 1));
}

#[tokio::test]
async fn a_replay_from_the_store_takes_one_task_and_one_message() {
    let store = MemoryStore::new();
    let [first, second] = [(); 2].map(|()| Engine::new(Arc::new(store.clone())));
    let paid = |_| async { Verdict::Complete(Recording::new("paid")) };
    assert!(matches!(first.run(operation("a"), paid).await.unwrap(), Outcome::Ran(_)));
    settle_down().await;
    let before = second.traffic();
    let replayed = second.run(operation("a"), |_| async { Verdict::Release }).await.unwrap();
    assert!(matches!(replayed, Outcome::Answered(Answer::Replay(_))), "{replayed:?}");
    assert_eq!(since(&second, before), (1, 1));
}

/// A store that writes a batch for each permit.
#[derive(Debug)]
struct Gated {
    memory: Arc<MemoryStore>,
    gate: Semaphore,
}

impl Store for Gated {
    delegate_store!(self => self.memory; name, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            self.gate.acquire().await.unwrap().forget();
            self.memory.claim(batch).await
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            self.gate.acquire().await.unwrap().forget();
            self.memory.settle(batch).await
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Gated, self => self.memory);

#[tokio::test]
async fn a_fresh_operation_that_waits_for_a_busy_store_takes_one_task_and_three_messages() {
    let (clock, memory) = memory();
    let store = Arc::new(Gated { memory, gate: Semaphore::new(1) });
    let limits = Limits { writers_max: 1, ..Limits::default() };
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, limits);
    // A lease that is already renewed: the others need not wake the task that renews leases.
    let Begin::Run(renewed) = engine.begin(&operation("renewed")).await.unwrap() else { panic!() };
    settle_down().await;
    let start = |key: &str| {
        let finish = Arc::new(Notify::new());
        let (engine, asked, finished) = (engine.clone(), operation(key), Arc::clone(&finish));
        let running = tokio::spawn(async move {
            let work = move |_| async move {
                finished.notified().await;
                Verdict::Complete(Recording::new("paid"))
            };
            engine.run(asked, work).await.unwrap()
        });
        (finish, running)
    };
    let (finish_other, other) = start("other");
    settle_down().await;
    let before = engine.traffic();
    let (finish, measured) = start("measured");
    settle_down().await;
    // The claim goes behind that of the other operation, and so does the settlement.
    store.gate.add_permits(2);
    settle_down().await;
    finish_other.notify_one();
    settle_down().await;
    finish.notify_one();
    settle_down().await;
    store.gate.add_permits(2);
    for running in [other, measured] {
        assert!(matches!(running.await.unwrap(), Outcome::Ran(Settling::Recorded(_))));
    }
    // Beside the operation's own task, each of the two lanes has one for what waited in it.
    assert_eq!(since(&engine, before), (1 + 2, 3));
    drop(renewed);
}

#[tokio::test]
async fn whoever_joins_a_running_operation_takes_no_task() {
    let engine = engine();
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let before = engine.traffic();
    let other = engine.run(operation("a"), |_| async { Verdict::Release }).await.unwrap();
    assert!(matches!(other, Outcome::Answered(_)));
    assert_eq!(since(&engine, before), (0, 0));
    drop(lease);
}

/// Work that counts its runs.
struct Counted(Arc<AtomicUsize>);

impl Work for Counted {
    type Output = &'static str;

    async fn run(self, lease: &Lease) -> (Verdict, &'static str) {
        self.0.fetch_add(1, Ordering::SeqCst);
        lease.start().unwrap();
        (Verdict::Complete(Recording::new("paid")), "receipt")
    }
}

#[tokio::test]
async fn work_has_an_output_of_its_own_and_is_given_back_where_it_is_not_needed() {
    let (engine, runs) = (engine(), Arc::new(AtomicUsize::new(0)));
    let executed = engine.execute(&operation("a"), Counted(Arc::clone(&runs))).await;
    assert!(matches!(executed, Executed::Ran(Settling::Recorded(_), "receipt")));
    let executed = engine.execute(&operation("a"), Counted(Arc::clone(&runs))).await;
    assert!(matches!(executed, Executed::Answered(_, Counted(_))));
    engine.shutdown(std::time::Duration::ZERO).await.unwrap();
    let executed = engine.execute(&operation("b"), Counted(Arc::clone(&runs))).await;
    assert!(matches!(executed, Executed::Failed(_, Some(Counted(_)))));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Panics before it starts, or after.
struct Panics(bool);

impl Work for Panics {
    type Output = ();

    async fn run(self, lease: &Lease) -> (Verdict, ()) {
        if self.0 {
            lease.start().unwrap();
        }
        // `panic!` would print a message.
        std::panic::resume_unwind(Box::new("panics"))
    }
}

#[tokio::test]
async fn work_that_panics_is_unknown_if_it_had_started() {
    let engine = engine();
    for (has_started, state) in [(false, "released"), (true, "unknown")] {
        let executed = engine.execute(&operation("a"), Panics(has_started)).await;
        let Executed::Panicked(Settling::Recorded(record)) = executed else { panic!() };
        assert_eq!(record.state.name(), state);
    }
}

/// Every waiting caller keeps one of these futures in memory.
#[tokio::test]
async fn the_futures_of_an_operation_are_small() {
    let (engine, asked) = (engine(), operation("a"));
    let begin = size_of_val(&engine.begin(&asked));
    let execute = size_of_val(&engine.execute(&asked, Panics(true)));
    let run = size_of_val(&engine.run(asked.clone(), |_| async { Verdict::Release }));
    assert!(begin <= 800 && execute <= 900 && run <= 1_200, "{begin}, {execute} and {run} bytes");
}
