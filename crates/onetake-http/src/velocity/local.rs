//! What this process counts by itself: GCRA, in bounded memory.
//!
//! Of each value one moment is kept: when it has no debt left. Each operation moves it on by the time
//! for one, and may come if it is not further ahead than the others at once would be. A value whose
//! moment has passed is as good as one that was never seen.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onetake_core::{Clock, Rate};

use super::Limit;

/// How many values without debt are dropped for each one that comes: more than can come, and few
/// enough that nobody waits for it.
const DROPS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Local {
    clock: Arc<dyn Clock>,
    values_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    clear_at: HashMap<[u8; 32], Duration>,
    /// The same, by rate and in order.
    order: HashMap<Rate, BTreeSet<(Duration, [u8; 32])>>,
    is_full: bool,
}

impl Local {
    pub(super) fn new(clock: Arc<dyn Clock>, values_max: usize) -> Self {
        Self { clock, values_max: values_max.max(1), table: Mutex::default() }
    }

    /// Counts one more of each; or of none, if one may not come. Then it says which may come last.
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

    /// Takes back one of each.
    pub(super) fn give_back(&self, limits: &[Limit]) {
        let now = self.clock.monotonic();
        let mut table = self.lock();
        for limit in limits {
            let clear_at = table.clear_at(limit, now).saturating_sub(limit.rate.interval());
            table.set(limit, (clear_at > now).then_some(clear_at));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long until one more may come of what has no debt at `clear_at`, which is not before `now`.
fn wait(rate: Rate, clear_at: Duration, now: Duration) -> Duration {
    let others = rate.interval().saturating_mul(rate.count().get() - 1);
    clear_at.saturating_sub(now.saturating_add(others))
}

impl Table {
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

    /// Drops some of those whose debt is gone.
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

    /// Forgets who owes the least, but not the one that has just come: then a limit would count
    /// nothing at all.
    fn make_room(&mut self, values_max: usize, but: &Limit) {
        if self.clear_at.len() <= values_max {
            self.is_full = self.is_full && self.clear_at.len() > values_max / 2;
            return;
        }
        if !std::mem::replace(&mut self.is_full, true) {
            tracing::warn!(
                values_max,
                "velocity limits see more values than they remember; who owes the least is forgotten"
            );
        }
        // A flood under one rate must not wash away what is counted under another.
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

    /// Takes until it may not, and says how many it were and how long to wait then.
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
        // Of two that refuse, the one that takes longer is told.
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
        // Another rate is another matter, and who owes more is forgotten later.
        assert_eq!((exhaust(&local, tenant).0, exhaust(&local, card).0), (0, 0));
        // When the debts are gone, so are the values.
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
        /// A bucket that is refilled: the plainest way to say the same.
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
