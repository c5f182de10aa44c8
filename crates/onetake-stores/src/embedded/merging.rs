//! Merges of the tables' files, and the limits of the files that are not merged yet.
//!
//! Each flush adds a file. A lookup reads each of them, so files are merged. A merge that fails is
//! tried again after the next flush.

use std::io;
use std::sync::{Arc, PoisonError, RwLockReadGuard, TryLockError};

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;

use super::lsm_table::{LsmTree, caught};

/// The number of unmerged flushes at which files are merged. A merge rewrites the files of the next
/// level, so fewer merges cost less. But a lookup reads each unmerged flush.
const UNMERGED_USUAL: u8 = 8;
/// The number of unmerged flushes at which the thread that flushes merges files itself before it
/// adds one.
const UNMERGED_MANY: usize = 16;
/// The most unmerged flushes. The list of files has one byte for their number: lsm-tree would write
/// 256 of them as none, and the folder could not be opened again.
const UNMERGED_MAX: usize = 200;
/// The bytes of a file after a merge of all files.
const FILE_BYTES: u64 = 64 << 20;
/// The bytes of a file after a merge of some files. The next level holds [`UNMERGED_USUAL`] such
/// files, 256 MiB, and each merge rewrites most of it.
const LEVEL_FILE_BYTES: u64 = 32 << 20;
/// The most steps of one merge. Each step merges a few files.
const STEPS_MAX: usize = 16;
/// The most free space that a step of a merge needs. A merge of all files leaves as much free.
const STEP_BYTES_MAX: u64 = 512 << 20;

/// The files that are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergedFiles {
    /// Some files, if there are many.
    Some,
    /// All files, to give back the space of removed entries.
    All,
}

/// The free space in bytes without which a merge does not begin. `tables` is the size of all tables.
/// A merge of all files writes all of them again before it removes the old ones.
fn space_needed(merged: MergedFiles, tables: u64) -> u64 {
    let step = tables.min(STEP_BYTES_MAX);
    match merged {
        MergedFiles::Some => step,
        MergedFiles::All => tables.saturating_add(step),
    }
}

impl LsmTree {
    /// The number of flushes whose files were not merged yet.
    pub(super) fn unmerged(&self) -> usize {
        self.tree.l0_run_count()
    }

    /// Makes sure that one more flush can be added to the list of files.
    ///
    /// # Errors
    /// If there are too many unmerged flushes, and files cannot be merged.
    pub(super) fn make_room_for_flush(&self) -> io::Result<()> {
        let merged = if self.unmerged() >= UNMERGED_MANY { self.merge() } else { Ok(()) };
        if self.unmerged() < UNMERGED_MAX {
            // A damaged file cannot be merged. New entries do not depend on it, and the thread that
            // merges has warned.
            return Ok(());
        }
        merged?;
        Err(io::Error::other(format!("{UNMERGED_MAX} files or more are not merged yet")))
    }

    /// Merges files, if there are many. Does nothing while all files are merged.
    pub(super) fn merge(&self) -> io::Result<()> {
        for _ in 0..STEPS_MAX {
            // lsm-tree would wait for the end of a merge of all files. A flush must not wait so long.
            let Some(_step) = self.begin_step() else { return Ok(()) };
            let mut is_over = false;
            self.operation(|| {
                self.check_space(MergedFiles::Some)?;
                let before = self.tree.current_version().id();
                let strategy = Leveled::default()
                    .with_l0_threshold(UNMERGED_USUAL)
                    .with_table_target_size(LEVEL_FILE_BYTES);
                self.tree.compact(Arc::new(strategy), self.discard_below())?;
                is_over = self.tree.current_version().id() == before;
                Ok(())
            })?;
            if is_over {
                break;
            }
        }
        caught(|| self.remove_replaced())
    }

    /// Merges all files. The result has no entries that were removed. The error is `StorageFull` if
    /// the disk has too little space.
    pub(super) fn merge_all(&self) -> io::Result<()> {
        let _alone = self.merging_all.write().unwrap_or_else(PoisonError::into_inner);
        self.operation(|| {
            self.check_space(MergedFiles::All)?;
            self.tree.major_compact(FILE_BYTES, self.discard_below())
        })?;
        caught(|| self.remove_replaced())
    }

    /// Begins a step of a merge of some files. Returns `None` if all files are merged.
    fn begin_step(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.merging_all.try_read() {
            Ok(step) => Some(step),
            Err(TryLockError::Poisoned(step)) => Some(step.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A merge that fills the disk would stop the log, and would fail.
    fn check_space(&self, merged: MergedFiles) -> io::Result<()> {
        let needed = space_needed(merged, self.tree.disk_space());
        let space = rustix::fs::statvfs(&self.path)?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < needed {
            let what =
                format!("a merge may need {} MiB, and {} are free", needed >> 20, free >> 20);
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use lsm_tree::Slice;

    use super::super::lsm_table::LsmTable;
    use super::super::lsm_table::tests::{files, flush};
    use super::super::manifest;
    use super::*;

    /// Changes one bit in the middle of the first file, which is a block of entries.
    fn damage(folder: &Path) {
        let files = files(folder);
        let damaged = files.first().unwrap();
        let mut bytes = fs::read(damaged).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(damaged, bytes).unwrap();
    }

    /// A merge writes some of its files before it reads a damaged block.
    #[test]
    fn a_failed_merge_leaves_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        for round in 0..9 {
            flush(&tree, &table, round);
        }
        let before = files(folder.path());
        damage(folder.path());

        tree.merge().unwrap_err();
        assert_eq!(files(folder.path()), before);
        tree.merge_all().unwrap_err();
        assert_eq!(files(folder.path()), before);
        // A reader may use files that were replaced.
        let keys = table.keys::<&[u8]>(..);
        tree.merge().unwrap_err();
        assert!(files(folder.path()).len() > before.len());
        drop(keys);
        flush(&tree, &table, 9);
        assert_eq!(files(folder.path()).len(), before.len() + 1, "what was left is removed");
        assert!(manifest::is_whole(folder.path()).unwrap());
        drop((tree, table));
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        assert_eq!(tree.unmerged(), 10);
    }

    #[test]
    fn a_merge_of_all_files_needs_space_for_all_of_them() {
        const GIB: u64 = 1 << 30;
        assert_eq!(space_needed(MergedFiles::Some, 1_000), 1_000);
        assert_eq!(space_needed(MergedFiles::Some, 10 * GIB), GIB / 2);
        assert_eq!(space_needed(MergedFiles::All, 1_000), 2_000);
        assert_eq!(space_needed(MergedFiles::All, 10 * GIB), 10 * GIB + GIB / 2);
    }

    /// With a damaged file, each flush stays unmerged. The list of files has one byte for their number.
    #[test]
    fn flushes_that_cannot_be_merged_do_not_make_the_folder_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        for round in 0..9 {
            flush(&tree, &table, round);
        }
        damage(folder.path());
        let key = |number: u32| number.to_be_bytes();
        let mut refused = 0;
        for number in 0..260 {
            // Files whose keys do not overlap would count as one flush.
            for key in [key(0), key(number), key(u32::MAX)] {
                table.write(&key, Some(Slice::empty()), tree.next_write());
            }
            tree.seal();
            match tree.make_room_for_flush() {
                Ok(()) => tree.flush().unwrap(),
                Err(_) => refused += 1,
            }
        }
        drop((tree, table));
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        for number in 0..260 - refused {
            assert!(table.get(&key(number)).unwrap().is_some(), "{number}");
        }
        // Their entries are in the log.
        assert!(refused > 0, "no flush was refused");
    }

    /// A merge of all files takes long. If a flush waited for it, writes would be refused.
    #[test]
    fn a_flush_does_not_wait_for_a_merge_of_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let tree = LsmTree::open(folder.path(), 1 << 20).unwrap();
        let table = LsmTable::new(&tree, b's');
        let merge = tree.merging_all.write().unwrap();
        for round in 0..20 {
            tree.make_room_for_flush().unwrap();
            flush(&tree, &table, round);
        }
        assert_eq!(tree.unmerged(), 20);
        drop(merge);
        tree.make_room_for_flush().unwrap();
        assert!(tree.unmerged() < UNMERGED_MANY);
    }
}
