//! The reference store: correct, in memory, and lost when the process ends.
//!
//! It is for tests, and as an example of a store. Its index of expired records is cleaned lazily,
//! as in the durable stores, so that a sweep must check each record again here too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::audit::{AUDIT_KEPT, AuditEntry, AuditPage, AuditPosition};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decide::{self, ClaimEffect, Moment, SettleEffect};
use crate::record::{AttemptId, Fence, Record, Recording, State};
use crate::scope::{RecordId, Reference};
use crate::store::{
    Answers, AuditLog, Claim, Claimed, Cursor, Due, DueAttempt, FOUND_MAX, Page, RecordIndex,
    Sealing, Settled, Settlement, SharedSecrets, Store, StoreError, Swept,
};

/// A store that keeps its records in memory.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<RecordId, Arc<Record>>,
    /// The ends of leases and their grace.
    leases: BTreeSet<(Timestamp, RecordId)>,
    /// The times at which unknown records are due for reconciliation.
    asks: BTreeSet<(Timestamp, RecordId)>,
    /// The times at which finished records expire; an entry may be out of date.
    expiries: BTreeSet<(Timestamp, RecordId)>,
    /// The highest fence that was ever granted for any record. It replaces the fences of swept
    /// records.
    highest: Fence,
    secrets: SecretMap,
    entries: BTreeMap<AuditPosition, AuditEntry>,
}

/// Secrets by name. The `Debug` form shows the names only.
#[derive(Default)]
struct SecretMap(HashMap<&'static str, [u8; 32]>);

impl fmt::Debug for SecretMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl MemoryStore {
    /// Creates an empty store on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Creates an empty store on the given clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, inner: Arc::default() }
    }

    /// Returns the number of records, expired ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// True if the store has no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    fn write(&mut self, record: Record) -> Arc<Record> {
        let record = Arc::new(record);
        if let Some(end) = record.abandoned_at() {
            self.leases.insert((end, record.id));
        }
        if let Some(at) = record.expires_at() {
            self.expiries.insert((at, record.id));
        }
        if let Some(at) = record.ask_at() {
            self.asks.insert((at, record.id));
        }
        let before = self.records.insert(record.id, Arc::clone(&record));
        if let Some(end) = before.as_ref().and_then(|before| before.abandoned_at())
            && record.abandoned_at() != Some(end)
        {
            self.leases.remove(&(end, record.id));
        }
        if let Some(at) = before.and_then(|before| before.ask_at())
            && record.ask_at() != Some(at)
        {
            self.asks.remove(&(at, record.id));
        }
        record
    }

    fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError> {
        let found = self.records.get(&claim.id).cloned();
        match (decide::claim(found.as_deref(), claim, Moment::at(now), self.highest), found) {
            (ClaimEffect::Grant(record), _) => {
                self.highest = self.highest.max(record.fence);
                Ok(Claimed::Granted { fence: self.write(record).fence })
            }
            (ClaimEffect::BecomeUnknown(record), _) => {
                Ok(Claimed::Found { record: self.write(record), now })
            }
            (ClaimEffect::Keep, Some(record)) => Ok(Claimed::Found { record, now }),
            (ClaimEffect::Keep, None) => Err(StoreError::kept_nothing()),
        }
    }

    fn settle(&mut self, settlement: &Settlement, now: Timestamp) -> Settled {
        let found = self.records.get(&settlement.id).cloned();
        match (decide::settle(found.as_deref(), settlement, Moment::at(now)), found) {
            (SettleEffect::Write(record), _) => Settled::Done { record: self.write(record), now },
            (SettleEffect::Already, Some(record)) => Settled::Done { record, now },
            (_, current) => {
                Settled::Stale { current: current.filter(|record| !record.is_expired(now)) }
            }
        }
    }

    fn due(
        &self,
        index: &BTreeSet<(Timestamp, RecordId)>,
        now: Timestamp,
        limit: usize,
    ) -> Vec<DueAttempt> {
        let due = index.iter().take_while(|(at, _)| *at <= now);
        due.filter_map(|(_, id)| self.records.get(id))
            .filter(|record| !record.is_expired(now))
            .take(limit)
            .map(|record| DueAttempt { id: record.id, attempt: record.attempt })
            .collect()
    }

    fn sweep(&mut self, limit: usize, now: Timestamp) -> Swept {
        let mut swept = Swept::default();
        self.entries.retain(|place, _| place.at().plus(AUDIT_KEPT) > now);
        while swept.removed < limit {
            let Some(entry) = self.expiries.first().copied().filter(|(at, _)| *at <= now) else {
                return swept;
            };
            self.expiries.remove(&entry);
            let id = entry.1;
            if self.records.get(&id).is_some_and(|record| decide::may_sweep(record, now))
                && let Some(gone) = self.records.remove(&id)
            {
                if let Some(at) = gone.ask_at() {
                    self.asks.remove(&(at, id));
                }
                swept.removed += 1;
                swept.unknown += usize::from(matches!(gone.state, State::Unknown { .. }));
            }
        }
        swept.more = self.expiries.first().is_some_and(|(at, _)| *at <= now);
        swept
    }
}

impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let answers = batch.iter().map(|item| inner.claim(item, now)).collect();
        std::future::ready(answers).boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let answers = batch.iter().map(|item| Ok(inner.settle(item, now))).collect();
        std::future::ready(answers).boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        let now = self.clock.now();
        let inner = self.lock();
        let one = |id| inner.records.get(id).filter(|record| !record.is_expired(now)).cloned();
        std::future::ready(ids.iter().map(|id| Ok(one(id))).collect()).boxed()
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        let inner = self.lock();
        let index = match which {
            Due::LeaseEnd => &inner.leases,
            Due::Reconcile => &inner.asks,
        };
        let found = inner.due(index, self.clock.now(), limit);
        std::future::ready(Ok(found)).boxed()
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        let now = self.clock.now();
        let swept = self.lock().sweep(limit, now);
        std::future::ready(Ok(swept)).boxed()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }
}

impl RecordIndex for MemoryStore {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        let page = from.map(|cursor| cursor.id()).transpose().map(|from| {
            let start = from.map_or(Bound::Unbounded, Bound::Excluded);
            let inner = self.lock();
            let ids = inner.records.range((start, Bound::Unbounded)).take(limit);
            Page::in_order(ids.map(|(id, _)| *id).collect(), limit)
        });
        std::future::ready(page).boxed()
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        let inner = self.lock();
        let found = inner.records.range(reference.ids()).take(FOUND_MAX);
        std::future::ready(Ok(found.map(|(id, _)| *id).collect())).boxed()
    }
}

impl AuditLog for MemoryStore {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        self.lock().entries.insert(entry.place, entry);
        std::future::ready(Ok(())).boxed()
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        let entries = from.map(|cursor| AuditPosition::of(&cursor)).transpose().map(|from| {
            let end = from.map_or(Bound::Unbounded, Bound::Excluded);
            let inner = self.lock();
            let older = inner.entries.range((Bound::Unbounded, end)).rev().map(|(_, entry)| entry);
            let of_it = older.filter(|entry| of.is_none_or(|id| id == entry.id));
            AuditPage::in_order(of_it.take(limit).cloned().collect(), limit)
        });
        std::future::ready(entries).boxed()
    }
}

impl SharedSecrets for MemoryStore {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        let secret = *self.lock().secrets.0.entry(name).or_insert(fresh);
        std::future::ready(Ok(secret)).boxed()
    }
}

impl Sealing for MemoryStore {
    fn seal(
        &self,
        _: RecordId,
        _: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        Ok(recording)
    }
}
