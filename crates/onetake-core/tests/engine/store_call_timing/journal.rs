//! Outcomes of an earlier process in a journal.

use std::sync::atomic::Ordering;

use onetake_core::Journal;
use onetake_core::engine::JournalBatch;

use super::*;

/// A journal that cannot be read.
#[derive(Debug, Default)]
struct Unreadable {
    asked: AtomicUsize,
}

impl Journal for Unreadable {
    fn keep(&self, _: Vec<Settlement>) -> BoxFuture<'_, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let error = StoreError::new(StoreErrorKind::Unavailable, "refused by the test");
        std::future::ready(Err(error)).boxed()
    }

    fn read(&self, _: String) -> BoxFuture<'_, Result<Option<JournalBatch>, StoreError>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn let_go(&self, _: String) -> BoxFuture<'_, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }
}

#[tokio::test]
async fn a_journal_that_cannot_be_read_is_asked_with_longer_pauses() {
    let world = World::new();
    let journal = Arc::new(Unreadable::default());
    let store = Arc::clone(&world.store) as Arc<dyn Store>;
    let _engine = crate::engine_with_journal(store, &world.clock, &journal);
    // Reads happen at once, and 0.2, 0.6, 1.4, 3.0, 6.2 and 11.2 seconds later.
    world.pass(SECOND * 6, Duration::from_millis(100)).await;
    assert_eq!(journal.asked.load(Ordering::SeqCst), 5);
    world.pass(SECOND * 6, Duration::from_millis(100)).await;
    assert_eq!(journal.asked.load(Ordering::SeqCst), 7);
    // Further reads follow every five seconds.
    world.pass(SECOND * 60, Duration::from_millis(100)).await;
    assert_eq!(journal.asked.load(Ordering::SeqCst), 19);
}
