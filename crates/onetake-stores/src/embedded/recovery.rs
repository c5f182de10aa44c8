//! Opening of a folder: a check for damage, the replay of the log, and a new segment.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use onetake_core::{Fence, Record, RecordId, Rng as _, StoreError, StoreErrorKind, SystemRng};

use super::folder::{Folder, OpenError};
use super::log::{self, Frame, Item, Log, LogFiles, LogOnDisk, Place, Table};
use super::manifest;
use super::tables::{self, Tables};
use super::witness::{Witness, WitnessFile};

/// An opened folder. Everything that was acknowledged is in the tables, in `running`, and in the
/// log.
pub(super) struct Opened {
    pub(super) tables: Tables,
    pub(super) log: Log,
    pub(super) files: LogFiles,
    pub(super) witness: Arc<WitnessFile>,
    /// The attempts that were running when the folder was last closed.
    pub(super) running: Vec<Arc<Record>>,
    pub(super) ceiling: Fence,
}

/// Opens a locked folder. `memory` is for blocks of tables and for entries that are not in files
/// yet, in bytes.
pub(super) fn open(folder: &Folder, memory: u64) -> Result<Opened, OpenError> {
    let io = |action| move |error| OpenError::io(folder.path(), action, error);
    let (mut witness, on_disk) = if folder.is_new() {
        let mut witness = Witness::default();
        SystemRng.fill(&mut witness.mark);
        (witness, None)
    } else {
        let witness = folder.witness()?;
        let on_disk = check(folder, &witness)?;
        (witness, Some(on_disk))
    };
    let tables = Tables::open(folder, memory / 2)?;
    let mut running = HashMap::new();
    if let Some(on_disk) = &on_disk {
        let each = |frame: Frame<'_>| replay(&tables, &mut running, &frame);
        on_disk.replay(&witness.mark, each).map_err(|error| match error {
            ReplayError::Io(error) => OpenError::io(folder.path(), "read the log", error),
            ReplayError::Damaged(error) => folder.unreadable(error),
        })?;
    }
    let ceiling = tables.fence_ceiling().map_err(|error| folder.unreadable(error))?;
    if ceiling < witness.ceiling {
        return Err(OpenError::damaged(
            folder.path(),
            "its content is older than at the last use: an old copy was restored, or writes were lost",
        ));
    }
    let running: Vec<Arc<Record>> = running.into_values().map(Arc::new).collect();
    let files = LogFiles::new(folder.log(), segment_bytes(memory));
    let last = on_disk.map_or_else(Place::default, |on_disk| on_disk.last);
    let mut first = tables.group();
    first.add_running(running.iter());
    let (first, _no_changes) = first.into_parts();
    let log = Log::begin(files.clone(), witness.mark, last, first).map_err(io("write the log"))?;
    (witness.ceiling, witness.closed) = (ceiling, None);
    if folder.is_new() {
        witness.from = log.last();
        folder.begin_use(&witness)?;
    }
    let witness = Arc::new(WitnessFile::new(folder.path(), witness));
    Ok(Opened { tables, log, files, witness, running, ceiling })
}

/// The bytes of a segment. As many bytes of entries are in memory, and as many again while they are
/// written to files.
fn segment_bytes(memory: u64) -> u64 {
    memory / 4
}

/// Checks a folder for damage. If there is none, the folder is in use from then on.
fn check(folder: &Folder, witness: &Witness) -> Result<LogOnDisk, OpenError> {
    tables::check_files(folder)?;
    let io = |error| match error {
        error if io::Error::kind(&error) == io::ErrorKind::NotFound => {
            OpenError::damaged(folder.path(), "the log is missing")
        }
        error => OpenError::io(folder.path(), "read the log", error),
    };
    let damaged = |what| OpenError::damaged(folder.path(), what);
    let on_disk = log::check(&folder.log(), witness).map_err(io)?.map_err(damaged)?;
    // The folder changes from here on, and that may be interrupted.
    folder.begin_use(&Witness { closed: None, ..witness.clone() })?;
    let io = |error| OpenError::io(folder.path(), "repair the log and the tables", error);
    if witness.closed.is_none() {
        on_disk.write_last_again().map_err(io)?;
    }
    // Also after a clean stop: the last sync of the tables may have failed.
    manifest::write_current_again(&folder.tables()).map_err(io)?;
    Ok(on_disk)
}

enum ReplayError {
    Io(io::Error),
    Damaged(StoreError),
}

impl From<io::Error> for ReplayError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Applies a frame of the log.
fn replay(
    tables: &Tables,
    running: &mut HashMap<RecordId, Record>,
    frame: &Frame<'_>,
) -> Result<(), ReplayError> {
    for item in frame.items() {
        let item = item.ok_or_else(|| {
            let what = format!("frame {} of the log makes no sense", frame.number);
            ReplayError::Damaged(StoreError::new(StoreErrorKind::Corrupt, what))
        })?;
        match item {
            Item::ClearRunning => running.clear(),
            Item::Insert(Table::Running, id, record) => {
                let id = tables::record_id(id).map_err(ReplayError::Damaged)?;
                let record = tables::decode(id, record).map_err(ReplayError::Damaged)?;
                running.insert(id, record);
            }
            Item::Remove(Table::Running, id) => {
                running.remove(&tables::record_id(id).map_err(ReplayError::Damaged)?);
            }
            item => tables.replay(&item),
        }
    }
    Ok(())
}
