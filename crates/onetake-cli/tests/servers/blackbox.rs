//! The black-box suite over every store that is a server.

use std::time::Duration;

use onetake_sim::blackbox::Capabilities;
use onetake_sim::servers::{Dynamo, PgBouncer, Postgres, Redis, RedisCluster};

use crate::common::blackbox::{run, run_with};
use crate::common::{migrated, migrated_postgres};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    run(&migrated_postgres().await, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_behind_pgbouncer() {
    let (server, direct) = (Postgres::shared().await, migrated_postgres().await);
    let bouncer = PgBouncer::start(server, "transaction", 2).await;
    let (_, database) = direct.rsplit_once('/').unwrap();
    run(&server.url_at(bouncer.address(), database), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_behind_a_filter() {
    let redis = Redis::start().await;
    let filter = format!("filter = \"{}\"", redis.url());
    run(&migrated_postgres().await, &filter).await;
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
    let can = Capabilities {
        body_bytes_max: 380_000,
        expiry_margin: Duration::from_secs(600),
        ..Capabilities::default()
    };
    run_with(&migrated(server.table()).await, "", can).await;
}
