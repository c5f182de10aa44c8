//! The only source of time and randomness.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// A boxed sleep that borrows nothing.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Microseconds since the Unix epoch by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates the timestamp that is `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the time `by` later; saturates at the maximum.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// Returns the time since `earlier`; zero if `earlier` is not before this.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the whole microseconds of a duration; saturates.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A source of time.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// Returns the wall-clock time. Stores that have no clock of their own decide by it.
    fn now(&self) -> Timestamp;

    /// Returns the time of a clock that never goes back and that also counts while the machine is
    /// suspended. A process that was frozen past its lease can detect it by this clock.
    fn monotonic(&self) -> Duration;

    /// Completes once `duration` has passed.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// A source of randomness.
pub trait Rng: Send + Sync + std::fmt::Debug + 'static {
    /// Fills `into` with unpredictable bytes.
    fn fill(&self, into: &mut [u8]);
}

/// The real clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn now(&self) -> Timestamp {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(micros(since_epoch))
    }

    fn monotonic(&self) -> Duration {
        // On Linux, CLOCK_MONOTONIC stops during suspension and CLOCK_BOOTTIME does not. On other
        // systems CLOCK_MONOTONIC continues.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let t = rustix::time::clock_gettime(id);
        Duration::new(
            u64::try_from(t.tv_sec).unwrap_or_default(),
            u32::try_from(t.tv_nsec).unwrap_or_default(),
        )
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// The operating system's randomness. Each thread asks for some of it in advance, so that most
/// calls need no system call.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

/// The bytes that a thread asks for at once.
const AHEAD_BYTES: usize = 1_024;

/// Random bytes of one thread that are not used yet: those after the first `used`.
struct Ahead {
    bytes: [u8; AHEAD_BYTES],
    used: usize,
}

thread_local! {
    static AHEAD: RefCell<Ahead> =
        const { RefCell::new(Ahead { bytes: [0; AHEAD_BYTES], used: AHEAD_BYTES }) };
}

impl Ahead {
    /// Hands out the next bytes, and forgets them. Returns false if they are more than it can hold.
    fn take(&mut self, into: &mut [u8]) -> bool {
        if into.len() > AHEAD_BYTES {
            return false;
        }
        if into.len() > AHEAD_BYTES - self.used {
            from_system(&mut self.bytes);
            self.used = 0;
        }
        let Some(next) = self.bytes.get_mut(self.used..self.used + into.len()) else {
            return false;
        };
        into.copy_from_slice(next);
        next.fill(0);
        self.used += into.len();
        true
    }
}

impl Rng for SystemRng {
    fn fill(&self, into: &mut [u8]) {
        // A thread that ends has no bytes in advance any more.
        let taken = AHEAD.try_with(|ahead| ahead.borrow_mut().take(into));
        if !taken.unwrap_or(false) {
            from_system(into);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the seam")]
#[expect(
    clippy::expect_used,
    reason = "an operating system without randomness cannot name attempts safely: stop"
)]
fn from_system(into: &mut [u8]) {
    getrandom::fill(into).expect("the operating system gives randomness");
}

/// A shift of the server's clock for tests. A store whose server has a clock adds it to the time of
/// that clock. It is zero outside of tests.
#[derive(Clone, Debug, Default)]
pub struct Shift(Arc<Shifting>);

#[derive(Debug, Default)]
struct Shifting {
    micros: AtomicI64,
    /// The time that replaces the server's time; zero if nothing replaces it.
    fixed: AtomicU64,
}

impl Shift {
    /// Moves time forward.
    pub fn advance(&self, by: Duration) {
        if self.fixed().is_some() {
            self.0.fixed.fetch_add(micros(by), Ordering::AcqRel);
        } else {
            self.0.micros.fetch_add(signed_micros(by), Ordering::AcqRel);
        }
    }

    /// Replaces the server's time with this time from now on, in stores that support it.
    pub fn fix(&self, at: Timestamp) {
        self.0.fixed.store(at.as_micros(), Ordering::Release);
    }

    /// Returns the time that replaces the server's time.
    #[must_use]
    pub fn fixed(&self) -> Option<Timestamp> {
        let micros = self.0.fixed.load(Ordering::Acquire);
        (micros > 0).then_some(Timestamp::from_micros(micros))
    }

    /// Returns the server's time after the shift, in microseconds.
    #[must_use]
    pub fn apply(&self, server: u64) -> u64 {
        self.fixed()
            .map_or_else(|| server.saturating_add_signed(self.as_micros()), Timestamp::as_micros)
    }

    /// Sets the server's clock back. An operator can do that, or a failover to a server with a
    /// slower clock.
    pub fn set_back(&self, by: Duration) {
        self.0.micros.fetch_sub(signed_micros(by), Ordering::AcqRel);
    }

    /// Returns the sum of all shifts, in microseconds; negative if the clock was set back by more.
    #[must_use]
    pub fn as_micros(&self) -> i64 {
        self.0.micros.load(Ordering::Acquire)
    }
}

fn signed_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A clock that moves only when a test or a simulation advances it.
#[derive(Clone, Debug)]
pub struct ManualClock {
    inner: Arc<Mutex<ManualInner>>,
}

#[derive(Debug)]
struct ManualInner {
    wall: Timestamp,
    monotonic: Duration,
    sequence: u64,
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
}

impl ManualClock {
    /// Creates a clock that shows `start` until it is advanced.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        let inner = ManualInner {
            wall: start,
            monotonic: Duration::from_secs(1),
            sequence: 0,
            sleepers: BTreeMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Moves both clocks ahead and wakes the tasks whose sleep is over.
    pub fn advance(&self, by: Duration) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.wall = inner.wall.plus(by);
        inner.monotonic += by;
        let now = inner.monotonic;
        let later = inner.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut inner.sleepers, later);
        drop(inner);
        for (_, sleeper) in due {
            let _receiver_dropped = sleeper.send(());
        }
    }

    /// Sets the wall clock alone, as an NTP correction would.
    pub fn set_wall(&self, to: Timestamp) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).wall = to;
    }

    /// Returns the number of sleeps under way, so that a test can wait until a task sleeps.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.sleepers.values().filter(|s| !s.is_closed()).count()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        // 2030-01-01. Any date works, except the epoch itself.
        Self::new(Timestamp::from_micros(1_893_456_000_000_000))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).wall
    }

    fn monotonic(&self) -> Duration {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).monotonic
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if duration.is_zero() {
            return Box::pin(tokio::task::yield_now());
        }
        let (wake, woken) = oneshot::channel();
        inner.sequence += 1;
        let at = (inner.monotonic.saturating_add(duration), inner.sequence);
        inner.sleepers.insert(at, wake);
        Box::pin(async move {
            // The sender is dropped only together with the clock. No wake-up is possible then.
            if woken.await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_sleep_ends_when_the_clock_gets_there() {
        let clock = ManualClock::default();
        let mut sleep = clock.sleep(Duration::from_secs(2));
        clock.advance(Duration::from_secs(1));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        clock.advance(Duration::from_secs(1));
        sleep.await;
    }

    #[test]
    fn random_bytes_are_never_handed_out_twice() {
        let mut seen = std::collections::HashSet::new();
        let threads = [0, 1].map(|_| {
            std::thread::spawn(|| {
                let lengths = [16, 32, 7, 1_000, 16, 5_000, 16].iter().cycle().take(2_000);
                let filled = lengths.map(|length| {
                    let mut bytes = vec![0; *length];
                    SystemRng.fill(&mut bytes);
                    bytes
                });
                filled.collect::<Vec<_>>()
            })
        });
        for bytes in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
            let parts = bytes.chunks_exact(16).map(<[u8]>::to_vec);
            for part in parts {
                assert!(part.iter().any(|byte| *byte != 0));
                assert!(seen.insert(part), "bytes were handed out twice");
            }
        }
    }

    #[test]
    fn the_system_clock_moves_on() {
        let clock = SystemClock;
        assert!(clock.now() > Timestamp::from_micros(1_700_000_000_000_000));
        assert!(clock.monotonic() <= clock.monotonic());
    }
}
