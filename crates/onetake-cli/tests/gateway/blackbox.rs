//! The black-box suite over every store that needs no server.

use crate::common::blackbox::run;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    run(&format!("embedded:{}", folder.path().display()), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_memory_store() {
    run("memory:", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    run(&format!("sqlite:{}", folder.path().join("keys.sqlite").display()), "").await;
}
