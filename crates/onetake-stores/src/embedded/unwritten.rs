//! The changes that are in the log and in memory, but not in files of the tables yet.

use std::cell::Cell;

use metrics::{Gauge, describe_gauge, gauge};

/// The memory of an entry without its value, in bytes: a key of 16 to 32 bytes, a node of the skip
/// list and its links.
pub(super) const ITEM_BYTES: u64 = 160;

/// The bytes of the entries that are not sealed. Only the thread that owns the folder uses it.
pub(super) struct Unwritten {
    bytes: Cell<u64>,
    gauge: Gauge,
}

impl Unwritten {
    pub(super) fn new() -> Self {
        const NAME: &str = "onetake_store_unwritten_bytes";
        describe_gauge!(NAME, "Memory of writes that are not in tables of the embedded store yet.");
        Self { bytes: Cell::default(), gauge: gauge!(NAME) }
    }

    pub(super) fn add(&self, bytes: u64) {
        self.set(self.bytes.get().saturating_add(bytes));
    }

    /// The entries so far are sealed.
    pub(super) fn seal(&self) {
        self.set(0);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    fn set(&self, bytes: u64) {
        self.bytes.set(bytes);
        self.gauge.set(bytes as f64);
    }
}
