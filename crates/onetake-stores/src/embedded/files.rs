//! File descriptors for the store.
//!
//! The store opens files in the background: new files of tables, the parts of a merge, the next
//! segment of the log. If the process has no descriptor left, they are opened later, and meanwhile
//! log and memory grow. So a shortage is prevented:
//!
//! - The gateway bounds the number of its sockets, so that descriptors are left for the store.
//! - If they run out nevertheless, the store sees it before it writes a group. It closes the
//!   descriptors that it holds in reserve, for the tree's threads that are at work, and waits with
//!   the group until there are enough again. Without new groups the tree needs no new files.
//! - After a while it refuses the group. Nothing was written, and a retry may succeed.

use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

use metrics::{Counter, counter, describe_counter};

use onetake_core::{StoreError, StoreErrorKind};

/// The descriptors that the store holds in reserve: more than the tree opens at once to write a
/// table and the next journal, and to merge the tables of one level.
const RESERVE: usize = 32;
/// The pause between two looks for free descriptors.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of looks before a group is refused: two seconds.
const LOOKS_MAX: usize = 100;

/// The numbers of the errors "too many open files" of the process and of the system.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// The descriptors in reserve.
pub(super) struct FileReserve {
    /// Opens one more descriptor.
    open: Box<dyn FnMut() -> io::Result<File> + Send>,
    held: Vec<File>,
    looks_max: usize,
    /// Waits: nothing is ever sent.
    pause: (mpsc::Sender<()>, mpsc::Receiver<()>),
    waits: Counter,
}

impl FileReserve {
    /// Creates an empty reserve of descriptors that `open` opens.
    pub(super) fn new(open: impl FnMut() -> io::Result<File> + Send + 'static) -> Self {
        const NAME: &str = "onetake_store_file_waits_total";
        describe_counter!(NAME, "Writes that waited because the process had too many files open.");
        Self {
            open: Box::new(open),
            held: Vec::new(),
            looks_max: LOOKS_MAX,
            pause: mpsc::channel(),
            waits: counter!(NAME),
        }
    }

    /// Returns once the process has free descriptors.
    ///
    /// # Errors
    /// If it has none for two seconds.
    pub(super) fn wait(&mut self) -> Result<(), StoreError> {
        // One descriptor more than the reserve shows that there is one left for the tree.
        let is_free = self.is_full() && (self.open)().is_ok();
        if is_free || self.fill() {
            return Ok(());
        }
        self.waits.increment(1);
        tracing::warn!(
            "the process has too many open files, so the store waits with its writes: raise the limit of open files (ulimit -n), or lower limits.max_connections"
        );
        for _ in 0..self.looks_max {
            self.held.clear();
            let _timeout = self.pause.1.recv_timeout(PAUSE);
            if self.fill() {
                return Ok(());
            }
        }
        self.held.clear();
        let what = "the process has too many open files, so the store cannot write: raise the limit of open files (ulimit -n)";
        Err(StoreError::new(StoreErrorKind::Unavailable, what))
    }

    fn is_full(&self) -> bool {
        self.held.len() >= RESERVE
    }

    /// Fills the reserve. Returns false if the process has too few descriptors.
    fn fill(&mut self) -> bool {
        while !self.is_full() {
            match (self.open)() {
                Ok(file) => self.held.push(file),
                Err(error) if is_too_many(&error) => return false,
                // Another error says nothing about descriptors.
                Err(_) => return true,
            }
        }
        // The one that the tree needs next.
        !(self.open)().is_err_and(|error| is_too_many(&error))
    }
}

/// True if the process or the system has too many open files.
pub(super) fn is_too_many(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A reserve of a process that may open this number of files at a time.
    fn reserve(free: &Arc<AtomicUsize>) -> FileReserve {
        let free = Arc::clone(free);
        let open = move || match free.load(Ordering::SeqCst) {
            0 => Err(io::Error::from_raw_os_error(EMFILE)),
            _ => File::open("/dev/null"),
        };
        FileReserve { looks_max: 2, ..FileReserve::new(open) }
    }

    #[test]
    fn a_group_is_refused_without_descriptors_and_accepted_afterwards() {
        let free = Arc::new(AtomicUsize::new(1));
        let mut reserve = reserve(&free);
        reserve.wait().unwrap();
        assert_eq!(reserve.held.len(), RESERVE);
        free.store(0, Ordering::SeqCst);
        assert_eq!(reserve.wait().unwrap_err().kind(), StoreErrorKind::Unavailable);
        assert!(reserve.held.is_empty(), "the tree's threads may need them");
        free.store(1, Ordering::SeqCst);
        reserve.wait().unwrap();
        assert_eq!(reserve.held.len(), RESERVE);
    }

    #[test]
    fn a_group_waits_for_descriptors() {
        let looks = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&looks);
        let open = move || match seen.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Err(io::Error::from_raw_os_error(ENFILE)),
            _ => File::open("/dev/null"),
        };
        let mut reserve = FileReserve::new(open);
        reserve.wait().unwrap();
        assert!(looks.load(Ordering::SeqCst) > RESERVE);
    }

    #[test]
    fn other_errors_do_not_stop_writes() {
        let mut reserve = FileReserve::new(|| Err(io::ErrorKind::PermissionDenied.into()));
        reserve.wait().unwrap();
    }
}
