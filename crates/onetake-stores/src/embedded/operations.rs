//! The flushes and merges in progress, and the files that failed ones leave behind.
//!
//! lsm-tree removes such files only when the tree is opened. With a damaged block, each merge fails,
//! and its files would fill the disk.
//!
//! While another operation writes files, they look like those of the failed one. So files are removed
//! at the end of the last operation, before a new one begins.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lsm_tree::TableId;

/// The pause between two looks for a moment without reads. A read takes less.
const READER_PAUSE: Duration = Duration::from_micros(200);
const READER_WAITS_MAX: usize = 500;

/// A read of the tables in progress.
pub(super) type Reading = Arc<()>;

#[derive(Default)]
pub(super) struct Operations {
    state: Mutex<State>,
    /// Each read holds a clone.
    readers: Reading,
    /// True if the disk may name another list of files than the one in memory.
    is_list_unsure: AtomicBool,
}

#[derive(Default)]
struct State {
    running: usize,
    /// The number of the first file that a failed operation can have left.
    leftovers_from: Option<TableId>,
    /// The number of the first file that the operations in progress can have written.
    begun_at: TableId,
}

impl Operations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a read.
    pub(super) fn reading(&self) -> Reading {
        Arc::clone(&self.readers)
    }

    /// True if a failed operation may have left files, or the name of its list.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().leftovers_from.is_some()
    }

    pub(super) fn is_list_unsure(&self) -> bool {
        self.is_list_unsure.load(Ordering::SeqCst)
    }

    pub(super) fn set_list_unsure(&self, is_unsure: bool) {
        self.is_list_unsure.store(is_unsure, Ordering::SeqCst);
    }

    /// Waits for a moment without reads. Returns false if there is none within
    /// [`READER_WAITS_MAX`] pauses.
    pub(super) fn wait_for_readers(&self) -> bool {
        (0..READER_WAITS_MAX).any(|_| {
            let is_over = Arc::strong_count(&self.readers) == 1;
            if !is_over {
                thread::park_timeout(READER_PAUSE);
            }
            is_over
        })
    }

    /// An operation begins. `next` returns the number of the next file.
    pub(super) fn begin(&self, next: impl FnOnce() -> TableId) {
        let mut state = self.lock();
        if state.running == 0 {
            state.begun_at = next();
        }
        state.running += 1;
    }

    /// An operation has ended. `remove` removes what failed operations have left, from this file on.
    /// If that fails, the end of the next operation tries it again.
    pub(super) fn end(&self, succeeded: bool, remove: impl FnOnce(TableId) -> io::Result<()>) {
        let mut state = self.lock();
        state.running -= 1;
        if !succeeded {
            let first = state.leftovers_from.unwrap_or(state.begun_at);
            state.leftovers_from = Some(first.min(state.begun_at));
        }
        let Some(from) = state.leftovers_from.filter(|_| state.running == 0) else { return };
        match remove(from) {
            Ok(()) => state.leftovers_from = None,
            Err(error) => {
                tracing::warn!(%error, "the files of a failed flush or merge could not be removed yet");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_removed_at_the_end_of_the_last_operation() {
        let operations = Operations::default();
        let never = |_| panic!("an operation writes files, or none has failed");
        operations.begin(|| 3);
        operations.end(true, never);
        operations.begin(|| 5);
        operations.begin(|| 7);
        operations.end(false, never);
        operations.begin(|| 9);
        operations.end(true, never);
        let fails = |from| {
            assert_eq!(from, 5);
            Err(io::Error::other("a reader"))
        };
        operations.end(true, fails);
        operations.begin(|| 11);
        let mut removed = None;
        operations.end(true, |from| {
            removed = Some(from);
            Ok(())
        });
        assert_eq!(removed, Some(5));
        operations.begin(|| 12);
        operations.end(true, never);
    }
}
