//! A value that changes, and readers that wait for its changes.
//!
//! It does what `tokio::sync::watch` does, with two differences. Readers are woken in the order in
//! which they began to wait: `watch` wakes them in a random order, so that a simulation could not be
//! repeated. And only a few readers are woken at once. Each of them wakes the next one when it takes
//! note of the change. So ten thousand waiters of one key do not fill the queues of the runtime, and
//! requests with other keys run between them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The number of readers that a change wakes itself.
const WOKEN_AT_ONCE: usize = 16;

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
        (0..WOKEN_AT_ONCE).map_while(|_| self.take_due()).collect()
    }

    /// Takes the next reader that is due.
    fn take_due(&mut self) -> Option<Waker> {
        let first = self.waiting.first_entry().filter(|first| *first.key() < self.due)?;
        Some(first.remove())
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

    pub(crate) fn set(&self, value: T) {
        let mut state = self.shared.lock();
        let before = std::mem::replace(&mut state.value, value);
        state.version += 1;
        let woken = state.announce();
        drop(state);
        drop(before);
        woken.into_iter().for_each(Waker::wake);
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
        let woken = state.announce();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
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
    /// Its number among those that wait. `None` before it waits, and after it has woken the next
    /// one.
    number: Option<u64>,
}

impl<T> Change<'_, T> {
    /// Ends the wait, and wakes the next reader. One that is dropped does so too: it may have been
    /// woken to wake the others.
    fn end(&mut self) {
        let Some(number) = self.number.take() else { return };
        let mut state = self.reader.shared.lock();
        state.waiting.remove(&number);
        let next = state.take_due();
        drop(state);
        next.into_iter().for_each(Waker::wake);
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

impl<T> fmt::Debug for Latest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        latest.set(7);
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
        latest.set("b");
        assert_eq!(early.changed().await, Ok(()));
        assert_eq!((early.get(), late.get()), ("b", "b"), "a value that was read counts as seen");
        let waiting = tokio::spawn(async move { late.changed().await });
        tokio::task::yield_now().await;
        latest.set("c");
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

    #[test]
    fn a_change_wakes_a_few_readers_and_each_of_them_the_next() {
        let latest = Latest::new(0);
        let mut readers: Vec<_> = (0..100).map(|_| latest.reader()).collect();
        let wakes: Vec<_> = (0..100).map(|_| Arc::<Wakes>::default()).collect();
        let wakers: Vec<Waker> = wakes.iter().map(|wakes| Arc::clone(wakes).into()).collect();
        type Wait<'a> = Option<Pin<Box<dyn Future<Output = Result<(), Closed>> + 'a>>>;
        let wait = |reader| -> Wait<'_> { Some(Box::pin(Reader::changed(reader))) };
        let mut waits: Vec<Wait<'_>> = readers.iter_mut().map(wait).collect();
        let poll = |wait: &mut Wait<'_>, at: usize| -> bool {
            let mut cx = Context::from_waker(&wakers[at]);
            wait.as_mut().unwrap().as_mut().poll(&mut cx) == Poll::Ready(Ok(()))
        };
        for (at, wait) in waits.iter_mut().enumerate() {
            assert!(!poll(wait, at));
        }
        latest.set(1);
        assert_eq!(woken(&wakes), WOKEN_AT_ONCE);
        // A reader that waits from now on waits for the next change.
        let mut late = latest.reader();
        let mut late = Box::pin(late.changed());
        let late_wakes = Arc::<Wakes>::default();
        let waker = Waker::from(Arc::clone(&late_wakes));
        assert!(late.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for (at, wait) in waits.iter_mut().enumerate() {
            assert_eq!(wakes[at].0.load(Ordering::Relaxed), 1, "{at} was woken, and once");
            match at % 3 {
                // One that is dropped in place of being polled wakes the next one too.
                0 => *wait = None,
                _ => assert!(poll(wait, at)),
            }
            assert_eq!(woken(&wakes), (WOKEN_AT_ONCE + at + 1).min(100));
        }
        assert_eq!(late_wakes.0.load(Ordering::Relaxed), 0);
        drop(latest);
        assert_eq!(late_wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(late.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Err(Closed)));
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
