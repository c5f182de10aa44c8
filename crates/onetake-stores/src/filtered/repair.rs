//! Compares a sample of what the filter answered with the authority, and repairs what disagrees.
//!
//! An entry is the word of the authority at an earlier moment, and a finished record never changes
//! (S4). So they disagree only if the authority lost what it had acknowledged (restored from a
//! backup, failed over), or if an operator made it forget. Then:
//!
//! - The authority has another record: it wins, and the entry goes.
//! - The authority knows nothing of it, or has the very attempt as unfinished: the entry is the last
//!   trace of an outcome that somebody was shown. Dropping it would let the operation run a second
//!   time, so the outcome is given back to the authority: as the late word of its own attempt, or,
//!   where nothing is left, by a claim that is settled at once and never run. The entry is read again
//!   just before, so that what was forgotten in the meantime stays forgotten.
//!
//! One task does this, a few keys at a time with a pause after them. What does not fit is not looked
//! at: it is a sample.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use onetake_core::{
    Claim, Claimed, Record, RecordId, Settled, Settlement, State, StoreError, Terms, Timestamp,
    Verb,
};

use super::entry::is_finished;
use super::look::Look;
use super::writer::{FORGOTTEN, Writer};
use super::{CLOCK_MARGIN, Shared};

/// Entries that may wait to be looked at.
const QUEUE_MAX: usize = 64;
/// Entries that are looked at together.
const BATCH_MAX: usize = 16;
/// The pause after them: at most 160 a second.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes a sample of what the filter answered.
#[derive(Debug)]
pub(super) struct Sample {
    every: u32,
    seen: AtomicU32,
    queue: mpsc::Sender<Arc<Record>>,
}

impl Sample {
    /// Starts the task that compares; it ends when `stop` is dropped.
    pub(super) fn start(
        shared: Arc<Shared>,
        writer: Writer,
        every: u32,
        stop: watch::Receiver<()>,
    ) -> (Self, JoinHandle<()>) {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let repairer = Repairer { shared, writer };
        let task = tokio::spawn(repairer.run(waiting, stop));
        (Self { every, seen: AtomicU32::new(0), queue }, task)
    }

    /// The filter answered with this; one of so many is compared.
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
    shared: Arc<Shared>,
    writer: Writer,
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
            // An authority that does not answer is asked about another sample later.
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
            // Released before the attempt that the entry tells of: a step back in time.
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

    /// The authority wins, with what it said when it was asked at `asked_at`.
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
            "the filter disagreed with the authority, which wins"
        );
    }

    /// The authority has the attempt as unfinished: its owner's late word is believed.
    async fn give_back(&self, entry: &Arc<Record>) -> Result<(), StoreError> {
        let Some(verb) = outcome(entry) else { return Ok(()) };
        let asked_at = self.shared.clock.monotonic();
        match self.settle_in_authority(entry, verb).await? {
            Settled::Done { record, .. } => {
                self.writer.keep(&self.shared, &record, asked_at, true);
                self.shared.counters.restored.increment(1);
                tracing::error!(
                    reference = %entry.id.reference(),
                    "the authority had lost an outcome that it had acknowledged; the filter had it"
                );
            }
            Settled::Stale { current } => self.overrule(entry, current.as_ref(), asked_at),
        }
        Ok(())
    }

    /// The authority knows nothing of it: the key is claimed for the attempt that finished it. It
    /// is in flight for as long as the settlement takes, and nothing runs.
    async fn claim_anew(&self, entry: &Arc<Record>) -> Result<(), StoreError> {
        let looked = self.shared.look(std::iter::once(entry.id)).await;
        let still_there = matches!(
            looked.answers.get(&entry.id),
            Some(Look::Hit(record)) if record.attempt == entry.attempt
        );
        let Some(expires_at) = entry.expires_at().filter(|_| still_there) else {
            return Ok(());
        };
        // It expires when it would have: `now` is ahead by the margin, so a little later at most.
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
            // A fence is not below the authority's microseconds: for its clock the record may have
            // ended, and then it is not ours to bring back.
            Claimed::Granted { fence } if Timestamp::from_micros(fence.get()) >= expires_at => {
                self.settle_in_authority(entry, Verb::Release).await?;
                self.overrule(entry, None, asked_at);
                Ok(())
            }
            // Forgotten between the look and the claim: it stays forgotten.
            Claimed::Granted { .. } if self.is_forgotten(entry.id).await => {
                self.settle_in_authority(entry, Verb::Release).await.map(drop)
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

    /// Whether an operator made the filter forget the key a moment ago. A filter that does not answer
    /// took no such word.
    async fn is_forgotten(&self, id: RecordId) -> bool {
        let found = self.shared.link.get_many(&[id], FORGOTTEN.len()).await.pop();
        matches!(found, Some(Ok(bytes)) if *bytes == *FORGOTTEN)
    }

    async fn settle_in_authority(&self, entry: &Record, verb: Verb) -> Result<Settled, StoreError> {
        let settlement = Settlement { id: entry.id, attempt: entry.attempt, verb };
        let answer = self.shared.authority.settle(vec![settlement]).await.pop();
        answer.unwrap_or_else(|| Err(super::no_answer()))
    }
}

/// Whether a retry gets the same from both. Moments and fences may differ: what was given back has
/// new ones.
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

/// What the attempt said when it finished.
fn outcome(record: &Record) -> Option<Verb> {
    match &record.state {
        State::Completed { recording, .. } => Some(Verb::Complete(recording.clone())),
        State::Failed { failure, .. } => Some(Verb::Fail(failure.clone())),
        _ => None,
    }
}
