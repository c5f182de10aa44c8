//! The circuit breaker: an unreachable store does not cost every request a timeout.
//!
//! After a few failures in a row, the breaker rejects all calls for a pause. Then one caller tries
//! the store for all. The pause doubles, with jitter, so that many nodes do not come back at one
//! moment.
//!
//! The breaker also remembers since when the store has answered. An owner that could not renew its
//! lease during an outage gets its whole grace again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onetake_core::{Clock, Rng, StoreError, StoreErrorKind};

/// Failures in a row after which calls are rejected for a pause.
const FAILURES_MAX: u32 = 3;
/// The first pause.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause. It is short because an owner with an outcome has only its grace to come back.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Lets calls through to a store, or rejects them.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The store's name in messages: "the PostgreSQL store".
    name: &'static str,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    failures: u32,
    /// Calls are rejected until then.
    closed_until: Duration,
    pause: Duration,
    /// The time since which the store has answered without a failure.
    back_since: Duration,
    /// The last failure, for messages.
    reason: String,
}

impl Breaker {
    /// Creates a breaker that lets all calls through. A node that has just started does not know
    /// how long the store was unreachable before, so contact counts from now.
    pub(crate) fn new(name: &'static str, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let back_since = clock.monotonic();
        let inner = Inner {
            failures: 0,
            closed_until: Duration::ZERO,
            pause: PAUSE_MIN,
            back_since,
            reason: String::new(),
        };
        Self { name, clock, rng, inner: Mutex::new(inner) }
    }

    /// Asks for permission to call the store. A caller that gets it must report success or failure.
    ///
    /// # Errors
    /// If the store is unreachable and it is too early to try again. Nothing was sent.
    pub(crate) fn enter(&self) -> Result<(), StoreError> {
        let now = self.clock.monotonic();
        let mut inner = self.lock();
        if inner.failures < FAILURES_MAX {
            return Ok(());
        }
        if now < inner.closed_until {
            let (name, why) = (self.name, &inner.reason);
            let what = format!("{name} is unreachable ({why}); onetake reconnects automatically");
            return Err(StoreError::new(StoreErrorKind::Unavailable, what));
        }
        // This caller tries. The others wait for its result, or for another pause.
        self.close(&mut inner, now);
        Ok(())
    }

    /// Reports that the store answered.
    pub(crate) fn succeeded(&self) {
        let mut inner = self.lock();
        if inner.failures > 0 {
            if inner.failures >= FAILURES_MAX {
                tracing::info!("{} is reachable again", self.name);
            }
            inner.failures = 0;
            inner.pause = PAUSE_MIN;
            inner.back_since = self.clock.monotonic();
        }
    }

    /// Reports that the store did not answer or could not be reached.
    pub(crate) fn failed(&self, error: &StoreError) {
        let now = self.clock.monotonic();
        let mut inner = self.lock();
        inner.failures = inner.failures.saturating_add(1);
        inner.reason = error.to_string();
        if inner.failures == FAILURES_MAX {
            tracing::warn!(%error, "{} is unreachable", self.name);
            self.close(&mut inner, now);
        }
    }

    /// Returns how long the store has answered without a failure.
    pub(crate) fn back_for(&self) -> Duration {
        let inner = self.lock();
        if inner.failures > 0 {
            return Duration::ZERO;
        }
        self.clock.monotonic().saturating_sub(inner.back_since)
    }

    fn close(&self, inner: &mut Inner, now: Duration) {
        // Between half the pause and the whole of it.
        let mut random = [0; 1];
        self.rng.fill(&mut random);
        let [random] = random;
        let jitter = inner.pause.mul_f64(0.5 + f64::from(random) / 512.0);
        inner.closed_until = now.saturating_add(jitter);
        inner.pause = (inner.pause * 2).min(PAUSE_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::{ManualClock, SystemRng};

    fn away() -> StoreError {
        StoreError::new(StoreErrorKind::Unavailable, "connection refused")
    }

    fn breaker() -> (ManualClock, Breaker) {
        let clock = ManualClock::default();
        (clock.clone(), Breaker::new("the store", Arc::new(clock), Arc::new(SystemRng)))
    }

    #[test]
    fn a_dead_store_is_tried_by_one_at_a_time() {
        let (clock, breaker) = breaker();
        for _ in 0..FAILURES_MAX {
            breaker.enter().unwrap();
            breaker.failed(&away());
        }
        let refused = breaker.enter().unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unavailable);
        assert!(
            refused.to_string().contains("the store is unreachable (connection refused)"),
            "{refused}"
        );
        clock.advance(PAUSE_MIN);
        breaker.enter().unwrap();
        breaker.enter().unwrap_err();
        breaker.failed(&away());
        clock.advance(PAUSE_MIN / 2);
        breaker.enter().unwrap_err();
        clock.advance(PAUSE_MAX);
        breaker.enter().unwrap();
        breaker.succeeded();
        breaker.enter().unwrap();
        breaker.enter().unwrap();
    }

    #[test]
    fn the_time_since_it_is_back_starts_anew_after_any_failure() {
        let (clock, breaker) = breaker();
        clock.advance(Duration::from_secs(10));
        assert_eq!(breaker.back_for(), Duration::from_secs(10));
        breaker.failed(&away());
        clock.advance(Duration::from_secs(10));
        assert_eq!(breaker.back_for(), Duration::ZERO);
        breaker.succeeded();
        clock.advance(Duration::from_secs(1));
        breaker.succeeded();
        assert_eq!(breaker.back_for(), Duration::from_secs(1));
    }

    #[test]
    fn a_pause_is_bounded() {
        let (clock, breaker) = breaker();
        for _ in 0..40 {
            breaker.failed(&away());
            clock.advance(PAUSE_MAX);
            breaker.enter().unwrap();
        }
    }
}
