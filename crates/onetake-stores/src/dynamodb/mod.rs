//! The DynamoDB store: many nodes on one table.
//!
//! Every write is one `PutItem` that is conditional on the item that was read: on its attempt and
//! version, or on its absence. So nothing changes between a decision and its write, not even by
//! expiry (S12). Reads are strongly consistent.
//!
//! # Time
//!
//! DynamoDB has no clock that can be read, and no wall clock decides which attempt may run:
//!
//! - **Leases.** A renewal raises the item's version. A node may take over a running item if it has
//!   seen the same version for a whole lease + grace on its own monotonic clock, and if the item
//!   still has that version. A node that has just started, or that was cut off, watches for a whole
//!   lease + grace first. The reaper's calls of [`Store::due`] keep the watch going.
//! - **Reconciliation** of an unknown attempt is due by the clock of the node that does it. A wrong
//!   clock makes it too early or too late. Only one of several nodes does it, because each first
//!   postpones the record, on the condition of its version.
//! - **Expiry.** A key is reusable a margin after it expired by its owner's clock
//!   ([`DynamoOptions::skew_margin`]), so that two nodes whose clocks differ by less always agree.
//! - **Fences** rise by one with each attempt, and are not below the clock's microseconds. After
//!   the server has deleted an expired item, only the clock makes them rise. This is the one place
//!   where a clock that steps back by more than the key's ttl matters.
//!
//! # The table, for queries
//!
//! `onetake migrate` creates it. The partition key is `id`. Times are microseconds since the Unix
//! epoch, by the clock of the node that wrote them.
//!
//! | attribute | content |
//! | --- | --- |
//! | `id` | the record's id, 16 bytes |
//! | `v` | the version: raised by every write |
//! | `s` | `running`, `completed`, `failed`, `released` or `unknown` |
//! | `a` | the latest attempt, 16 bytes |
//! | `f` | the latest attempt's fence |
//! | `p` | the digest of the request, 32 bytes |
//! | `c` | the first claim of the key since it last expired |
//! | `e` | the expiry; absent while it runs |
//! | `ttl` | the time from which the server may delete it, in seconds; absent while it runs |
//! | `w` | one of sixteen shards; only while it runs |
//! | `q` | one of sixteen shards; only while it is unknown and to be reconciled |
//! | `t` | the time of the next reconciliation; only with `q` |
//! | `h` | its reference: the first sixty bits of the id, in eight bytes |
//! | `o` | the id once more |
//! | `r` | the whole record as onetake reads it; the others are written from it |
//!
//! A secret is created at first use. It is an item with two attributes: `id`, which is
//! `onetake's secret ` and its name, and `x`, the secret.
//!
//! An audit entry is two items: `h` is `entries`, or `entries of ` and the id of its record; `o` is
//! its place among the others, which begins with its time; `x` is the entry.
//!
//! The index `running` has the partition key `w`, and so contains only running records. The index
//! `asks` has the partition key `q` and the sort key `t`, and contains only records that are to be
//! reconciled. The index `found` has the partition key `h` and the sort key `o`: it leads from a
//! reference to its record, and is used to read the audit. Every index of DynamoDB is a moment
//! behind the table. The server deletes expired items by the `ttl` attribute, so a sweep has
//! nothing to do.
//!
//! # Sizes
//!
//! DynamoDB rejects items above 400 KB. A recording of more than [`RECORDING_BYTES_MAX`] bytes is
//! stored without its body: completed, not replayable. If its head alone is above that, the head is
//! left out too. The record still says that the operation ran and must not run again.

mod audit;
mod client;
mod doctor;
mod error;
mod item;
mod schema;
mod secret;
mod table;
mod transitions;
mod url;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

use onetake_core::audit::{AuditEntry, AuditPage};
use onetake_core::store::{
    Answers, AuditLog, Cursor, Due, DueAttempt, Page, RecordIndex, Sealing, SharedSecrets, Swept,
};
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Record, RecordId, Recording, Reference, Rng, Settled,
    Settlement, Store, StoreError, SystemClock, SystemRng,
};

use crate::Diagnosis;
use item::VersionedRecord;
use table::Table;
use url::TableLocation;
use watch::Watch;

pub use item::RECORDING_BYTES_MAX;
pub use schema::TableChange;

/// The number of items of one batch that are in progress at once.
const AT_ONCE_MAX: usize = 32;

/// The options of a DynamoDB store.
#[derive(Clone, Debug)]
pub struct DynamoOptions {
    /// The clock. Requests are always signed by the system's clock.
    pub clock: Arc<dyn Clock>,
    /// The source of jitter.
    pub rng: Arc<dyn Rng>,
    /// The timeout of connecting.
    pub connect_timeout: Duration,
    /// The timeout of one request.
    pub command_timeout: Duration,
    /// The time after its expiry for which a key is still not reusable.
    ///
    /// By default ten minutes: AWS rejects requests whose signature is more than five minutes off
    /// its own time (and the SDK does not correct that), so the clocks of two accepted nodes differ
    /// by at most ten minutes.
    pub skew_margin: Duration,
}

impl Default for DynamoOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(2),
            skew_margin: crate::url::DYNAMODB_SKEW_MAX,
        }
    }
}

/// The DynamoDB store.
#[derive(Debug)]
pub struct DynamoStore {
    table: Table,
    options: DynamoOptions,
    watch: Watch,
    /// The items of this node's running attempts, as they were last written. They save a read
    /// before a settlement. An item may be out of date; the write's condition detects that.
    own: Mutex<HashMap<RecordId, VersionedRecord>>,
}

impl DynamoStore {
    /// Connects to a table: `dynamodb://REGION/TABLE`, with `?endpoint=https://…` for a server that
    /// is not AWS's.
    ///
    /// Credentials come from the same sources as those of AWS's tools. For an `http://` endpoint
    /// only the environment and profiles are used, and no credentials are needed.
    ///
    /// # Errors
    /// `Invalid` if the URL is wrong, there are no credentials, or the table is missing or has
    /// another shape; `Unavailable` if the server is unreachable.
    pub async fn open(url: &str, options: DynamoOptions) -> Result<Self, StoreError> {
        let place = TableLocation::parse(url)?;
        let client = client::connect(&place, &options).await?;
        let table = Table::new(client, place, &options);
        schema::check(&table).await?;
        Ok(Self { table, options, watch: Watch::default(), own: Mutex::default() })
    }

    /// Creates the table if it does not exist, or the indexes that a table of an earlier version
    /// lacks.
    ///
    /// # Errors
    /// As [`open`](Self::open). A table of another shape is not changed.
    pub async fn migrate(url: &str, options: DynamoOptions) -> Result<TableChange, StoreError> {
        let place = TableLocation::parse(url)?;
        let client = client::connect(&place, &options).await?;
        schema::migrate(&Table::new(client, place, &options)).await
    }

    /// Checks for settings by which operations could be lost or repeated.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        doctor::diagnose(&self.table, &self.options).await
    }
}

/// Answers each item, many at once. Items with the same id are answered one after the other.
async fn each<'a, T, R>(
    batch: Vec<T>,
    id: fn(&T) -> RecordId,
    one: impl Fn(T) -> BoxFuture<'a, Result<R, StoreError>>,
) -> Answers<R> {
    let mut of_one_id: HashMap<RecordId, Vec<(usize, T)>> = HashMap::new();
    for (at, item) in batch.into_iter().enumerate() {
        of_one_id.entry(id(&item)).or_default().push((at, item));
    }
    let one = &one;
    let answers = of_one_id.into_values().map(|items| async move {
        let mut answers = Vec::with_capacity(items.len());
        for (at, item) in items {
            answers.push((at, one(item).await));
        }
        answers
    });
    let answers = futures_util::stream::iter(answers).buffer_unordered(AT_ONCE_MAX);
    let mut answers: Vec<_> = answers.collect::<Vec<_>>().await.into_iter().flatten().collect();
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

impl Store for DynamoStore {
    fn name(&self) -> &'static str {
        "dynamodb"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        each(batch, |claim| claim.id, |claim| self.claim_one(claim).boxed()).boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        each(batch, |item| item.id, |item| self.settle_one(item).boxed()).boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.load_all(ids).boxed()
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        match which {
            Due::LeaseEnd => self.look_for_abandoned(limit).boxed(),
            Due::Reconcile => self.look_for_unsettled(limit).boxed(),
        }
    }

    fn sweep(&self, _limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        // The server deletes expired items.
        std::future::ready(Ok(Swept::default())).boxed()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { self.table.read(RecordId::from_bytes([0; RecordId::BYTES])).await.map(drop) }
            .boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }
}

impl RecordIndex for DynamoStore {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.table.page(from, limit).boxed()
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        self.table.find(reference).boxed()
    }
}

impl AuditLog for DynamoStore {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { audit::write(&self.table, &entry).await }.boxed()
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        audit::read(&self.table, of, from, limit).boxed()
    }
}

impl SharedSecrets for DynamoStore {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        secret::keep(&self.table, name, fresh).boxed()
    }
}

impl Sealing for DynamoStore {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}
