//! The bounded cache of settled records, which answers replays without the store.
//!
//! An entry lives for at most `cache_age_max` (a minute by default), and never past its record's
//! expiry. All entries have the same maximum age, so the oldest is the first to be removed, whether
//! by age or by size.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::record::{AttemptId, Record, State};
use crate::scope::RecordId;

/// The size of an entry without the texts and bytes of its record, in bytes: the record itself, and
/// its slots in the map and in the queue.
const ENTRY_BYTES: usize = 512;

/// The number of forgotten outcomes that are remembered as such: more than operators forget in a
/// minute.
const FORGOTTEN_MAX: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: usize,
    age_max: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<RecordId, CachedRecord>,
    order: VecDeque<(RecordId, u64)>,
    sequence: u64,
    bytes: usize,
    /// Outcomes that an operator forgot. Until the given time, a copy that was read before may
    /// still arrive.
    forgotten: VecDeque<(RecordId, AttemptId, Duration)>,
}

#[derive(Debug)]
struct CachedRecord {
    record: Arc<Record>,
    fresh_until: Duration,
    sequence: u64,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize, age_max: Duration) -> Self {
        Self { bytes_max, age_max, inner: Mutex::default() }
    }

    /// Keeps a settled record. `now` is the store's time of its answer. `asked_at` is this node's
    /// monotonic clock before the request, so that an entry can only end too early.
    pub(crate) fn put(&self, record: &Arc<Record>, now: Timestamp, asked_at: Duration) {
        if !matches!(record.state, State::Completed { .. } | State::Failed { .. }) {
            return;
        }
        let left = record.expires_at().map_or(Duration::ZERO, |at| at.since(now));
        let cost = cost(record);
        if cost > self.bytes_max / 8 || left.is_zero() {
            return;
        }
        let fresh_until = asked_at.saturating_add(left.min(self.age_max));
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.is_forgotten(record, asked_at) {
            return;
        }
        inner.sequence += 1;
        let sequence = inner.sequence;
        let entry = CachedRecord { record: Arc::clone(record), fresh_until, sequence };
        if let Some(before) = inner.entries.insert(record.id, entry) {
            inner.bytes -= self::cost(&before.record);
        }
        inner.bytes += cost;
        inner.order.push_back((record.id, sequence));
        inner.evict(self.bytes_max, asked_at);
    }

    /// Removes a record before its time, and refuses copies of it that were read before.
    pub(crate) fn forget(&self, id: RecordId, attempt: AttemptId, monotonic: Duration) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gone) = inner.entries.remove(&id) {
            inner.bytes -= cost(&gone.record);
        }
        inner.forgotten.push_back((id, attempt, monotonic.saturating_add(self.age_max)));
        if inner.forgotten.len() > FORGOTTEN_MAX {
            inner.forgotten.pop_front();
        }
    }

    pub(crate) fn get(&self, id: &RecordId, monotonic: Duration) -> Option<Arc<Record>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = inner.entries.get(id).filter(|entry| entry.fresh_until > monotonic)?;
        Some(Arc::clone(&entry.record))
    }
}

fn cost(record: &Record) -> usize {
    let outcome = match &record.state {
        State::Completed { recording, .. } => recording.bytes(),
        State::Failed { failure, .. } => failure.code.len() + failure.detail.len(),
        _ => 0,
    };
    let origin = record.origin.route.len() + record.origin.memo.as_bytes().len();
    ENTRY_BYTES + outcome + origin + record.history.as_text().len()
}

impl Inner {
    fn is_forgotten(&mut self, record: &Record, monotonic: Duration) -> bool {
        while self.forgotten.front().is_some_and(|(_, _, until)| *until <= monotonic) {
            self.forgotten.pop_front();
        }
        self.forgotten.iter().any(|(id, attempt, _)| *id == record.id && *attempt == record.attempt)
    }

    fn evict(&mut self, bytes_max: usize, monotonic: Duration) {
        while let Some((id, sequence)) = self.order.front().copied() {
            let current = self.entries.get(&id).filter(|entry| entry.sequence == sequence);
            let keep = current
                .is_some_and(|entry| self.bytes <= bytes_max && entry.fresh_until > monotonic);
            if keep {
                return;
            }
            self.order.pop_front();
            if current.is_some()
                && let Some(gone) = self.entries.remove(&id)
            {
                self.bytes -= cost(&gone.record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::record::{Fence, Recording, Terms};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn record(id: u8, ttl: u64, bytes: usize) -> Arc<Record> {
        Arc::new(Record {
            id: RecordId::from_bytes([id; 16]),
            attempt: AttemptId::from_bytes([0; 16]),
            fence: Fence::new(1),
            fingerprint: Fingerprint::of(b""),
            terms: Terms { ttl: Duration::from_secs(ttl), ..Terms::default() },
            origin: crate::Origin::default(),
            created_at: NOW,
            claimed_at: NOW,
            history: crate::origin::AttemptHistory::default(),
            state: State::Completed { at: NOW, recording: Recording::new(vec![0; bytes]) },
        })
    }

    fn has(cache: &Cache, id: u8, seconds: u64) -> bool {
        cache.get(&RecordId::from_bytes([id; 16]), Duration::from_secs(seconds)).is_some()
    }

    #[test]
    fn entries_end_with_their_age_and_with_their_record() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60));
        cache.put(&record(1, 86_400, 10), NOW, Duration::from_secs(100));
        cache.put(&record(2, 5, 10), NOW, Duration::from_secs(100));
        assert!(has(&cache, 1, 159) && !has(&cache, 1, 160));
        assert!(has(&cache, 2, 104) && !has(&cache, 2, 105));
    }

    #[test]
    fn the_oldest_goes_first_and_the_bound_holds() {
        let cache = Cache::new(10_000, Duration::from_secs(60));
        for id in 0..100 {
            cache.put(&record(id, 86_400, 700), NOW, Duration::from_secs(1));
            assert!(cache.inner.lock().unwrap().bytes <= 10_000);
        }
        assert!(has(&cache, 99, 2) && !has(&cache, 0, 2));
        cache.put(&record(7, 86_400, 9_000), NOW, Duration::from_secs(1));
        assert!(!has(&cache, 7, 2), "a large recording does not push out everybody else's");
        cache.put(&record(99, 86_400, 100), NOW, Duration::from_secs(1));
        let inner = cache.inner.lock().unwrap();
        let sum: usize = inner.entries.values().map(|entry| cost(&entry.record)).sum();
        assert_eq!(inner.bytes, sum);
    }

    /// A map has up to twice as many slots as entries, and so has a queue.
    #[test]
    fn an_entry_takes_no_more_bytes_than_are_counted() {
        let places = size_of::<(RecordId, CachedRecord)>() + 1 + size_of::<(RecordId, u64)>();
        assert!(size_of::<Record>() + 2 * places <= ENTRY_BYTES, "{}", size_of::<Record>());
    }

    #[test]
    fn what_is_too_old_or_forgotten_takes_no_bytes() {
        let cache = Cache::new(100_000, Duration::from_secs(60));
        let bytes = || cache.inner.lock().unwrap().bytes;
        cache.put(&record(1, 86_400, 1_000), NOW, Duration::from_secs(100));
        let one = bytes();
        assert!((1_000..2_000).contains(&one), "{one}");
        cache.put(&record(2, 86_400, 1_000), NOW, Duration::from_secs(130));
        assert_eq!(bytes(), 2 * one);
        // The first is a minute old.
        cache.put(&record(3, 86_400, 1_000), NOW, Duration::from_secs(160));
        assert_eq!(bytes(), 2 * one);
        let attempt = AttemptId::from_bytes([0; 16]);
        cache.forget(RecordId::from_bytes([3; 16]), attempt, Duration::from_secs(161));
        assert_eq!(bytes(), one);
        // A caller that read the record before puts it once more.
        cache.put(&record(3, 86_400, 1_000), NOW, Duration::from_secs(220));
        assert!(!has(&cache, 3, 220));
        cache.put(&record(3, 86_400, 1_000), NOW, Duration::from_secs(221));
        assert!(has(&cache, 3, 221), "by then nobody can have read it before");
    }

    #[test]
    fn an_eighth_of_the_bound_is_the_largest_entry() {
        let small = record(1, 86_400, 700);
        let eight = Cache::new(8 * cost(&small), Duration::from_secs(60));
        eight.put(&small, NOW, Duration::from_secs(1));
        assert!(has(&eight, 1, 2), "an eighth of the bound");
        eight.put(&record(2, 86_400, 701), NOW, Duration::from_secs(1));
        assert!(!has(&eight, 2, 2), "one byte more");
    }

    #[test]
    fn an_expired_record_takes_no_room() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60));
        let expired = NOW.plus(Duration::from_secs(3600));
        cache.put(&record(1, 5, 10), expired, Duration::from_secs(1));
        assert!(cache.inner.lock().unwrap().entries.is_empty());
    }

    #[test]
    fn entries_that_are_too_old_make_room() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60));
        cache.put(&record(1, 86_400, 10), NOW, Duration::from_secs(1));
        cache.put(&record(2, 86_400, 10), NOW, Duration::from_secs(60));
        assert_eq!(cache.inner.lock().unwrap().entries.len(), 2);
        cache.put(&record(3, 86_400, 10), NOW, Duration::from_secs(61));
        let inner = cache.inner.lock().unwrap();
        assert_eq!((inner.entries.len(), inner.order.len()), (2, 2), "the first is 60 s old");
    }

    #[test]
    fn a_record_that_is_put_again_is_the_youngest() {
        let one = cost(&record(1, 86_400, 700));
        let cache = Cache::new(8 * one, Duration::from_secs(60));
        for id in [1, 2, 1, 3, 4, 5, 6, 7, 8] {
            cache.put(&record(id, 86_400, 700), NOW, Duration::from_secs(1));
        }
        assert!((1..=8).all(|id| has(&cache, id, 2)), "all of them fit");
        cache.put(&record(9, 86_400, 700), NOW, Duration::from_secs(1));
        assert!(has(&cache, 1, 2) && !has(&cache, 2, 2), "2 is the oldest by now");
        let inner = cache.inner.lock().unwrap();
        assert_eq!(inner.bytes, 8 * one);
    }

    #[test]
    fn a_forgotten_outcome_is_not_put_again() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60));
        let at = Duration::from_secs;
        cache.put(&record(1, 86_400, 10), NOW, at(1));
        let forgotten = record(1, 86_400, 10);
        cache.forget(forgotten.id, forgotten.attempt, at(2));
        assert!(!has(&cache, 1, 2));
        assert_eq!(cache.inner.lock().unwrap().bytes, 0);
        cache.put(&forgotten, NOW, at(61));
        assert!(!has(&cache, 1, 61), "it was read before it was forgotten");
        cache.put(&record(2, 86_400, 10), NOW, at(3));
        assert!(has(&cache, 2, 3), "another record of the same attempt");
        let next = Record { attempt: AttemptId::from_bytes([1; 16]), ..(*forgotten).clone() };
        cache.put(&Arc::new(next), NOW, at(3));
        assert!(has(&cache, 1, 3), "the next attempt's outcome");
        let cache = Cache::new(1 << 20, Duration::from_secs(60));
        cache.forget(forgotten.id, forgotten.attempt, at(2));
        cache.put(&forgotten, NOW, at(62));
        assert!(has(&cache, 1, 63), "nobody can have read it before");
    }

    #[test]
    fn only_the_latest_forgotten_outcomes_are_remembered() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60));
        let attempt = AttemptId::from_bytes([0; 16]);
        for number in 0..=1_024_u128 {
            cache.forget(RecordId::from_bytes(number.to_be_bytes()), attempt, Duration::ZERO);
            let expected = usize::try_from(number + 1).unwrap().min(1_024);
            assert_eq!(cache.inner.lock().unwrap().forgotten.len(), expected);
        }
    }
}
