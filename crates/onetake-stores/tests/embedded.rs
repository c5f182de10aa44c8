//! The embedded store: the suite that every store passes.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::clock::ManualClock;
use onetake_core::conformance::{Capabilities, Subject, run, run_engine};
use onetake_core::{Clock, Store};
use onetake_stores::EmbeddedStore;
use tempfile::TempDir;

struct Embedded {
    clock: ManualClock,
    store: Arc<EmbeddedStore>,
    _folder: TempDir,
}

impl Embedded {
    async fn fresh() -> Self {
        let clock = ManualClock::default();
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open_with(folder.path(), Arc::new(clock.clone())).unwrap();
        Self {
            clock,
            store: Arc::new(store),
            _folder: folder,
        }
    }
}

impl Subject for Embedded {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<EmbeddedStore>::clone(&self.store)
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
async fn embedded_store() {
    run(Embedded::fresh, Capabilities::default())
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_embedded_store() {
    run_engine(Embedded::fresh, Capabilities::default())
        .await
        .assert_passed();
}
