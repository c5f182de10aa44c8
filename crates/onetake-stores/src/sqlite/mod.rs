//! The SQLite store: one node, one file that any SQLite tool can read.
//!
//! One thread owns the connection. It takes all claims, settlements and sweeps that arrived while
//! it committed the last group. It decides them one after the other inside one `BEGIN IMMEDIATE`
//! transaction, commits, and only then answers (S5, S6). The file is in WAL mode with
//! `synchronous=FULL`: a commit is on disk when it returns.
//!
//! Several processes of one machine may open the same file. The transaction holds SQLite's write
//! lock from its first read, so no other process writes between a decision and its write. The
//! processes share the machine's clock. Opening the file makes nothing unknown, because other
//! processes may still run attempts; leases simply end. Network filesystems are not supported:
//! SQLite's locks and its shared memory do not work there.
//!
//! # Damage
//!
//! SQLite has no checksums of its pages. Each record, secret and audit entry has its own checksum,
//! which is verified when the row is read; a row that fails is refused. When the file is opened,
//! the write-ahead log is checked, and so is every page of a file of up to 64 MiB
//! (`PRAGMA integrity_check`). In a larger file, opening does not detect a damaged index: run the
//! pragma before you trust a file that was damaged.
//!
//! # The table, for SQL queries
//!
//! `onetake_records`, one row for each key. Times are microseconds since the Unix epoch.
//!
//! | column | content |
//! | --- | --- |
//! | `id` | the record's id, 16 bytes |
//! | `state` | `running`, `completed`, `failed`, `released` or `unknown` |
//! | `attempt` | the latest attempt, 16 bytes |
//! | `fence` | the latest attempt's fence |
//! | `fingerprint` | the digest of the request, 32 bytes |
//! | `created_at` | the first claim of the key since it last expired |
//! | `settled_at` | the time of the change to the current state; null while it runs |
//! | `expires_at` | the time from which it may be deleted; null while it runs |
//! | `lease_until` | the end of the lease, before grace; null unless it runs |
//! | `abandoned_at` | the end of lease and grace; null unless it runs |
//! | `ask_at` | the time of the next reconciliation; null unless it is unknown and to be reconciled |
//! | `record` | the whole record as onetake reads it; the other columns are written from it |
//! | `checksum` | XXH3 of `id` and `record`; null if an earlier version wrote the row |
//!
//! `onetake_meta` holds `swept_fence`: the highest fence of any swept record, so that fences rise
//! across a sweep too (S2). `onetake_secrets` holds secrets that were created at first use.
//! `onetake_notes` is the audit: `place` (8 bytes of time, then 16 random bytes), `id` (the
//! record's), and `said` (the entry, encoded). `onetake_outbox` and `onetake_lanes` are as in
//! PostgreSQL.

mod audit;
mod committer;
mod doctor;
mod error;
mod finish;
mod outbox;
mod parked;
mod recovery;
mod schema;
mod table;
mod transactional;
mod transitions;
mod turns;
mod wal_check;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::Connection;
use tokio::sync::oneshot;

use onetake_core::audit::{AuditEntry, AuditPage, AuditPosition};
use onetake_core::store::{
    Answers, AuditLog, Cursor, Due, DueAttempt, FOUND_MAX, Page, RecordIndex, Sealing,
    SharedSecrets, Swept,
};
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Record, RecordId, Recording, Reference, Settled, Settlement,
    Store, StoreError, StoreErrorKind, SystemClock, Timestamp,
};

use crate::Diagnosis;
use crate::thread::{StoreThread, each};
use committer::{Committer, SqliteJob};
use error::{During, refused};
use schema::Owner;

pub use finish::finish;
pub use transactional::{Transactional, TransactionalInbox, WorkError};

/// The SQLite store.
#[derive(Debug)]
pub struct SqliteStore {
    file: PathBuf,
    clock: Arc<dyn Clock>,
    thread: StoreThread<SqliteJob>,
}

impl SqliteStore {
    /// Opens the file, or creates a new one. An older schema is migrated.
    ///
    /// It reads the disk. Call it where blocking is allowed.
    ///
    /// # Errors
    /// If the file is not a database, belongs to another program, has a newer schema, or cannot be
    /// read and written. Nothing in it is changed then.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        Self::open_with(file, Arc::new(SystemClock))
    }

    /// Opens a store in the file of another program, beside that program's tables. All tables of
    /// the store are called `onetake_…`.
    ///
    /// This is for operations whose effects commit with their outcome ([`Transactional`]). Effects
    /// and records must be in one file, because a transaction over two files is not atomic across a
    /// crash. The file is switched to WAL mode.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if the file belongs to onetake alone.
    pub fn open_in(file: &Path) -> Result<Self, StoreError> {
        Self::open_as(file, Owner::Another, Arc::new(SystemClock))
    }

    /// Opens a file that has an outbox, for a relay. The file may belong to onetake or to another
    /// program. Nothing is created.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if the file or the outbox in it does not exist.
    pub fn open_outbox(file: &Path) -> Result<Self, StoreError> {
        let owner = schema::owner_of_outbox(file)?;
        Self::open_as(file, owner, Arc::new(SystemClock))
    }

    /// Opens the file with the given clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(file: &Path, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        Self::open_as(file, Owner::Onetake, clock)
    }

    fn open_as(file: &Path, owner: Owner, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let (file, connection) = schema::open(file, owner)?;
        let committer = Committer::new(connection, owner, Arc::clone(&clock));
        let thread = StoreThread::start("onetake-sqlite", move |queue| committer.run(queue));
        let thread = thread.map_err(|error| {
            let what = "the thread of the store could not be started";
            StoreError::new(StoreErrorKind::Unavailable, what).with_source(error)
        })?;
        Ok(Self { file, clock, thread })
    }

    /// Checks for settings by which operations could be lost or repeated.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn diagnose(&self) -> Result<Diagnosis, StoreError> {
        doctor::diagnose(self).await
    }

    /// Sends a job to the thread that owns the connection.
    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<T>) -> SqliteJob,
    ) -> Result<T, StoreError> {
        self.thread.ask(job).await
    }

    /// Runs a read on the thread.
    async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, Timestamp) -> rusqlite::Result<R> + Send + 'static,
    ) -> Result<R, StoreError> {
        self.ask(|reply| {
            SqliteJob::Read(Box::new(move |connection, now| {
                let read = |connection| read(connection, now);
                let answer = connection
                    .and_then(|it| read(it).map_err(|error| refused(error, During::Work)));
                let _gone = reply.send(answer);
            }))
        })
        .await?
    }

    /// Returns the answer to a batch of one.
    fn only<T>(&self, answers: Answers<T>) -> Result<T, StoreError> {
        answers.into_iter().next().unwrap_or_else(|| Err(self.thread.gone()))
    }
}

impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        let count = batch.len();
        async move {
            each(count, self.ask(|reply| SqliteJob::Write(transitions::claims(batch, reply))).await)
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        let count = batch.len();
        async move {
            each(
                count,
                self.ask(|reply| SqliteJob::Write(transitions::settlements(batch, reply))).await,
            )
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        let count = ids.len();
        async move { each(count, self.ask(|reply| SqliteJob::Load(ids, reply)).await) }.boxed()
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        match which {
            Due::LeaseEnd => {
                async move { self.ask(|reply| SqliteJob::Abandoned(limit, reply)).await? }.boxed()
            }
            Due::Reconcile => {
                async move { self.ask(|reply| SqliteJob::Unsettled(limit, reply)).await? }.boxed()
            }
        }
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        async move { self.ask(|reply| SqliteJob::Sweep(limit, reply)).await? }.boxed()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { self.ask(SqliteJob::Settings).await?.map(drop) }.boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.thread.close(SqliteJob::Close).boxed()
    }
}

impl RecordIndex for SqliteStore {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        async move {
            let from = from.map(|cursor| cursor.id()).transpose()?;
            let ids = self.read(move |it, _| table::ids(it, from, limit)).await?;
            Ok(Page::in_order(ids, limit))
        }
        .boxed()
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        self.read(move |it, _| table::with_reference(it, reference, FOUND_MAX)).boxed()
    }
}

impl AuditLog for SqliteStore {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.only(self.ask(|reply| SqliteJob::Write(transitions::audit(entry, reply))).await?)
        }
        .boxed()
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        async move {
            let from = from.map(|cursor| AuditPosition::of(&cursor)).transpose()?;
            self.read(move |it, _| audit::read(it, of, from, limit)).await
        }
        .boxed()
    }
}

impl SharedSecrets for SqliteStore {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        async move {
            self.only(
                self.ask(|reply| SqliteJob::Write(transitions::secret(name, fresh, reply))).await?,
            )
        }
        .boxed()
    }
}

impl Sealing for SqliteStore {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}
