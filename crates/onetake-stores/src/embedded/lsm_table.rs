//! The tables on disk: one log-structured merge tree, in which each table has a prefix.
//!
//! The crate `lsm-tree` writes and reads files of sorted entries. It keeps new entries in memory
//! until [`LsmTree::flush`]. It has no log: the store's own log makes entries durable before that.
//!
//! Readers wait while the tree notes new files, which takes several syncs. A tree for each table
//! would make them wait as often for each of them.

use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_tree::compaction::Leveled;
use lsm_tree::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard as _, SeqNo,
    SequenceNumberCounter, Slice,
};

/// The most files that stay open.
const CACHED_FILES: usize = 128;
/// The bytes of a file after a merge of all files.
const FILE_BYTES: u64 = 64 << 20;
/// The number of unmerged flushes at which files are merged. A merge rewrites the files of the next
/// level, so fewer merges cost less. But a lookup reads each unmerged flush.
const UNMERGED_USUAL: u8 = 8;
/// The bytes of a file after a merge of some files. The next level holds [`UNMERGED_USUAL`] such
/// files, 256 MiB, and each merge rewrites most of it.
const LEVEL_FILE_BYTES: u64 = 32 << 20;
/// The most steps of one merge. Each step merges a few files.
const STEPS_MAX: usize = 16;

/// The bytes of most keys in the tree: a prefix, a moment and an id.
const SHORT_KEY_BYTES: usize = 1 + 8 + 16;

/// The tree of a folder.
#[derive(Clone)]
pub(super) struct LsmTree {
    tree: AnyTree,
    path: PathBuf,
    /// The number of the next write.
    next: SequenceNumberCounter,
}

impl LsmTree {
    /// Opens the tree, or creates it. `cache` is the memory for blocks of files, in bytes.
    pub(super) fn open(path: &Path, cache: u64) -> Result<Self, lsm_tree::Error> {
        let (next, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let bloom = FilterPolicyEntry::Bloom;
        let tree = Config::new(path, next.clone(), visible)
            .use_cache(Arc::new(Cache::with_capacity_bytes(cache)))
            .use_descriptor_table(Some(Arc::new(DescriptorTable::new(CACHED_FILES))))
            // Most claims look for a key that does not exist.
            .filter_policy(FilterPolicy::new([
                bloom(BloomConstructionPolicy::FalsePositiveRate(0.0001)),
                bloom(BloomConstructionPolicy::BitsPerKey(10.0)),
            ]))
            .open()?;
        if let Some(highest) = tree.get_highest_persisted_seqno() {
            next.fetch_max(highest + 1);
        }
        Ok(Self { tree, path: path.to_owned(), next })
    }

    /// Returns the number of a new write. No earlier write has it.
    pub(super) fn next_write(&self) -> SeqNo {
        self.next.next()
    }

    /// Entries below this number may be discarded if there is a newer one: no reader uses an older
    /// state.
    fn discard_below(&self) -> SeqNo {
        self.next.get()
    }

    /// Ends the entries in memory that the next flush writes.
    pub(super) fn seal(&self) {
        self.tree.rotate_memtable();
    }

    /// Writes the sealed entries to files, and syncs them.
    pub(super) fn flush(&self) -> Result<(), lsm_tree::Error> {
        let lock = self.tree.get_flush_lock();
        self.tree.flush(&lock, self.discard_below()).map(drop)
    }

    /// Merges files, if there are many.
    pub(super) fn merge(&self) -> Result<(), lsm_tree::Error> {
        for _ in 0..STEPS_MAX {
            let before = self.tree.current_version().id();
            let strategy = Leveled::default()
                .with_l0_threshold(UNMERGED_USUAL)
                .with_table_target_size(LEVEL_FILE_BYTES);
            self.tree.compact(Arc::new(strategy), self.discard_below())?;
            if self.tree.current_version().id() == before {
                break;
            }
        }
        self.remove_replaced()
    }

    /// Merges all files. The result has no entries that were removed.
    pub(super) fn merge_all(&self) -> Result<(), lsm_tree::Error> {
        self.tree.major_compact(FILE_BYTES, self.discard_below())?;
        self.remove_replaced()
    }

    /// Removes files that a merge replaced.
    fn remove_replaced(&self) -> Result<(), lsm_tree::Error> {
        let below = self.discard_below();
        self.tree.get_version_history_lock().maintenance(&self.path, below)
    }

    /// The number of flushes whose files were not merged yet.
    pub(super) fn unmerged(&self) -> usize {
        self.tree.l0_run_count()
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
        let entries = self.tree.tree.range::<Slice, _>((start, end), SeqNo::MAX, None);
        let without_prefix = |key: Slice| Slice::from(key.get(1..).unwrap_or_default());
        Box::new(entries.map(move |entry| entry.key().map(without_prefix)))
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
