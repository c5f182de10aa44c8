//! The subjects of the tests: opened in a folder, used, closed.

use std::path::Path;
use std::sync::Arc;

use onetake_core::clock::ManualClock;
use onetake_core::{Clock, Store};
use onetake_stores::embedded::EmbeddedOptions;
use onetake_stores::{EmbeddedStore, FileJournal, SqliteStore};

use crate::script::Subject;

/// The path of a subject's files, below the root. Its folders do not exist at first.
pub(crate) fn place(subject: Subject) -> &'static str {
    match subject {
        Subject::Embedded => "below/data",
        Subject::Sqlite => "onetake.db",
        Subject::Journal => "below/journal",
    }
}

pub(crate) const LEAST_MEMORY: EmbeddedOptions =
    EmbeddedOptions { memory_bytes: EmbeddedOptions::MEMORY_BYTES_MIN };

/// Opens a store in a root folder.
pub(crate) fn open_store(
    subject: Subject,
    root: &Path,
    clock: &ManualClock,
) -> Result<Arc<dyn Store>, String> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let path = root.join(place(subject));
    match subject {
        // The least memory makes the shortest segments of the log.
        Subject::Embedded => EmbeddedStore::open_as(path, LEAST_MEMORY, clock)
            .map(|store| Arc::new(store) as Arc<dyn Store>)
            .map_err(|error| error.to_string()),
        Subject::Sqlite => SqliteStore::open_with(&path, clock)
            .map(|store| Arc::new(store) as Arc<dyn Store>)
            .map_err(|error| error.to_string()),
        Subject::Journal => panic!("the file journal is not a store"),
    }
}

/// Opens the file journal in a root folder.
pub(crate) fn open_journal(root: &Path) -> Result<FileJournal, String> {
    FileJournal::open(root.join(place(Subject::Journal)), &[7; 32])
        .map_err(|error| error.to_string())
}
