//! Velocity limits that many nodes count together.
//!
//! Each limit is one run of one script on one key, by the server's clock, on Redis Cluster too.
//! `onetake:velocity:<digest>` contains the used part of the limit and expires when nothing of it
//! is used. A node that cannot reach the server counts by itself, so no request waits for an
//! unreachable server, and nothing here has to be durable.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::{Rate, SharedVelocity, Shift, StoreError, StoreErrorKind, VelocityDecision};
use redis::Value;

use super::RedisOptions;
use super::command::RedisCommand;
use super::connection::{Connection, ConnectionOptions};
use super::url::Address;

// The words of the script. Any other word than `TAKE` gives back.
const TAKE: &str = "take";
const GIVE_BACK: &str = "give back";
/// The longest timeout of an answer. Every new operation waits for it.
const PATIENCE_MAX: Duration = Duration::from_millis(100);

/// A counter in Redis, Valkey or Redis Cluster.
#[derive(Debug)]
pub struct RedisVelocity {
    connection: Connection,
    script: redis::Script,
    prefix: String,
    shift: Shift,
}

impl RedisVelocity {
    /// Connects to the same URLs as [`RedisStore::open`](super::RedisStore::open), and keeps trying
    /// in the background. An answer may take at most 100 ms, whatever the options are. Replicas are
    /// not waited for.
    ///
    /// # Errors
    /// If the URL is wrong.
    pub async fn open(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        let script = script();
        let (address, _waits) = Address::parse(url, super::URL_OPTIONS)?;
        let connection = Connection::new(
            address,
            ConnectionOptions {
                store: "the Redis server for velocity limits",
                clock: options.clock,
                rng: options.rng,
                connect_timeout: options.connect_timeout,
                command_timeout: options.command_timeout.min(PATIENCE_MAX),
                in_background: true,
                scripts: vec![script.clone()],
                asks_time: None,
            },
        );
        if let Err(error) = connection.connect().await {
            tracing::warn!(%error, "each node counts velocity limits alone until Redis is reachable");
        }
        let script = redis::Script::new(&script);
        Ok(Self { connection, script, prefix: options.prefix, shift: options.shift })
    }

    /// Returns how long to wait, or zero if it was done.
    async fn run(
        &self,
        transition: &'static str,
        key: [u8; 32],
        rate: Rate,
    ) -> Result<Duration, StoreError> {
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = format!("{}:velocity:{hex}", self.prefix);
        let micros = rate.per().as_secs_f64() * 1e6 / f64::from(rate.count().get());
        let command = RedisCommand::on(key.as_bytes(), "EVALSHA")
            .arg(self.script.get_hash().to_owned())
            .arg("1")
            .arg(key)
            .arg(self.shift.as_micros().to_string())
            .arg(transition)
            .arg(format!("{micros:.3}"))
            .arg(rate.count().to_string());
        match self.connection.run(&[command], None).await.pop() {
            Some(answer) => read_wait(&answer?),
            None => Err(StoreError::new(StoreErrorKind::Indeterminate, "Redis did not reply")),
        }
    }
}

/// The script, after the constants that it shares with Rust.
fn script() -> String {
    format!("local TAKE = '{TAKE}'\n{}", include_str!("scripts/velocity.lua"))
}

fn read_wait(answer: &Value) -> Result<Duration, StoreError> {
    let wait = match answer {
        Value::BulkString(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok())
        }
        _ => None,
    };
    wait.map(Duration::from_micros).ok_or_else(|| {
        let what = "the reply of Redis to a velocity script is not a number";
        StoreError::new(StoreErrorKind::Invalid, what)
    })
}

impl SharedVelocity for RedisVelocity {
    fn take(
        &self,
        key: [u8; 32],
        rate: Rate,
    ) -> BoxFuture<'_, Result<VelocityDecision, StoreError>> {
        async move {
            let retry_after = self.run(TAKE, key, rate).await?;
            let refused = VelocityDecision::Refused { retry_after };
            Ok(if retry_after.is_zero() { VelocityDecision::Allowed } else { refused })
        }
        .boxed()
    }

    fn give_back(&self, key: [u8; 32], rate: Rate) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { self.run(GIVE_BACK, key, rate).await.map(drop) }.boxed()
    }
}
