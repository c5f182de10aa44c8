//! Tests of the filter in its intended place: a real Redis in front of a real PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use onetake_conformance::{Capabilities, Shifted, many, run, run_engine};
use onetake_core::{Clock, Engine, Store, SystemClock, Terms};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::{Postgres, Redis, free_port, until};
use onetake_stores::{FilterOptions, PostgresOptions, PostgresStore};

use crate::conformance::{PATIENT, SHORT, away, over};
use crate::{filtered, redis};

/// A fresh database behind the filter at `url`, on the suite's clock.
async fn fresh(url: &str, database: String, command_timeout: Duration) -> Shifted {
    Shifted::new(|clock, shift| async move {
        let options = PostgresOptions { clock: Arc::clone(&clock), shift, ..Default::default() };
        let authority = Arc::new(opened(&database, options).await);
        (over(url, clock, authority, command_timeout).await, Box::new(()) as _)
    })
    .await
}

async fn opened(database: &str, options: PostgresOptions) -> PostgresStore {
    PostgresStore::migrate(database, options.clone()).await.unwrap();
    PostgresStore::open(database, options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filtered_postgres_store() {
    let (redis, server) = (redis().await, Postgres::shared().await);
    let url = redis.url();
    let fresh = || fresh(&url, server.database(), PATIENT);
    run(fresh, Capabilities::default()).await.assert_passed();
    run_engine(fresh, Capabilities::default()).await.assert_passed();
    let kept: usize = redis.cli(&["DBSIZE"]).parse().unwrap();
    assert!(kept > 20, "the filter took part: {kept} entries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filtered_postgres_store_without_a_redis() {
    let server = Postgres::shared().await;
    let url = format!("redis://127.0.0.1:{}", free_port());
    let fresh = || fresh(&url, server.database(), SHORT);
    run(fresh, away()).await.assert_passed();
    run_engine(fresh, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_redis_under_load_nothing_runs_twice_or_is_lost() {
    let (mut redis, server) = (redis().await, Postgres::shared().await);
    let proxy = FaultProxy::start(redis.address()).await.unwrap();
    let url = format!("redis://{}", proxy.address());
    let database = server.database();
    let mut engines = Vec::new();
    for _ in 0..2 {
        let authority = Arc::new(opened(&database, PostgresOptions::default()).await);
        let options = FilterOptions { check_every: 1, ..Default::default() };
        let store: Arc<dyn Store> = Arc::new(filtered(&url, authority, options).await);
        engines.push(Engine::new(store));
    }
    let pause = || SystemClock.sleep(Duration::from_millis(200));
    let trouble = async {
        let weathers = [Weather::Cut, Weather::CutBack, Weather::Dead, Weather::Slow(SHORT)];
        for weather in weathers {
            takes_part(&redis).await;
            proxy.set(weather);
            pause().await;
            proxy.set(Weather::Fair);
            takes_part(&redis).await;
            assert_eq!(redis.cli(&["FLUSHALL"]), "OK");
            takes_part(&redis).await;
            redis.kill();
            pause().await;
            // It is empty after the restart.
            redis.restart().await;
        }
        takes_part(&redis).await;
    };
    let tally = many::charges_under(engines, Terms::default(), 16, trouble).await;
    assert!(tally.acknowledged > 50 && tally.after >= 16, "{tally:?}");
}

/// Waits until an entry was written after the last fault.
async fn takes_part(redis: &Redis) {
    let before = redis.cli(&["DBSIZE"]);
    until("the filter takes part", async || redis.cli(&["DBSIZE"]) != before).await;
}
