//! Work in the background: sealed entries of tables are written to files, and files are merged.
//!
//! One thread writes, so that segments of the log can be removed. Another one merges, which may take
//! long. Neither may lose anything: until the files of a table are synced, the log has its entries.
//! So a failure is tried again. Meanwhile log and memory grow, up to a limit at which the store
//! refuses writes.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::log::{LogFiles, Place};
use super::lsm_table::LsmTree;
use super::witness::WitnessFile;

/// The pause after a failure, at first and at most.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest wait for the threads when the store is closed. A merge may take longer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The files that the threads work on.
pub(super) struct Subject {
    pub(super) tree: LsmTree,
    pub(super) log: LogFiles,
    pub(super) witness: Arc<WitnessFile>,
    /// Kept until both threads have ended: the folder stays locked.
    pub(super) lock: Arc<dyn Send + Sync>,
}

enum Task {
    /// Write all sealed entries. They are all that the log has before this place.
    Flush(Place),
    /// Make a spare file for the log.
    MakeSpare,
}

enum Merge {
    /// Some files, if there are many.
    Some,
    /// All files, to give back the space of this number of removed records.
    All(usize),
}

#[derive(Default)]
struct State {
    /// Flushes that were asked for and have not ended.
    flushes: usize,
    /// The number of removed records, if a merge of all files was asked for. It follows the next
    /// flush.
    merges_all: Option<usize>,
    /// The number of removed records whose space a merge of all files could not give back, because
    /// the disk has too little space.
    kept: usize,
    is_stopping: bool,
    /// The threads that have ended.
    ended: usize,
}

/// The state that the threads and the store share.
#[derive(Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until the state is as wanted. Returns false if that takes too long.
    fn wait(&self, patience: Duration, is_wanted: impl Fn(&State) -> bool) -> bool {
        let waiting = |state: &mut State| !is_wanted(state);
        let waited = self.changed.wait_timeout_while(self.lock(), patience, waiting);
        is_wanted(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// A thread notes its end, also after a panic.
struct EndOfThread(Arc<Progress>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        self.0.change(|state| state.ended += 1);
    }
}

/// The threads of one folder.
pub(super) struct Maintenance {
    tasks: mpsc::Sender<Task>,
    progress: Arc<Progress>,
}

impl Maintenance {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(super) fn start(subject: Subject) -> io::Result<Self> {
        let progress = Arc::<Progress>::default();
        let (tasks, queue) = mpsc::channel();
        let (merges, merge_queue) = mpsc::channel();
        let (tree, lock) = (subject.tree.clone(), Arc::clone(&subject.lock));
        spawn("onetake-compact", &progress, move |progress| {
            let _lock = lock;
            merge(&tree, &merge_queue, progress);
        })?;
        spawn("onetake-flush", &progress, move |progress| {
            for task in queue {
                match task {
                    Task::Flush(place) => subject.flush(place, progress, &merges),
                    Task::MakeSpare => subject.make_spare(),
                }
            }
        })?;
        Ok(Self { tasks, progress })
    }

    /// Writes all sealed entries, which are all that the log has before this place.
    pub(super) fn flush(&self, place: Place) {
        self.progress.change(|state| state.flushes += 1);
        let _ended = self.tasks.send(Task::Flush(place));
    }

    pub(super) fn make_spare(&self) {
        let _ended = self.tasks.send(Task::MakeSpare);
    }

    /// Merges all files after the next flush, to give back the space of `removed` records.
    pub(super) fn merge_all(&self, removed: usize) {
        self.progress.change(|state| state.merges_all = Some(removed));
    }

    /// Returns the number of removed records whose space could not be given back since the last call.
    pub(super) fn take_kept(&self) -> usize {
        std::mem::take(&mut self.progress.lock().kept)
    }

    /// True if everything that was sealed is in files.
    pub(super) fn is_idle(&self) -> bool {
        self.progress.lock().flushes == 0
    }

    /// Waits for the end of the flushes. Returns false if that takes too long.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        self.progress.wait(patience, |state| state.flushes == 0)
    }

    /// Ends the threads. One that is merging files goes on, and keeps the folder locked.
    pub(super) fn stop(self) {
        self.progress.change(|state| state.is_stopping = true);
        let Self { tasks, progress } = self;
        drop(tasks);
        progress.wait(PATIENCE, |state| state.ended == 2);
    }
}

fn spawn(
    name: &str,
    progress: &Arc<Progress>,
    run: impl FnOnce(&Progress) + Send + 'static,
) -> io::Result<()> {
    let progress = Arc::clone(progress);
    let thread = std::thread::Builder::new().name(name.to_owned());
    let run = move || {
        let end = EndOfThread(progress);
        run(&end.0);
    };
    thread.spawn(run).map(drop)
}

impl Subject {
    fn flush(&self, place: Place, progress: &Progress, merges: &mpsc::Sender<Merge>) {
        let mut pause = PAUSE;
        while let Err(error) = self.write_files(place) {
            tracing::warn!(%error, "the tables of the store could not be written yet: the log keeps their content");
            if progress.wait(pause, |state| state.is_stopping) {
                return;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let merges_all = progress.lock().merges_all.take();
        let merge = merges_all.map_or(Merge::Some, Merge::All);
        progress.change(|state| state.flushes -= 1);
        let _ended = merges.send(merge);
    }

    fn write_files(&self, place: Place) -> io::Result<()> {
        self.tree.make_room_for_flush()?;
        self.tree.flush()?;
        // From here on the earlier segments are not needed.
        self.witness.update(|witness| witness.from = place)?;
        self.log.remove_before(place.segment)
    }

    fn make_spare(&self) {
        if self.log.has_spare() {
            return;
        }
        if let Err(error) = self.log.make_spare() {
            tracing::debug!(%error, "a spare file of the store's log could not be made");
        }
    }
}

/// Merges files after each flush.
fn merge(tree: &LsmTree, queue: &mpsc::Receiver<Merge>, progress: &Progress) {
    while let Ok(first) = queue.recv() {
        let all = |merge| match merge {
            Merge::Some => None,
            Merge::All(removed) => Some(removed),
        };
        let removed = queue.try_iter().chain([first]).filter_map(all).reduce(|a, b| a + b);
        let merged = match removed {
            None => tree.merge(),
            Some(removed) => {
                let merged = tree.merge_all();
                note_kept(removed, &merged, progress);
                merged
            }
        };
        if let Err(error) = merged {
            tracing::warn!(%error, "the files of the store's tables could not be merged yet");
        }
    }
}

/// Notes that these records keep their space, if the disk had too little for a merge of all files. A
/// later merge gives it back.
fn note_kept(removed: usize, merged: &io::Result<()>, progress: &Progress) {
    if merged.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
        progress.change(|state| state.kept += removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the space of these records is given back only after as many others were removed.
    #[test]
    fn removed_records_count_again_if_a_full_disk_prevented_a_merge() {
        let progress = Progress::default();
        let kept = |merged: io::Result<()>| {
            note_kept(20_000, &merged, &progress);
            std::mem::take(&mut progress.lock().kept)
        };
        assert_eq!(kept(Ok(())), 0);
        assert_eq!(kept(Err(io::ErrorKind::StorageFull.into())), 20_000);
        assert_eq!(kept(Err(io::Error::other("a table is damaged"))), 0);
    }
}
