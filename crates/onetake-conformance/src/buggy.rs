//! A store with one deliberate bug, to see that a suite finds it.
//!
//! The bug is in a decorator, so that no store, no engine and no decision function holds code that
//! breaks a promise.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::clock::{Clock, Timestamp};
use onetake_core::decide::{self, ClaimEffect, Moment, SettleEffect};
use onetake_core::fingerprint::Fingerprint;
use onetake_core::record::{AttemptId, Fence, Record, State};
use onetake_core::scope::RecordId;
use onetake_core::store::{
    Answers, Claim, Claimed, Settled, Settlement, Store, StoreError, Swept, Transition,
};

/// The pause before a write in the background is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// One deliberate bug of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreBug {
    /// Settlements are applied without comparing the attempt (breaks S3).
    SettleWithoutAttemptCheck,
    /// A settlement is answered before it is durable (breaks S6).
    AnswerBeforeCommit,
    /// The sweep deletes what its index names without looking at the record again (breaks S13).
    SweepWithoutRecheck,
    /// The fingerprint is part of the record's id (breaks S9).
    FingerprintInId,
    /// A new attempt gets the fence of the one before (breaks S2).
    FenceNotRaised,
}

impl StoreBug {
    /// Every bug.
    pub const ALL: [Self; 5] = [
        Self::SettleWithoutAttemptCheck,
        Self::AnswerBeforeCommit,
        Self::SweepWithoutRecheck,
        Self::FingerprintInId,
        Self::FenceNotRaised,
    ];
}

/// A store with one [`StoreBug`], around a store without one.
#[derive(Debug)]
pub struct BuggyStore {
    inner: Arc<dyn Store>,
    bug: StoreBug,
    clock: Arc<dyn Clock>,
    notes: Mutex<BugMemory>,
}

/// The decorator's own memory.
#[derive(Debug, Default)]
struct BugMemory {
    /// The records of granted attempts, as the store wrote them.
    granted: HashMap<AttemptId, Record>,
    /// The latest fence of each record.
    last_fence: HashMap<RecordId, Fence>,
    /// The time when each record was to expire after its first claim.
    first_expiry: BTreeMap<RecordId, Timestamp>,
    /// The id under which the store inside keeps the latest claim of an id.
    mixed: HashMap<RecordId, RecordId>,
    /// The id under which the store inside keeps the claim of an attempt.
    mixed_of_attempt: HashMap<AttemptId, RecordId>,
}

impl BuggyStore {
    /// Puts `bug` around `inner`, whose clock is `clock`.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, bug: StoreBug, clock: Arc<dyn Clock>) -> Self {
        Self { inner, bug, clock, notes: Mutex::default() }
    }

    fn notes(&self) -> MutexGuard<'_, BugMemory> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn current(&self, id: RecordId) -> Option<Arc<Record>> {
        self.inner.load(vec![id]).await.pop()?.ok().flatten()
    }

    async fn claim_one(&self, mut claim: Claim) -> Result<Claimed, StoreError> {
        let id = claim.id;
        let before = match self.bug {
            StoreBug::FenceNotRaised => self.fence_before(&claim).await,
            _ => None,
        };
        if self.bug == StoreBug::FingerprintInId {
            claim.id = mixed(id, &claim.fingerprint);
            let mut notes = self.notes();
            notes.mixed.insert(id, claim.id);
            notes.mixed_of_attempt.insert(claim.attempt, claim.id);
        }
        let claimed = one(self.inner.claim(vec![claim.clone()]).await)?;
        let Claimed::Granted { fence } = claimed else { return Ok(restored_claim(claimed, id)) };
        let now = self.clock.now();
        let mut notes = self.notes();
        notes.first_expiry.entry(id).or_insert_with(|| now.plus(claim.terms.ttl));
        if let ClaimEffect::Grant(record) =
            decide::claim(None, &claim, Moment::at(now), Fence::default())
        {
            notes.granted.insert(claim.attempt, Record { fence, ..record });
        }
        let fence = before.unwrap_or(fence);
        notes.last_fence.insert(id, fence);
        Ok(Claimed::Granted { fence })
    }

    /// The fence of the attempt before, also if its record expired since.
    async fn fence_before(&self, claim: &Claim) -> Option<Fence> {
        let last = self.notes().last_fence.get(&claim.id).copied();
        let found = self.current(claim.id).await.filter(|found| found.attempt != claim.attempt);
        last.or(found.map(|record| record.fence))
    }

    async fn settle_one(&self, mut settlement: Settlement) -> Result<Settled, StoreError> {
        let id = settlement.id;
        match self.bug {
            StoreBug::SettleWithoutAttemptCheck => {
                if let Some(record) = self.current(id).await {
                    settlement.attempt = record.attempt;
                }
            }
            StoreBug::AnswerBeforeCommit => {
                if let Some(early) = self.settle_early(&settlement) {
                    return Ok(early);
                }
            }
            StoreBug::FingerprintInId => {
                let notes = self.notes();
                let of_attempt = notes.mixed_of_attempt.get(&settlement.attempt);
                settlement.id = *of_attempt.or_else(|| notes.mixed.get(&id)).unwrap_or(&id);
            }
            _ => {}
        }
        let settled = one(self.inner.settle(vec![settlement]).await)?;
        Ok(match settled {
            Settled::Done { record, now } => Settled::Done { record: with_id(&record, id), now },
            Settled::Stale { current } => {
                Settled::Stale { current: current.map(|record| with_id(&record, id)) }
            }
        })
    }

    /// Answers the end of an attempt, and writes it afterwards.
    fn settle_early(&self, settlement: &Settlement) -> Option<Settled> {
        let ends = |transition: &Transition| {
            matches!(
                transition,
                Transition::Complete(_)
                    | Transition::Fail(_)
                    | Transition::Release
                    | Transition::Unknown(_)
            )
        };
        if !ends(&settlement.transition) {
            return None;
        }
        let now = self.clock.now();
        let granted = self.notes().granted.remove(&settlement.attempt)?;
        let effect = decide::settle(Some(&granted), settlement, Moment::at(now));
        let SettleEffect::Write(record) = effect else { return None };
        let (inner, clock) = (Arc::clone(&self.inner), Arc::clone(&self.clock));
        let settlement = settlement.clone();
        tokio::spawn(async move {
            while one(inner.settle(vec![settlement.clone()]).await).is_err() {
                clock.sleep(RETRY_PAUSE).await;
            }
        });
        Some(Settled::Done { record: Arc::new(record), now })
    }

    /// Deletes each record whose first expiry is over, whatever it is by now.
    async fn delete_by_index(&self, limit: usize) -> usize {
        let now = self.clock.now();
        let due = |(_, expiry): &(&RecordId, &Timestamp)| **expiry <= now;
        let named: Vec<RecordId> =
            self.notes().first_expiry.iter().filter(due).map(|(id, _)| *id).take(limit).collect();
        let mut removed = 0;
        for id in named {
            self.notes().first_expiry.remove(&id);
            let Some(record) = self.current(id).await else { continue };
            let attempt = record.attempt;
            if matches!(record.state, State::Running { .. }) {
                let release = Settlement { id, attempt, transition: Transition::Release };
                let _released = self.inner.settle(vec![release]).await;
            }
            let forget = Settlement { id, attempt, transition: Transition::Forget };
            let forgotten = one(self.inner.settle(vec![forget]).await);
            removed += usize::from(matches!(forgotten, Ok(Settled::Done { .. })));
        }
        removed
    }
}

impl Store for BuggyStore {
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let mut answers = Vec::with_capacity(batch.len());
            for claim in batch {
                answers.push(self.claim_one(claim).await);
            }
            answers
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            let mut answers = Vec::with_capacity(batch.len());
            for settlement in batch {
                answers.push(self.settle_one(settlement).await);
            }
            answers
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            let inside = |id: &RecordId| *self.notes().mixed.get(id).unwrap_or(id);
            let answers = self.inner.load(ids.iter().map(inside).collect()).await;
            let restored = |(id, answer): (RecordId, Result<Option<Arc<Record>>, StoreError>)| {
                answer.map(|found| found.map(|record| with_id(&record, id)))
            };
            ids.into_iter().zip(answers).map(restored).collect()
        }
        .boxed()
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        async move {
            let by_index = match self.bug {
                StoreBug::SweepWithoutRecheck => self.delete_by_index(limit).await,
                _ => 0,
            };
            let swept = self.inner.sweep(limit).await?;
            Ok(Swept { removed: swept.removed + by_index, ..swept })
        }
        .boxed()
    }

    onetake_core::delegate_store!(self => self.inner; name, due, ready, close);
}

onetake_core::delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for BuggyStore, self => self.inner);

/// The only answer of a batch of one.
fn one<T>(mut answers: Answers<T>) -> Result<T, StoreError> {
    answers.pop().expect("one answer for one item")
}

/// The id with the fingerprint mixed in.
fn mixed(id: RecordId, fingerprint: &Fingerprint) -> RecordId {
    let mut bytes = *id.as_bytes();
    for (byte, digest) in bytes.iter_mut().zip(fingerprint.digest()) {
        *byte ^= digest;
    }
    RecordId::from_bytes(bytes)
}

fn with_id(record: &Arc<Record>, id: RecordId) -> Arc<Record> {
    if record.id == id {
        return Arc::clone(record);
    }
    Arc::new(Record { id, ..Record::clone(record) })
}

fn restored_claim(claimed: Claimed, id: RecordId) -> Claimed {
    match claimed {
        Claimed::Found { record, now } => Claimed::Found { record: with_id(&record, id), now },
        granted @ Claimed::Granted { .. } => granted,
    }
}
