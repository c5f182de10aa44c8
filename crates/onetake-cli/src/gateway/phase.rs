//! The phase of the gateway's life.

use std::sync::atomic::{AtomicU8, Ordering};

/// The phase of a server. It only moves on.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

const LEAVING: u8 = 1;
const STOPPING: u8 = 2;

impl Phase {
    /// Readiness is gone and the end of connections is announced, but new ones are still accepted.
    pub(super) fn leave(&self) {
        self.0.fetch_max(LEAVING, Ordering::AcqRel);
    }

    /// Nothing new is accepted.
    pub(super) fn stop(&self) {
        self.0.fetch_max(STOPPING, Ordering::AcqRel);
    }

    /// True from [`leave`](Self::leave) on.
    pub(super) fn is_leaving(&self) -> bool {
        self.0.load(Ordering::Acquire) >= LEAVING
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.0.load(Ordering::Acquire) >= STOPPING
    }
}
