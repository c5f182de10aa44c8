//! Whether the store is idle, without asking its thread.
//!
//! The engine searches for abandoned attempts every two seconds. If the store is idle, there are
//! none, and the search wakes no thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The side of the store.
#[derive(Clone, Debug)]
pub(super) struct IdleWatch(Arc<AtomicBool>);

/// The side of the store's thread. Once it is dropped, the store is not idle: its thread has ended,
/// and the next look must learn of it.
#[derive(Debug)]
pub(super) struct IdleReport(Arc<AtomicBool>);

/// Creates both sides. The store is not idle at first.
pub(super) fn idle_watch() -> (IdleReport, IdleWatch) {
    let is_idle = Arc::new(AtomicBool::new(false));
    (IdleReport(Arc::clone(&is_idle)), IdleWatch(is_idle))
}

impl IdleWatch {
    /// True if no attempt runs, no upkeep waits, and the store works.
    pub(super) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl IdleReport {
    pub(super) fn set(&self, is_idle: bool) {
        self.0.store(is_idle, Ordering::Release);
    }
}

impl Drop for IdleReport {
    fn drop(&mut self) {
        self.set(false);
    }
}
