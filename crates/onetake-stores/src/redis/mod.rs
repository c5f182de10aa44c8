//! The Redis store: many nodes on one Redis, Valkey or Redis Cluster.
//!
//! Each claim, settlement and read is one run of a Lua script, which decides by the server's clock
//! and changes one record. All items of a batch are sent in one pipeline for each server. The
//! server expires finished records. A running record never expires. A script uses more than one
//! key, but they always share one slot: see `scripts.rs` for their content.
//!
//! **Warning:** Redis is not durable enough to be the only store for payments. It acknowledges a
//! write before its replicas have it, so a failover loses acknowledged writes, and their operations
//! can run again. With `appendfsync always` a single server keeps everything through a crash.
//! `wait_replicas` makes the loss in a failover less likely but does not exclude it.
//! [`RedisStore::diagnose`] checks the settings.

mod audit;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod diagnose;
pub(crate) mod errors;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod leases;
mod node;
mod nodes;
mod pages;
mod record;
mod scripts;
mod slots;
pub(crate) mod url;
mod velocity;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::audit::{AuditEntry, AuditPage};
use onetake_core::codec::DecodeError;
use onetake_core::store::{
    Answers, AuditLog, Cursor, Due, DueAttempt, FOUND_MAX, Page, RecordIndex, Sealing,
    SharedSecrets, Swept,
};
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Fence, Record, RecordId, Recording, Reference, Rng, Settled,
    Settlement, Shift, Store, StoreError, StoreErrorKind, SystemClock, SystemRng,
};
use redis::Value;

use crate::Diagnosis;
use command::{RedisCommand, Replicas};
use connection::{Connection, ConnectionOptions};
use errors::wrote_nothing;
use record::ScriptReply;
use scripts::Scripts;
use url::Address;

pub use velocity::RedisVelocity;

/// The options that a URL may have.
const URL_OPTIONS: &[&str] = &["wait_replicas", "wait_timeout"];
/// The largest number of entries that one sweep checks.
const TRIM_MAX: usize = 1_000;

/// The options of a Redis store.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The clock for timeouts and pauses. The server's clock decides about records.
    pub clock: Arc<dyn Clock>,
    /// The source of jitter.
    pub rng: Arc<dyn Rng>,
    /// Time that has passed only in a test.
    #[doc(hidden)]
    pub shift: Shift,
    /// The prefix of all keys, so that tests can share a server.
    #[doc(hidden)]
    pub prefix: String,
    /// The timeout of connecting.
    pub connect_timeout: Duration,
    /// The timeout of an answer.
    pub command_timeout: Duration,
    /// The number of replicas that must have a write, or the result of a read, before it counts; 0
    /// does not wait for replicas. While fewer replicas are connected, nothing is granted, settled
    /// or read. In the URL: `?wait_replicas=1`.
    pub wait_replicas: u32,
    /// The longest wait for the replicas. In the URL: `&wait_timeout=100ms`.
    pub wait_timeout: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            shift: Shift::default(),
            prefix: "onetake".to_owned(),
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(2),
            wait_replicas: 0,
            wait_timeout: Duration::from_millis(100),
        }
    }
}

/// A store of records in Redis.
#[derive(Debug)]
pub struct RedisStore {
    connection: Connection,
    scripts: Scripts,
    replicas: Option<Replicas>,
}

impl RedisStore {
    /// Connects to `redis://[user:password@]host[:port][/db]`, `rediss://…` (TLS, verified with the
    /// system's roots, or only with those of `?sslrootcert=FILE`),
    /// `redis-cluster://host[:port],host[:port]` or `rediss-cluster://…`. Options in the URL
    /// override those given here.
    ///
    /// # Errors
    /// If the URL is wrong, the password is refused, or no server answers.
    pub async fn open(url: &str, options: RedisOptions) -> Result<Self, StoreError> {
        let (address, query) = Address::parse(url, URL_OPTIONS)?;
        let mut replicas = Replicas { count: options.wait_replicas, within: options.wait_timeout };
        for (name, value) in &query {
            match name.as_str() {
                "wait_replicas" => replicas.count = url::number(name, value)?,
                _ => replicas.within = url::duration(name, value)?,
            }
        }
        let connection = Connection::new(
            address,
            ConnectionOptions {
                store: "the Redis store",
                clock: options.clock,
                rng: options.rng,
                connect_timeout: options.connect_timeout,
                command_timeout: options.command_timeout,
                in_background: false,
                scripts: Scripts::texts().to_vec(),
                asks_time: Some(options.shift.clone()),
            },
        );
        connection.connect().await?;
        let scripts = Scripts::new(options.prefix, options.shift);
        let replicas = (replicas.count > 0).then_some(replicas);
        let store = Self { connection, scripts, replicas };
        store.try_out().await?;
        Ok(store)
    }

    /// Checks for settings by which operations could be lost or repeated.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        diagnose::diagnose(&self.connection, self.replicas).await
    }

    /// Rejects an unsuitable server now instead of at the first request: a node of a cluster under
    /// a single-server URL, or a user without permission to run scripts.
    async fn try_out(&self) -> Result<(), StoreError> {
        let answers = self.connection.run(&self.scripts.due(Due::LeaseEnd, 1), None).await;
        let some_work = answers.iter().any(Result::is_ok);
        let fatal = |error: &StoreError| error.kind() == StoreErrorKind::Invalid || !some_work;
        answers.into_iter().filter_map(Result::err).find(fatal).map_or(Ok(()), Err)
    }
}

impl Store for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let commands: Vec<_> = batch.iter().map(|claim| self.scripts.claim(claim)).collect();
            let answers = self.connection.run(&commands, self.replicas).await;
            let read = |(claim, answer): (&Claim, _)| {
                decoded(&self.scripts, claim.id, read_claimed(claim.id, answer?))
            };
            batch.iter().zip(answers).map(read).collect()
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            let (commands, sent): (Vec<RedisCommand>, Vec<Bytes>) =
                batch.iter().map(|settlement| self.scripts.settle(settlement)).unzip();
            let answers = self.connection.run(&commands, self.replicas).await;
            let read = |((settlement, sent), answer): ((&Settlement, &Bytes), _)| {
                let id = settlement.id;
                decoded(&self.scripts, id, read_settled(id, sent, answer?))
            };
            batch.iter().zip(&sent).zip(answers).map(read).collect()
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            let commands: Vec<_> = ids.iter().map(|id| self.scripts.load(*id)).collect();
            // Waits for replicas too. A caller that reads again after a write that too few replicas
            // had must not treat the write as done.
            let answers = self.connection.run(&commands, self.replicas).await;
            let read = |(id, answer): (&RecordId, Result<Value, StoreError>)| {
                decoded(&self.scripts, *id, read_loaded(*id, answer.map_err(wrote_nothing)?))
            };
            ids.iter().zip(answers).map(read).collect()
        }
        .boxed()
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        match which {
            Due::LeaseEnd => {
                async move {
                    let due = self.due_ids(Due::LeaseEnd, limit).await?;
                    let (running, stale) = self.look(due).await;
                    // Stale entries could otherwise hide others for ever.
                    self.trim(&stale).await;
                    Ok(running)
                }
                .boxed()
            }
            Due::Reconcile => async move {
                let due = self.due_ids(Due::Reconcile, limit).await?;
                let (asked_for, stale) = self.look_for_asks(due).await;
                self.trim(&stale).await;
                Ok(asked_for)
            }
            .boxed(),
        }
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        async move {
            // The server deletes expired records. The sweep removes leases of records that another
            // program deleted, reconcile entries of expired records, and notes whose retention has
            // ended.
            let due = self.due_ids(Due::LeaseEnd, limit.min(TRIM_MAX)).await?;
            let (_, stale) = self.look(due).await;
            self.trim(&stale).await;
            let due = self.due_ids(Due::Reconcile, limit.min(TRIM_MAX)).await?;
            let (_, stale) = self.look_for_asks(due).await;
            self.trim(&stale).await;
            audit::delete_old(&self.connection, &self.scripts, limit).await?;
            Ok(Swept::default())
        }
        .boxed()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { diagnose::ping(&self.connection).await }.boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.connection.close();
        std::future::ready(Ok(())).boxed()
    }
}

impl RecordIndex for RedisStore {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        pages::page(&self.connection, &self.scripts, from, limit).boxed()
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        async move {
            let find = [self.scripts.find(reference)];
            let answer = self.connection.run(&find, None).await.pop().transpose();
            Ok(read_found(answer.map_err(wrote_nothing)?))
        }
        .boxed()
    }
}

impl AuditLog for RedisStore {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let write = [audit::write(&self.scripts, &entry)];
            self.connection.run(&write, self.replicas).await.pop().transpose().map(drop)
        }
        .boxed()
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        audit::read(&self.connection, &self.scripts, of, from, limit).boxed()
    }
}

impl SharedSecrets for RedisStore {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        async move {
            let command = [self.scripts.secret(name, &fresh)];
            // Waits for replicas also if the secret exists. A caller that got it must never get
            // another one.
            let mut answers = self.connection.run(&command, self.replicas).await;
            match answers.pop().transpose()? {
                Some(Value::BulkString(found)) => {
                    found.as_slice().try_into().map_err(|_| StoreError::damaged_secret(name))
                }
                _ => Err(StoreError::damaged_secret(name)),
            }
        }
        .boxed()
    }
}

impl Sealing for RedisStore {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}

fn read_claimed(id: RecordId, answer: Value) -> Result<Claimed, DecodeError> {
    let mut answer = ScriptReply::read(answer)?;
    if answer.word == scripts::GRANTED {
        return Ok(Claimed::Granted { fence: Fence::new(answer.number("fence")?) });
    }
    let (now, record) = answer.record(id, &Bytes::new())?;
    Ok(Claimed::Found { record: Arc::new(record), now })
}

fn read_settled(id: RecordId, sent: &Bytes, answer: Value) -> Result<Settled, DecodeError> {
    let answer = ScriptReply::read(answer)?;
    let done = answer.word == scripts::DONE;
    if !done && answer.is_empty() {
        return Ok(Settled::Stale { current: None });
    }
    let (now, record) = answer.record(id, sent)?;
    let record = Arc::new(record);
    Ok(if done { Settled::Done { record, now } } else { Settled::Stale { current: Some(record) } })
}

fn read_loaded(id: RecordId, answer: Value) -> Result<Option<Arc<Record>>, DecodeError> {
    let answer = ScriptReply::read(answer)?;
    if answer.word == scripts::ABSENT {
        return Ok(None);
    }
    let (_, record) = answer.record(id, &Bytes::new())?;
    Ok(Some(Arc::new(record)))
}

/// Reads ids. Each is stored with the digits of its end time; `record.lua` writes them.
fn read_found(answer: Option<Value>) -> Vec<RecordId> {
    let Some(Value::BulkString(found)) = answer else { return Vec::new() };
    let id = |entry: &[u8]| entry.first_chunk().copied().map(RecordId::from_bytes);
    found.chunks(32).filter_map(id).take(FOUND_MAX).collect()
}

/// Converts the error of an unreadable record. It affects this record alone (S21).
fn decoded<T>(
    scripts: &Scripts,
    id: RecordId,
    read: Result<T, DecodeError>,
) -> Result<T, StoreError> {
    read.map_err(|error| {
        let key = scripts.record(id);
        let what = format!("the key {key} is damaged, or written by a newer onetake ({error})");
        StoreError::new(StoreErrorKind::Invalid, what).with_source(error)
    })
}
