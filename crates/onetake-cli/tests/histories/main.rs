//! Histories of concurrent clients on real servers, while processes are killed and networks fail.
//!
//! Each test runs gateways on one store, an upstream that counts effects, and clients that share
//! keys. Every event is recorded, and the history of every key is checked against the rules of
//! [`onetake_sim::history`].
//!
//! | variable | meaning |
//! | --- | --- |
//! | `ONETAKE_HISTORIES_SECONDS` | how long clients send requests, in each test |
//! | `ONETAKE_HISTORIES_CYCLES` | kills in `kill_cycles_on_postgres` |
//! | `ONETAKE_HISTORIES_SEED` | the seed of outcomes, keys and faults |
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests may panic, and print their figures"
)]

#[path = "../common/mod.rs"]
mod common;
mod controls;
mod failover;
mod gateway;
mod load;
mod setups;
mod world;

use std::time::Duration;

use failover::{OnCluster, OnStandby};
use setups::{KillCycles, OnDynamo, OnEmbedded, OnFilter, OnPostgres, OnSqlite};
use tokio::sync::{Semaphore, SemaphorePermit};
use world::{Lasts, Plan, assert_clean, number_from, run};

/// How long clients send requests in the short form.
const SHORT: Duration = Duration::from_secs(5);

/// Histories that run at once: each has several processes.
static AT_ONCE: Semaphore = Semaphore::const_new(2);

async fn turn() -> SemaphorePermit<'static> {
    AT_ONCE.acquire().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnEmbedded::new(), Plan::new(SHORT)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnSqlite::new(), Plan::new(SHORT)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnPostgres::start().await, Plan::new(SHORT)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_with_a_synchronous_standby_that_is_promoted() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnStandby::start(true).await, Plan::new(SHORT)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_in_front_of_postgres() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnFilter::start().await, Plan::new(SHORT)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster_under_failover() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnCluster::start(true).await, Plan::new(SHORT)).await);
}

/// Without `wait_replicas` a failover loses the latest acknowledged writes, as documented. A key
/// that a client saw settled a second before is not among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster_that_does_not_wait_for_replicas() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnCluster::start(false).await, Plan::new(SHORT)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb() {
    let _turn = turn().await;
    assert_clean(&run(&mut OnDynamo::start().await, Plan::new(SHORT)).await);
}

/// Kills the server and the gateways in turn, as many times as the environment asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_cycles_on_postgres() {
    let _turn = turn().await;
    let cycles = number_from("ONETAKE_HISTORIES_CYCLES").unwrap_or(4);
    let plan = Plan { lasts: Lasts::Cycles(cycles), clients: 4, ..Plan::new(SHORT) };
    assert_clean(&run(&mut KillCycles(OnPostgres::start().await), plan).await);
}
