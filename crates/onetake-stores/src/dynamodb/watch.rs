//! The time for which each running item has been seen unchanged, by this node's clock.
//!
//! Every write raises the version. So if two reads see the same version, the item did not change
//! between them, and no read is needed in the meantime.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onetake_core::{AttemptId, RecordId};

use super::item::VersionedRecord;

/// The largest number of watched items. Further items are not watched before there is room. That
/// delays a takeover and never makes it too early.
const WATCHED_MAX: usize = 100_000;
/// The longest delay of the index behind the table.
const INDEX_LAG: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Watch {
    sights: Mutex<HashMap<RecordId, Sight>>,
}

#[derive(Clone, Copy, Debug)]
struct Sight {
    attempt: AttemptId,
    version: u64,
    since: Duration,
}

impl Watch {
    /// Records a read of a running item at a time of the monotonic clock. Returns how long it has
    /// been seen unchanged.
    pub(super) fn look(&self, seen: &VersionedRecord, now: Duration) -> Duration {
        let VersionedRecord { record, version } = seen;
        let mut sights = self.lock();
        let fresh = Sight { attempt: record.attempt, version: *version, since: now };
        let room = sights.len() < WATCHED_MAX;
        match sights.get_mut(&record.id) {
            Some(sight) if sight.attempt == record.attempt && sight.version == *version => {
                now.saturating_sub(sight.since)
            }
            // The index may be behind an earlier read.
            Some(sight) if sight.attempt == record.attempt && sight.version > *version => {
                Duration::ZERO
            }
            Some(sight) => {
                *sight = fresh;
                Duration::ZERO
            }
            None => {
                if room {
                    sights.insert(record.id, fresh);
                }
                Duration::ZERO
            }
        }
    }

    /// Forgets items that no longer run. `running` is the whole content of the index.
    pub(super) fn keep(&self, running: &HashSet<RecordId>, now: Duration) {
        self.lock().retain(|id, sight| {
            running.contains(id) || now.saturating_sub(sight.since) < INDEX_LAG
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, Sight>> {
        self.sights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::{Fence, Fingerprint, Record, State, Terms, Timestamp};

    fn seen(id: u128, attempt: u8, version: u64) -> VersionedRecord {
        let record = Record {
            id: RecordId::from_bytes(id.to_be_bytes()),
            attempt: AttemptId::from_bytes([attempt; 16]),
            fence: Fence::new(1),
            fingerprint: Fingerprint::of(b""),
            terms: Terms::default(),
            origin: onetake_core::Origin::default(),
            created_at: Timestamp::default(),
            claimed_at: Timestamp::default(),
            history: onetake_core::origin::AttemptHistory::default(),
            state: State::Running { lease_until: Timestamp::default() },
        };
        VersionedRecord { record, version }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_change_starts_the_watch_anew() {
        let watch = Watch::default();
        assert_eq!(watch.look(&seen(1, 1, 5), at(10)), at(0));
        assert_eq!(watch.look(&seen(1, 1, 5), at(40)), at(30));
        assert_eq!(watch.look(&seen(1, 1, 6), at(41)), at(0), "renewed");
        assert_eq!(watch.look(&seen(1, 1, 6), at(50)), at(9));
        assert_eq!(watch.look(&seen(1, 1, 5), at(60)), at(0), "the index is behind");
        assert_eq!(watch.look(&seen(1, 1, 6), at(61)), at(20));
        assert_eq!(watch.look(&seen(1, 2, 1), at(62)), at(0), "another attempt");
        assert_eq!(watch.look(&seen(1, 2, 1), at(65)), at(3));
    }

    #[test]
    fn it_holds_no_more_than_it_may() {
        let watch = Watch::default();
        for id in 0..WATCHED_MAX as u128 + 10 {
            watch.look(&seen(id, 1, 1), at(1));
        }
        assert_eq!(watch.lock().len(), WATCHED_MAX);
        let late = WATCHED_MAX as u128 + 1;
        assert_eq!(watch.look(&seen(late, 1, 1), at(100)), at(0), "not watched");
        watch.keep(&HashSet::from([RecordId::from_bytes(7_u128.to_be_bytes())]), at(100));
        assert_eq!(watch.look(&seen(7, 1, 1), at(100)), at(99));
        assert_eq!(watch.look(&seen(late, 1, 1), at(100)), at(0));
        assert_eq!(watch.look(&seen(late, 1, 1), at(101)), at(1), "there is room again");
    }
}
