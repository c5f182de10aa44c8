//! Claims and settlements: read, decide, and write on the condition that nothing changed, or read
//! again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;

use onetake_core::decide::{self, ClaimEffect, Contact, Moment, SettleEffect};
use onetake_core::store::{Answers, DueAttempt};
use onetake_core::{
    Claim, Claimed, Fence, Record, RecordId, Settled, Settlement, State, StoreError,
    StoreErrorKind, Timestamp, Transition,
};

use super::DynamoStore;
use super::item::{self, SHARDS, VersionedRecord};
use super::table::WriteResult;

/// The number of times that another node may be faster.
const RACES_MAX: usize = 32;
/// The largest number of this node's running attempts that are kept in memory. The others are read
/// before they are settled.
const OWN_MAX: usize = 50_000;

impl DynamoStore {
    pub(super) async fn claim_one(&self, claim: Claim) -> Result<Claimed, StoreError> {
        // A key is absent most of the time. If it exists, the refused write returns its item.
        let mut found: Option<VersionedRecord> = None;
        let mut floor = Fence::default();
        for _ in 0..RACES_MAX {
            let (moment, judged) = self.judge(found.as_ref());
            let now = moment.now;
            let record = match decide::claim(judged.as_ref(), &claim, moment, floor) {
                ClaimEffect::Grant(record) | ClaimEffect::BecomeUnknown(record) => record,
                ClaimEffect::Keep => {
                    let VersionedRecord { record, .. } =
                        found.ok_or_else(StoreError::kept_nothing)?;
                    return Ok(Claimed::Found { record: Arc::new(record), now });
                }
            };
            let next = VersionedRecord { record, version: next_version(found.as_ref()) };
            match self.table.write(&next, found.as_ref()).await? {
                WriteResult::Landed if item::runs(&next.record) => {
                    let fence = next.record.fence;
                    self.remember(next);
                    return Ok(Claimed::Granted { fence });
                }
                WriteResult::Landed => {
                    return Ok(Claimed::Found { record: Arc::new(next.record), now });
                }
                WriteResult::Other(other) => {
                    // The server may delete an expired item at any moment. Its fence still counts.
                    floor = floor.max(next.record.fence);
                    found = other;
                }
            }
        }
        Err(crowded())
    }

    pub(super) async fn settle_one(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let settlement = item::fitting(settlement);
        let remembered = self.recall(&settlement);
        // An item in memory may be replaced by a write, but nothing is refused because of it.
        let mut certain = remembered.is_none();
        let mut found = match remembered {
            None => self.table.read(settlement.id).await?,
            remembered => remembered,
        };
        for _ in 0..RACES_MAX {
            let (moment, judged) = self.judge(found.as_ref());
            let now = moment.now;
            match decide::settle(judged.as_ref(), &settlement, moment) {
                SettleEffect::Write(record) => {
                    let next = VersionedRecord { record, version: next_version(found.as_ref()) };
                    match self.table.write(&next, found.as_ref()).await? {
                        WriteResult::Landed => {
                            let record = Arc::new(next.record.clone());
                            self.remember(next);
                            return Ok(Settled::Done { record, now });
                        }
                        // This node's own write, whose answer was lost. A postponed reconciliation
                        // may be another node's at the same moment: if two nodes could reconcile
                        // the same record, neither does.
                        WriteResult::Other(Some(other))
                            if other == next && !defers(&settlement) =>
                        {
                            self.remember(other);
                            return Ok(Settled::Done { record: Arc::new(next.record), now });
                        }
                        WriteResult::Other(other) => (found, certain) = (other, true),
                    }
                }
                _ if !certain => (found, certain) = (self.table.read(settlement.id).await?, true),
                effect => {
                    self.own().remove(&settlement.id);
                    let current = found.map(|seen| Arc::new(seen.record));
                    let current = current.filter(|record| !self.is_absent(record));
                    return Ok(match (effect, current) {
                        (SettleEffect::Already, Some(record)) => Settled::Done { record, now },
                        (_, current) => Settled::Stale { current },
                    });
                }
            }
        }
        Err(crowded())
    }

    pub(super) async fn load_all(&self, ids: Vec<RecordId>) -> Answers<Option<Arc<Record>>> {
        // The server rejects a request that names a key twice.
        let asked: HashSet<RecordId> = ids.iter().copied().collect();
        let found = self.table.read_many(&asked.into_iter().collect::<Vec<_>>()).await;
        let found: HashMap<RecordId, Result<Option<Arc<Record>>, StoreError>> = found
            .into_iter()
            .map(|(id, seen)| {
                let live = |VersionedRecord { record, .. }| {
                    (!self.is_absent(&record)).then(|| Arc::new(record))
                };
                (id, seen.map(live))
            })
            .collect();
        ids.iter().map(|id| found.get(id).cloned().unwrap_or(Ok(None))).collect()
    }

    /// Reads all running records, so that the watch sees each of them. Returns those that were
    /// watched for long enough.
    pub(super) async fn look_for_abandoned(
        &self,
        limit: usize,
    ) -> Result<Vec<DueAttempt>, StoreError> {
        let shards = try_join_all((0..SHARDS).map(|shard| self.table.running(shard))).await?;
        // An unreadable item must not hide the others.
        let running = shards.iter().flatten().filter_map(|item| VersionedRecord::decode(item).ok());
        let running: Vec<VersionedRecord> =
            running.filter(|seen| item::runs(&seen.record)).collect();
        let mut over: Vec<(Duration, &VersionedRecord)> = running
            .iter()
            .filter_map(|seen| self.over_for(seen).map(|over_for| (over_for, seen)))
            .collect();
        over.sort_by_key(|(over_for, seen)| (std::cmp::Reverse(*over_for), seen.record.fence));
        let now = self.options.clock.monotonic();
        self.watch.keep(&running.iter().map(|seen| seen.record.id).collect(), now);
        let over = over.into_iter().take(limit).map(|(_, VersionedRecord { record, .. })| record);
        Ok(over.map(|record| DueAttempt { id: record.id, attempt: record.attempt }).collect())
    }

    /// Returns the attempts that are due for reconciliation by this node's clock. A wrong clock
    /// only makes a reconciliation too early or too late: the node first postpones the record, and
    /// a settlement is only for its own attempt.
    pub(super) async fn look_for_unsettled(
        &self,
        limit: usize,
    ) -> Result<Vec<DueAttempt>, StoreError> {
        let now = self.options.clock.now();
        let asks = (0..SHARDS).map(|shard| self.table.asks(shard, now, limit));
        let mut due: Vec<_> = try_join_all(asks).await?.into_iter().flatten().collect();
        due.sort_by_key(item::ask_at);
        Ok(due.iter().filter_map(item::asked_for).take(limit).collect())
    }

    /// Returns the record and the moment for a decision. This node's wall clock does not end a
    /// lease, because the watch does. It does not let a record expire before the margin is over.
    fn judge(&self, found: Option<&VersionedRecord>) -> (Moment, Option<Record>) {
        let now = self.options.clock.now();
        let unwatched = |now| Moment { now, contact: Contact::Unknown };
        let Some(seen) = found else { return (unwatched(now), None) };
        let record = &seen.record;
        match record.expires_at() {
            None => {
                let contact = Contact::Unchanged(self.unchanged_for(seen));
                (Moment { now, contact }, Some(record.clone()))
            }
            // A forgotten record is expired by every node's clock. Its fence still counts.
            Some(_) if item::is_forgotten(record) => {
                let (created_at, at) = (Timestamp::default(), Timestamp::default());
                let record = Record { created_at, ..record.with_state(State::Released { at }) };
                (unwatched(now), Some(record))
            }
            Some(_) if record.is_expired(self.expiry_now()) => {
                (unwatched(now), Some(record.clone()))
            }
            Some(end) => {
                let before = Timestamp::from_micros(end.as_micros().saturating_sub(1));
                (unwatched(now.min(before)), Some(record.clone()))
            }
        }
    }

    /// True if a record counts as absent.
    fn is_absent(&self, record: &Record) -> bool {
        item::is_forgotten(record) || record.is_expired(self.expiry_now())
    }

    /// The time that a record's expiry is compared with.
    fn expiry_now(&self) -> Timestamp {
        let margin = onetake_core::clock::micros(self.options.skew_margin);
        Timestamp::from_micros(self.options.clock.now().as_micros().saturating_sub(margin))
    }

    /// Returns how long ago the lease and grace of a running item ended; `None` if they have not.
    fn over_for(&self, seen: &VersionedRecord) -> Option<Duration> {
        let terms = seen.record.terms;
        self.unchanged_for(seen).checked_sub(terms.lease.saturating_add(terms.grace))
    }

    /// Returns how long a running item has been seen unchanged, without a break.
    fn unchanged_for(&self, seen: &VersionedRecord) -> Duration {
        let watched = self.watch.look(seen, self.options.clock.monotonic());
        // While this node was cut off, the owner may have been cut off too, so the watch starts
        // again.
        watched.min(self.table.breaker.back_for())
    }

    /// Keeps a written item in memory while it runs.
    fn remember(&self, seen: VersionedRecord) {
        let mut own = self.own();
        if !item::runs(&seen.record) {
            own.remove(&seen.record.id);
        } else if own.len() < OWN_MAX || own.contains_key(&seen.record.id) {
            own.insert(seen.record.id, seen);
        }
    }

    /// Returns the item in memory of an attempt of this node. The reaper has to read it from the
    /// table.
    fn recall(&self, settlement: &Settlement) -> Option<VersionedRecord> {
        if settlement.transition == Transition::ExpireLease {
            return None;
        }
        let own = self.own();
        own.get(&settlement.id).filter(|seen| seen.record.attempt == settlement.attempt).cloned()
    }

    fn own(&self) -> MutexGuard<'_, HashMap<RecordId, VersionedRecord>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn defers(settlement: &Settlement) -> bool {
    matches!(settlement.transition, Transition::PostponeReconcile(_))
}

fn next_version(found: Option<&VersionedRecord>) -> u64 {
    found.map_or(1, |seen| seen.version.saturating_add(1))
}

fn crowded() -> StoreError {
    let what = format!("the record of a key was changed concurrently {RACES_MAX} times; try again");
    StoreError::new(StoreErrorKind::Unavailable, what)
}
