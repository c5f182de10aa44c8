//! The index of settled records by the time at which they expire.
//!
//! A sweep deletes the first entries in small steps. The tree keeps a tombstone for each deleted
//! entry until its files are merged, and a reader must skip all of them. So the index remembers a
//! key below which there is no entry, and the next step starts there. Otherwise each step would be
//! slower than the one before.

use std::cell::Cell;

use lsm_tree::{SeqNo, Slice};
use onetake_core::{RecordId, StoreError, Timestamp};

use super::lsm_table::{LsmTable, LsmTree};
use super::tables::{MomentKey, broken, moment_entry, moment_key};

/// The prefix of the table.
const PREFIX: u8 = b'e';

pub(super) struct ExpiryIndex {
    table: LsmTable,
    /// There is no entry below this key.
    empty_below: Cell<MomentKey>,
}

impl ExpiryIndex {
    pub(super) fn new(tree: &LsmTree) -> Self {
        Self { table: LsmTable::new(tree, PREFIX), empty_below: Cell::default() }
    }

    /// Returns up to `limit` entries that are due, the oldest first.
    pub(super) fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RecordId)>, StoreError> {
        let first = self.empty_below.get();
        let last = moment_key(now, RecordId::from_bytes([0xff; RecordId::BYTES]));
        // The store's clock may have gone back.
        if first > last {
            return Ok(Vec::new());
        }
        let keys = self.table.keys(first..=last).take(limit);
        keys.map(|key| key.map_err(broken).and_then(|key| moment_entry(&key))).collect()
    }

    /// Records that the changes that are applied next remove all entries up to this one.
    pub(super) fn passed(&self, (at, id): (Timestamp, RecordId)) {
        self.empty_below.set(self.empty_below.get().max(moment_key(at, id)));
    }

    /// Inserts an entry, or removes it (`None`).
    pub(super) fn write(&self, key: &[u8], value: Option<Slice>, number: SeqNo) {
        let first = self.empty_below.get();
        if value.is_some() && *key < first[..] {
            // A key of another length is damaged. The index then starts at its beginning, so the
            // next sweep reports the damage.
            self.empty_below.set(key.try_into().unwrap_or_default());
        }
        self.table.write(key, value, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Timestamp = Timestamp::from_micros(1_000);

    fn entry(at: u64) -> (Timestamp, RecordId) {
        (Timestamp::from_micros(at), RecordId::from_bytes([7; RecordId::BYTES]))
    }

    fn key(at: u64) -> MomentKey {
        let (at, id) = entry(at);
        moment_key(at, id)
    }

    struct Index {
        tree: LsmTree,
        index: ExpiryIndex,
        _folder: tempfile::TempDir,
    }

    impl Index {
        fn with(entries: impl IntoIterator<Item = u64>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
            let this = Self { index: ExpiryIndex::new(&tree), tree, _folder: folder };
            entries.into_iter().for_each(|at| this.insert(at));
            this
        }

        fn insert(&self, at: u64) {
            self.index.write(&key(at), Some(Slice::empty()), self.tree.next_write());
        }

        /// Removes the first entries, as a step of a sweep does.
        fn step(&self, limit: usize) -> Vec<u64> {
            let due = self.index.due(ALL, limit).unwrap();
            due.last().copied().into_iter().for_each(|last| self.index.passed(last));
            for (at, id) in &due {
                self.index.write(&moment_key(*at, *id), None, self.tree.next_write());
            }
            due.into_iter().map(|(at, _)| at.as_micros()).collect()
        }
    }

    #[test]
    fn a_step_begins_where_the_last_one_ended() {
        let index = Index::with(1..=5);
        assert_eq!(index.step(2), [1, 2]);
        assert_eq!(index.index.empty_below.get(), key(2), "no marker of the first step is read");
        assert_eq!(index.step(2), [3, 4]);
        assert_eq!(index.step(2), [5]);
        assert_eq!(index.step(2), [0; 0]);
        assert_eq!(index.index.empty_below.get(), key(5));
    }

    #[test]
    fn an_entry_before_the_last_step_is_found() {
        let index = Index::with([10, 20]);
        assert_eq!(index.step(1), [10]);
        // A clock that went back, or a record that was forgotten.
        index.insert(4);
        index.insert(6);
        assert_eq!(index.step(1), [4]);
        assert_eq!(index.step(9), [6, 20]);
    }

    /// A step and an insertion can be in one group. The insertion is applied after the step.
    #[test]
    fn an_entry_that_is_applied_after_a_step_is_found() {
        let index = Index::with([10]);
        let due = index.index.due(ALL, 9).unwrap();
        index.index.passed(due[0]);
        index.insert(3);
        assert_eq!(index.step(1), [3]);
    }

    #[test]
    fn nothing_is_due_before_the_first_entry() {
        let index = Index::with([10]);
        assert_eq!(index.step(9), [10]);
        let due = |now| index.index.due(Timestamp::from_micros(now), 9).unwrap();
        assert_eq!((due(3), due(20)), (vec![], vec![]));
    }
}
