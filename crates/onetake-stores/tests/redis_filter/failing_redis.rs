//! Tests of a Redis that dies, hangs, loses data or goes back in time. It costs time, and nothing
//! else (S11).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onetake_core::{Clock, MemoryStore, Store, SystemClock};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Flavour, Redis, RedisCluster, until};
use onetake_stores::FilterOptions;

use crate::counted_authority::Watched;
use crate::{
    SECRET, claim, claim_of, completed, filtered, found, one_run_each, patient, place, redis,
    written,
};

/// Three nodes on one authority behind one Redis, as in production except that every answer is
/// compared.
async fn nodes(url: &str) -> Vec<Arc<dyn Store>> {
    let authority: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut nodes: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..3 {
        let options = FilterOptions { check_every: 1, ..FilterOptions::default() };
        nodes.push(Arc::new(filtered(url, Arc::clone(&authority), options).await));
    }
    nodes
}

/// Runs races during `fault`, until it has happened `times` times.
async fn races_beside(url: &str, times: usize, mut fault: impl AsyncFnMut(usize)) {
    let nodes = nodes(url).await;
    let turn = Arc::new(AtomicUsize::new(0));
    let turns = Arc::clone(&turn);
    let races = tokio::spawn(async move {
        let mut round = 0;
        while turns.load(Ordering::SeqCst) < times {
            one_run_each(&nodes, &format!("round-{round}"), 30, 60).await;
            round += 1;
        }
    });
    while !races.is_finished() {
        fault(turn.fetch_add(1, Ordering::SeqCst)).await;
    }
    races.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_twice_on_a_redis_that_is_killed_and_started_again() {
    let mut redis = redis().await;
    races_beside(&redis.url(), 8, async |_| {
        redis.kill();
        SystemClock.sleep(Duration::from_millis(20)).await;
        redis.restart().await;
        SystemClock.sleep(Duration::from_millis(50)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_twice_on_a_redis_that_is_flushed_and_rolled_back() {
    // Flushed, or restored from an earlier snapshot, with entries under wrong keys.
    let redis = Redis::start_with(Flavour::Redis, &["--enable-debug-command", "yes"]).await;
    races_beside(&redis.url(), 100, async |turn| {
        let said = match turn % 4 {
            0 => redis.cli(&["SAVE"]),
            1 => redis.cli(&["FLUSHALL"]),
            // Loads the last snapshot and drops everything since.
            2 => redis.cli(&["DEBUG", "RELOAD", "NOSAVE"]),
            _ => redis.cli(&[
                "EVAL",
                "local k = redis.call('KEYS', 'onetake:f:*') \
                 for i = 2, #k do redis.call('COPY', k[i - 1], k[i], 'REPLACE') end return 'OK'",
                "0",
            ]),
        };
        assert_eq!(said, "OK", "turn {turn}");
        SystemClock.sleep(Duration::from_millis(5)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_twice_in_any_weather() {
    let redis = redis().await;
    let proxy = FaultProxy::start(redis.address()).await.unwrap();
    let weathers = [
        Weather::Fair,
        Weather::Cut,
        Weather::Fair,
        Weather::CutBack,
        Weather::Slow(Duration::from_millis(60)),
        Weather::Fair,
        Weather::Dead,
    ];
    races_beside(&format!("redis://{}", proxy.address()), 50, async |turn| {
        proxy.set(weathers[turn % weathers.len()]);
        SystemClock.sleep(Duration::from_millis(30)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_twice_on_a_cluster_that_loses_a_primary() {
    let mut cluster = RedisCluster::start().await;
    let url = cluster.url();
    // Long enough for its replica to take over.
    races_beside(&url, 250, async |turn| {
        if turn == 3 {
            cluster.nodes_mut()[0].kill();
        }
        SystemClock.sleep(Duration::from_millis(20)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_replica_behind_a_cut_link_costs_nothing_but_time() {
    // The replica gets only the first entries. Then the nodes talk to it.
    let (primary, replica) = (redis().await, redis().await);
    let link = FaultProxy::start(primary.address()).await.unwrap();
    let port = link.address().port().to_string();
    replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let authority = Watched::new();
    let before = filtered(&primary.url(), authority.clone(), patient()).await;
    completed(&before, "early", "early").await;
    written(&replica, "early").await;
    link.set(Weather::Cut);
    completed(&before, "late", "late").await;
    written(&primary, "late").await;
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let after = filtered(&replica.url(), authority.clone(), patient()).await;
    for key in ["early", "late"] {
        let record = found(&after, &claim_of(key, "pay")).await;
        assert_eq!(crate::body(&record), key.as_bytes());
    }
    assert_eq!(authority.claims.load(Ordering::SeqCst), 3, "two runs, and one question");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_comes_back_by_itself() {
    let redis = redis().await;
    let proxy = FaultProxy::start(redis.address()).await.unwrap();
    let authority = Watched::new();
    let url = format!("redis://{}", proxy.address());
    let store = filtered(&url, authority.clone(), FilterOptions::default()).await;
    completed(&store, "a", "paid").await;
    // A later request writes an entry again that was lost.
    until("the entry is written", async || {
        found(&store, &claim_of("a", "pay")).await;
        redis.cli(&["EXISTS", &place("a")]) == "1"
    })
    .await;
    for weather in [Weather::Dead, Weather::Cut] {
        proxy.set(weather);
        for _ in 0..20 {
            found(&store, &claim_of("a", "pay")).await;
        }
        store.ready().await.unwrap();
        proxy.set(Weather::Fair);
        until("the filter answers again", async || {
            let before = authority.claims.load(Ordering::SeqCst);
            found(&store, &claim_of("a", "pay")).await;
            authority.claims.load(Ordering::SeqCst) == before
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_away_at_the_start_is_found_later() {
    let (redis, cluster) = (redis().await, RedisCluster::start().await);
    for (scheme, server) in
        [("redis", redis.address()), ("redis-cluster", cluster.nodes()[0].address())]
    {
        let proxy = FaultProxy::start(server).await.unwrap();
        proxy.set(Weather::Dead);
        let authority = Watched::new();
        let url = format!("{scheme}://{}", proxy.address());
        let store = filtered(&url, authority.clone(), FilterOptions::default()).await;
        completed(&store, "a", "paid").await;
        for _ in 0..20 {
            found(&store, &claim_of("a", "pay")).await;
        }
        proxy.set(Weather::Fair);
        until("the filter answers", async || {
            let before = authority.claims.load(Ordering::SeqCst);
            found(&store, &claim_of("a", "pay")).await;
            authority.claims.load(Ordering::SeqCst) == before
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_is_waited_for_a_few_times_at_most() {
    let redis = redis().await;
    let proxy = FaultProxy::start(redis.address()).await.unwrap();
    let authority = Watched::new();
    // Each wait would be a minute: the test ends only if no caller waits.
    let clock = Arc::new(onetake_core::ManualClock::default());
    let options = FilterOptions {
        clock: clock.clone(),
        command_timeout: Duration::from_secs(60),
        ..FilterOptions::default()
    };
    let url = format!("redis://{}", proxy.address());
    let store = onetake_stores::FilteredStore::open(&url, SECRET, authority.clone(), options)
        .await
        .unwrap();
    let store = Arc::new(store);
    claim(&*store, &claim_of("warm", "pay")).await;
    let connections = proxy.connections();
    proxy.set(Weather::Cut);

    let waiting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { claim(&*store, &claim_of("first", "pay")).await })
    };
    until("the first one waits", async || clock.sleepers() > 0).await;
    clock.advance(Duration::from_secs(60));
    waiting.await.unwrap();
    // Later requests are answered without any wait.
    for number in 0..200 {
        claim(&*store, &claim_of(&format!("key-{number}"), "pay")).await;
    }
    let tried = proxy.connections() - connections;
    assert!(tried <= 1, "one tries for all: {tried}");
}
