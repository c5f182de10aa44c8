//! A value that changes, and readers that wait for its changes.
//!
//! It does what `tokio::sync::watch` does, with one difference: readers are woken in the order in
//! which they began to wait. `watch` wakes them in a random order, so that a simulation could not
//! be repeated.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

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
    changed: Notify,
    readers: AtomicUsize,
}

struct State<T> {
    value: T,
    version: u64,
    is_closed: bool,
}

impl<T: Clone> Latest<T> {
    pub(crate) fn new(value: T) -> Self {
        let state = Mutex::new(State { value, version: 0, is_closed: false });
        let (changed, readers) = (Notify::new(), AtomicUsize::new(0));
        Self { shared: Arc::new(LatestState { state, changed, readers }) }
    }

    pub(crate) fn get(&self) -> T {
        self.shared.lock().value.clone()
    }

    pub(crate) fn set(&self, value: T) {
        let mut state = self.shared.lock();
        let before = std::mem::replace(&mut state.value, value);
        state.version += 1;
        drop(state);
        drop(before);
        self.shared.changed.notify_waiters();
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
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_waiters();
    }
}

impl<T: Clone> Reader<T> {
    /// Returns the present value, which counts as seen.
    pub(crate) fn get(&mut self) -> T {
        let state = self.shared.lock();
        self.seen = state.version;
        state.value.clone()
    }

    /// Waits for a value that was not seen yet.
    pub(crate) async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let mut changed = pin!(self.shared.changed.notified());
            // No change is missed from here on.
            changed.as_mut().enable();
            {
                let state = self.shared.lock();
                if state.version != self.seen {
                    self.seen = state.version;
                    return Ok(());
                }
                if state.is_closed {
                    return Err(Closed);
                }
            }
            changed.await;
        }
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
}
