//! Time and randomness of a client. Tests replace them.

use std::pin::Pin;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// A boxed wait that borrows nothing.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time of a clock that never goes back. Deadlines are measured with it.
    fn monotonic(&self) -> Duration;

    /// Returns the time of day. Only dates in headers and new keys depend on it.
    fn now(&self) -> SystemTime;

    /// Completes after a delay before a retry or a poll.
    fn sleep(&self, delay: Duration) -> Sleep;

    /// Completes when the time for one attempt is over.
    fn attempt_timeout(&self, time: Duration) -> Sleep {
        self.sleep(time)
    }
}

/// A source of randomness.
pub trait Rng: Send + Sync + 'static {
    /// Fills `into` with unpredictable bytes. New keys are made from them.
    fn fill(&self, into: &mut [u8]);

    /// Returns a number from 0 to 1. Delays are a random part of the backoff.
    fn fraction(&self) -> f64 {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
    }
}

/// The clock of the system, with the timers of tokio.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn monotonic(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn sleep(&self, delay: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(delay))
    }
}

/// The randomness of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    #[expect(
        clippy::expect_used,
        reason = "a key that is not random could be the key of another operation: stop"
    )]
    fn fill(&self, into: &mut [u8]) {
        getrandom::fill(into).expect("the operating system gives randomness");
    }
}
