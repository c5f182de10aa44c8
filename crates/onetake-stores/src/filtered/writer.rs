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
use super::connection::Put;
use super::entry::HEAD_BYTES;

/// Writes that may wait.
const QUEUE_MAX: usize = 4_096;
/// Bytes of records that may wait.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Writes that are sent together.
const BATCH_MAX: usize = 64;
/// Bytes that are sent together: reads on the same connection wait behind them.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// About what a record has beside its recording.
const RECORD_BYTES: usize = 160;
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
    HEAD_BYTES + RECORD_BYTES + recording
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
                    last.extend(ids.into_iter().map(|id| (id, Some(forgotten(id)))));
                    replies.push(reply);
                }
            }
        }
        let result = write(&shared, last).await;
        for reply in replies {
            let _gone = reply.send(result.clone());
        }
    }
}

async fn write(shared: &Shared, last: HashMap<RecordId, Option<Put>>) -> Result<(), StoreError> {
    let count = last.len();
    let deletes: Vec<RecordId> =
        last.iter().filter(|(_, put)| put.is_none()).map(|(id, _)| *id).collect();
    let puts: Vec<Put> = last.into_values().flatten().collect();
    let result = async {
        shared.link.delete_many(&deletes).await?;
        for puts in in_portions(puts) {
            shared.link.set_many(puts).await?;
        }
        Ok(())
    }
    .await;
    if let Err(error) = &result {
        shared.counters.dropped.increment(count as u64);
        tracing::debug!(%error, count, "entries were not written to the filter");
    }
    result
}

fn in_portions(puts: Vec<Put>) -> Vec<Vec<Put>> {
    let mut portions: Vec<Vec<Put>> = Vec::new();
    let mut bytes = usize::MAX;
    for put in puts {
        bytes = bytes.saturating_add(put.value.len());
        match portions.last_mut() {
            Some(portion) if bytes <= BATCH_BYTES_MAX => portion.push(put),
            _ => {
                bytes = put.value.len();
                portions.push(vec![put]);
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
    (value.len() <= shared.entry_bytes_max).then_some(Put { id: record.id, value, keep, overwrite })
}

fn forgotten(id: RecordId) -> Put {
    let value = Bytes::from_static(FORGOTTEN);
    Put { id, value, keep: FORGOTTEN_FOR, overwrite: true }
}
