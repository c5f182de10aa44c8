//! Replay of a journal into a store that is unavailable.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::engine::JournalBatch;
use onetake_core::store::{Answers, Claim, Claimed, Settled};
use onetake_core::{
    AttemptId, Journal, ManualClock, MemoryStore, Recording, Settlement, Store, StoreError,
    StoreErrorKind, Transition, delegate_store,
};

use super::{Pages, engine_with_journal, memory, operation, pass};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A store that fails to settle some keys in a chosen way, and counts its settle calls.
#[derive(Debug)]
struct Failing {
    memory: Arc<MemoryStore>,
    /// The keys that fail, and the kind of failure.
    faults: Mutex<Vec<(&'static str, StoreErrorKind)>>,
    asked: AtomicUsize,
}

impl Failing {
    fn around(memory: &Arc<MemoryStore>, faults: &[(&'static str, StoreErrorKind)]) -> Arc<Self> {
        let (memory, faults) = (Arc::clone(memory), Mutex::new(faults.to_vec()));
        Arc::new(Self { memory, faults, asked: AtomicUsize::new(0) })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Store for Failing {
    delegate_store!(self => self.memory; name, claim, load, due, sweep, ready, close);

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let faults = self.faults.lock().unwrap().clone();
            let mut answers = Vec::new();
            for settlement in batch {
                let fault = faults.iter().find(|(key, _)| operation(key).id == settlement.id);
                match fault {
                    Some((_, kind)) => answers.push(Err(StoreError::new(*kind, "a fault"))),
                    None => answers.extend(self.memory.settle(vec![settlement]).await),
                }
            }
            answers
        }
        .boxed()
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Failing, self => self.memory);

/// Claims a key for a process that has ended, and returns the outcome that it left.
async fn left_behind(memory: &MemoryStore, key: &str) -> Settlement {
    let (asked, attempt) = (operation(key), AttemptId::from_bytes([7; 16]));
    let claim = Claim {
        id: asked.id,
        attempt,
        fingerprint: asked.fingerprint,
        terms: asked.terms,
        origin: asked.origin,
    };
    let granted = memory.claim(vec![claim]).await.remove(0).unwrap();
    assert!(matches!(granted, Claimed::Granted { .. }), "{granted:?}");
    Settlement { id: asked.id, attempt, transition: Transition::Complete(Recording::new("paid")) }
}

async fn state(memory: &MemoryStore, key: &str) -> &'static str {
    let found = memory.load(vec![operation(key).id]).await.remove(0).unwrap();
    found.map_or("absent", |record| record.state.name())
}

/// Returns a journal with one page for each list of keys.
async fn journal_of(memory: &MemoryStore, pages: &[&[&str]]) -> Arc<Pages> {
    let journal = Arc::new(Pages::default());
    for keys in pages {
        let mut settlements = Vec::new();
        for key in *keys {
            settlements.push(left_behind(memory, key).await);
        }
        journal.keep(settlements).await.unwrap();
    }
    journal
}

fn replay(
    store: &Arc<Failing>,
    journal: &Arc<Pages>,
    clock: &Arc<ManualClock>,
) -> onetake_core::Engine {
    engine_with_journal(Arc::clone(store) as Arc<dyn Store>, clock, journal)
}

#[tokio::test]
async fn a_page_is_kept_until_the_store_has_taken_all_of_it() {
    let (clock, memory) = memory();
    let journal = journal_of(&memory, &[&["a", "b", "c"], &["d"]]).await;
    let store = Failing::around(&memory, &[("b", StoreErrorKind::Unavailable)]);
    let _engine = replay(&store, &journal, &clock);
    pass(&clock, Duration::from_secs(1), 100).await;
    assert_eq!(journal.names_now(), ["page 0"], "the other page is settled");
    for (key, expected) in
        [("a", "completed"), ("b", "running"), ("c", "completed"), ("d", "completed")]
    {
        assert_eq!(state(&memory, key).await, expected, "{key}");
    }
    store.faults.lock().unwrap().clear();
    pass(&clock, Duration::from_secs(1), 5).await;
    assert_eq!(state(&memory, "b").await, "completed");
    assert!(journal.names_now().is_empty());
}

#[tokio::test]
async fn an_answer_that_is_lost_is_no_answer() {
    let (clock, memory) = memory();
    let journal = journal_of(&memory, &[&["a"]]).await;
    let store = Failing::around(&memory, &[("a", StoreErrorKind::Indeterminate)]);
    let _engine = replay(&store, &journal, &clock);
    pass(&clock, Duration::from_secs(1), 10).await;
    assert_eq!(journal.names_now(), ["page 0"]);
    store.faults.lock().unwrap().clear();
    pass(&clock, Duration::from_secs(1), 5).await;
    assert!(journal.names_now().is_empty());
}

/// Pauses are 200, 400, 800, 1600, 3200 and then 5000 milliseconds.
#[tokio::test]
async fn pauses_grow_while_the_store_is_unavailable() {
    let (clock, memory) = memory();
    let journal = journal_of(&memory, &[&["a"]]).await;
    let store = Failing::around(&memory, &[("a", StoreErrorKind::Unavailable)]);
    let _engine = replay(&store, &journal, &clock);
    let (mut times, mut asked) = (Vec::new(), 0);
    for at in (0..20_000).step_by(100) {
        super::settle_down().await;
        if store.asked() > asked {
            asked = store.asked();
            times.push(at);
        }
        clock.advance(100 * MILLISECOND);
    }
    assert_eq!(times, [0, 200, 600, 1_400, 3_000, 6_200, 11_200, 16_200]);
}

#[tokio::test]
async fn a_page_that_the_store_refuses_is_tried_once() {
    let (clock, memory) = memory();
    let journal = journal_of(&memory, &[&["a", "b"]]).await;
    let store = Failing::around(&memory, &[("a", StoreErrorKind::Invalid)]);
    let _engine = replay(&store, &journal, &clock);
    pass(&clock, Duration::from_secs(10), 60).await;
    assert_eq!((journal.reads(), store.asked()), (1, 1), "it waits for the next start");
    assert_eq!(journal.names_now(), ["page 0"], "it is kept");
    assert_eq!(state(&memory, "b").await, "completed", "the others of its page are settled");
}

#[tokio::test]
async fn a_page_with_a_refused_and_a_late_settlement_is_tried_again() {
    let (clock, memory) = memory();
    let journal = journal_of(&memory, &[&["a", "b"]]).await;
    let faults = [("a", StoreErrorKind::Invalid), ("b", StoreErrorKind::Unavailable)];
    let store = Failing::around(&memory, &faults);
    let _engine = replay(&store, &journal, &clock);
    pass(&clock, Duration::from_secs(1), 10).await;
    store.faults.lock().unwrap().retain(|(key, _)| *key == "a");
    pass(&clock, Duration::from_secs(1), 10).await;
    assert_eq!(state(&memory, "b").await, "completed");
    assert_eq!(journal.names_now(), ["page 0"], "what is refused is kept");
}

#[tokio::test]
async fn a_page_that_can_be_read_in_part_is_settled_in_part_and_kept() {
    let (clock, memory) = memory();
    let journal = Arc::new(Pages::default());
    let settlements = vec![left_behind(&memory, "a").await];
    let torn = JournalBatch { settlements, is_whole: false };
    journal.pages.lock().unwrap().push(("torn".to_owned(), torn));
    let store = Failing::around(&memory, &[]);
    let _engine = replay(&store, &journal, &clock);
    pass(&clock, Duration::from_secs(10), 60).await;
    assert_eq!(state(&memory, "a").await, "completed");
    assert_eq!((journal.names_now(), journal.reads()), (vec!["torn".to_owned()], 1));
}

#[tokio::test]
async fn an_empty_journal_is_looked_at_once_a_minute() {
    let (clock, memory) = memory();
    let journal = Arc::new(Pages::default());
    let _engine = replay(&Failing::around(&memory, &[]), &journal, &clock);
    pass(&clock, Duration::from_secs(1), 600).await;
    let looks = journal.looks.load(Ordering::SeqCst);
    assert!((10..=11).contains(&looks), "{looks}");
}

/// A journal that keeps nothing until its gate is open.
#[derive(Debug)]
struct Gated {
    gate: tokio::sync::Semaphore,
    kept: AtomicUsize,
}

impl Journal for Gated {
    fn keep(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.gate.acquire().await.unwrap().forget();
            self.kept.fetch_add(settlements.len(), Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn read(&self, _: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>> {
        async { Ok(None) }.boxed()
    }

    fn let_go(&self, _: String) -> BoxFuture<'_, Result<(), StoreError>> {
        async { Ok(()) }.boxed()
    }
}

/// Found by the simulation: two signals made two calls of `shutdown`. The second returned while the
/// first was writing the journal, and the outcome was lost when the process ended.
#[tokio::test]
async fn a_second_shutdown_waits_until_the_first_has_written_the_journal() {
    let (clock, memory) = memory();
    let store = Failing::around(&memory, &[("a", StoreErrorKind::Unavailable)]);
    let (gate, kept) = (tokio::sync::Semaphore::new(0), AtomicUsize::new(0));
    let journal = Arc::new(Gated { gate, kept });
    let engine = engine_with_journal(store, &clock, &journal);
    let running = engine.clone();
    tokio::spawn(async move {
        let paid = async |_| onetake_core::Verdict::Complete(Recording::new("paid"));
        drop(running.run(operation("a"), paid).await);
    });
    pass(&clock, MILLISECOND, 50).await;
    let shut_down = || {
        let engine = engine.clone();
        tokio::spawn(async move { engine.shutdown(MILLISECOND).await })
    };
    let first = shut_down();
    pass(&clock, MILLISECOND, 5).await;
    let second = shut_down();
    pass(&clock, MILLISECOND, 50).await;
    assert!(!first.is_finished() && !second.is_finished(), "the outcome is not in the journal yet");
    journal.gate.add_permits(1);
    for call in [first, second] {
        call.await.unwrap().unwrap();
        assert_eq!(journal.kept.load(Ordering::SeqCst), 1);
    }
}
