//! One table on disk: a log-structured merge tree.
//!
//! The crate `lsm-tree` writes and reads files of sorted entries. It keeps new entries in memory
//! until [`LsmTable::flush`]. It has no log: the store's own log makes entries durable before that.

use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_tree::compaction::Leveled;
use lsm_tree::config::{BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, IterGuardImpl, SeqNo,
    SequenceNumberCounter, Slice,
};

/// The bytes of a file after a compaction of the whole table.
const FILE_BYTES: u64 = 64 << 20;
/// The most steps of one compaction. Each step merges a few files.
const STEPS_MAX: usize = 16;

/// What the tables of a folder share.
#[derive(Clone)]
pub(super) struct TableOptions {
    pub(super) cache: Arc<Cache>,
    pub(super) files: Arc<DescriptorTable>,
    pub(super) order: WriteOrder,
}

/// The order of writes, for all tables.
#[derive(Clone, Default)]
pub(super) struct WriteOrder {
    next: SequenceNumberCounter,
    visible: SequenceNumberCounter,
}

impl WriteOrder {
    /// Returns the number of a new write. No earlier write has it.
    pub(super) fn next(&self) -> SeqNo {
        self.next.next()
    }

    /// Entries below this number may be discarded if there is a newer one: no reader uses an older
    /// state.
    fn discard_below(&self) -> SeqNo {
        self.next.get()
    }
}

#[derive(Clone)]
pub(super) struct LsmTable {
    tree: AnyTree,
    path: PathBuf,
    order: WriteOrder,
}

impl LsmTable {
    /// Opens the table, or creates it.
    pub(super) fn open(path: &Path, options: &TableOptions) -> Result<Self, lsm_tree::Error> {
        let order = options.order.clone();
        let bloom = |policy| FilterPolicyEntry::Bloom(policy);
        let tree = Config::new(path, order.next.clone(), order.visible.clone())
            .use_cache(Arc::clone(&options.cache))
            .use_descriptor_table(Some(Arc::clone(&options.files)))
            // Most claims look for a key that does not exist.
            .filter_policy(FilterPolicy::new([
                bloom(BloomConstructionPolicy::FalsePositiveRate(0.0001)),
                bloom(BloomConstructionPolicy::BitsPerKey(10.0)),
            ]))
            .open()?;
        if let Some(highest) = tree.get_highest_persisted_seqno() {
            order.next.fetch_max(highest + 1);
        }
        Ok(Self { tree, path: path.to_owned(), order })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Slice>, lsm_tree::Error> {
        self.tree.get(key, SeqNo::MAX)
    }

    /// Returns the entries in this range, in order.
    pub(super) fn range<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
    ) -> Box<dyn DoubleEndedIterator<Item = IterGuardImpl> + Send> {
        self.tree.range(range, SeqNo::MAX, None)
    }

    /// Inserts an entry in memory, or removes it (`None`).
    pub(super) fn write(&self, key: Slice, value: Option<Slice>, number: SeqNo) {
        match value {
            Some(value) => self.tree.insert(key, value, number),
            None => self.tree.remove(key, number),
        };
    }

    /// Ends the entries in memory that the next flush writes.
    pub(super) fn seal(&self) {
        self.tree.rotate_memtable();
    }

    /// Writes the sealed entries to files, and syncs them.
    pub(super) fn flush(&self) -> Result<(), lsm_tree::Error> {
        let lock = self.tree.get_flush_lock();
        self.tree.flush(&lock, self.order.discard_below()).map(drop)
    }

    /// Merges files, if there are many. Returns without an error if another thread does so.
    pub(super) fn compact(&self) -> Result<(), lsm_tree::Error> {
        for _ in 0..STEPS_MAX {
            let before = self.tree.current_version().id();
            self.tree.compact(Arc::new(Leveled::default()), self.order.discard_below())?;
            if self.tree.current_version().id() == before {
                break;
            }
        }
        self.remove_replaced()
    }

    /// Writes the whole table anew, without entries that were removed.
    pub(super) fn compact_all(&self) -> Result<(), lsm_tree::Error> {
        self.tree.major_compact(FILE_BYTES, self.order.discard_below())?;
        self.remove_replaced()
    }

    /// Removes files that a compaction replaced.
    fn remove_replaced(&self) -> Result<(), lsm_tree::Error> {
        let below = self.order.discard_below();
        self.tree.get_version_history_lock().maintenance(&self.path, below)
    }

    /// The number of flushes whose files were not merged yet.
    pub(super) fn unmerged(&self) -> usize {
        self.tree.l0_run_count()
    }

    /// The approximate number of entries.
    pub(super) fn len_about(&self) -> usize {
        self.tree.approximate_len()
    }
}
