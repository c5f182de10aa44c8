//! The suite that every store passes.

use std::time::Duration;

use onetake_conformance::{Capabilities, Shifted, run, run_engine};
use onetake_sim::servers::{Flavour, Redis, RedisCluster};
use onetake_stores::{RedisOptions, RedisStore};

const CAPABILITIES: Capabilities = Capabilities {
    tick: Duration::from_secs(10),
    body_bytes_max: 1 << 20,
    // The server deletes expired records.
    sweeps: false,
    forgets: true,
    tasks: 32,
    rounds: 20,
};

async fn fresh(url: &str) -> Shifted {
    let (url, prefix) = (url.to_owned(), super::prefix());
    let open = move |clock, shift| {
        let url = url.clone();
        let options = RedisOptions {
            clock,
            shift,
            prefix: prefix.clone(),
            // The suite advances the clock by seconds during a request.
            command_timeout: Duration::from_secs(1_000_000),
            ..RedisOptions::default()
        };
        async move { RedisStore::open(&url, options).await.unwrap() }
    };
    let made = async |clock, shift| (open(clock, shift).await, Box::new(()) as Box<_>);
    Shifted::new(made).await.reopened_by(open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let server = Redis::start().await;
    let url = server.url();
    run(|| fresh(&url), CAPABILITIES).await.assert_passed();
    run_engine(|| fresh(&url), CAPABILITIES).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valkey() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = Redis::start_with(Flavour::Valkey, &settings).await;
    let url = server.url();
    run(|| fresh(&url), CAPABILITIES).await.assert_passed();
    run_engine(|| fresh(&url), CAPABILITIES).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_cluster() {
    let cluster = RedisCluster::start().await;
    let url = cluster.url();
    run(|| fresh(&url), CAPABILITIES).await.assert_passed();
    run_engine(|| fresh(&url), CAPABILITIES).await.assert_passed();
}
