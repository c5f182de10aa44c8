//! The limits that this process counts by itself, with GCRA and in bounded memory.
//!
//! The table holds one time for each value: when the value has no debt left. Each operation moves
//! this time ahead by one interval (the period of the rate divided by its count). An operation is
//! allowed if the time is at most `count - 1` intervals in the future. A value whose time has
//! passed is the same as a value that was never seen.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onetake_core::{Clock, Rate};

use super::Limit;

/// The number of values without debt, per rate, that are dropped at most when one value is counted.
/// Values are dropped faster than they arrive, and a request does not wait long for it.
const DROPS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Local {
    clock: Arc<dyn Clock>,
    values_max: usize,
    table: Mutex<CountTable>,
}

#[derive(Debug, Default)]
struct CountTable {
    clear_at: HashMap<[u8; 32], Duration>,
    /// The same times, by rate and in order.
    order: HashMap<Rate, BTreeSet<(Duration, [u8; 32])>>,
    is_full: bool,
}

impl Local {
    pub(super) fn new(clock: Arc<dyn Clock>, values_max: usize) -> Self {
        Self { clock, values_max: values_max.max(1), table: Mutex::default() }
    }

    /// Counts one operation under each limit. If one of them refuses, nothing is counted, and the
    /// error is the rate with the longest wait, and that wait.
    pub(super) fn take(&self, limits: &[Limit]) -> Result<(), (Rate, Duration)> {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        let waits = limits.iter().filter_map(|limit| {
            let wait = wait(limit.rate, table.clear_at(limit, now), now);
            (!wait.is_zero()).then_some((limit.rate, wait))
        });
        if let Some(longest) = waits.max_by_key(|(_, wait)| *wait) {
            return Err(longest);
        }
        for limit in limits {
            let clear_at = table.clear_at(limit, now).saturating_add(limit.rate.interval());
            table.drop_clear(now);
            table.set(limit, Some(clear_at));
            table.make_room(self.values_max, limit);
        }
        Ok(())
    }

    /// Undoes the count of one operation under each limit.
    pub(super) fn give_back(&self, limits: &[Limit]) {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        for limit in limits {
            let clear_at = table.clear_at(limit, now).saturating_sub(limit.rate.interval());
            table.set(limit, (clear_at > now).then_some(clear_at));
        }
    }

    fn lock(&self) -> MutexGuard<'_, CountTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time until the next operation is allowed for a value that has no debt left at
/// `clear_at`. `clear_at` is not before `now`.
fn wait(rate: Rate, clear_at: Duration, now: Duration) -> Duration {
    let others = rate.interval().saturating_mul(rate.count().get() - 1);
    clear_at.saturating_sub(now.saturating_add(others))
}

impl CountTable {
    fn clear_at(&self, limit: &Limit, now: Duration) -> Duration {
        self.clear_at.get(&limit.key).map_or(now, |clear_at| now.max(*clear_at))
    }

    fn set(&mut self, limit: &Limit, clear_at: Option<Duration>) {
        let order = self.order.entry(limit.rate).or_default();
        let before = match clear_at {
            Some(clear_at) => {
                order.insert((clear_at, limit.key));
                self.clear_at.insert(limit.key, clear_at)
            }
            None => self.clear_at.remove(&limit.key),
        };
        if let Some(before) = before.filter(|before| Some(*before) != clear_at) {
            order.remove(&(before, limit.key));
        }
    }

    /// Drops some of the values that have no debt left.
    fn drop_clear(&mut self, now: Duration) {
        for order in self.order.values_mut() {
            for _ in 0..DROPS_MAX {
                match order.first().copied() {
                    Some(first @ (clear_at, key)) if clear_at <= now => {
                        order.remove(&first);
                        self.clear_at.remove(&key);
                    }
                    _ => break,
                }
            }
        }
        self.order.retain(|_, order| !order.is_empty());
    }

    /// Forgets the value with the least debt if the table is over its bound. The value that was
    /// just counted stays, because otherwise a full table would count nothing.
    fn make_room(&mut self, values_max: usize, but: &Limit) {
        if self.clear_at.len() <= values_max {
            self.is_full = self.is_full && self.clear_at.len() > values_max / 2;
            return;
        }
        if !std::mem::replace(&mut self.is_full, true) {
            tracing::warn!(
                values_max,
                "velocity limits have more values than fit in memory; the least used value is forgotten"
            );
        }
        // The rate with the most values loses one, so that a flood under one rate does not displace
        // the values of another.
        let others =
            |rate: &Rate, order: &BTreeSet<_>| order.len() - usize::from(*rate == but.rate);
        let most = self.order.iter_mut().max_by_key(|(rate, order)| others(rate, order));
        let Some((_, most)) = most else { return };
        let Some(least) = most.iter().find(|(_, key)| *key != but.key).copied() else { return };
        most.remove(&least);
        self.clear_at.remove(&least.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::ManualClock;
    use proptest::prelude::*;

    fn local(values_max: usize) -> (Local, ManualClock) {
        let clock = ManualClock::default();
        (Local::new(Arc::new(clock.clone()), values_max), clock)
    }

    fn limit(value: u64, rate: &str) -> Limit {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&value.to_be_bytes());
        key[8..8 + rate.len()].copy_from_slice(rate.as_bytes());
        Limit { key, rate: rate.parse().unwrap() }
    }

    fn values(local: &Local) -> usize {
        let table = local.lock();
        let ordered: usize = table.order.values().map(BTreeSet::len).sum();
        assert_eq!(table.clear_at.len(), ordered);
        ordered
    }

    /// Counts operations until one is refused. Returns how many were allowed, and the wait.
    fn exhaust(local: &Local, limit: Limit) -> (u32, Duration) {
        let mut taken = 0;
        loop {
            match local.take(&[limit]) {
                Ok(()) => taken += 1,
                Err((_, wait)) => return (taken, wait),
            }
        }
    }

    #[test]
    fn so_many_at_once_and_one_more_after_the_time_for_one() {
        let (local, clock) = local(10);
        for rate in ["5/min", "3/s", "1/h", "7/d"] {
            let limit = limit(0, rate);
            let (count, interval) = (limit.rate.count().get(), limit.rate.interval());
            assert_eq!(exhaust(&local, limit), (count, interval), "{rate}");
            clock.advance(interval - Duration::from_nanos(1));
            assert_eq!(exhaust(&local, limit), (0, Duration::from_nanos(1)), "{rate}");
            clock.advance(Duration::from_nanos(1));
            assert_eq!(exhaust(&local, limit), (1, interval), "{rate}");
            local.give_back(&[limit]);
            assert_eq!(exhaust(&local, limit), (1, interval), "{rate}");
        }
    }

    #[test]
    fn all_or_none() {
        let (local, _clock) = local(10);
        let (wide, narrow) = (limit(1, "100/min"), limit(2, "2/min"));
        for _ in 0..2 {
            local.take(&[wide, narrow]).unwrap();
        }
        for _ in 0..200 {
            assert_eq!(local.take(&[wide, narrow]).unwrap_err().0, narrow.rate);
        }
        assert_eq!(exhaust(&local, wide).0, 98);
        // If two limits refuse, the error has the one with the longer wait.
        let told = local.take(&[wide, narrow]).unwrap_err();
        assert_eq!(told, (narrow.rate, Duration::from_secs(30)));
    }

    #[test]
    fn a_flood_stays_within_the_bound_and_washes_away_nobody_else() {
        let max = 10_000;
        let (local, clock) = local(max);
        let (tenant, card) = (limit(u64::MAX, "10/s"), limit(u64::MAX - 1, "5/min"));
        assert_eq!(exhaust(&local, tenant).0, 10);
        assert_eq!(exhaust(&local, card).0, 5);
        let mut flood = limit(0, "5/min");
        for value in 0..1_000_000_u64 {
            flood.key[..8].copy_from_slice(&value.to_be_bytes());
            local.take(&[flood]).unwrap();
            if value % 1000 == 0 {
                assert!(values(&local) <= max);
            }
        }
        assert_eq!(values(&local), max);
        // The flood does not displace values of another rate, nor values with more debt.
        assert_eq!((exhaust(&local, tenant).0, exhaust(&local, card).0), (0, 0));
        // Values without debt are dropped.
        clock.advance(Duration::from_secs(60));
        for value in 0..max as u64 {
            local.take(&[limit(value % 3, "10000/s")]).unwrap();
        }
        assert_eq!(values(&local), 3);
    }

    #[test]
    fn the_bound_holds_across_rates() {
        let (local, _clock) = local(1);
        for (value, rate) in [(1, "1/min"), (2, "1/s"), (3, "1/h"), (3, "2/h")] {
            local.take(&[limit(value, rate)]).unwrap();
            assert_eq!(values(&local), 1);
            assert_eq!(
                exhaust(&local, limit(value, rate)).0,
                limit(value, rate).rate.count().get() - 1
            );
        }
    }

    proptest! {
        /// Compares the limits with a token bucket, which is the simplest model of them.
        #[test]
        fn as_a_bucket_would(
            count in 1_u32..20,
            per in 1_u64..5_000,
            steps in prop::collection::vec((0_u64..2_000, 0_u64..2, any::<bool>()), 1..100),
        ) {
            let rate = Rate::new(count.try_into().unwrap(), Duration::from_millis(per)).unwrap();
            let (local, clock) = local(10);
            let one = rate.interval();
            let mut buckets = [one * count; 2];
            for (millis, value, give_back) in steps {
                let passed = Duration::from_millis(millis);
                clock.advance(passed);
                for bucket in &mut buckets {
                    *bucket = (*bucket + passed).min(one * count);
                }
                let limit = Limit { rate, ..limit(value, "1/s") };
                let bucket = &mut buckets[value as usize];
                let expected = one.saturating_sub(*bucket);
                let wait = local.take(&[limit]).err().map_or(Duration::ZERO, |(_, wait)| wait);
                prop_assert_eq!(wait, expected);
                if wait.is_zero() {
                    *bucket -= one;
                    if give_back {
                        local.give_back(&[limit]);
                        *bucket += one;
                    }
                }
            }
        }
    }
}
