//! PostgreSQL: the suite that every store passes, directly and behind PgBouncer.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests may panic")]

mod fences;
mod held_locks;
mod hostile_conditions;
mod inbox;
mod late_settlements;
mod lost_or_repeated;
mod operators;
mod outages;
mod outbox;
#[path = "../common/outbox_repair.rs"]
mod outbox_repair;
mod reaper_index;
mod refusals;
mod round_trips;
mod schema;
#[cfg(feature = "sqlx")]
mod sqlx;
mod transactions;

use std::sync::Arc;
use std::time::Duration;

use onetake_conformance::{Capabilities, Shifted, run, run_engine};
use onetake_core::{Clock, EngineError, Shift, StoreErrorKind};
use onetake_sim::servers::{PgBouncer, Postgres};
use onetake_stores::{PostgresOptions, PostgresStore};

/// A store on an empty database at `url`, with the suite's clock.
async fn store(url: &str, clock: Arc<dyn Clock>, shift: Shift) -> PostgresStore {
    let options = PostgresOptions { clock, shift, ..PostgresOptions::default() };
    PostgresStore::migrate(url, options.clone()).await.unwrap();
    PostgresStore::open(url, options).await.unwrap()
}

/// Options for a slow disk.
fn patient() -> PostgresOptions {
    let timeout = Duration::from_secs(60);
    PostgresOptions {
        connect_timeout: timeout,
        command_timeout: timeout,
        ..PostgresOptions::default()
    }
}

/// Creates a database with the store's tables, and returns its URL.
async fn migrated(server: &Postgres) -> String {
    let migrate = async |url: String| PostgresStore::migrate(&url, patient()).await.unwrap();
    server.migrated(migrate).await
}

/// A store on a database, in real time.
async fn store_on(url: &str) -> PostgresStore {
    PostgresStore::migrate(url, patient()).await.unwrap();
    PostgresStore::open(url, patient()).await.unwrap()
}

/// Returns true if another transaction holds the key. Nothing was written, and the caller tries
/// again.
fn is_busy(error: &EngineError) -> bool {
    matches!(error, EngineError::Store(error) if error.kind() == StoreErrorKind::Busy)
}

/// The duration of a race: this long, or a minute if `ONETAKE_LONG` is set.
fn long_or(short: Duration) -> Duration {
    if std::env::var_os("ONETAKE_LONG").is_some() { Duration::from_secs(60) } else { short }
}

async fn fresh(url: String) -> Shifted {
    let made = async |clock, shift| (store(&url, clock, shift).await, Box::new(()) as _);
    let subject = Shifted::new(made).await;
    subject.reopened_by(move |clock, shift| {
        let (url, options) =
            (url.clone(), PostgresOptions { clock, shift, ..PostgresOptions::default() });
        async move { PostgresStore::open(&url, options).await.unwrap() }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_store() {
    let server = Postgres::shared().await;
    run(async || fresh(migrated(server).await).await, Capabilities::default())
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_postgres_store() {
    let server = Postgres::shared().await;
    run_engine(async || fresh(migrated(server).await).await, Capabilities::default())
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_store_behind_pgbouncer() {
    let server = Postgres::shared().await;
    let bouncer = PgBouncer::start(server, "transaction", 2).await;
    let url = async || {
        let direct = migrated(server).await;
        let (_, database) = direct.rsplit_once('/').unwrap();
        server.url_at(bouncer.address(), database)
    };
    run(async || fresh(url().await).await, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_one_connection_is_enough() {
    let server = Postgres::shared().await;
    let url = async || format!("{}?connections=1", migrated(server).await);
    run(async || fresh(url().await).await, Capabilities::default()).await.assert_passed();
    run_engine(async || fresh(url().await).await, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serialization_failures_are_tried_again() {
    let server = Postgres::start_with(&["default_transaction_isolation = 'serializable'"]).await;
    run(async || fresh(migrated(&server).await).await, Capabilities::default())
        .await
        .assert_passed();
}
