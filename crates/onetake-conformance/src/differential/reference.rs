//! The reference: records in memory, decided by [`decide`] at the store's time.

use std::collections::BTreeMap;
use std::time::Duration;

use onetake_core::clock::{Clock, Timestamp};
use onetake_core::decide::{self, ClaimEffect, Contact, Moment, SettleEffect};
use onetake_core::record::{Fence, Record, State};
use onetake_core::scope::RecordId;
use onetake_core::store::{Claim, Claimed, DueAttempt, Settled, Settlement};

use super::{Leases, compare};

/// The expected records.
pub(super) struct Reference {
    leases: Leases,
    now: Timestamp,
    monotonic: Duration,
    /// The time at which the store was opened, by the monotonic clock.
    opened_at: Duration,
    records: BTreeMap<RecordId, Record>,
    /// The highest fence of each record, also across its expiry.
    fences: BTreeMap<RecordId, Fence>,
    /// The time of the last write of each record, by the monotonic clock.
    written_at: BTreeMap<RecordId, Duration>,
}

impl Reference {
    pub(super) fn new(clock: &dyn Clock, leases: Leases) -> Self {
        let (now, monotonic) = (clock.now(), clock.monotonic());
        Self {
            leases,
            now,
            monotonic,
            opened_at: monotonic,
            records: BTreeMap::new(),
            fences: BTreeMap::new(),
            written_at: BTreeMap::new(),
        }
    }

    /// Returns the store's time.
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Reads the clock.
    pub(super) fn look(&mut self, clock: &dyn Clock) {
        (self.now, self.monotonic) = (clock.now(), clock.monotonic());
    }

    /// Records that the store was opened again.
    pub(super) fn opened(&mut self) {
        self.opened_at = self.monotonic;
    }

    pub(super) fn record(&self, id: RecordId) -> Option<&Record> {
        self.records.get(&id)
    }

    fn moment(&self, id: RecordId) -> Moment {
        let contact = match self.leases {
            Leases::ByClock => Contact::ALWAYS,
            Leases::ByClockAndContact => Contact::For(self.monotonic - self.opened_at),
            Leases::ByWatching => {
                let written_at = self.written_at.get(&id).copied().unwrap_or_default();
                Contact::Unchanged(self.monotonic - written_at.max(self.opened_at))
            }
        };
        Moment { now: self.now, contact }
    }

    fn write(&mut self, record: Record) {
        self.written_at.insert(record.id, self.monotonic);
        self.records.insert(record.id, record);
    }

    pub(super) fn claim(&mut self, claim: &Claim, told: &Claimed) -> Result<(), String> {
        let found = self.records.get(&claim.id).cloned();
        let last = self.fences.get(&claim.id).copied().unwrap_or_default();
        let effect = decide::claim(found.as_ref(), claim, self.moment(claim.id), last);
        match (effect, told) {
            (ClaimEffect::Grant(record), Claimed::Granted { fence }) => {
                let is_again = found.is_some_and(|found| found.fence == record.fence);
                // A store may also raise a fence above those of other records.
                let is_right =
                    if is_again { *fence == record.fence } else { *fence >= record.fence };
                if !is_right {
                    return Err(format!("the fence {fence} was granted behind {last}: {claim:?}"));
                }
                self.fences.insert(claim.id, *fence);
                self.write(Record { fence: *fence, ..record });
                Ok(())
            }
            (ClaimEffect::BecomeUnknown(record), Claimed::Found { record: told, now }) => {
                self.write(record);
                self.is_now(*now)?;
                compare("a claim", self.records.get(&claim.id), Some(told))
            }
            (ClaimEffect::Keep, Claimed::Found { record: told, now }) => {
                self.is_now(*now)?;
                compare("a claim", found.as_ref(), Some(told))
            }
            (effect, told) => Err(format!("a claim\n  expected {effect:?}\n  told     {told:?}")),
        }
    }

    pub(super) fn settle(&mut self, item: &Settlement, told: &Settled) -> Result<(), String> {
        let found = self.records.get(&item.id).cloned();
        let effect = decide::settle(found.as_ref(), item, self.moment(item.id));
        match (effect, told) {
            (SettleEffect::Write(record), Settled::Done { record: told, now }) => {
                self.write(record);
                self.is_now(*now)?;
                compare("a settlement", self.records.get(&item.id), Some(told))
            }
            (SettleEffect::Already, Settled::Done { record: told, now }) => {
                self.is_now(*now)?;
                compare("a settlement", found.as_ref(), Some(told))
            }
            (SettleEffect::Stale, Settled::Stale { current }) => {
                let found = found.filter(|record| !record.is_expired(self.now));
                compare("a stale settlement", found.as_ref(), current.as_deref())
            }
            (effect, told) => {
                Err(format!("a settlement\n  expected {effect:?}\n  told     {told:?}"))
            }
        }
    }

    pub(super) fn load(&self, id: RecordId, told: Option<&Record>) -> Result<(), String> {
        compare("a read", self.live(id), told)
    }

    pub(super) fn find(&self, id: RecordId, told: &[RecordId]) -> Result<(), String> {
        if self.live(id).is_some() && !told.contains(&id) {
            return Err(format!("a reference does not lead to {id:?}: {told:?}"));
        }
        Ok(())
    }

    /// Returns the attempts whose lease and grace are over, each with the time since when.
    pub(super) fn abandoned(&self) -> Vec<(Timestamp, DueAttempt)> {
        let over = self
            .records
            .values()
            .filter(|record| decide::is_abandoned(record, self.moment(record.id)));
        over.filter_map(|record| Some((record.abandoned_at()?, due(record)))).collect()
    }

    /// Returns the attempts that are due for reconciliation, each with the time since when.
    pub(super) fn unsettled(&self) -> Vec<(Timestamp, DueAttempt)> {
        let live = self.records.values().filter(|record| !record.is_expired(self.now));
        let asked = live.filter_map(|record| Some((record.ask_at()?, due(record))));
        asked.filter(|(ask_at, _)| *ask_at <= self.now).collect()
    }

    /// Returns the number of expired records, and of the unknown ones among them.
    pub(super) fn expired(&self) -> (usize, usize) {
        let expired = || self.records.values().filter(|record| record.is_expired(self.now));
        let unknown = expired().filter(|record| matches!(record.state, State::Unknown { .. }));
        (expired().count(), unknown.count())
    }

    /// Deletes the expired records.
    pub(super) fn sweep(&mut self) {
        let now = self.now;
        self.records.retain(|_, record| !decide::may_sweep(record, now));
    }

    /// Returns the future times at which something ends.
    pub(super) fn ends(&self) -> Vec<Timestamp> {
        let contact = |record: &Record| match self.leases {
            Leases::ByClock => None,
            Leases::ByClockAndContact => Some(self.after_opening(record.terms.grace)),
            Leases::ByWatching => Some(self.after_opening(record.terms.lease + record.terms.grace)),
        };
        let of_one = |record: &Record| {
            let lease = match record.state {
                State::Running { lease_until } => Some(lease_until),
                _ => None,
            };
            [lease, record.abandoned_at(), record.expires_at(), record.ask_at(), contact(record)]
        };
        let ends = self.records.values().flat_map(of_one).flatten();
        ends.filter(|end| *end > self.now).collect()
    }

    /// Returns the time at which the store will have been open for this long.
    fn after_opening(&self, lasting: Duration) -> Timestamp {
        let left = (self.opened_at + lasting).saturating_sub(self.monotonic);
        self.now.plus(left)
    }

    fn live(&self, id: RecordId) -> Option<&Record> {
        self.records.get(&id).filter(|record| !record.is_expired(self.now))
    }

    fn is_now(&self, told: Timestamp) -> Result<(), String> {
        if told == self.now {
            return Ok(());
        }
        let (now, told) = (self.now.as_micros(), told.as_micros());
        Err(format!("it is {now}, and the store says {told}"))
    }
}

fn due(record: &Record) -> DueAttempt {
    DueAttempt { id: record.id, attempt: record.attempt }
}
