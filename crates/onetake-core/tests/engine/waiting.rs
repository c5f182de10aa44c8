//! Callers that wait for an attempt, here or on another node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::{Answers, Claim, Claimed};
use onetake_core::{
    Answer, Begin, EngineError, Limits, MemoryStore, Record, RecordId, Recording, Store,
    WhileRunning, delegate_store,
};

use super::{engine_on, memory, operation, pass, settle_down};

const POLL: Duration = Duration::from_millis(25);

/// A store that counts claims and reads, and panics at a read on request.
#[derive(Debug)]
struct Watched {
    memory: Arc<MemoryStore>,
    claims: AtomicUsize,
    loads: AtomicUsize,
    panics: AtomicBool,
}

impl Watched {
    fn around(memory: &Arc<MemoryStore>) -> Arc<Self> {
        let (memory, panics) = (Arc::clone(memory), AtomicBool::new(false));
        Arc::new(Self { memory, claims: AtomicUsize::new(0), loads: AtomicUsize::new(0), panics })
    }

    fn counts(&self) -> (usize, usize) {
        (self.claims.load(Ordering::SeqCst), self.loads.load(Ordering::SeqCst))
    }
}

impl Store for Watched {
    delegate_store!(self => self.memory; name, settle, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.memory.claim(batch)
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        async move {
            if self.panics.swap(false, Ordering::SeqCst) {
                std::panic::resume_unwind(Box::new("as stores may"));
            }
            self.memory.load(ids).await
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Watched, self => self.memory);

/// One claim and one read every 25 ms while a caller waits, and the same again for the next caller.
#[tokio::test]
async fn another_node_is_polled_only_while_somebody_waits() {
    let (clock, memory) = memory();
    let owner = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let Begin::Run(lease) = owner.begin(&operation("a")).await.unwrap() else { panic!() };
    let store = Watched::around(&memory);
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    for round in 1..=2 {
        let wait = WhileRunning::Wait(40 * POLL);
        let waiting = tokio::spawn({
            let engine = engine.clone();
            async move { engine.begin(&operation("a").in_flight(wait)).await }
        });
        settle_down().await;
        pass(&clock, POLL, 39).await;
        assert!(!waiting.is_finished());
        pass(&clock, POLL, 2).await;
        let told = waiting.await.unwrap().unwrap();
        assert!(matches!(told, Begin::Answer(Answer::WaitTimeout)), "{told:?}");
        let (claims, loads) = store.counts();
        assert_eq!(claims, round, "it is not claimed again while it runs");
        assert!((39 * round..=42 * round).contains(&loads), "{loads}");
        pass(&clock, POLL, 40).await;
        assert_eq!(store.counts().1, loads, "nobody waits any more");
    }
    drop(lease);
}

#[tokio::test]
async fn a_store_that_panics_at_a_poll_keeps_nobody_waiting_afterwards() {
    let (clock, memory) = memory();
    let owner = engine_on(Arc::clone(&memory) as Arc<dyn Store>, &clock, Limits::default());
    let Begin::Run(lease) = owner.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let store = Watched::around(&memory);
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, Limits::default());
    store.panics.store(true, Ordering::SeqCst);
    let wait = |polls| {
        let engine = engine.clone();
        let asked = operation("a").in_flight(WhileRunning::Wait(polls * POLL));
        tokio::spawn(async move { engine.begin(&asked).await })
    };
    let first = wait(4);
    settle_down().await;
    pass(&clock, POLL, 5).await;
    assert!(matches!(first.await.unwrap().unwrap(), Begin::Answer(Answer::WaitTimeout)));
    let second = wait(40);
    settle_down().await;
    drop(lease.complete(Recording::new("paid")).await);
    pass(&clock, POLL, 2).await;
    assert!(second.is_finished(), "nobody polls any more");
    assert!(matches!(second.await.unwrap().unwrap(), Begin::Answer(Answer::Replay(_))));
}

/// Callers that waited for an attempt that never started may try it themselves. After an attempt
/// that ran, they must not all try at once.
#[tokio::test]
async fn a_waiter_runs_what_never_started_and_not_what_was_released() {
    for has_started in [false, true] {
        let (clock, memory) = memory();
        let engine = engine_on(memory, &clock, Limits::default());
        let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
        if has_started {
            lease.start().unwrap();
        }
        let waiting = tokio::spawn({
            let (engine, wait) = (engine.clone(), WhileRunning::Wait(Duration::from_secs(10)));
            async move { engine.begin(&operation("a").in_flight(wait)).await }
        });
        settle_down().await;
        drop(lease.release().await);
        let told = waiting.await.unwrap().unwrap();
        let expected = if has_started {
            matches!(told, Begin::Answer(Answer::InFlight))
        } else {
            matches!(told, Begin::Run(_))
        };
        assert!(expected, "{told:?}");
    }
}

/// The first waiters get their answer at once, and the others a few in each millisecond.
#[tokio::test]
async fn many_waiters_are_answered_at_a_steady_pace() {
    let (clock, memory) = memory();
    let engine = engine_on(memory, &clock, Limits::default());
    let Begin::Run(lease) = engine.begin(&operation("a")).await.unwrap() else { panic!() };
    lease.start().unwrap();
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let (engine, wait) = (engine.clone(), WhileRunning::Wait(Duration::from_secs(10)));
            tokio::spawn(async move { engine.begin(&operation("a").in_flight(wait)).await })
        })
        .collect();
    settle_down().await;
    drop(lease.complete(Recording::new("paid")).await);
    settle_down().await;
    let answered = || waiting.iter().filter(|caller| caller.is_finished()).count();
    assert_eq!(answered(), 64, "no time has passed");
    for (milliseconds, expected) in [(1, 74), (2, 94), (1, 100)] {
        pass(&clock, Duration::from_millis(1), milliseconds).await;
        assert_eq!(answered(), expected);
    }
    for caller in waiting {
        let told = caller.await.unwrap().unwrap();
        assert!(matches!(told, Begin::Answer(Answer::Replay(_))), "{told:?}");
    }
}

#[tokio::test]
async fn an_engine_that_is_full_or_closing_says_so() {
    let (clock, memory) = memory();
    let limits = Limits { waiting_max: 0, ..Limits::default() };
    let engine = engine_on(memory, &clock, limits);
    let looked = engine.look(operation("a").id).await;
    assert!(matches!(looked, Err(EngineError::Overloaded)), "{looked:?}");
    engine.shutdown(Duration::ZERO).await.unwrap();
    let begun = engine.begin(&operation("a")).await;
    assert!(matches!(begun, Err(EngineError::Closing)), "{begun:?}");
    assert!(matches!(engine.ready().await, Err(EngineError::Closing)));
}
