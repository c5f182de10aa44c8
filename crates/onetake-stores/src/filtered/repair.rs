//! A task that compares a sample of the filter's answers with the authority, and repairs
//! differences.
//!
//! An entry is the authority's answer from an earlier moment, and a finished record never changes
//! (S4). So they differ only if the authority lost acknowledged data (restored from a backup,
//! failed over), or if an operator made it forget the key. Then:
//!
//! - The authority has another record: the authority is right, and the entry is deleted or
//!   replaced.
//! - The authority has no record, or has the same attempt as unfinished: the entry is the last
//!   trace of an outcome that a client has received. Deleting it would let the operation run a
//!   second time, so the outcome is restored in the authority. It is settled as a late outcome of
//!   its own attempt or, if no record is left, by a claim that is settled at once and never run.
//!   The entry is read again just before, so that a key that was forgotten in the meantime stays
//!   forgotten.
//!
//! One task does this, a few keys at a time with a pause after them. Entries that do not fit in its
//! queue are not compared.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use onetake_core::{
    Claim, Claimed, Record, RecordId, Settled, Settlement, State, StoreError, Terms, Timestamp,
    Transition,
};

use super::entry::is_finished;
use super::read::FilterContent;
use super::writer::{FORGOTTEN, WriteQueue};
use super::{CLOCK_MARGIN, FilterState};

/// The largest number of entries in the queue.
const QUEUE_MAX: usize = 64;
/// The number of entries that are compared together.
const BATCH_MAX: usize = 16;
/// The pause after each batch: at most 160 entries a second.
const PAUSE: Duration = Duration::from_millis(100);

/// The sampling of the filter's answers.
#[derive(Debug)]
pub(super) struct Sample {
    every: u32,
    seen: AtomicU32,
    queue: mpsc::Sender<Arc<Record>>,
}

impl Sample {
    /// Starts the comparing task. It ends when `stop` is dropped.
    pub(super) fn start(
        shared: Arc<FilterState>,
        writer: WriteQueue,
        every: u32,
        stop: watch::Receiver<()>,
    ) -> (Self, JoinHandle<()>) {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let repairer = Repairer { shared, writer };
        let task = tokio::spawn(repairer.run(waiting, stop));
        (Self { every, seen: AtomicU32::new(0), queue }, task)
    }

    /// Offers an answer of the filter. One of `every` answers is compared.
    pub(super) fn offer(&self, record: &Arc<Record>) {
        if self.every == 0 {
            return;
        }
        if self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every) {
            let _full = self.queue.try_send(Arc::clone(record));
        }
    }
}

#[derive(Debug)]
struct Repairer {
    shared: Arc<FilterState>,
    writer: WriteQueue,
}

impl Repairer {
    async fn run(self, mut queue: mpsc::Receiver<Arc<Record>>, mut stop: watch::Receiver<()>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            tokio::select! {
                biased;
                _ = stop.changed() => return,
                count = queue.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return },
            }
            self.compare(batch.drain(..).map(|record| (record.id, record)).collect()).await;
            tokio::select! {
                biased;
                _ = stop.changed() => return,
                () = self.shared.clock.sleep(PAUSE) => {}
            }
        }
    }

    async fn compare(&self, entries: HashMap<RecordId, Arc<Record>>) {
        let ids: Vec<RecordId> = entries.keys().copied().collect();
        let asked_at = self.shared.clock.monotonic();
        let found = self.shared.authority.load(ids.clone()).await;
        for (id, found) in ids.iter().zip(found) {
            // If the authority does not answer, a later sample is compared instead.
            let (Some(entry), Ok(found)) = (entries.get(id), found) else { continue };
            self.shared.counters.checked.increment(1);
            if let Err(error) = self.settle(entry, found, asked_at).await {
                tracing::warn!(%error, "an entry of the filter could not be repaired");
            }
        }
    }

    async fn settle(
        &self,
        entry: &Arc<Record>,
        found: Option<Arc<Record>>,
        asked_at: Duration,
    ) -> Result<(), StoreError> {
        match found {
            Some(found) if same_outcome(entry, &found) => Ok(()),
            Some(found) if found.attempt == entry.attempt && is_open(&found) => {
                self.give_back(entry).await
            }
            // Released before the entry's attempt: the authority has stepped back in time.
            Some(found) if found.fence < entry.fence && is_released(&found) => {
                self.claim_anew(entry).await
            }
            Some(found) => {
                self.overrule(entry, Some(&found), asked_at);
                Ok(())
            }
            None => self.claim_anew(entry).await,
        }
    }

    /// Applies the authority's answer from `asked_at` to the filter.
    fn overrule(&self, entry: &Arc<Record>, found: Option<&Arc<Record>>, asked_at: Duration) {
        match found.filter(|found| is_finished(found)) {
            Some(found) => self.writer.keep(&self.shared, found, asked_at, true),
            None => self.writer.delete(&self.shared, entry.id),
        }
        self.shared.counters.overruled.increment(1);
        tracing::warn!(
            reference = %entry.id.reference(),
            fence = %entry.fence,
            authority_fence = found.map(|found| found.fence.get()),
            "an entry of the filter differed from the authority and was replaced"
        );
    }

    /// Restores the outcome of an attempt that the authority has as unfinished. It is settled as a
    /// late outcome.
    async fn give_back(&self, entry: &Arc<Record>) -> Result<(), StoreError> {
        let Some(transition) = outcome(entry) else { return Ok(()) };
        let asked_at = self.shared.clock.monotonic();
        match self.settle_in_authority(entry, transition).await? {
            Settled::Done { record, .. } => {
                self.writer.keep(&self.shared, &record, asked_at, true);
                self.shared.counters.restored.increment(1);
                tracing::error!(
                    reference = %entry.id.reference(),
                    "the authority had lost an acknowledged outcome, which was restored from the filter: check its replication and durability settings"
                );
            }
            Settled::Stale { current } => self.overrule(entry, current.as_ref(), asked_at),
        }
        Ok(())
    }

    /// Claims the key for the attempt that finished it, because the authority has no record. The
    /// key is in progress only during the settlement, and nothing runs.
    async fn claim_anew(&self, entry: &Arc<Record>) -> Result<(), StoreError> {
        let looked = self.shared.look(std::iter::once(entry.id)).await;
        let still_there = matches!(
            looked.answers.get(&entry.id),
            Some(FilterContent::Hit(record)) if record.attempt == entry.attempt
        );
        let Some(expires_at) = entry.expires_at().filter(|_| still_there) else {
            return Ok(());
        };
        // The record expires at its original time, or a little later: `now` is ahead by the margin.
        let ttl = expires_at.since(looked.now).saturating_add(CLOCK_MARGIN);
        let claim = Claim {
            id: entry.id,
            attempt: entry.attempt,
            fingerprint: entry.fingerprint,
            terms: Terms { ttl, ..entry.terms },
            origin: entry.origin.clone(),
        };
        let asked_at = self.shared.clock.monotonic();
        let answer = self.shared.authority.claim(vec![claim]).await.pop();
        match answer.unwrap_or_else(|| Err(super::no_answer()))? {
            // A fence is not below the authority's microseconds. By the authority's clock the
            // record may have expired, and then it must not be restored.
            Claimed::Granted { fence } if Timestamp::from_micros(fence.get()) >= expires_at => {
                self.settle_in_authority(entry, Transition::Release).await?;
                self.overrule(entry, None, asked_at);
                Ok(())
            }
            // Forgotten between the lookup and the claim: it stays forgotten.
            Claimed::Granted { .. } if self.is_forgotten(entry.id).await => {
                self.settle_in_authority(entry, Transition::Release).await.map(drop)
            }
            Claimed::Granted { .. } => self.give_back(entry).await,
            // Another node was quicker.
            Claimed::Found { record, .. } if same_outcome(entry, &record) => Ok(()),
            Claimed::Found { record, .. } if record.attempt == entry.attempt => {
                self.give_back(entry).await
            }
            Claimed::Found { record, .. } => {
                self.overrule(entry, Some(&record), asked_at);
                Ok(())
            }
        }
    }

    /// Returns true if an operator made the filter forget the key a moment ago. An unreachable
    /// filter has accepted no such action.
    async fn is_forgotten(&self, id: RecordId) -> bool {
        let found = self.shared.link.get_many(&[id], FORGOTTEN.len()).await.pop();
        matches!(found, Some(Ok(bytes)) if *bytes == *FORGOTTEN)
    }

    async fn settle_in_authority(
        &self,
        entry: &Record,
        transition: Transition,
    ) -> Result<Settled, StoreError> {
        let settlement = Settlement { id: entry.id, attempt: entry.attempt, transition };
        let answer = self.shared.authority.settle(vec![settlement]).await.pop();
        answer.unwrap_or_else(|| Err(super::no_answer()))
    }
}

/// Returns true if a retry gets the same answer from both. Times and fences may differ: a restored
/// outcome has new ones.
fn same_outcome(entry: &Record, found: &Record) -> bool {
    let outcome = match (&entry.state, &found.state) {
        (State::Completed { recording, .. }, State::Completed { recording: other, .. }) => {
            recording == other
        }
        (State::Failed { failure, .. }, State::Failed { failure: other, .. }) => failure == other,
        _ => false,
    };
    outcome && entry.attempt == found.attempt && entry.fingerprint == found.fingerprint
}

fn is_open(record: &Record) -> bool {
    matches!(record.state, State::Running { .. } | State::Unknown { .. })
}

fn is_released(record: &Record) -> bool {
    matches!(record.state, State::Released { .. })
}

/// Returns the transition that the attempt was settled with.
fn outcome(record: &Record) -> Option<Transition> {
    match &record.state {
        State::Completed { recording, .. } => Some(Transition::Complete(recording.clone())),
        State::Failed { failure, .. } => Some(Transition::Fail(failure.clone())),
        _ => None,
    }
}
