//! Simulated time: a queue of events, and the clocks that read it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use onetake_core::clock::{Sleep, micros};
use onetake_core::{Clock, Timestamp};

use super::random::Random;
use super::simulator::Simulator;

/// Microseconds since the simulation began.
pub type Micros = u64;

/// One second.
pub const SECOND: Micros = 1_000_000;
/// One millisecond.
pub const MILLISECOND: Micros = 1_000;

/// The wall clock at the beginning of a simulation: 2030-01-01.
const EPOCH: i64 = 1_893_456_000_000_000;
/// The time that every node's monotonic clock shows at the beginning of a simulation.
const MONOTONIC_START: u64 = SECOND;

/// An action at a moment of simulated time.
pub type Action = Box<dyn FnOnce(&mut Simulator) + Send>;

/// The executor that a timer belongs to: 0 for the clients, 1 and above for the nodes.
pub type ExecutorIndex = usize;

/// An entry of the queue that is due.
pub enum Due {
    /// A sleeping task wakes up.
    Wake(Waker, ExecutorIndex),
    /// An action happens.
    Act(Action),
}

/// The queue of all future events, by time. Events of the same time are in a seeded random order.
pub struct Timeline {
    inner: Mutex<Inner>,
}

struct Inner {
    now: Micros,
    queue: BTreeMap<(Micros, u64), Due>,
    ties: Random,
    sequence: u64,
    /// The number of reads of the time since it last changed.
    asked: u32,
}

/// The maximum number of reads of the time while it does not change. A task that reads it more
/// often is in an endless loop.
const ASKED_MAX: u32 = 2_000_000;

impl Timeline {
    /// Creates an empty queue at the beginning of time.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        let ties = Random::new(seed, "ties");
        let inner = Inner { now: 0, queue: BTreeMap::new(), ties, sequence: 0, asked: 0 };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// Returns the present time.
    ///
    /// # Panics
    /// If a task reads it repeatedly without letting time pass: the simulation would never end.
    pub fn now(&self) -> Micros {
        let mut inner = self.lock();
        inner.asked += 1;
        if inner.asked > ASKED_MAX {
            inner.asked = 0;
            drop(inner);
            #[expect(clippy::panic, reason = "a panic ends the task that goes round in circles")]
            {
                panic!("a task goes round in circles");
            }
        }
        inner.now
    }

    /// Schedules an action.
    pub fn after(&self, delay: Micros, action: Action) {
        let mut inner = self.lock();
        let at = inner.now.saturating_add(delay);
        let key = inner.key(at);
        inner.queue.insert(key, Due::Act(action));
    }

    /// Completes once `delay` has passed.
    pub fn sleep(self: &Arc<Self>, delay: Micros, place: ExecutorIndex) -> Timer {
        let deadline = self.now().saturating_add(delay);
        Timer { timeline: Arc::clone(self), deadline, place, key: None }
    }

    /// Takes the next entry, and advances time to it. Returns `None` if nothing is left before
    /// `end`.
    pub(super) fn next(&self, end: Micros) -> Option<Due> {
        let mut inner = self.lock();
        let entry = inner.queue.first_entry().filter(|entry| entry.key().0 <= end)?;
        let ((at, _), due) = entry.remove_entry();
        if at > inner.now {
            (inner.now, inner.asked) = (at, 0);
        }
        Some(due)
    }

    /// Advances time, past moments without events.
    pub(super) fn advance_to(&self, at: Micros) {
        let mut inner = self.lock();
        inner.now = inner.now.max(at);
    }

    /// Drops all future events. Otherwise the closures and the world that they hold would keep each
    /// other alive.
    pub(super) fn clear(&self) {
        let queue = std::mem::take(&mut self.lock().queue);
        drop(queue);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn key(&mut self, at: Micros) -> (Micros, u64) {
        self.sequence += 1;
        (at, (self.ties.number() << 32) | (self.sequence & 0xffff_ffff))
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeline").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// A sleep in simulated time.
pub struct Timer {
    timeline: Arc<Timeline>,
    deadline: Micros,
    place: ExecutorIndex,
    key: Option<(Micros, u64)>,
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let timer = &mut *self;
        let mut inner = timer.timeline.lock();
        if inner.now >= timer.deadline {
            if let Some(key) = timer.key.take() {
                inner.queue.remove(&key);
            }
            return Poll::Ready(());
        }
        let key = match timer.key.take() {
            Some(key) => key,
            None => inner.key(timer.deadline),
        };
        inner.queue.insert(key, Due::Wake(context.waker().clone(), timer.place));
        timer.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let entry = self.timeline.lock().queue.remove(&key);
            drop(entry);
        }
    }
}

/// The clock of one node, or of the store's server. It drifts, and its wall clock can be set.
#[derive(Debug)]
pub struct SimulatedClock {
    timeline: Arc<Timeline>,
    place: ExecutorIndex,
    drift_ppm: i64,
    wall_offset: AtomicI64,
}

impl SimulatedClock {
    /// Creates a clock that is `drift_ppm` parts per million too fast.
    #[must_use]
    pub fn new(timeline: &Arc<Timeline>, place: ExecutorIndex, drift_ppm: i64) -> Arc<Self> {
        let (timeline, wall_offset) = (Arc::clone(timeline), AtomicI64::new(0));
        Arc::new(Self { timeline, place, drift_ppm, wall_offset })
    }

    /// Sets the wall clock ahead, or back if `by` is negative, in microseconds.
    pub fn step_wall(&self, by: i64) {
        self.wall_offset.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the time since the beginning, by this clock.
    fn local(&self) -> i64 {
        let now = i64::try_from(self.timeline.now()).unwrap_or(i64::MAX);
        now + now / 1_000_000 * self.drift_ppm + now % 1_000_000 * self.drift_ppm / 1_000_000
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let at = EPOCH + self.local() + self.wall_offset.load(Ordering::Relaxed);
        Timestamp::from_micros(u64::try_from(at).unwrap_or(0))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(MONOTONIC_START + u64::try_from(self.local()).unwrap_or(0))
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let wanted = i128::from(micros(duration).min(1 << 50));
        let rate = i128::from(1_000_000 + self.drift_ppm);
        // Rounded up, so that no sleep ends too early.
        let real = (wanted * 1_000_000 + rate - 1) / rate;
        Box::pin(self.timeline.sleep(u64::try_from(real).unwrap_or(u64::MAX), self.place))
    }
}
