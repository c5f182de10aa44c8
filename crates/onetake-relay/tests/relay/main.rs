//! Relays on a real PostgreSQL, to a real NATS and to endpoints that misbehave.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod nats;
mod sharing;
mod webhooks;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::outbox::{Outbox, OutboxCounts, ParkedMessage};
use onetake_core::{SystemClock, SystemRng};
use onetake_relay::{Relay, RelayOptions, Sink};
use onetake_sim::servers::{Postgres, until};
use onetake_stores::{PostgresOptions, PostgresStore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An outbox whose rows are written as an operation's transaction writes them.
struct World {
    server: &'static Postgres,
    database: String,
    store: Arc<PostgresStore>,
}

impl World {
    async fn start() -> Self {
        Self::start_behind(|url| url).await
    }

    /// Starts a world whose relays use another URL of the store.
    async fn start_behind(way: impl FnOnce(String) -> String) -> Self {
        let server = Postgres::shared().await;
        let migrate = async |url: String| {
            PostgresStore::migrate(&url, PostgresOptions::default()).await.unwrap();
        };
        let url = server.migrated(migrate).await;
        let database = url.rsplit_once('/').unwrap().1.to_owned();
        let connect_timeout = Duration::from_secs(60);
        let options = PostgresOptions { connect_timeout, ..PostgresOptions::default() };
        let store = PostgresStore::open(&way(url), options).await.unwrap();
        Self { server, database, store: Arc::new(store) }
    }

    /// Writes messages `key/number`, each of at least `bytes` bytes.
    fn write(&self, topic: &str, keys: Range<u32>, numbers: Range<u32>, bytes: usize) {
        self.server.sql(
            &self.database,
            &format!(
                "INSERT INTO onetake_outbox (message, lane, ordering, topic, headers, payload, created_at, state_at)
                 SELECT decode(md5(random()::text), 'hex'),
                        get_byte(sha256(convert_to('key ' || key, 'UTF8')), 0) % 64, 'key ' || key, '{topic}', '',
                        convert_to(key || '/' || number || '/' || repeat('x', {bytes}), 'UTF8'), now, now
                   FROM generate_series({}, {}) AS number, generate_series({}, {}) AS key,
                        (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS clock
                  ORDER BY number, key",
                numbers.start,
                numbers.end - 1,
                keys.start,
                keys.end - 1,
            ),
        );
    }

    fn relay(&self, sink: Arc<dyn Sink>, options: RelayOptions) -> Running {
        let outbox = Arc::clone(&self.store) as Arc<dyn Outbox>;
        let (clock, rng) = (Arc::new(SystemClock), Arc::new(SystemRng));
        let relay = Relay::with(outbox, sink, clock, rng, options);
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let task = tokio::spawn(async move { relay.run(cancel).await });
        Running { stop, task }
    }

    async fn counts(&self) -> OutboxCounts {
        self.store.counts().await.unwrap()
    }

    async fn drained(&self) {
        until("everything is delivered", async || self.counts().await.waiting == 0).await;
        assert!(self.counts().await.lag.is_zero());
    }

    /// Waits until relays have had some more turns.
    async fn tried_meanwhile(&self) {
        let turns = || self.sql("SELECT last_value FROM onetake_turns").parse::<u64>().unwrap();
        let before = turns();
        until("it is tried meanwhile", async || turns() > before + 10).await;
    }

    async fn parked(&self) -> Vec<ParkedMessage> {
        self.store.parked(0, 1_000).await.unwrap()
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.database, sql)
    }
}

/// A running relay.
struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// Aborts it in the middle of its work.
    fn kill(self) {
        self.task.abort();
    }

    /// Stops it gracefully.
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// The default options with short pauses.
fn hurried() -> RelayOptions {
    RelayOptions {
        idle_poll: Duration::from_millis(10),
        backoff_min: Duration::from_millis(20),
        backoff_max: Duration::from_millis(200),
        ..RelayOptions::default()
    }
}

/// Returns the key and the number of a payload.
fn parse(payload: &[u8]) -> (u32, u32) {
    let text = std::str::from_utf8(payload).unwrap();
    let mut parts = text.split('/').map(|part| part.parse::<u32>());
    (parts.next().unwrap().unwrap(), parts.next().unwrap().unwrap())
}
