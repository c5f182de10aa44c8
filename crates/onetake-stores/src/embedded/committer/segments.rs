//! Segments of the log: when a new one begins, and when writes have to wait for the tables.

use std::time::Duration;

use onetake_core::{StoreError, StoreErrorKind};

use super::{Committer, EmbeddedJob};
use crate::embedded::read_errors::failed;

/// The bytes that a group may need besides its jobs: its head, a step of a sweep, and the removal of
/// out-of-date entries of the reconcile index.
const GROUP_BYTES: usize = 64 << 10;
/// The number of deleted records after which the tables are compacted to give back their space. It
/// is higher if there are many records, so that each record is rewritten a bounded number of times.
const COMPACT_AFTER_MIN: usize = 20_000;
/// The number of segments that log and memory may grow to while tables cannot be written. Then
/// writes are refused.
const SEGMENTS_MAX: u64 = 2;
/// The longest wait for tables to be written before a group is refused.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

impl Committer {
    /// Waits until a group of these jobs can be written.
    ///
    /// # Errors
    /// `Unavailable` if descriptors, tables or the disk do not allow it. Nothing has changed then.
    /// `Corrupt` if the write of a new segment failed. The state on disk is unknown then.
    pub(super) fn can_write(&mut self, jobs: &[EmbeddedJob]) -> Result<(), StoreError> {
        self.files.wait()?;
        self.make_room()?;
        let bytes: usize = jobs.iter().map(EmbeddedJob::frame_bytes_max).sum();
        self.log.reserve((bytes + GROUP_BYTES) as u64).map_err(|error| {
            let what = format!("the log of the data folder cannot grow: {error}");
            StoreError::new(StoreErrorKind::Unavailable, what).with_source(error)
        })
    }

    /// Waits for tables if log and memory are at their limit. If all tables are in files, it begins
    /// the next segment, which an earlier attempt could not make.
    fn make_room(&mut self) -> Result<(), StoreError> {
        let unavailable = |what| Err(StoreError::new(StoreErrorKind::Unavailable, what));
        if !self.is_at_limit() {
            return Ok(());
        }
        if !self.maintenance.wait(FLUSH_PATIENCE) {
            return unavailable(
                "the tables of the data folder cannot be written: see the log for the reason",
            );
        }
        self.begin_segment_if_due()?;
        if self.is_at_limit() {
            return unavailable(
                "the next file of the data folder's log cannot be made: see the log for the reason",
            );
        }
        Ok(())
    }

    fn is_at_limit(&self) -> bool {
        self.segment_use() >= self.segment_bytes * SEGMENTS_MAX
    }

    /// The bytes of the current segment, in the log or in memory. The list of running attempts at its
    /// start does not count: a new segment would have it too.
    fn segment_use(&self) -> u64 {
        self.log.grown().max(self.tables.unwritten.bytes())
    }

    /// Begins a new segment of the log if the current one is full, or if the space of many removed
    /// records is to be given back. Returns true if it is due and has to wait.
    pub(super) fn begin_segment_if_due(&mut self) -> Result<bool, StoreError> {
        let used = self.segment_use();
        if used >= self.segment_bytes / 2 && !self.has_asked_for_spare {
            self.has_asked_for_spare = true;
            self.maintenance.make_spare();
        }
        let is_full = used >= self.segment_bytes / 16 * 15;
        if is_full {
            // Once for each segment, because the disk may still be full.
            self.removed += self.maintenance.take_kept();
        }
        let merges = self.removed >= COMPACT_AFTER_MIN.max(self.tables.settled_about() / 4);
        let is_due = merges || is_full;
        // While tables are written, the segment goes on.
        if !is_due || !self.maintenance.is_idle() {
            return Ok(is_due);
        }
        let mut first = self.tables.group();
        first.add_running(self.memory.running());
        let (first, _no_changes) = first.into_parts();
        let next = match self.log.prepare_next(&first) {
            Ok(next) => next,
            Err(error) => {
                // The current segment goes on.
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%error, "a new segment of the store's log could not be made yet");
                }
                return Ok(true);
            }
        };
        let place = self.log.go_on_in(next, first).map_err(failed)?;
        if merges {
            self.maintenance.merge_all(std::mem::take(&mut self.removed));
        }
        (self.has_asked_for_spare, self.has_warned) = (false, false);
        self.tables.seal();
        self.maintenance.flush(place);
        Ok(false)
    }
}
