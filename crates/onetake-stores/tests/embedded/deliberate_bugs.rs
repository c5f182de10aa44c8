//! Deliberate bugs of a store: the suite finds each of them in the embedded store.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use futures_util::future::join_all;
use onetake_conformance::{BuggyStore, Capabilities, Simulated, StoreBug, run};
use onetake_stores::EmbeddedStore;

async fn fresh(bug: StoreBug) -> Simulated {
    Simulated::new(|clock| {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open_with(folder.path(), Arc::clone(&clock)).unwrap();
        (BuggyStore::new(Arc::new(store), bug, clock), Box::new(folder))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bugs_of_the_store_are_found() {
    let bugs = [
        StoreBug::SettleWithoutAttemptCheck,
        StoreBug::SweepWithoutRecheck,
        StoreBug::FingerprintInId,
        StoreBug::FenceNotRaised,
    ];
    // At once, because each of them mostly waits for the disk.
    join_all(bugs.map(async |bug| {
        let failed = run(|| fresh(bug), Capabilities::default()).await.failed();
        assert!(!failed.is_empty(), "{bug:?} is not found");
    }))
    .await;
}
