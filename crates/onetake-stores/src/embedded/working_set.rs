//! The store's state in memory, and the decisions on claims and settlements.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use onetake_core::decide::{self, ClaimEffect, Moment, SettleEffect};
use onetake_core::store::{DueAttempt, FOUND_MAX, Swept};
use onetake_core::{
    Claim, Claimed, Fence, Record, RecordId, Reference, Settled, Settlement, State, StoreError,
    StoreErrorKind, Timestamp, Transition,
};

use super::read_errors::may_pass;
use super::tables::{Group, MomentKey, Tables, moment_entry};

/// The number of fences that are reserved ahead, so that the ceiling is seldom written: a minute of
/// microseconds.
const FENCES_AHEAD: u64 = 60_000_000;
/// The largest number of reconcile entries that one call reads. Traffic waits for it.
const ASKS_LOOKED_AT_MAX: usize = 1_000;

/// The time until a sweep reads a record again that the operating system could not read.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(3_600);

/// The largest recording. lsm-tree writes values of 2 GiB and more, and cannot read them.
/// The largest body of a sealed recording fits, with the bytes that sealing adds.
pub(super) const RECORDING_BYTES_MAX: usize = (1 << 30) + (64 << 20);

/// The state that is known without reading the tables.
pub(super) struct WorkingSet {
    running: HashMap<RecordId, Arc<Record>>,
    /// The ends of leases plus grace.
    leases: BTreeSet<(Timestamp, RecordId)>,
    /// Records that the current group has settled or deleted (`None`). The tables do not show them
    /// yet.
    pub(super) fresh: HashMap<RecordId, Option<Arc<Record>>>,
    /// The highest fence that was ever granted, for any record.
    highest: Fence,
    /// The fence ceiling on disk. A higher fence is granted only after the ceiling is raised on
    /// disk.
    pub(super) ceiling: Fence,
    /// The largest recording in bytes.
    recording_bytes_max: usize,
}

impl WorkingSet {
    /// An empty state. Every later fence is above this one.
    pub(super) fn above(ceiling: Fence) -> Self {
        Self {
            running: HashMap::new(),
            leases: BTreeSet::new(),
            fresh: HashMap::new(),
            highest: ceiling,
            ceiling,
            recording_bytes_max: RECORDING_BYTES_MAX,
        }
    }

    /// The records of all running attempts.
    pub(super) fn running(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.running.values()
    }

    pub(super) fn is_any_running(&self) -> bool {
        !self.running.is_empty()
    }

    pub(super) fn find(
        &self,
        tables: &Tables,
        id: RecordId,
    ) -> Result<Option<Arc<Record>>, StoreError> {
        if let Some(record) = self.running.get(&id) {
            return Ok(Some(Arc::clone(record)));
        }
        if let Some(fresh) = self.fresh.get(&id) {
            return Ok(fresh.clone());
        }
        Ok(tables.settled(id)?.map(Arc::new))
    }

    /// Returns the ids after `from`, in order.
    pub(super) fn ids(
        &self,
        tables: &Tables,
        from: Option<RecordId>,
        limit: usize,
    ) -> Result<Vec<RecordId>, StoreError> {
        let settled = tables.settled_ids(from, limit)?;
        // The table is known up to the last id of a full page, and not beyond it.
        let end = settled.last().copied().filter(|_| settled.len() >= limit);
        let known = self.running.keys().chain(self.fresh.keys()).copied();
        let known = known.filter(|id| Some(*id) > from && end.is_none_or(|end| *id <= end));
        let mut ids: BTreeSet<RecordId> = settled.into_iter().collect();
        ids.extend(known);
        Ok(ids.into_iter().take(limit).collect())
    }

    /// Returns the ids that have this reference.
    pub(super) fn with_reference(
        &self,
        tables: &Tables,
        reference: Reference,
    ) -> Result<Vec<RecordId>, StoreError> {
        let range = reference.ids();
        let mut ids = tables.settled_within(range.clone(), FOUND_MAX)?;
        let settled = self.fresh.iter().filter(|(_, record)| record.is_some());
        let known = self.running.keys().chain(settled.map(|(id, _)| id));
        ids.extend(known.filter(|id| range.contains(id)));
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(FOUND_MAX);
        Ok(ids)
    }

    pub(super) fn claim(
        &mut self,
        tables: &Tables,
        group: &mut Group<'_>,
        claim: &Claim,
        at: Moment,
    ) -> Result<Claimed, StoreError> {
        let found = self.find(tables, claim.id)?;
        let asked = found.as_ref().and_then(|record| record.ask_at());
        match (decide::claim(found.as_deref(), claim, at, self.highest), found) {
            (ClaimEffect::Grant(record), _) => {
                self.highest = self.highest.max(record.fence);
                if self.highest > self.ceiling {
                    self.ceiling = Fence::new(self.highest.get().saturating_add(FENCES_AHEAD));
                    group.raise_fence_ceiling(self.ceiling);
                }
                Ok(Claimed::Granted { fence: self.write(group, record, asked).fence })
            }
            (ClaimEffect::BecomeUnknown(record), _) => {
                Ok(Claimed::Found { record: self.write(group, record, asked), now: at.now })
            }
            (ClaimEffect::Keep, Some(record)) => Ok(Claimed::Found { record, now: at.now }),
            (ClaimEffect::Keep, None) => Err(StoreError::kept_nothing()),
        }
    }

    pub(super) fn settle(
        &mut self,
        tables: &Tables,
        group: &mut Group<'_>,
        settlement: &Settlement,
        at: Moment,
    ) -> Result<Settled, StoreError> {
        let now = at.now;
        if is_too_large(&settlement.transition, self.recording_bytes_max) {
            let what = format!("a recording has more than {} bytes", self.recording_bytes_max);
            return Err(StoreError::new(StoreErrorKind::Invalid, what));
        }
        let found = self.find(tables, settlement.id)?;
        let asked = found.as_ref().and_then(|record| record.ask_at());
        match (decide::settle(found.as_deref(), settlement, at), found) {
            // A lease ends with this process, so its renewal does not need to be durable.
            (SettleEffect::Write(record), _) if settlement.transition == Transition::Renew => {
                Ok(Settled::Done { record: self.remember(record).0, now })
            }
            (SettleEffect::Write(record), _) => {
                Ok(Settled::Done { record: self.write(group, record, asked), now })
            }
            (SettleEffect::Already, Some(record)) => Ok(Settled::Done { record, now }),
            (_, current) => {
                Ok(Settled::Stale { current: current.filter(|record| !record.is_expired(now)) })
            }
        }
    }

    /// Writes a record. `asked` is the time at which the record was due for reconciliation until
    /// now.
    fn write(
        &mut self,
        group: &mut Group<'_>,
        record: Record,
        asked: Option<Timestamp>,
    ) -> Arc<Record> {
        let (record, ran) = self.remember(record);
        group.write(&record, ran, asked);
        record
    }

    /// Keeps the record in memory. Returns also true if it was running until now.
    fn remember(&mut self, record: Record) -> (Arc<Record>, bool) {
        let record = Arc::new(record);
        let id = record.id;
        let before = match record.abandoned_at() {
            Some(end) => {
                self.leases.insert((end, id));
                self.running.insert(id, Arc::clone(&record))
            }
            None => {
                self.fresh.insert(id, Some(Arc::clone(&record)));
                self.running.remove(&id)
            }
        };
        let ended = before.as_ref().and_then(|before| before.abandoned_at());
        if let Some(end) = ended
            && record.abandoned_at() != Some(end)
        {
            self.leases.remove(&(end, id));
        }
        (record, before.is_some())
    }

    /// Returns the attempts whose owners lose them: their lease and grace are over.
    pub(super) fn abandoned(&self, at: Moment, limit: usize) -> Vec<DueAttempt> {
        let due = self.leases.iter().take_while(|(end, _)| *end <= at.now);
        due.filter_map(|(_, id)| self.running.get(id))
            // Refused writes begin the grace again.
            .filter(|record| decide::is_abandoned(record, at))
            .take(limit)
            .map(|record| DueAttempt { id: record.id, attempt: record.attempt })
            .collect()
    }

    /// Returns the attempts that are due for reconciliation. The record itself decides: an entry
    /// that its record does not confirm, or whose record has expired, is removed.
    pub(super) fn unsettled(
        &self,
        tables: &Tables,
        group: &mut Group<'_>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<DueAttempt>, StoreError> {
        let mut found = Vec::new();
        for entry in tables.asks.until(now)?.take(ASKS_LOOKED_AT_MAX) {
            if found.len() >= limit {
                break;
            }
            let (at, id) = moment_entry(&entry);
            match self.find(tables, id) {
                Ok(Some(record)) if record.ask_at() == Some(at) && !record.is_expired(now) => {
                    found.push(DueAttempt { id, attempt: record.attempt });
                }
                Ok(_) => group.remove_ask(at, id),
                // An unreadable record must not hide the others.
                Err(error) if error.kind() == StoreErrorKind::Invalid => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    pub(super) fn sweep(
        &mut self,
        tables: &Tables,
        group: &mut Group<'_>,
        now: Timestamp,
        due: &[MomentKey],
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        for (at, id) in due.iter().map(moment_entry) {
            let found = match expired(self.find(tables, id))? {
                Expired::Read(found) => found,
                Expired::ReadLater => {
                    group.postpone_expiry(at, now.plus(READ_AGAIN_AFTER), id);
                    continue;
                }
            };
            group.remove_expiry(at, id);
            if let Some(record) = found.filter(|record| decide::may_sweep(record, now)) {
                group.remove_settled(id);
                record.ask_at().into_iter().for_each(|at| group.remove_ask(at, id));
                self.fresh.insert(id, None);
                self.running.remove(&id);
                swept.removed += 1;
                swept.unknown += usize::from(matches!(record.state, State::Unknown { .. }));
            }
        }
        Ok(())
    }
}

/// True if the recording of a completion is larger than this.
pub(super) fn is_too_large(transition: &Transition, recording_bytes_max: usize) -> bool {
    matches!(transition, Transition::Complete(recording) if recording.bytes() > recording_bytes_max)
}

/// The record of a due entry of the expiry index.
#[derive(Debug, PartialEq, Eq)]
enum Expired {
    /// The record, unless it is absent or damaged. The entry is removed. A damaged record stays where
    /// it is, so that it can be repaired.
    Read(Option<Arc<Record>>),
    /// The record may be readable later. The entry moves to a later time, so that the sweep goes on
    /// with other entries.
    ReadLater,
}

/// Decides what a sweep does with an entry. An error ends the sweep, and the entry stays.
fn expired(found: Result<Option<Arc<Record>>, StoreError>) -> Result<Expired, StoreError> {
    match found {
        Err(error) if error.kind() != StoreErrorKind::Invalid => Err(error),
        Err(error) if may_pass(&error) => Ok(Expired::ReadLater),
        found => Ok(Expired::Read(found.ok().flatten())),
    }
}

#[cfg(test)]
mod tests {
    use onetake_core::{AttemptId, Fingerprint, Key, Origin, Recording, Scope, Terms};

    use super::super::tables::moment_key;
    use super::*;
    use crate::embedded::folder::Folder;

    /// A store in memory that has granted a claim.
    struct Running {
        tables: Tables,
        memory: WorkingSet,
        claim: Claim,
        _folder: tempfile::TempDir,
    }

    const AT: Moment = Moment::at(Timestamp::from_micros(1));

    impl Running {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tables = Tables::open(&Folder::lock(folder.path()).unwrap(), 1 << 20).unwrap();
            let mut memory = WorkingSet::above(Fence::default());
            let claim = Claim {
                id: RecordId::derive(&Scope::new("t"), &Key::new("key").unwrap()),
                attempt: AttemptId::from_bytes([1; 16]),
                fingerprint: Fingerprint::of(b"pay"),
                terms: Terms::default(),
                origin: Origin::default(),
            };
            memory.claim(&tables, &mut tables.group(), &claim, AT).unwrap();
            Self { tables, memory, claim, _folder: folder }
        }

        fn complete(&mut self, body: &'static str) -> Result<Settled, StoreError> {
            let Claim { id, attempt, .. } = self.claim;
            let transition = Transition::Complete(Recording::new(body));
            let settlement = Settlement { id, attempt, transition };
            self.memory.settle(&self.tables, &mut self.tables.group(), &settlement, AT)
        }

        fn find(&self) -> Vec<RecordId> {
            self.memory.with_reference(&self.tables, self.claim.id.reference()).unwrap()
        }
    }

    /// One group may settle a record for the first time, and then look for its reference.
    #[test]
    fn a_reference_is_found_in_the_group_that_settles_its_record() {
        let mut store = Running::new();
        assert_eq!(store.find(), [store.claim.id], "it runs");
        store.complete("paid").unwrap();
        assert_eq!(store.find(), [store.claim.id], "it is settled");
    }

    /// It could be written, but not be read again.
    #[test]
    fn a_recording_above_the_limit_is_refused() {
        let mut store = Running::new();
        let largest = "paid";
        store.memory.recording_bytes_max = Recording::new(largest).bytes();
        let refused = store.complete("paid.").unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Invalid, "{refused}");
        assert!(store.memory.is_any_running(), "nothing has changed");
        assert!(matches!(store.complete(largest), Ok(Settled::Done { .. })));
    }

    /// A passing error of the disk must not make a record stay for ever.
    #[test]
    fn a_sweep_comes_back_to_a_record_that_the_disk_did_not_return() {
        let error = |kind| StoreError::new(kind, "a record");
        let invalid = || error(StoreErrorKind::Invalid);
        let disk = invalid().with_source(std::io::Error::from_raw_os_error(5));
        assert_eq!(expired(Err(disk)).unwrap(), Expired::ReadLater);
        assert_eq!(expired(Err(invalid())).unwrap(), Expired::Read(None), "it is damaged");
        assert_eq!(expired(Ok(None)).unwrap(), Expired::Read(None));
        expired(Err(error(StoreErrorKind::Unavailable))).unwrap_err();
    }

    #[test]
    fn a_postponed_entry_is_due_at_its_new_time() {
        let folder = tempfile::tempdir().unwrap();
        let tables = Tables::open(&Folder::lock(folder.path()).unwrap(), 1 << 20).unwrap();
        let id = RecordId::from_bytes([1; RecordId::BYTES]);
        let at = Timestamp::from_micros;
        let mut group = tables.group();
        group.postpone_expiry(at(10), at(10).plus(READ_AGAIN_AFTER), id);
        tables.apply(group.into_parts().1);
        let due = |now| tables.expiry.until(now).unwrap().collect::<Vec<_>>();
        assert_eq!(due(at(20)), [] as [MomentKey; 0]);
        let later = at(10).plus(READ_AGAIN_AFTER);
        assert_eq!(due(later), [moment_key(later, id)]);
    }
}
