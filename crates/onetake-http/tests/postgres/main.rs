//! Tests of the layer on a real PostgreSQL.

#[path = "../policy_matrix/mod.rs"]
mod policy_matrix;

use std::sync::Arc;
use std::time::Duration;

use onetake_sim::servers::Postgres;
use onetake_stores::{PostgresOptions, PostgresStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_matrix_on_postgres() {
    let server = Postgres::start().await;
    let url = server.database();
    // Many concurrent cases share a few connections. On a slow disk, the last ones wait for a long
    // time.
    let options =
        PostgresOptions { command_timeout: Duration::from_secs(60), ..PostgresOptions::default() };
    PostgresStore::migrate(&url, options.clone()).await.unwrap();
    policy_matrix::holds_on(Arc::new(PostgresStore::open(&url, options).await.unwrap())).await;
}
