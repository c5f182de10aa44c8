//! The embedded store: one node, one folder, no server. It keeps records in a write-ahead log of its
//! own and in tables (log-structured merge trees, of the crate `lsm-tree`).
//!
//! One thread owns the folder. It takes all claims, settlements and sweeps that arrived while it
//! wrote the last group. It decides them one after the other against the current records, appends
//! them to the log as one frame, waits until the frame is on disk, and only then answers (S5, S6).
//! After the answers it applies the group to the tables in memory. A thread in the background writes
//! the tables to files, after which the segments of the log are used again.
//!
//! Records of running attempts are in memory and in the log alone. So most operations change the
//! tables once, and finding abandoned attempts never reads the keys. A lease ends with the process,
//! so renewing it changes memory alone. When the folder is opened, attempts that were running when
//! it was last closed become unknown at once, or are released if they roll back by themselves: no
//! other process can have run them.
//!
//! | file | content |
//! | --- | --- |
//! | `committer.rs`, `committer/`, `sweeping.rs` | the thread that owns the folder |
//! | `working_set.rs` | the state in memory, and the decisions |
//! | `log/` | the write-ahead log |
//! | `tables.rs`, `lsm_table.rs`, `time_index.rs` | the tables |
//! | `maintenance.rs`, `merging.rs`, `operations.rs` | the threads in the background |
//! | `folder.rs`, `witness.rs`, `recovery.rs` | creating and opening a folder, and its check for damage |

mod asks;
mod audit;
mod committer;
mod files;
mod folder;
mod idle_watch;
mod log;
mod lsm_table;
mod maintenance;
mod manifest;
mod merging;
mod operations;
mod read_errors;
mod recovery;
mod sweeping;
mod tables;
mod time_index;
mod unwritten;
mod witness;
mod working_set;

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::oneshot;

use onetake_core::audit::{AuditEntry, AuditPage, AuditPosition};
use onetake_core::store::{
    Answers, AuditLog, Cursor, Due, DueAttempt, Page, RecordIndex, Sealing, SharedSecrets, Swept,
};
use onetake_core::{
    AttemptId, Claim, Claimed, Clock, Record, RecordId, Recording, Reference, Settled, Settlement,
    Store, StoreError, SystemClock,
};

use crate::thread::{StoreThread, each};
use committer::{Committer, EmbeddedJob};
use folder::Folder;
use idle_watch::{IdleWatch, idle_watch};

pub use folder::OpenError;

/// The options of the embedded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// The memory of the tables, in bytes: half for blocks of their files, half for entries that are
    /// not in files yet. At least [`EmbeddedOptions::MEMORY_BYTES_MIN`]. A quarter is the size of a
    /// segment of the log.
    ///
    /// If the files are written more slowly than entries arrive, up to a quarter comes on top.
    pub memory_bytes: usize,
}

impl EmbeddedOptions {
    /// The least memory of the tables, in bytes.
    pub const MEMORY_BYTES_MIN: usize = 8 << 20;
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { memory_bytes: 128 << 20 }
    }
}

/// The embedded store.
#[derive(Debug)]
pub struct EmbeddedStore {
    thread: StoreThread<EmbeddedJob>,
    idle: IdleWatch,
    interrupted: usize,
}

impl EmbeddedStore {
    /// Opens the folder, or creates a new one.
    ///
    /// It reads the disk. Call it where blocking is allowed.
    ///
    /// # Errors
    /// If the folder is used by another process, is damaged, has another format, or cannot be read
    /// and written. Nothing in it is changed then.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path, Arc::new(SystemClock))
    }

    /// Opens the folder with the given clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::open_as(path, EmbeddedOptions::default(), clock)
    }

    /// Opens the folder with the given options and the given clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_as(
        path: impl AsRef<Path>,
        options: EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let folder = Folder::lock(path.as_ref())?;
        let memory = options.memory_bytes.max(EmbeddedOptions::MEMORY_BYTES_MIN);
        let opened = recovery::open(&folder, memory as u64)?;
        let (report, idle) = idle_watch();
        let (committer, interrupted) = Committer::new(opened, clock, folder, report)?;
        let thread = StoreThread::start("onetake-store", move |queue| committer.run(queue))
            .map_err(|error| OpenError::io(path.as_ref(), "start the store's thread", error))?;
        Ok(Self { thread, idle, interrupted })
    }

    /// The number of operations that were running when the folder was last closed, and whose
    /// outcome is unknown since it was opened.
    #[must_use]
    pub fn interrupted(&self) -> usize {
        self.interrupted
    }

    /// Sends a job to the thread that owns the folder.
    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<T>) -> EmbeddedJob,
    ) -> Result<T, StoreError> {
        self.thread.ask(job).await
    }
}

impl Store for EmbeddedStore {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        let count = batch.len();
        async move { each(count, self.ask(|reply| EmbeddedJob::Claim(batch, reply)).await) }.boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        let count = batch.len();
        async move { each(count, self.ask(|reply| EmbeddedJob::Settle(batch, reply)).await) }
            .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        let count = ids.len();
        async move { each(count, self.ask(|reply| EmbeddedJob::Load(ids, reply)).await) }.boxed()
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        match which {
            Due::LeaseEnd if self.idle.is_idle() => ready(Ok(Vec::new())).boxed(),
            Due::LeaseEnd => {
                async move { self.ask(|reply| EmbeddedJob::Abandoned(limit, reply)).await? }.boxed()
            }
            Due::Reconcile => {
                async move { self.ask(|reply| EmbeddedJob::Unsettled(limit, reply)).await? }.boxed()
            }
        }
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        async move { self.ask(|reply| EmbeddedJob::Sweep(limit, reply)).await? }.boxed()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { self.ask(EmbeddedJob::Ready).await? }.boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.thread.close(EmbeddedJob::Close).boxed()
    }
}

impl RecordIndex for EmbeddedStore {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        async move {
            let from = from.map(|cursor| cursor.id()).transpose()?;
            let ids = self.ask(|reply| EmbeddedJob::Ids(from, limit, reply)).await??;
            Ok(Page::in_order(ids, limit))
        }
        .boxed()
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        async move { self.ask(|reply| EmbeddedJob::Find(reference, reply)).await? }.boxed()
    }
}

impl AuditLog for EmbeddedStore {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { self.ask(|reply| EmbeddedJob::Note(entry, reply)).await? }.boxed()
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        async move {
            let from = from.map(|cursor| AuditPosition::of(&cursor)).transpose()?;
            self.ask(|reply| EmbeddedJob::Notes(of, from, limit, reply)).await?
        }
        .boxed()
    }
}

impl SharedSecrets for EmbeddedStore {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        async move { self.ask(|reply| EmbeddedJob::Secret(name, fresh, reply)).await? }.boxed()
    }
}

impl Sealing for EmbeddedStore {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}
