//! The reference store passes the suite that it is the reference for.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::clock::ManualClock;
use onetake_core::conformance::{Capabilities, Subject, run, run_engine};
use onetake_core::{Clock, MemoryStore, Store};

struct Memory {
    clock: ManualClock,
    store: Arc<MemoryStore>,
}

impl Memory {
    async fn fresh() -> Self {
        let clock = ManualClock::default();
        let store = Arc::new(MemoryStore::with_clock(Arc::new(clock.clone())));
        Self { clock, store }
    }
}

impl Subject for Memory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<MemoryStore>::clone(&self.store)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(by);
        std::future::ready(()).boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_store() {
    run(Memory::fresh, Capabilities::default())
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_memory_store() {
    run_engine(Memory::fresh, Capabilities::default())
        .await
        .assert_passed();
}
