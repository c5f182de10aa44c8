//! The tables on disk: one log-structured merge tree, in which each table has a prefix.
//!
//! The crate `lsm-tree` writes and reads files of sorted entries. It keeps new entries in memory
//! until [`LsmTree::flush`]. It has no log: the store's own log makes entries durable before that.
//!
//! Readers wait while the tree notes new files, which takes several syncs. A tree for each table
//! would make them wait as often for each of them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use lsm_tree::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard as _, SeqNo,
    SequenceNumberCounter, Slice, Table, TableId,
};

use super::manifest;
use super::operations::{Operations, Reading};

/// The most files that stay open.
const CACHED_FILES: usize = 128;
/// The bytes of most keys in the tree: a prefix, a moment and an id.
const SHORT_KEY_BYTES: usize = 1 + 8 + 16;

/// The tree of a folder.
#[derive(Clone)]
pub(super) struct LsmTree {
    pub(super) tree: AnyTree,
    pub(super) path: PathBuf,
    /// The files that are open.
    open_files: Arc<DescriptorTable>,
    /// The number of the next write.
    next: SequenceNumberCounter,
    operations: Arc<Operations>,
    /// Locked for writing during a merge of all files, and for reading during a step of another
    /// merge.
    pub(super) merging_all: Arc<RwLock<()>>,
}

impl LsmTree {
    /// Opens the tree, or creates it. `cache` is the memory for blocks of files, in bytes.
    pub(super) fn open(path: &Path, cache: u64) -> Result<Self, lsm_tree::Error> {
        let (next, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let open_files = Arc::new(DescriptorTable::new(CACHED_FILES));
        let bloom = FilterPolicyEntry::Bloom;
        let tree = Config::new(path, next.clone(), visible)
            .use_cache(Arc::new(Cache::with_capacity_bytes(cache)))
            .use_descriptor_table(Some(Arc::clone(&open_files)))
            // Most claims look for a key that does not exist.
            .filter_policy(FilterPolicy::new([
                bloom(BloomConstructionPolicy::FalsePositiveRate(0.0001)),
                bloom(BloomConstructionPolicy::BitsPerKey(10.0)),
            ]))
            .open()?;
        if let Some(highest) = tree.get_highest_persisted_seqno() {
            next.fetch_max(highest + 1);
        }
        let (path, operations, merging_all) = (path.to_owned(), Arc::default(), Arc::default());
        Ok(Self { tree, path, open_files, next, operations, merging_all })
    }

    /// Returns the number of a new write. No earlier write has it.
    pub(super) fn next_write(&self) -> SeqNo {
        self.next.next()
    }

    /// Entries below this number may be discarded if there is a newer one: no reader uses an older
    /// state.
    pub(super) fn discard_below(&self) -> SeqNo {
        self.next.get()
    }

    /// Ends the entries in memory that the next flush writes.
    pub(super) fn seal(&self) {
        self.tree.rotate_memtable();
    }

    /// Writes the sealed entries to files, and syncs them.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.operation(|| {
            let lock = self.tree.get_flush_lock();
            self.tree.flush(&lock, self.discard_below()).map(drop)
        })
    }

    /// Calls lsm-tree to write files. If it fails, the files that it has written are removed.
    pub(super) fn operation(
        &self,
        run: impl FnOnce() -> Result<(), lsm_tree::Error>,
    ) -> io::Result<()> {
        self.operations.begin(|| self.tree.next_table_id());
        let result = self.check_list().and_then(|()| caught(run));
        self.operations.end(result.is_ok(), |from| self.remove_leftovers(from));
        result
    }

    /// Refuses an operation if `current` may name the list of a failed one. The new operation would
    /// write its own list into that file, and a crash would leave half of it. The end of the last
    /// operation in progress corrects the name.
    fn check_list(&self) -> io::Result<()> {
        if !self.operations.has_failed() {
            return Ok(());
        }
        if self.operations.is_list_unsure() || !self.is_list_named()? {
            return Err(io::Error::other("the list of files of a failed flush or merge is in use"));
        }
        Ok(())
    }

    /// True if `current` names the list in memory.
    fn is_list_named(&self) -> io::Result<bool> {
        let in_memory = || caught(|| Ok(self.tree.current_version().id()));
        loop {
            let (before, named, after) =
                (in_memory()?, manifest::named_list(&self.path)?, in_memory()?);
            // Another operation has not named its list meanwhile.
            if before == after {
                return Ok(named == after);
            }
        }
    }

    /// Removes the files with this number and later ones that are not in the list of files. No
    /// operation runs, so no file will be added to the list that is not in it now.
    fn remove_leftovers(&self, from: TableId) -> io::Result<()> {
        let (number, listed) = caught(|| {
            let version = self.tree.current_version();
            let listed: HashSet<TableId> = version.iter_tables().map(Table::id).collect();
            Ok((version.id(), listed))
        })?;
        // The failed operation may have put a list on disk that names its files. Usually it has not,
        // and a full disk has no space for another name.
        if manifest::named_list(&self.path)? != number {
            self.operations.set_list_unsure(true);
        }
        if self.operations.is_list_unsure() {
            manifest::name_list(&self.path, number)?;
            self.operations.set_list_unsure(false);
        }
        caught(|| self.remove_replaced())?;
        // A reader that began earlier may use an older list, with files that were replaced since.
        if !self.operations.wait_for_readers() {
            return Err(io::Error::other("a file that was replaced may be in use"));
        }
        let end = self.tree.next_table_id();
        for entry in fs::read_dir(self.path.join("tables"))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(id) = name.and_then(|name| name.parse().ok()) else { continue };
            if (from..end).contains(&id) && !listed.contains(&id) {
                fs::remove_file(path)?;
                // An open file keeps its space.
                self.open_files.remove_for_table(&(self.tree.id(), id).into());
            }
        }
        Ok(())
    }

    /// Removes lists of files that a newer one replaced.
    pub(super) fn remove_replaced(&self) -> Result<(), lsm_tree::Error> {
        let below = self.discard_below();
        self.tree.get_version_history_lock().maintenance(&self.path, below)
    }

    /// Begins a read. Until the result is dropped, no file is removed that the read may use.
    fn reading(&self) -> Reading {
        self.operations.reading()
    }

    /// The approximate number of entries of all tables.
    pub(super) fn len_about(&self) -> usize {
        self.tree.approximate_len()
    }
}

/// One table of the tree.
pub(super) struct LsmTable {
    tree: LsmTree,
    /// The first byte of the table's keys in the tree.
    prefix: u8,
}

impl LsmTable {
    pub(super) fn new(tree: &LsmTree, prefix: u8) -> Self {
        Self { tree: tree.clone(), prefix }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Slice>, lsm_tree::Error> {
        let _reading = self.tree.reading();
        self.with_prefix(key, |key| self.tree.tree.get(key, SeqNo::MAX))
    }

    /// Returns the keys in this range, in order.
    pub(super) fn keys<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
    ) -> Box<dyn DoubleEndedIterator<Item = Result<Slice, lsm_tree::Error>>> {
        let slice = |key: &K| self.with_prefix(key.as_ref(), |key| Slice::from(key));
        let start = match range.start_bound().map(slice) {
            Bound::Unbounded => Bound::Included(Slice::from([self.prefix])),
            start => start,
        };
        let end = match range.end_bound().map(slice) {
            Bound::Unbounded => Bound::Excluded(Slice::from([self.prefix + 1])),
            end => end,
        };
        let reading = self.tree.reading();
        let entries = self.tree.tree.range::<Slice, _>((start, end), SeqNo::MAX, None);
        let without_prefix = |key: Slice| Slice::from(key.get(1..).unwrap_or_default());
        Box::new(entries.map(move |entry| {
            let _reading = &reading;
            entry.key().map(without_prefix)
        }))
    }

    /// Inserts an entry in memory, or removes it (`None`).
    pub(super) fn write(&self, key: &[u8], value: Option<Slice>, number: SeqNo) {
        let tree = &self.tree.tree;
        self.with_prefix(key, |key| match value {
            Some(value) => tree.insert(key, value, number),
            None => tree.remove(key, number),
        });
    }

    /// Calls `use_it` with the key in the tree. Most keys are short, and need no allocation.
    fn with_prefix<T>(&self, key: &[u8], use_it: impl FnOnce(&[u8]) -> T) -> T {
        let mut short = [0; SHORT_KEY_BYTES];
        match short.get_mut(..=key.len()).and_then(|whole| whole.split_first_mut()) {
            Some((first, rest)) => {
                *first = self.prefix;
                rest.copy_from_slice(key);
                use_it(short.get(..=key.len()).unwrap_or_default())
            }
            None => use_it(&[&[self.prefix], key].concat()),
        }
    }
}

/// Calls lsm-tree, which panics on some kinds of damage.
pub(super) fn caught<T>(call: impl FnOnce() -> Result<T, lsm_tree::Error>) -> io::Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Err(lsm_tree::Error::Io(error))) => Err(error),
        Ok(result) => result.map_err(io::Error::other),
        Err(_) => Err(io::Error::other("a table is damaged")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    pub(in super::super) fn flush(tree: &LsmTree, table: &LsmTable, round: u32) {
        for number in 0..500_u32 {
            let key = number.wrapping_mul(2_654_435_761).to_be_bytes();
            let value = Slice::from([[round as u8; 64].as_slice(), &key].concat());
            table.write(&key, Some(value), tree.next_write());
        }
        tree.seal();
        tree.flush().unwrap();
    }

    pub(in super::super) fn files(folder: &Path) -> BTreeSet<PathBuf> {
        let files = fs::read_dir(folder.join("tables")).unwrap();
        files.map(|entry| entry.unwrap().path()).collect()
    }

    /// A sync can fail after the list of the failed flush was named.
    #[test]
    fn after_a_failure_the_list_in_memory_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        flush(&tree, &LsmTable::new(&tree, b's'), 0);
        let number = tree.tree.current_version().id();
        let current = || fs::read(folder.path().join("current")).unwrap();
        let good = current();
        let list = |number| folder.path().join(format!("v{number}"));
        let failed = tree.operation(|| {
            fs::copy(list(number), list(number + 1))?;
            manifest::name_list(folder.path(), number + 1)?;
            Err(io::Error::other("the sync of the folder").into())
        });
        failed.unwrap_err();
        assert_eq!(current(), good);
    }

    /// The name is corrected when no other operation runs. Until then, no operation writes to the list
    /// that is named.
    #[test]
    fn a_list_that_a_failed_flush_has_named_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        flush(&tree, &table, 0);
        let number = tree.tree.current_version().id();
        let list = |number| folder.path().join(format!("v{number}"));
        // A merge is in progress.
        tree.operations.begin(|| tree.tree.next_table_id());
        let failed = tree.operation(|| {
            fs::copy(list(number), list(number + 1))?;
            manifest::name_list(folder.path(), number + 1)?;
            Err(io::Error::other("the sync of the folder").into())
        });
        failed.unwrap_err();
        assert_eq!(manifest::named_list(folder.path()).unwrap(), number + 1);
        let named = fs::read(list(number + 1)).unwrap();
        table.write(b"more", Some(Slice::empty()), tree.next_write());
        tree.seal();
        let flushed = tree.flush();
        assert!(fs::read(list(number + 1)).unwrap() == named, "the list was written again");
        flushed.unwrap_err();
        // The merge ends.
        tree.operations.end(true, |from| tree.remove_leftovers(from));
        assert_eq!(manifest::named_list(folder.path()).unwrap(), number);
        tree.flush().unwrap();
        drop((tree, table));
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        assert!(LsmTable::new(&tree, b's').get(b"more").unwrap().is_some());
    }

    /// On a full disk, nothing can be written before the files of the failed operation are removed.
    #[test]
    fn files_are_removed_on_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        flush(&tree, &table, 0);
        let before = files(folder.path());
        fs::create_dir(folder.path().join("current.new")).unwrap();
        let list = tree.tree.current_version().id() + 1;
        fs::create_dir(folder.path().join(format!("v{list}"))).unwrap();
        table.write(b"more", Some(Slice::empty()), tree.next_write());
        tree.seal();
        tree.flush().unwrap_err();
        assert_eq!(files(folder.path()), before);
    }

    /// Each merge replaces files. None that is needed is removed after a failure.
    #[test]
    fn files_that_are_needed_stay_after_a_failed_flush() {
        let folder = tempfile::tempdir().unwrap();
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        for round in 0..40 {
            flush(&tree, &table, round);
            tree.merge().unwrap();
            table.write(b"more", Some(Slice::from([round as u8])), tree.next_write());
            tree.seal();
            let list = tree.tree.current_version().id() + 1;
            let hidden = folder.path().join(format!("v{list}"));
            fs::create_dir(&hidden).unwrap();
            tree.flush().unwrap_err();
            fs::remove_dir(&hidden).unwrap();
            assert_eq!(files(folder.path()).len(), tree.tree.table_count());
            tree.flush().unwrap();
        }
        drop((tree, table));
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        assert_eq!(table.keys::<&[u8]>(..).filter(Result::is_ok).count(), 501);
        assert_eq!(table.get(b"more").unwrap().unwrap().as_ref(), [39]);
    }
}
