//! The matrix of policies, states and requests on the stores that need no server.

use std::sync::Arc;

use onetake_core::MemoryStore;
use onetake_stores::EmbeddedStore;

use crate::policy_matrix::holds_on;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_memory_store() {
    holds_on(Arc::new(MemoryStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    holds_on(Arc::new(EmbeddedStore::open(folder.path()).unwrap())).await;
}
