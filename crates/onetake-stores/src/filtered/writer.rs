//! A background task that writes entries.
//!
//! No caller waits for a write, and no write is retried: a missing entry costs one request to the
//! authority. The queue is bounded. Writes that do not fit are dropped and counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use onetake_core::{Record, RecordId, State, StoreError, StoreErrorKind};

use super::FilterState;
use super::entry::HEAD_BYTES;
use super::link::{EntryWrite, Put};

/// The largest number of queued writes.
const QUEUE_MAX: usize = 4_096;
/// The largest number of queued bytes of records.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// The number of writes that are sent together.
const BATCH_MAX: usize = 64;
/// The number of bytes that are sent together. Reads on the same connection wait for them.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// The approximate size of a record without its recording, its route, its memo and its history.
const RECORD_BYTES: usize = 240;
/// The time for which a forgotten key cannot get an entry from a node that read it just before.
const FORGOTTEN_FOR: Duration = Duration::from_secs(60);
/// The age at which a queued entry is dropped, counted from the request to the authority. An older
/// entry could outlast the marker of a key that was forgotten since.
const KEEP_AGE_MAX: Duration = Duration::from_secs(30);
/// The marker that replaces the entry of a forgotten key. It is never an entry, and is not counted
/// as refused.
pub(super) const FORGOTTEN: &[u8] = b"-";

/// A queued write.
#[derive(Debug)]
enum QueuedWrite {
    /// Writes an entry for this record. `asked_at` is the time of the request to the authority, by
    /// the monotonic clock.
    Keep { record: Arc<Record>, asked_at: Duration, overwrite: bool },
    /// Deletes an entry.
    Delete(RecordId),
    /// Deletes entries and blocks new ones for a while. The caller waits for the result.
    Forget(Vec<RecordId>, oneshot::Sender<Result<(), StoreError>>),
}

/// The queue of writes.
#[derive(Clone, Debug)]
pub(super) struct WriteQueue {
    queue: mpsc::Sender<QueuedWrite>,
    bytes: Arc<AtomicUsize>,
}

impl WriteQueue {
    /// Starts the writing task. It ends with the last writer.
    pub(super) fn start(shared: Arc<FilterState>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        tokio::spawn(drain(shared, waiting, Arc::clone(&bytes)));
        Self { queue, bytes }
    }

    /// Queues a finished record that the authority returned to a request at `asked_at`. Without
    /// `overwrite`, an existing entry stays.
    pub(super) fn keep(
        &self,
        shared: &FilterState,
        record: &Arc<Record>,
        asked_at: Duration,
        overwrite: bool,
    ) {
        let cost = cost(record);
        if cost > shared.entry_bytes_max {
            return;
        }
        if self.bytes.fetch_add(cost, Ordering::AcqRel) + cost > QUEUE_BYTES_MAX {
            self.bytes.fetch_sub(cost, Ordering::AcqRel);
            shared.counters.dropped.increment(1);
            return;
        }
        let write = QueuedWrite::Keep { record: Arc::clone(record), asked_at, overwrite };
        if self.queue.try_send(write).is_err() {
            self.bytes.fetch_sub(cost, Ordering::AcqRel);
            shared.counters.dropped.increment(1);
        }
    }

    /// Queues the deletion of an entry.
    pub(super) fn delete(&self, shared: &FilterState, id: RecordId) {
        if self.queue.try_send(QueuedWrite::Delete(id)).is_err() {
            shared.counters.dropped.increment(1);
        }
    }

    /// Deletes entries after all earlier writes, and returns the result.
    pub(super) async fn forget(&self, ids: Vec<RecordId>) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let gone = || StoreError::new(StoreErrorKind::Unavailable, "the filter is closed");
        self.queue.send(QueuedWrite::Forget(ids, reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn cost(record: &Record) -> usize {
    let recording = match &record.state {
        State::Completed { recording, .. } => recording.bytes(),
        State::Failed { failure, .. } => failure.code.len() + failure.detail.len(),
        _ => 0,
    };
    let origin = record.origin.route.len() + record.origin.memo.as_bytes().len();
    let told = origin + record.history.as_text().len();
    HEAD_BYTES + RECORD_BYTES + told + recording
}

async fn drain(
    shared: Arc<FilterState>,
    mut queue: mpsc::Receiver<QueuedWrite>,
    bytes: Arc<AtomicUsize>,
) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let mut changes = Changes::default();
        let mut replies = Vec::new();
        for write in batch.drain(..) {
            match write {
                QueuedWrite::Keep { record, asked_at, overwrite } => {
                    bytes.fetch_sub(cost(&record), Ordering::AcqRel);
                    let age = shared.clock.monotonic().saturating_sub(asked_at);
                    match put(&shared, &record, overwrite) {
                        Some(_) if age > KEEP_AGE_MAX => shared.counters.dropped.increment(1),
                        Some(put) => changes.put(record.id, put),
                        None => {}
                    }
                }
                QueuedWrite::Delete(id) => changes.delete(id),
                QueuedWrite::Forget(ids, reply) => {
                    ids.iter().for_each(|id| changes.forget(*id));
                    replies.push((ids, reply));
                }
            }
        }
        let failed = write(&shared, changes.0).await;
        for (ids, reply) in replies {
            // An error of another key does not count (S21).
            let error = ids.iter().find_map(|id| failed.get(id)).cloned();
            let _gone = reply.send(error.map_or(Ok(()), Err));
        }
    }
}

/// The last change of each key in a batch. In a cluster nothing else keeps their order.
#[derive(Debug, Default)]
struct Changes(HashMap<RecordId, EntryWrite>);

impl Changes {
    /// Adds an entry. A forgotten key stays forgotten. A replaced or deleted entry stays as it is,
    /// unless this entry overwrites it.
    fn put(&mut self, id: RecordId, put: Put) {
        match self.0.get(&id) {
            Some(EntryWrite::Forget(_)) => {}
            Some(_) if !put.overwrite => {}
            _ => drop(self.0.insert(id, EntryWrite::Put(put))),
        }
    }

    fn delete(&mut self, id: RecordId) {
        if !matches!(self.0.get(&id), Some(EntryWrite::Forget(_))) {
            self.0.insert(id, EntryWrite::Delete);
        }
    }

    fn forget(&mut self, id: RecordId) {
        self.0.insert(id, EntryWrite::Forget(FORGOTTEN_FOR));
    }
}

/// Makes the changes. Returns the errors, each with its key.
async fn write(
    shared: &FilterState,
    last: HashMap<RecordId, EntryWrite>,
) -> HashMap<RecordId, StoreError> {
    let mut failed = HashMap::new();
    for portion in in_portions(last) {
        failed.extend(shared.link.change_many(&portion).await);
    }
    if let Some(error) = failed.values().next() {
        shared.counters.dropped.increment(failed.len() as u64);
        tracing::debug!(%error, failed = failed.len(), "entries were not written to the filter");
    }
    failed
}

fn in_portions(changes: HashMap<RecordId, EntryWrite>) -> Vec<Vec<(RecordId, EntryWrite)>> {
    let mut portions: Vec<Vec<_>> = Vec::new();
    let mut bytes = 0_usize;
    for (id, change) in changes {
        let more = change.bytes();
        bytes = bytes.saturating_add(more);
        match portions.last_mut() {
            Some(portion) if bytes <= BATCH_BYTES_MAX => portion.push((id, change)),
            _ => {
                bytes = more;
                portions.push(vec![(id, change)]);
            }
        }
    }
    portions
}

/// Returns the entry of a record, if it has time left before its end.
fn put(shared: &FilterState, record: &Arc<Record>, overwrite: bool) -> Option<Put> {
    let now = shared.time.now();
    let until = record.expires_at()?.min(now.plus(shared.entry_age_max));
    let keep = until.since(now.plus(super::CLOCK_MARGIN));
    let value = shared.seal.close(record, until).filter(|_| !keep.is_zero())?;
    (value.len() <= shared.entry_bytes_max).then_some(Put { value, keep, overwrite })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn id() -> RecordId {
        RecordId::from_bytes([7; 16])
    }

    fn entry(overwrite: bool) -> Put {
        Put { value: Bytes::from_static(b"entry"), keep: Duration::from_secs(9), overwrite }
    }

    #[test]
    fn nothing_in_a_batch_replaces_a_forget() {
        for overwrite in [false, true] {
            let mut changes = Changes::default();
            changes.put(id(), entry(overwrite));
            changes.forget(id());
            changes.put(id(), entry(overwrite));
            changes.delete(id());
            changes.put(id(), entry(overwrite));
            assert!(matches!(changes.0.get(&id()), Some(EntryWrite::Forget(_))), "{changes:?}");
        }
    }

    #[test]
    fn the_last_word_that_may_replace_counts() {
        let mut changes = Changes::default();
        changes.delete(id());
        changes.put(id(), entry(false));
        assert!(matches!(changes.0.get(&id()), Some(EntryWrite::Delete)), "{changes:?}");
        changes.put(id(), entry(true));
        assert!(matches!(changes.0.get(&id()), Some(EntryWrite::Put(_))), "{changes:?}");
    }
}
