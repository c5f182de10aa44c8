//! Tests of the diagnosis.

use std::time::Duration;

use onetake_sim::servers::{Flavour, Redis, RedisCluster};
use onetake_stores::{Diagnosis, Weight};

use super::open;

async fn diagnose(url: &str) -> Diagnosis {
    open(url).await.diagnose().await.unwrap()
}

fn finds(diagnosis: &Diagnosis, weight: Weight, what: &str, fix: &str) {
    let found = diagnosis.findings.iter().any(|finding| {
        finding.weight == weight && finding.what.contains(what) && finding.fix.contains(fix)
    });
    assert!(found, "{weight:?} {what} {fix}: {diagnosis:#?}");
}

#[tokio::test]
async fn a_durable_server_is_fine() {
    let server = Redis::start().await;
    let diagnosis = diagnose(&server.url()).await;
    assert_eq!(diagnosis.worst(), Weight::Fine, "{diagnosis:#?}");
    assert!(diagnosis.server.starts_with("Redis 7."), "{}", diagnosis.server);
    assert!(diagnosis.server.contains("standalone"), "{}", diagnosis.server);
    assert!(
        diagnosis.round_trip > Duration::ZERO && diagnosis.round_trip < Duration::from_secs(10)
    );
    let ahead = diagnosis.clock_ahead_micros.unwrap();
    assert!(ahead.abs() < 10_000_000, "it is the same machine: {ahead}");
}

#[tokio::test]
async fn whatever_loses_writes_is_named() {
    let server = Redis::start_with(Flavour::Redis, &[]).await;
    let found = diagnose(&server.url()).await;
    finds(&found, Weight::Broken, "no persistence", "appendonly yes");
    server.cli(&["CONFIG", "SET", "save", "3600 1"]);
    finds(&diagnose(&server.url()).await, Weight::Broken, "snapshots only", "appendonly yes");
    server.cli(&["CONFIG", "SET", "appendonly", "yes"]);
    let found = diagnose(&server.url()).await;
    finds(&found, Weight::Broken, "appendfsync everysec", "appendfsync always");
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    finds(&diagnose(&server.url()).await, Weight::Broken, "allkeys-lru", "noeviction");
    server.cli(&["ACL", "SETUSER", "default", "-config"]);
    let found = diagnose(&server.url()).await;
    finds(&found, Weight::Weak, "CONFIG is not allowed", "appendfsync always");
    assert_eq!(found.worst(), Weight::Weak, "{found:#?}");
}

#[tokio::test]
async fn valkey_is_called_by_its_name() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = Redis::start_with(Flavour::Valkey, &settings).await;
    let diagnosis = diagnose(&server.url()).await;
    assert!(diagnosis.server.starts_with("Valkey "), "{}", diagnosis.server);
    assert_eq!(diagnosis.worst(), Weight::Fine, "{diagnosis:#?}");
}

#[tokio::test]
async fn a_cluster_is_looked_at_as_a_whole() {
    let cluster = RedisCluster::start().await;
    let found = diagnose(&cluster.url()).await;
    assert!(found.server.contains("3 primaries and 3 replicas"), "{}", found.server);
    finds(&found, Weight::Broken, "asynchronous", "wait_replicas");
    finds(&found, Weight::Fine, "the cluster serves all slots", "");
    let odd = &cluster.nodes()[0];
    odd.cli(&["CONFIG", "SET", "appendfsync", "no"]);
    let found = diagnose(&cluster.url()).await;
    finds(&found, Weight::Broken, &format!("(at {})", odd.address()), "appendfsync always");
}
