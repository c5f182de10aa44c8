//! Time and randomness of a scenario.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use onetake_client::{Clock, Rng, Sleep, SystemClock, SystemRng};

/// A clock that a delay advances at once. Timeouts of attempts take their real time.
#[derive(Clone, Debug)]
pub(crate) struct VirtualClock {
    wall: SystemTime,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    time: Duration,
    delays: Vec<Duration>,
}

impl VirtualClock {
    /// Makes a clock whose time of day stands still.
    pub(crate) fn new(wall: SystemTime) -> Self {
        Self { wall, state: Arc::default() }
    }

    /// Returns every delay so far, in milliseconds.
    pub(crate) fn delays_ms(&self) -> Vec<f64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.delays.iter().map(|delay| delay.as_nanos() as f64 / 1e6).collect()
    }
}

impl Clock for VirtualClock {
    fn monotonic(&self) -> Duration {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).time
    }

    fn now(&self) -> SystemTime {
        self.wall
    }

    fn sleep(&self, delay: Duration) -> Sleep {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.delays.push(delay);
        state.time += delay;
        Box::pin(std::future::ready(()))
    }

    fn attempt_timeout(&self, time: Duration) -> Sleep {
        let clock = self.clone();
        Box::pin(async move {
            SystemClock.sleep(time).await;
            clock.state.lock().unwrap_or_else(PoisonError::into_inner).time += time;
        })
    }
}

/// The numbers of a scenario, in turn and again from the first. Keys are random.
#[derive(Debug)]
pub(crate) struct ListedRng {
    pub(crate) numbers: Vec<f64>,
    pub(crate) drawn: AtomicUsize,
}

impl Rng for ListedRng {
    fn fill(&self, into: &mut [u8]) {
        SystemRng.fill(into);
    }

    fn fraction(&self) -> f64 {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        self.numbers.iter().cycle().nth(number).copied().unwrap_or(0.5)
    }
}
