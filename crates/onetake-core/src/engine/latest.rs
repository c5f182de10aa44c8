//! A value that changes, and readers that wait for its changes.
//!
//! It does what `tokio::sync::watch` does, with two differences. Readers are woken in the order in
//! which they began to wait: `watch` wakes them in a random order, so that a simulation could not be
//! repeated. And only a few readers are woken at once. The others are a [`Backlog`], which is woken
//! at a steady pace. So ten thousand waiters of one key do not take all cores, and requests with
//! other keys are served between them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Clock;

/// The number of readers that a change wakes itself.
const WOKEN_AT_ONCE: usize = 64;
/// The number of readers of a backlog that are woken for each millisecond that has passed: 10,000 in
/// a second. An answer to a waiter takes about 15 microseconds of CPU time, so a backlog takes a
/// sixth of one core.
const WOKEN_PER_MILLISECOND: usize = 10;
/// The pause before each part of a backlog. A timer may end late, for example because the thread is
/// busy. The next part is larger then, up to [`WOKEN_AT_ONCE`].
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// The side that changes the value. When it is dropped, readers get [`Closed`].
pub(crate) struct Latest<T> {
    shared: Arc<LatestState<T>>,
}

/// The side that waits for changes.
pub(crate) struct Reader<T> {
    shared: Arc<LatestState<T>>,
    seen: u64,
}

/// There are no further changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

struct LatestState<T> {
    state: Mutex<State<T>>,
    readers: AtomicUsize,
}

struct State<T> {
    value: T,
    version: u64,
    is_closed: bool,
    /// The readers that wait, by the order of waiting.
    waiting: BTreeMap<u64, Waker>,
    /// The number of the next reader that waits.
    next: u64,
    /// Readers with numbers below this one wait for a change that has happened.
    due: u64,
}

impl<T> State<T> {
    /// All readers that wait now are due. Returns the first ones.
    fn announce(&mut self) -> Vec<Waker> {
        self.due = self.next;
        self.take_due(WOKEN_AT_ONCE)
    }

    /// Takes readers that are due, up to this number.
    fn take_due(&mut self, count: usize) -> Vec<Waker> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(first) = self.waiting.first_entry()
            && *first.key() < self.due
        {
            taken.push(first.remove());
        }
        taken
    }

    /// True if readers are due that were not woken yet.
    fn has_due(&self) -> bool {
        self.waiting.first_key_value().is_some_and(|(number, _)| *number < self.due)
    }
}

impl<T: Clone> Latest<T> {
    pub(crate) fn new(value: T) -> Self {
        let waiting = BTreeMap::new();
        let state = State { value, version: 0, is_closed: false, waiting, next: 0, due: 0 };
        let readers = AtomicUsize::new(0);
        Self { shared: Arc::new(LatestState { state: Mutex::new(state), readers }) }
    }

    pub(crate) fn get(&self) -> T {
        self.shared.lock().value.clone()
    }

    /// Changes the value, and wakes the first readers. The others are returned as a backlog.
    #[must_use = "a backlog that is dropped is woken at once"]
    pub(crate) fn set(&self, value: T) -> Option<Backlog<T>> {
        let mut state = self.shared.lock();
        let before = std::mem::replace(&mut state.value, value);
        state.version += 1;
        let woken = state.announce();
        let has_more = state.has_due();
        drop(state);
        drop(before);
        woken.into_iter().for_each(Waker::wake);
        has_more.then(|| Backlog { shared: Arc::clone(&self.shared) })
    }

    /// Returns a reader that has seen the present value.
    pub(crate) fn reader(&self) -> Reader<T> {
        self.shared.readers.fetch_add(1, Ordering::Relaxed);
        let seen = self.shared.lock().version;
        Reader { shared: Arc::clone(&self.shared), seen }
    }

    /// Returns the number of readers.
    pub(crate) fn readers(&self) -> usize {
        self.shared.readers.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Latest<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        // The readers that are due already belong to a backlog.
        let due = state.due;
        let others = state.waiting.split_off(&due);
        drop(state);
        others.into_values().for_each(Waker::wake);
    }
}

/// The readers that a change did not wake itself. When it is dropped, it wakes them all.
pub(crate) struct Backlog<T> {
    shared: Arc<LatestState<T>>,
}

impl<T> Backlog<T> {
    /// Wakes the readers, a few at a time.
    pub(crate) async fn pace(self, clock: Arc<dyn Clock>) {
        let mut woken_at = clock.monotonic();
        loop {
            clock.sleep(BACKLOG_PAUSE).await;
            let passed = clock.monotonic().saturating_sub(woken_at).as_millis();
            let passed = u64::try_from(passed).unwrap_or(u64::MAX).max(1);
            if !self.wake(part_of_backlog(passed)) {
                return;
            }
            woken_at = woken_at.saturating_add(Duration::from_millis(passed));
        }
    }

    /// Wakes up to this number of readers. Returns true if more are due.
    fn wake(&self, count: usize) -> bool {
        let mut state = self.shared.lock();
        let woken = state.take_due(count);
        let has_more = state.has_due();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        has_more
    }
}

/// Returns the number of readers to wake after this number of milliseconds.
fn part_of_backlog(milliseconds: u64) -> usize {
    let milliseconds = usize::try_from(milliseconds).unwrap_or(usize::MAX);
    milliseconds.saturating_mul(WOKEN_PER_MILLISECOND).min(WOKEN_AT_ONCE)
}

impl<T> Drop for Backlog<T> {
    fn drop(&mut self) {
        self.wake(usize::MAX);
    }
}

impl<T: Clone> Reader<T> {
    /// Returns the present value, which counts as seen.
    pub(crate) fn get(&mut self) -> T {
        let state = self.shared.lock();
        self.seen = state.version;
        state.value.clone()
    }
}

impl<T> Reader<T> {
    /// Waits for a value that was not seen yet.
    pub(crate) async fn changed(&mut self) -> Result<(), Closed> {
        Change { reader: self, number: None }.await
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> LatestState<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wait of one reader.
struct Change<'a, T> {
    reader: &'a mut Reader<T>,
    /// Its number among those that wait. `None` before it waits, and after it has ended.
    number: Option<u64>,
}

impl<T> Change<'_, T> {
    /// Ends the wait.
    fn end(&mut self) {
        if let Some(number) = self.number.take() {
            self.reader.shared.lock().waiting.remove(&number);
        }
    }
}

impl<T> Future for Change<'_, T> {
    type Output = Result<(), Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut state = this.reader.shared.lock();
        if state.version == this.reader.seen && !state.is_closed {
            let State { waiting, next, .. } = &mut *state;
            let number = *this.number.get_or_insert_with(|| {
                *next += 1;
                *next - 1
            });
            waiting.entry(number).or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            return Poll::Pending;
        }
        let is_change = state.version != this.reader.seen;
        this.reader.seen = state.version;
        drop(state);
        this.end();
        Poll::Ready(if is_change { Ok(()) } else { Err(Closed) })
    }
}

impl<T> Drop for Change<'_, T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> fmt::Debug for Backlog<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backlog").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Latest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, Timestamp};

    #[tokio::test]
    async fn readers_hear_of_changes_in_the_order_of_waiting() {
        let latest = Latest::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..20 {
            let (mut reader, order) = (latest.reader(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                reader.changed().await.unwrap();
                order.lock().unwrap().push((number, reader.get()));
            }));
            tokio::task::yield_now().await;
        }
        assert_eq!(latest.readers(), 20);
        assert!(latest.set(7).is_none());
        for task in tasks {
            task.await.unwrap();
        }
        let expected: Vec<_> = (0..20).map(|number| (number, 7)).collect();
        assert_eq!(*order.lock().unwrap(), expected);
        assert_eq!((latest.readers(), latest.get()), (0, 7));
    }

    #[tokio::test]
    async fn a_change_before_the_wait_counts_and_the_end_is_told() {
        let latest = Latest::new("a");
        let (mut early, mut late) = (latest.reader(), latest.reader());
        drop(latest.set("b"));
        assert_eq!(early.changed().await, Ok(()));
        assert_eq!((early.get(), late.get()), ("b", "b"), "a value that was read counts as seen");
        let waiting = tokio::spawn(async move { late.changed().await });
        tokio::task::yield_now().await;
        drop(latest.set("c"));
        drop(latest);
        assert_eq!(waiting.await.unwrap(), Ok(()));
        assert_eq!(early.changed().await, Ok(()), "the last value is told before the end");
        assert_eq!(early.changed().await, Err(Closed));
    }

    /// Counts the readers that were woken and have not been polled yet.
    fn woken(wakes: &[Arc<Wakes>]) -> usize {
        wakes.iter().filter(|wakes| wakes.0.load(Ordering::Relaxed) > 0).count()
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    type Wait<'a> = Pin<Box<dyn Future<Output = Result<(), Closed>> + 'a>>;

    /// Readers that wait for a change, and the wakes of each.
    fn waiting(readers: &mut [Reader<u8>]) -> (Vec<Wait<'_>>, Vec<Arc<Wakes>>) {
        let wakes: Vec<_> = readers.iter().map(|_| Arc::<Wakes>::default()).collect();
        let mut waits: Vec<Wait<'_>> =
            readers.iter_mut().map(|reader| -> Wait<'_> { Box::pin(reader.changed()) }).collect();
        for (wait, wakes) in waits.iter_mut().zip(&wakes) {
            assert!(poll(wait, wakes).is_pending());
        }
        (waits, wakes)
    }

    fn poll(wait: &mut Wait<'_>, wakes: &Arc<Wakes>) -> Poll<Result<(), Closed>> {
        let waker = Waker::from(Arc::clone(wakes));
        wait.as_mut().poll(&mut Context::from_waker(&waker))
    }

    #[tokio::test]
    async fn a_change_wakes_a_few_readers_and_its_backlog_the_others_at_a_steady_pace() {
        let latest = Latest::new(0);
        let mut readers: Vec<_> = (0..100).map(|_| latest.reader()).collect();
        let (mut waits, wakes) = waiting(&mut readers);
        let backlog = latest.set(1).expect("more readers than are woken at once");
        assert_eq!(woken(&wakes), WOKEN_AT_ONCE);
        // A reader that waits from now on waits for the next change.
        let mut late = [latest.reader()];
        let (mut late, late_wakes) = waiting(&mut late);
        // A reader that leaves takes no turn of another one.
        drop(waits.remove(90));
        let clock = ManualClock::new(Timestamp::default());
        let pacing = tokio::spawn(backlog.pace(Arc::new(clock.clone())));
        let mut expected = WOKEN_AT_ONCE;
        loop {
            while clock.sleepers() == 0 && !pacing.is_finished() {
                tokio::task::yield_now().await;
            }
            assert_eq!(woken(&wakes), expected);
            if pacing.is_finished() {
                break;
            }
            clock.advance(BACKLOG_PAUSE);
            expected = (expected + 10).min(99);
        }
        pacing.await.unwrap();
        assert!(wakes.iter().all(|wakes| wakes.0.load(Ordering::Relaxed) <= 1));
        assert_eq!((woken(&wakes), woken(&late_wakes)), (99, 0));
        drop(latest);
        assert_eq!(woken(&late_wakes), 1);
        assert_eq!(poll(&mut late[0], &late_wakes[0]), Poll::Ready(Err(Closed)));
    }

    #[test]
    fn a_late_timer_is_made_up_for_within_a_limit() {
        let parts = [1, 2, 6, 7, 1_000].map(part_of_backlog);
        assert_eq!(parts, [10, 20, 60, 64, 64]);
    }

    /// The task that wakes a backlog ends with its runtime, and a `Latest` with its flight.
    #[test]
    fn a_backlog_that_is_dropped_wakes_all_its_readers() {
        let latest = Latest::new(0);
        let mut readers: Vec<_> = (0..100).map(|_| latest.reader()).collect();
        let (mut waits, wakes) = waiting(&mut readers);
        let backlog = latest.set(1);
        drop(latest);
        assert_eq!(woken(&wakes), WOKEN_AT_ONCE);
        drop(backlog);
        assert_eq!(woken(&wakes), 100);
        for (wait, wakes) in waits.iter_mut().zip(&wakes) {
            assert_eq!(poll(wait, wakes), Poll::Ready(Ok(())));
        }
    }

    /// A reader that leaves before any change does not stay in the list.
    #[test]
    fn a_reader_that_leaves_is_forgotten() {
        let latest = Latest::new(0);
        let mut reader = latest.reader();
        let mut wait = Box::pin(reader.changed());
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(latest.shared.lock().waiting.len(), 1);
        drop(wait);
        assert_eq!(latest.shared.lock().waiting.len(), 0);
    }
}
