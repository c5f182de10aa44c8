//! The black-box suite over every store.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod common;

use common::InProcess;
use onetake_sim::blackbox;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().display());
    blackbox::run(InProcess::start, &store).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_memory_store() {
    blackbox::run(InProcess::start, "memory:").await.assert_passed();
}
