//! The index of settled records by the time at which they expire.
//!
//! A sweep deletes the first entries in small steps. The tree keeps a tombstone for each deleted
//! entry until its files are merged, and a reader must skip all of them. So the index remembers a
//! key below which there is no entry, and the next step starts there. Otherwise each step would be
//! slower than the one before.
//!
//! A damaged block of a file hides the entries in it: the next step starts behind it. Only the last
//! block of the index in a file hides the later entries too, because a reader needs it to leave the
//! file.

use std::cell::Cell;

use lsm_tree::{SeqNo, Slice};
use onetake_core::{RecordId, StoreError, StoreErrorKind, Timestamp};

use super::lsm_table::{LsmTable, LsmTree};
use super::tables::{MomentKey, moment_entry, moment_key, unread};

/// The prefix of the table.
const PREFIX: u8 = b'e';

pub(super) struct ExpiryIndex {
    table: LsmTable,
    /// There is no entry below this key that can be read.
    empty_below: Cell<MomentKey>,
}

impl ExpiryIndex {
    pub(super) fn new(tree: &LsmTree) -> Self {
        Self { table: LsmTable::new(tree, PREFIX), empty_below: Cell::default() }
    }

    /// Returns up to `limit` entries that are due, the oldest first. Entries in a damaged block are
    /// left out.
    pub(super) fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RecordId)>, StoreError> {
        let last = moment_key(now, RecordId::from_bytes([0xff; RecordId::BYTES]));
        loop {
            let first = self.empty_below.get();
            // The store's clock may have gone back.
            if first > last {
                return Ok(Vec::new());
            }
            match self.read(first, last, limit) {
                Err(error) if error.kind() == StoreErrorKind::Invalid => {
                    tracing::warn!(%error, "a sweep skips entries that cannot be read");
                    self.empty_below.set(self.behind_damage(first, last));
                }
                read => return read,
            }
        }
    }

    /// Reads entries until the first one that cannot be read. Returns its error if there are no
    /// entries before it.
    fn read(
        &self,
        first: MomentKey,
        last: MomentKey,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RecordId)>, StoreError> {
        let mut entries = Vec::new();
        for key in self.table.keys(first..=last).take(limit) {
            match key.map_err(unread).and_then(|key| moment_entry(&key)) {
                Ok(entry) => entries.push(entry),
                Err(error) if entries.is_empty() => return Err(error),
                // The next step reports the error.
                Err(_) => break,
            }
        }
        Ok(entries)
    }

    /// Returns a key after `first`, which cannot be read, from which on entries can be read again. A
    /// block has no length in time, so the distance is doubled, and then narrowed down.
    fn behind_damage(&self, first: MomentKey, last: MomentKey) -> MomentKey {
        let begin = moment_entry(&first).map_or(0, |(at, _)| at.as_micros());
        let key = |distance| {
            let at = Timestamp::from_micros(begin.saturating_add(distance));
            moment_key(at, RecordId::from_bytes([0; RecordId::BYTES]))
        };
        let can_be_read =
            |distance| key(distance) > last || self.read(key(distance), last, 1).is_ok();
        let mut far = 1_u64;
        while !can_be_read(far) {
            far = far.saturating_mul(2);
        }
        let mut near = far / 2;
        while far - near > 1 {
            let middle = near + (far - near) / 2;
            *(if can_be_read(middle) { &mut far } else { &mut near }) = middle;
        }
        key(far)
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
        folder: tempfile::TempDir,
    }

    impl Index {
        fn with(entries: impl IntoIterator<Item = u64>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
            let this = Self { index: ExpiryIndex::new(&tree), tree, folder };
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

    /// The entries behind a damaged block are swept, and those before it.
    #[test]
    fn a_damaged_block_hides_only_its_own_entries() {
        const COUNT: u64 = 10_000;
        let mut index = Index::with(1..=COUNT);
        index.tree.seal();
        index.tree.flush().unwrap();
        let table = std::fs::read_dir(index.folder.path().join("tables")).unwrap().next();
        let table = table.unwrap().unwrap().path();
        let mut bytes = std::fs::read(&table).unwrap();
        // The blocks of entries come first.
        let at = bytes.len() / 4;
        bytes[at] ^= 1;
        std::fs::write(&table, bytes).unwrap();
        // Nothing is in the cache.
        index.tree = LsmTree::open(index.folder.path(), 1 << 20).unwrap();
        index.index = ExpiryIndex::new(&index.tree);

        let now = Timestamp::from_micros(2 * COUNT);
        let mut swept = Vec::new();
        loop {
            let due = index.index.due(now, 64).unwrap();
            let Some(last) = due.last().copied() else { break };
            index.index.passed(last);
            for (at, id) in &due {
                index.index.write(&moment_key(*at, *id), None, index.tree.next_write());
            }
            swept.extend(due.into_iter().map(|(at, _)| at.as_micros()));
        }
        let hidden = COUNT - swept.len() as u64;
        assert!(hidden > 0 && hidden < 1_000, "{hidden} entries are hidden");
        assert_eq!((swept[0], *swept.last().unwrap()), (1, COUNT));
    }

    #[test]
    fn nothing_is_due_before_the_first_entry() {
        let index = Index::with([10]);
        assert_eq!(index.step(9), [10]);
        let due = |now| index.index.due(Timestamp::from_micros(now), 9).unwrap();
        assert_eq!((due(3), due(20)), (vec![], vec![]));
    }
}
