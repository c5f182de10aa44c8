//! The number of writes that wait, and of their writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::{Answers, Claim, Claimed, Settled};
use onetake_core::{Begin, Limits, MemoryStore, Recording, Settlement, Store, delegate_store};

use super::{engine_on, memory, operation, settle_down};

/// A store whose writes hang on request.
#[derive(Debug)]
struct Hanging {
    memory: Arc<MemoryStore>,
    hangs: AtomicBool,
}

impl Hanging {
    fn answer<T: Send + 'static>(
        &self,
        answer: BoxFuture<'_, Answers<T>>,
    ) -> BoxFuture<'static, Answers<T>> {
        if self.hangs.load(Ordering::SeqCst) {
            return std::future::pending().boxed();
        }
        std::future::ready(answer.now_or_never().unwrap()).boxed()
    }
}

impl Store for Hanging {
    delegate_store!(self => self.memory; name, load, due, sweep, ready, close);

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.answer(self.memory.claim(batch))
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.answer(self.memory.settle(batch))
    }
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Hanging, self => self.memory);

#[tokio::test]
async fn waiting_items_and_writers_of_both_kinds_count() {
    let (clock, memory) = memory();
    let store = Arc::new(Hanging { memory, hangs: AtomicBool::new(false) });
    let one = Limits { batch_items_max: 1, writers_max: 1, ..Limits::default() };
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>, &clock, one);
    let mut leases = Vec::new();
    for key in ["a", "b"] {
        let Begin::Run(lease) = engine.begin(&operation(key)).await.unwrap() else { panic!() };
        leases.push(lease);
    }
    assert_eq!(engine.queued_writes(), 0);
    store.hangs.store(true, Ordering::SeqCst);
    for lease in leases {
        lease.start().unwrap();
        tokio::spawn(lease.complete(Recording::default()));
    }
    settle_down().await;
    assert_eq!(engine.queued_writes(), 2, "one settlement is written, and one waits");
    for key in ["c", "d", "e"] {
        let engine = engine.clone();
        tokio::spawn(async move { engine.begin(&operation(key)).await.map(drop) });
    }
    settle_down().await;
    assert_eq!(engine.queued_writes(), 5, "one claim is written, and two wait");
}
