//! Writes entries behind the callers' backs.
//!
//! Nobody waits for a write, and none is retried: an entry that is missing costs a question to the
//! authority. What is queued is bounded, and what does not fit is dropped and counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use onetake_core::{Record, RecordId, State, StoreError, StoreErrorKind};

use super::Shared;
use super::entry::HEAD_BYTES;
use super::link::Put;

/// Writes that may wait.
const QUEUE_MAX: usize = 4_096;
/// Bytes of records that may wait.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Writes that are sent together.
const BATCH_MAX: usize = 64;
/// Bytes that are sent together: reads on the same connection wait behind them.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// About what a record has beside its recording, its route, its memo and its history.
const RECORD_BYTES: usize = 240;
/// For how long a forgotten key cannot get an entry by somebody who read it just before.
const FORGOTTEN_FOR: Duration = Duration::from_secs(60);
/// What stands in the place of a forgotten entry: never an entry, and not worth a mention.
pub(super) const FORGOTTEN: &[u8] = b"-";

/// Something to be written.
#[derive(Debug)]
enum Write {
    /// An entry for this record.
    Keep { record: Arc<Record>, overwrite: bool },
    /// No entry any more.
    Delete(RecordId),
    /// No entry any more, nor for a while; somebody waits to hear of it.
    Forget(Vec<RecordId>, oneshot::Sender<Result<(), StoreError>>),
}

/// The queue.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    queue: mpsc::Sender<Write>,
    bytes: Arc<AtomicUsize>,
}

impl Writer {
    /// Starts the task that writes. It ends with the last writer.
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        tokio::spawn(drain(shared, waiting, Arc::clone(&bytes)));
        Self { queue, bytes }
    }

    /// Keeps a finished record of the authority. Where it does not `overwrite`, it leaves alone
    /// what is there.
    pub(super) fn keep(&self, shared: &Shared, record: &Arc<Record>, overwrite: bool) {
        let cost = cost(record);
        if cost > shared.entry_bytes_max {
            return;
        }
        if self.bytes.fetch_add(cost, Ordering::AcqRel) + cost > QUEUE_BYTES_MAX {
            self.bytes.fetch_sub(cost, Ordering::AcqRel);
            shared.counters.dropped.increment(1);
            return;
        }
        let write = Write::Keep { record: Arc::clone(record), overwrite };
        if self.queue.try_send(write).is_err() {
            self.bytes.fetch_sub(cost, Ordering::AcqRel);
            shared.counters.dropped.increment(1);
        }
    }

    /// Deletes an entry.
    pub(super) fn delete(&self, shared: &Shared, id: RecordId) {
        if self.queue.try_send(Write::Delete(id)).is_err() {
            shared.counters.dropped.increment(1);
        }
    }

    /// Deletes entries behind all that was queued before, and says whether it is so.
    pub(super) async fn forget(&self, ids: Vec<RecordId>) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let gone = || StoreError::new(StoreErrorKind::Unavailable, "the filter is closed");
        self.queue.send(Write::Forget(ids, reply)).await.map_err(|_| gone())?;
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

async fn drain(shared: Arc<Shared>, mut queue: mpsc::Receiver<Write>, bytes: Arc<AtomicUsize>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        // The last word on each key: in a cluster nothing else keeps their order.
        let mut last: HashMap<RecordId, Option<Put>> = HashMap::new();
        let mut replies = Vec::new();
        for write in batch.drain(..) {
            match write {
                Write::Keep { record, overwrite } => {
                    bytes.fetch_sub(cost(&record), Ordering::AcqRel);
                    // What was forgotten, or replaced, a moment ago stays so.
                    let first = !last.contains_key(&record.id);
                    if let Some(put) = put(&shared, &record, overwrite)
                        && (overwrite || first)
                    {
                        last.insert(record.id, Some(put));
                    }
                }
                Write::Delete(id) => {
                    last.insert(id, None);
                }
                Write::Forget(ids, reply) => {
                    last.extend(ids.iter().map(|id| (*id, Some(forgotten()))));
                    replies.push((ids, reply));
                }
            }
        }
        let failed = write(&shared, last).await;
        for (ids, reply) in replies {
            // Another key's trouble is not theirs (S21).
            let error = ids.iter().find_map(|id| failed.get(id)).cloned();
            let _gone = reply.send(error.map_or(Ok(()), Err));
        }
    }
}

/// What went wrong, and where.
async fn write(
    shared: &Shared,
    last: HashMap<RecordId, Option<Put>>,
) -> HashMap<RecordId, StoreError> {
    let mut failed = HashMap::new();
    for portion in in_portions(last) {
        failed.extend(shared.link.put_many(&portion).await);
    }
    if let Some(error) = failed.values().next() {
        shared.counters.dropped.increment(failed.len() as u64);
        tracing::debug!(%error, failed = failed.len(), "entries were not written to the filter");
    }
    failed
}

fn in_portions(puts: HashMap<RecordId, Option<Put>>) -> Vec<Vec<(RecordId, Option<Put>)>> {
    let mut portions: Vec<Vec<_>> = Vec::new();
    let mut bytes = 0_usize;
    for (id, put) in puts {
        let more = put.as_ref().map_or(0, |put| put.value.len());
        bytes = bytes.saturating_add(more);
        match portions.last_mut() {
            Some(portion) if bytes <= BATCH_BYTES_MAX => portion.push((id, put)),
            _ => {
                bytes = more;
                portions.push(vec![(id, put)]);
            }
        }
    }
    portions
}

/// The entry of a record, if it has a life before it.
fn put(shared: &Shared, record: &Arc<Record>, overwrite: bool) -> Option<Put> {
    let now = shared.time.now();
    let until = record.expires_at()?.min(now.plus(shared.entry_age_max));
    let keep = until.since(now.plus(super::CLOCK_MARGIN));
    let value = shared.seal.close(record, until).filter(|_| !keep.is_zero())?;
    (value.len() <= shared.entry_bytes_max).then_some(Put { value, keep, overwrite })
}

fn forgotten() -> Put {
    let value = Bytes::from_static(FORGOTTEN);
    Put { value, keep: FORGOTTEN_FOR, overwrite: true }
}
