//! The black-box suite over every store.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod common;

use std::time::Duration;

use common::{InProcess, migrated};
use onetake_sim::blackbox::{self, Capabilities};
use onetake_sim::servers::{Dynamo, PgBouncer, Postgres, Redis, RedisCluster};

/// Recordings are encrypted in all stores.
const ENCRYPTED: &str = "
[secrets]
encryption = [{ id = \"k1\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]
";

/// Runs the suite with more lines below `[store]`.
async fn run(store: &str, lines: &str) {
    run_with(store, lines, Capabilities::default()).await;
}

async fn run_with(store: &str, lines: &str, can: Capabilities) {
    let lines = format!("[store]\n{lines}\n");
    let start = |configuration: String| {
        InProcess::start(configuration.replace("[store]\n", &lines) + ENCRYPTED)
    };
    blackbox::run_with(start, store, can).await.assert_passed();
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let server = Postgres::start().await;
    run(&migrated(server.database()).await, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_behind_pgbouncer() {
    let server = Postgres::start().await;
    let _made = migrated(server.database()).await;
    let bouncer = PgBouncer::start(&server, "transaction", 2).await;
    // The first database of the server, which was created a line above.
    run(&server.url_at(bouncer.address(), "test_0"), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_behind_a_filter() {
    let (server, redis) = (Postgres::start().await, Redis::start().await);
    let filter = format!("filter = \"{}\"", redis.url());
    run(&migrated(server.database()).await, &filter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let server = Redis::start().await;
    run(&server.url(), "allow_lossy = true").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_redis_cluster() {
    let cluster = RedisCluster::start().await;
    run(&cluster.url(), "allow_lossy = true").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_dynamodb() {
    let server = Dynamo::start().await;
    // An item has at most 400 KB, including headers. DynamoDB has no clock.
    let can = Capabilities { body_bytes_max: 380_000, expiry_margin: Duration::from_secs(600) };
    run_with(&migrated(server.table()).await, "", can).await;
}
