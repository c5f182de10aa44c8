//! An index of entries by time, whose first entries are read and removed in small steps.
//!
//! The tree keeps a tombstone for each removed entry until its files are merged, and a reader must
//! skip all of them. So the index remembers a key below which there is no entry: the first one that
//! the last step saw. The next step starts there. Otherwise each step would be slower than the one
//! before.
//!
//! A damaged block of a file hides the entries in it: the next step starts behind it. Only the last
//! block of the index in a file hides the later entries too, because a reader needs it to leave the
//! file. Such entries are read again after an hour, because the error may have passed.

use std::cell::Cell;
use std::iter;
use std::time::Duration;

use lsm_tree::{SeqNo, Slice};
use onetake_core::{RecordId, StoreError, StoreErrorKind, Timestamp};

use super::lsm_table::LsmTable;
use super::read_errors::{damaged_entry, unread};
use super::tables::{MomentKey, moment_entry, moment_key};

/// The time until entries are read again that could not be read. It reads tombstones again too.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(3_600);

/// An index by time. Its keys have a prefix in their table.
pub(super) struct TimeIndex {
    table: LsmTable,
    prefix: &'static [u8],
    /// There is no entry below this key that can be read.
    empty_below: Cell<MomentKey>,
    /// The first key that was skipped because it could not be read, and the time to read it again.
    skipped: Cell<Option<(MomentKey, Timestamp)>>,
}

impl TimeIndex {
    pub(super) fn new(table: LsmTable, prefix: &'static [u8]) -> Self {
        Self { table, prefix, empty_below: Cell::default(), skipped: Cell::default() }
    }

    /// Returns the entries up to this time, the oldest first. Entries in a damaged block are left
    /// out.
    pub(super) fn until(
        &self,
        now: Timestamp,
    ) -> Result<Box<dyn Iterator<Item = MomentKey> + '_>, StoreError> {
        let last = moment_key(now, RecordId::from_bytes([0xff; RecordId::BYTES]));
        self.return_to_skipped(now);
        loop {
            let first = self.empty_below.get();
            // The store's clock may have gone back.
            if first > last {
                return Ok(Box::new(iter::empty()));
            }
            let mut keys = self.read(first, last);
            let next = match keys.next().transpose() {
                Err(error) if is_damage(&error) => {
                    tracing::warn!(%error, "entries of an index cannot be read, and are skipped");
                    let again = now.plus(READ_AGAIN_AFTER);
                    let (from, at) = self.skipped.get().unwrap_or((first, again));
                    self.skipped.set(Some((from.min(first), at)));
                    self.empty_below.set(self.behind_damage(first, last));
                    continue;
                }
                next => next?,
            };
            self.empty_below.set(next.unwrap_or(last));
            // The step that begins at an error reports it.
            return Ok(Box::new(next.into_iter().chain(keys.map_while(Result::ok))));
        }
    }

    /// Goes back to entries that were skipped an hour ago.
    fn return_to_skipped(&self, now: Timestamp) {
        if let Some((from, at)) = self.skipped.get()
            && now >= at
        {
            self.skipped.set(None);
            self.empty_below.set(self.empty_below.get().min(from));
        }
    }

    fn read(
        &self,
        first: MomentKey,
        last: MomentKey,
    ) -> impl Iterator<Item = Result<MomentKey, StoreError>> {
        let [first, last] = [first, last].map(|key| [self.prefix, &key].concat());
        let bad = || damaged_entry("an entry of an index by time is damaged");
        let entry = move |key: Slice| {
            let moment = key.strip_prefix(self.prefix).and_then(|key| key.try_into().ok());
            moment.ok_or_else(bad)
        };
        self.table.keys(first..=last).map(move |key| key.map_err(unread).and_then(entry))
    }

    /// Returns a key after `first`, which cannot be read, from which on entries can be read again. A
    /// block has no length in time, so the distance is doubled, and then narrowed down.
    fn behind_damage(&self, first: MomentKey, last: MomentKey) -> MomentKey {
        let (begin, _) = moment_entry(&first);
        let key = |distance| {
            let at = Timestamp::from_micros(begin.as_micros().saturating_add(distance));
            moment_key(at, RecordId::from_bytes([0; RecordId::BYTES]))
        };
        let can_be_read = |distance| {
            let key = key(distance);
            let entry = (key <= last).then(|| self.read(key, last).next()).flatten();
            // The step that begins at another error reports it.
            !entry.is_some_and(|entry| entry.is_err_and(|error| is_damage(&error)))
        };
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

    /// Inserts an entry, or removes it (`None`). The index has no prefix.
    pub(super) fn write(&self, key: &[u8], value: Option<Slice>, number: SeqNo) {
        if value.is_some() {
            self.inserted(key);
        }
        self.table.write(key, value, number);
    }

    /// Notes that a key is inserted into the table.
    pub(super) fn inserted(&self, key: &[u8]) {
        let moment = key.strip_prefix(self.prefix).and_then(|key| key.try_into().ok());
        let Some(moment) = moment else { return };
        self.empty_below.set(self.empty_below.get().min(moment));
    }
}

/// True if only the entries of one block cannot be read. Other errors, such as too many open files,
/// say nothing about entries.
fn is_damage(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Invalid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::lsm_table::LsmTree;

    const PREFIX: &[u8] = b"by-time:";

    fn key(at: u64) -> MomentKey {
        moment_key(Timestamp::from_micros(at), RecordId::from_bytes([7; RecordId::BYTES]))
    }

    struct Index {
        tree: LsmTree,
        index: TimeIndex,
        folder: tempfile::TempDir,
    }

    impl Index {
        fn with(entries: impl IntoIterator<Item = u64>) -> Self {
            let this = Self::open(tempfile::tempdir().unwrap());
            // Another key of the table.
            this.index.table.write(b"a", Some(Slice::empty()), this.tree.next_write());
            this.index.table.write(b"z", Some(Slice::empty()), this.tree.next_write());
            entries.into_iter().for_each(|at| this.insert(at));
            this
        }

        fn open(folder: tempfile::TempDir) -> Self {
            let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
            let index = TimeIndex::new(LsmTable::new(&tree, b'm'), PREFIX);
            Self { tree, index, folder }
        }

        fn insert(&self, at: u64) {
            self.write(key(at), Some(Slice::empty()));
        }

        fn write(&self, key: MomentKey, value: Option<Slice>) {
            self.index.write(&[PREFIX, &key].concat(), value, self.tree.next_write());
        }

        /// Removes the first entries, as a step of a sweep does.
        fn step(&self, limit: usize) -> Vec<u64> {
            self.step_at(Timestamp::from_micros(100_000), limit)
        }

        fn step_at(&self, now: Timestamp, limit: usize) -> Vec<u64> {
            let until = self.index.until(now).unwrap();
            let due: Vec<MomentKey> = until.take(limit).collect();
            due.iter().for_each(|key| self.write(*key, None));
            due.iter().map(|key| moment_entry(key).0.as_micros()).collect()
        }
    }

    #[test]
    fn a_step_begins_at_the_first_entry_of_the_last_one() {
        let index = Index::with(1..=5);
        assert_eq!(index.step(2), [1, 2]);
        assert_eq!(index.step(2), [3, 4]);
        assert_eq!(index.index.empty_below.get(), key(3), "older tombstones are not read again");
        assert_eq!(index.step(2), [5]);
        assert_eq!(index.step(2), [0; 0]);
        assert!(index.index.empty_below.get() > key(5));
    }

    /// Reconciliation moves the entries that are due behind all others.
    #[test]
    fn entries_that_move_on_are_read_once() {
        const COUNT: u64 = 20_000;
        const BATCH: usize = 64;
        let index = Index::with(1..=COUNT);
        for start in (1..=COUNT).step_by(BATCH) {
            let moved = index.step(BATCH);
            assert_eq!(moved.first(), Some(&start));
            assert_eq!(index.index.empty_below.get(), key(start));
            moved.into_iter().for_each(|at| index.insert(100_000 + at));
        }
        assert_eq!(index.step(BATCH), [0; 0]);
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

    /// The entries behind a damaged block are swept, and those before it. If the block can be read
    /// again, so are the others.
    #[test]
    fn a_damaged_block_hides_only_its_own_entries() {
        const COUNT: u64 = 10_000;
        let index = Index::with(1..=COUNT);
        index.tree.seal();
        index.tree.flush().unwrap();
        let Index { folder, .. } = index;
        let table = std::fs::read_dir(folder.path().join("tables")).unwrap().next();
        let table = table.unwrap().unwrap().path();
        let whole = std::fs::read(&table).unwrap();
        let mut bytes = whole.clone();
        // The blocks of entries come first.
        let at = bytes.len() / 4;
        bytes[at] ^= 1;
        std::fs::write(&table, bytes).unwrap();

        let index = Index::open(folder);
        let mut swept = Vec::new();
        loop {
            let step = index.step(64);
            if step.is_empty() {
                break;
            }
            swept.extend(step);
        }
        let hidden = COUNT - swept.len() as u64;
        assert!(hidden > 0 && hidden < 1_000, "{hidden} entries are hidden");
        assert_eq!((swept[0], *swept.last().unwrap()), (1, COUNT));

        std::fs::write(&table, whole).unwrap();
        assert_eq!(index.step(64), [0; 0]);
        let later = Timestamp::from_micros(100_000).plus(READ_AGAIN_AFTER);
        assert_eq!(index.step_at(later, 1_000).len() as u64, hidden);
    }

    /// Entries that could be read a moment later would stay out of sight.
    #[test]
    fn entries_are_not_skipped_without_descriptors() {
        let error = |number| unread(std::io::Error::from_raw_os_error(number).into());
        assert!(is_damage(&error(5)), "a bad sector");
        assert!(!is_damage(&error(24)), "too many open files");
    }

    #[test]
    fn nothing_is_due_before_the_first_entry() {
        let index = Index::with([10]);
        assert_eq!(index.step(9), [10]);
        let due = |now| index.index.until(Timestamp::from_micros(now)).unwrap().count();
        assert_eq!((due(3), due(20)), (0, 0));
    }
}
