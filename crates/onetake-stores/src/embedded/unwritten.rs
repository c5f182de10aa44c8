//! The writes that are in memory and in the journal, but not in tables on disk yet.
//!
//! The tree writes a table to disk when that table has grown to its size. A table that grows slowly
//! stays in memory for very long: the mark of each group, for example. So all tables together have
//! a limit here. Beyond it, the largest table is written.

use std::cell::Cell;

use metrics::{Gauge, describe_gauge, gauge};

/// The number of tables.
pub(super) const TABLES: usize = 4;
pub(super) const RUNNING: usize = 0;
pub(super) const SETTLED: usize = 1;
pub(super) const EXPIRY: usize = 2;
pub(super) const META: usize = 3;

/// The memory of an item without its value, in bytes: a key of 16 to 32 bytes, a node of the skip
/// list and its links.
pub(super) const ITEM_BYTES: u64 = 160;

/// The bytes of each table in memory. Only the thread that owns the folder uses it.
pub(super) struct Unwritten {
    bytes: Cell<[u64; TABLES]>,
    max: u64,
    gauge: Gauge,
}

impl Unwritten {
    pub(super) fn new(max: u64) -> Self {
        const NAME: &str = "onetake_store_unwritten_bytes";
        describe_gauge!(NAME, "Memory of writes that are not in tables of the embedded store yet.");
        Self { bytes: Cell::default(), max, gauge: gauge!(NAME) }
    }

    /// Counts a group. Returns the table that is to be written now, if there is one. It counts as
    /// written from then on.
    pub(super) fn add(&self, added: [u64; TABLES]) -> Option<usize> {
        let mut bytes = self.bytes.get();
        for (table, added) in bytes.iter_mut().zip(added) {
            *table = table.saturating_add(added);
        }
        let is_over = bytes.iter().sum::<u64>() > self.max;
        let largest = bytes.iter_mut().enumerate().max_by_key(|(_, bytes)| **bytes);
        let written = largest.filter(|_| is_over).map(|(table, bytes)| {
            *bytes = 0;
            table
        });
        self.bytes.set(bytes);
        self.gauge.set(bytes.iter().sum::<u64>() as f64);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_table_is_written_when_all_are_too_large() {
        let unwritten = Unwritten::new(100);
        assert_eq!(unwritten.add([10, 30, 20, 40]), None);
        assert_eq!(unwritten.add([0, 0, 1, 0]), Some(META));
        assert_eq!(unwritten.add([0, 0, 0, 39]), None);
        assert_eq!(unwritten.add([0, 9, 0, 0]), Some(META), "39 and 39: the last one");
    }

    /// A table that grows by little is written in the end.
    #[test]
    fn the_sum_stays_below_the_limit() {
        let unwritten = Unwritten::new(10_000);
        let mut written = [0; TABLES];
        for _ in 0..100_000 {
            if let Some(table) = unwritten.add([36, 38, 9, 1]) {
                written[table] += 1;
            }
            assert!(unwritten.bytes.get().iter().sum::<u64>() <= 10_000);
        }
        assert!(written.iter().all(|count| *count > 5), "{written:?}");
    }
}
