//! Counts of recent replays in this process, in bounded memory. A replay writes nothing to the
//! store (S17), so other nodes do not know these counts.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::clock::Timestamp;
use crate::record::{AttemptId, Record};
use crate::scope::RecordId;

/// The minimum number of records that are remembered. The maximum is twice as many.
const RECORDS_MIN: usize = 32_768;

/// The replays of a record, as far as this process remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replays {
    /// The number of replays.
    pub count: u64,
    /// The time of the last replay.
    pub last_at: Option<Timestamp>,
}

/// The outcome of one attempt. A key that is used again after it expired has another attempt, so
/// its count starts at zero.
type ReplayKey = (RecordId, AttemptId);

/// Two generations: when the newer one is full, the older one is dropped.
#[derive(Debug, Default)]
pub(crate) struct ReplayCounts(Mutex<[HashMap<ReplayKey, Replays>; 2]>);

impl ReplayCounts {
    pub(crate) fn count(&self, record: &Record, now: Timestamp) {
        let id = (record.id, record.attempt);
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [newer, older] = &mut *generations;
        let known = newer.get(&id).or_else(|| older.get(&id)).copied().unwrap_or_default();
        newer.insert(id, Replays { count: known.count + 1, last_at: Some(now) });
        if newer.len() >= RECORDS_MIN {
            *older = std::mem::take(newer);
        }
    }

    pub(crate) fn of(&self, record: &Record) -> Replays {
        let id = &(record.id, record.attempt);
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [newer, older] = &*generations;
        newer.get(id).or_else(|| older.get(id)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: usize) -> Record {
        Record {
            id: RecordId::from_bytes((number as u128).to_be_bytes()),
            attempt: AttemptId::from_bytes([0; 16]),
            fence: crate::Fence::new(1),
            fingerprint: crate::Fingerprint::of(b""),
            terms: crate::Terms::default(),
            origin: crate::Origin::default(),
            created_at: Timestamp::default(),
            claimed_at: Timestamp::default(),
            history: crate::origin::AttemptHistory::default(),
            state: crate::State::Released { at: Timestamp::default() },
        }
    }

    #[test]
    fn the_latest_are_remembered_in_bounded_memory() {
        let counts = ReplayCounts::default();
        let at = Timestamp::from_micros;
        for number in 0..5 * RECORDS_MIN {
            counts.count(&record(number), at(number as u64));
            counts.count(&record(0), at(number as u64));
            let [newer, older] = &*counts.0.lock().unwrap();
            assert!(newer.len() + older.len() <= 2 * RECORDS_MIN);
        }
        let last = 5 * RECORDS_MIN - 1;
        assert_eq!(counts.of(&record(last)), Replays { count: 1, last_at: Some(at(last as u64)) });
        assert_eq!(counts.of(&record(0)).count, 5 * RECORDS_MIN as u64 + 1);
        assert_eq!(counts.of(&record(1)), Replays::default(), "forgotten");
    }
}
