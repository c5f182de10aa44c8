//! The black-box suite over every store that is a server.

use std::time::Duration;

use onetake_sim::blackbox::Capabilities;
use onetake_sim::servers::{Dynamo, PgBouncer, Postgres, Redis, RedisCluster};

use crate::common::blackbox::{run, run_with};
use crate::common::migrated;

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
