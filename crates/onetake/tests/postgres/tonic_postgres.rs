//! The layer inside a tonic server, on PostgreSQL.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use onetake::prelude::Store;
use onetake::stores::{PostgresOptions, PostgresStore};
use onetake_sim::servers::Postgres;

use super::tonic_layer::{a_killed_server_on, cases_on};

/// Opens the store at a URL.
pub(crate) async fn open_store(url: &str) -> Arc<dyn Store> {
    Arc::new(PostgresStore::open(url, PostgresOptions::default()).await.unwrap())
}

async fn migrated() -> String {
    let url = Postgres::shared().await.database();
    PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap();
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_run_once() {
    cases_on(open_store(&migrated().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_an_unknown_outcome() {
    a_killed_server_on(&migrated().await).await;
}
