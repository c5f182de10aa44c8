//! A store that keeps its records in memory and appends their bytes to one file.
//!
//! It writes the same bytes in the same groups as the embedded store and waits for the same disk.
//! It keeps no tables, cannot be read again, and never gives back its space. The embedded store
//! cannot be faster than this; the benchmark shows how close it comes.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, mpsc};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use onetake_core::audit::{AuditEntry, AuditPage};
use onetake_core::store::{
    Answers, AuditLog, Cursor, Due, DueAttempt, Page, RecordIndex, Sealing, SharedSecrets, Swept,
};
use onetake_core::{
    AttemptId, Claim, Claimed, MemoryStore, Record, RecordId, Recording, Reference, Settled,
    Settlement, Store, StoreError, StoreErrorKind, codec,
};

type Append = (Vec<u8>, oneshot::Sender<()>);

/// The store of this module.
#[derive(Debug)]
pub struct RawLog {
    memory: MemoryStore,
    log: mpsc::Sender<Append>,
}

impl RawLog {
    /// Appends to a new file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        // Allocated ahead like the embedded store's journal: a growing file costs more to sync.
        file.set_len(2 << 30)?;
        file.sync_all()?;
        let (log, queue) = mpsc::channel();
        std::thread::spawn(move || append(file, &queue));
        Ok(Self { memory: MemoryStore::new(), log })
    }

    async fn durable(&self, bytes: Vec<u8>) -> Result<(), StoreError> {
        let (done, is_done) = oneshot::channel();
        let lost = || StoreError::new(StoreErrorKind::Corrupt, "the log ended");
        self.log.send((bytes, done)).map_err(|_| lost())?;
        is_done.await.map_err(|_| lost())
    }
}

/// Does one write and one fdatasync for everything that arrived during the last ones.
fn append(mut file: File, queue: &mpsc::Receiver<Append>) {
    while let Ok(first) = queue.recv() {
        let group: Vec<Append> = std::iter::once(first).chain(queue.try_iter()).collect();
        let bytes: Vec<u8> = group.iter().flat_map(|(bytes, _)| bytes).copied().collect();
        if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        for (_, done) in group {
            let _gone = done.send(());
        }
    }
}

fn bytes_of<'a>(records: impl Iterator<Item = &'a Arc<Record>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        bytes.extend_from_slice(record.id.as_bytes());
        bytes.extend_from_slice(&codec::encode(record));
    }
    bytes
}

impl Store for RawLog {
    fn name(&self) -> &'static str {
        "raw log"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let ids = batch.iter().map(|claim| claim.id).collect();
            let answers = self.memory.claim(batch).await;
            let records: Vec<_> =
                self.memory.load(ids).await.into_iter().flatten().flatten().collect();
            match self.durable(bytes_of(records.iter())).await {
                Ok(()) => answers,
                Err(error) => answers.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            let answers = self.memory.settle(batch).await;
            let records = answers.iter().filter_map(|answer| match answer {
                Ok(Settled::Done { record, .. }) => Some(record),
                _ => None,
            });
            match self.durable(bytes_of(records)).await {
                Ok(()) => answers,
                Err(error) => answers.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.memory.load(ids)
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        self.memory.due(which, limit)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        self.memory.sweep(limit)
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.memory.ready()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.memory.close()
    }
}

impl RecordIndex for RawLog {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.memory.page(from, limit)
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        self.memory.find(reference)
    }
}

impl AuditLog for RawLog {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        self.memory.audit(entry)
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        self.memory.audit_entries(of, from, limit)
    }
}

impl SharedSecrets for RawLog {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        self.memory.secret(name, fresh)
    }
}

impl Sealing for RawLog {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}
