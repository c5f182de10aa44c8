//! The layer inside a tonic server, on the embedded store.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use onetake::prelude::{EmbeddedStore, Store};

use super::tonic_layer::{a_killed_server_on, cases_on};

/// Opens the store in a folder.
pub(crate) async fn open_store(folder: &str) -> Arc<dyn Store> {
    Arc::new(EmbeddedStore::open(folder).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_run_once() {
    let folder = tempfile::tempdir().unwrap();
    cases_on(open_store(folder.path().to_str().unwrap()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_an_unknown_outcome() {
    let folder = tempfile::tempdir().unwrap();
    a_killed_server_on(folder.path().join("data").to_str().unwrap()).await;
}
