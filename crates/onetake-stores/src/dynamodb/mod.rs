//! Many nodes on one DynamoDB table.
//!
//! Every write is one `PutItem` that is conditional on the very item that was looked at: its attempt
//! and its version, or that there is none. Nothing gets between a look and its deed, expiry included,
//! because what was looked at is what is written over (S12). Reads are strongly consistent.
//!
//! # Time
//!
//! DynamoDB has no clock to ask, and nobody's wall clock decides who may run:
//!
//! - **Leases.** A renewal raises the item's version. A node that has seen one version of a running
//!   item for a whole lease + grace on its own monotonic clock may take it over, on the condition that
//!   it is still that version. A node that has just started, or that was cut off, watches for a whole
//!   lease + grace first. The reaper's look ([`Store::due`]) is what keeps watching.
//! - **Asking** what became of an unknown attempt is due by the clock of whoever asks: one that is wrong asks
//!   too early or too late. Of several, one asks, as each defers first, on the condition of the version.
//! - **Expiry.** A key is reusable a margin after it expired by its owner's clock
//!   ([`DynamoOptions::skew_margin`]), so that two nodes whose clocks differ by less never disagree.
//! - **Fences** rise by one with each attempt, and are not below the clock's microseconds. Once the
//!   server has deleted an expired item, the clock alone makes them rise: this is the one place where
//!   a clock that steps back by more than the key's ttl matters.
//!
//! # The table, for people who query it
//!
//! `onetake migrate` creates it. The partition key is `id`. Times are microseconds since the Unix
//! epoch, by the clock of the node that wrote them.
//!
//! | attribute | what it holds |
//! | --- | --- |
//! | `id` | the record's id, 16 bytes |
//! | `v` | the version: raised by every write |
//! | `s` | `running`, `completed`, `failed`, `released` or `unknown` |
//! | `a` | the latest attempt, 16 bytes |
//! | `f` | the latest attempt's fence |
//! | `p` | the digest of what was asked, 32 bytes |
//! | `c` | when the key was first claimed in this life of it |
//! | `e` | when it expires; not there while it runs |
//! | `ttl` | from when on the server may delete it, in seconds; not there while it runs |
//! | `w` | one of sixteen shards; there only while it runs |
//! | `q` | one of sixteen shards; there only while it is unknown and to be reconciled |
//! | `t` | from when on somebody should ask what became of it; there only with `q` |
//! | `h` | what its reference is: the first sixty bits of the id, in eight bytes |
//! | `o` | the id once more |
//! | `r` | the whole record as onetake reads it; the others are written from it |
//!
//! A secret that was made at first use is an item of its own, with two attributes: `id`, which is
//! `onetake's secret ` and its name, and `x`, the secret.
//!
//! An entry of the audit is two items: `h` is `notes`, or `notes of ` and the id of its record; `o` is
//! its place among all others, which begins with its time; `x` is the entry.
//!
//! The index `running` has the partition key `w`, and so holds what runs and nothing else. The index `asks`
//! has the partition key `q` and the sort key `t`: what is to be reconciled and nothing else. The index
//! `found` has the partition key `h` and the sort key `o`: by it a reference leads to its record, and the
//! audit is read. Like every index of DynamoDB it is a moment behind the table. The server deletes what
//! expired by the `ttl` attribute; a sweep has nothing to do.
//!
//! # Sizes
//!
//! DynamoDB refuses items above 400 KB. A recording of more than [`RECORDING_BYTES_MAX`] bytes is kept
//! without its body: completed, not replayable. If its head alone is above that, the head is left out
//! too: that the operation ran, and must not run again, is what has to be kept.

mod client;
mod doctor;
mod error;
mod item;
mod ledger;
mod notes;
mod schema;
mod secret;
mod table;
mod url;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

use onetake_core::note::{Note, Notes};
use onetake_core::store::{
    Answers, AuditLog, Cursor, Due, DueAttempt, Page, RecordIndex, Sealing, SharedSecrets, Swept,
};
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Record, RecordId, Recording, Reference, Rng, Settled,
    Settlement, Store, StoreError, SystemClock, SystemRng,
};

use crate::Diagnosis;
use item::Seen;
use table::Table;
use url::Place;
use watch::Watch;

pub use item::RECORDING_BYTES_MAX;
pub use schema::TableChange;

/// Items of one batch that are under way at once.
const AT_ONCE_MAX: usize = 32;

/// How a table is used.
#[derive(Clone, Debug)]
pub struct DynamoOptions {
    /// Where time comes from. Requests are signed by the system's clock whatever this is.
    pub clock: Arc<dyn Clock>,
    /// Where randomness comes from: the jitter of pauses.
    pub rng: Arc<dyn Rng>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one request may take.
    pub command_timeout: Duration,
    /// How long after its expiry a key is still respected.
    ///
    /// By default ten minutes: AWS refuses requests that are signed more than five minutes off its
    /// own time (and the SDK is told not to correct that), so the clocks of two nodes that are both
    /// let in differ by ten minutes at most.
    pub skew_margin: Duration,
}

impl Default for DynamoOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(2),
            skew_margin: Duration::from_secs(600),
        }
    }
}

/// The DynamoDB store.
#[derive(Debug)]
pub struct DynamoStore {
    table: Table,
    options: DynamoOptions,
    watch: Watch,
    /// What this node was granted and has not settled, as it was last written: saves a read before a
    /// settlement. It may be out of date; the write's condition tells.
    own: Mutex<HashMap<RecordId, Seen>>,
}

impl DynamoStore {
    /// Connects to a table: `dynamodb://REGION/TABLE`, and `?endpoint=https://…` for another server
    /// than AWS's own.
    ///
    /// Credentials come from where AWS's tools look for them. Behind an `http://` endpoint (a server
    /// of one's own) only the environment and profiles count, and none are needed.
    ///
    /// # Errors
    /// `Invalid` if the URL is not one, there are no credentials, or the table is missing or of
    /// another shape; `Unavailable` if it cannot be reached.
    pub async fn open(url: &str, options: DynamoOptions) -> Result<Self, StoreError> {
        let place = Place::parse(url)?;
        let client = client::connect(&place, &options).await?;
        let table = Table::new(client, place, &options);
        schema::check(&table).await?;
        Ok(Self { table, options, watch: Watch::default(), own: Mutex::default() })
    }

    /// Creates the table if it is not there, or the indexes that a table of an earlier version lacks.
    ///
    /// # Errors
    /// As [`open`](Self::open); a table of another shape is left as it is.
    pub async fn migrate(url: &str, options: DynamoOptions) -> Result<TableChange, StoreError> {
        let place = Place::parse(url)?;
        let client = client::connect(&place, &options).await?;
        schema::migrate(&Table::new(client, place, &options)).await
    }

    /// Looks at what the promise rests on.
    ///
    /// # Errors
    /// If the table cannot be asked.
    pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        doctor::diagnose(&self.table, &self.options).await
    }
}

/// Answers each item, many at once; those with the same id one after the other.
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
        // The server deletes what expired.
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
    fn note(&self, note: Note) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { notes::write(&self.table, &note).await }.boxed()
    }

    fn notes(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Notes, StoreError>> {
        notes::read(&self.table, of, from, limit).boxed()
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
