//! Folders that survive a power loss.

use std::fs::{DirBuilder, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use onetake_core::clock::micros;
use onetake_core::{Clock as _, SystemClock, Timestamp};

/// Creates a folder and its missing parents. Their names are durable afterwards.
pub(crate) fn create(folder: &Path, builder: &mut DirBuilder) -> io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    builder.recursive(true).create(folder)?;
    if missing.is_empty() {
        // Another process may have created the folders a moment ago without a sync: it was killed,
        // or its sync failed. Older folders do not need this sync.
        for folder in folder.ancestors().filter(|folder| is_young(folder)) {
            let _not_ours = sync(parent(folder));
        }
    }
    missing.into_iter().try_for_each(|made| sync(parent(made)))
}

/// Returns true if a folder is so recent that its name may not be on disk. Operating systems write
/// names within seconds, with or without a sync.
fn is_young(folder: &Path) -> bool {
    const YOUNG: Duration = Duration::from_secs(3600);
    let created = folder.metadata().and_then(|found| found.created());
    let created = created.ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    created.is_none_or(|created| {
        Timestamp::from_micros(micros(created)).plus(YOUNG) > SystemClock.now()
    })
}

/// Makes the names in a folder durable.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes the names in a folder and in all folders below it durable.
#[cfg(feature = "embedded")]
pub(crate) fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync(folder)
}

/// Returns the parent of a folder.
pub(crate) fn parent(folder: &Path) -> &Path {
    match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent.unwrap_or(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_name_is_in_the_current_folder() {
        assert_eq!(parent(Path::new("journal")), Path::new("."));
        assert_eq!(parent(Path::new("a/journal")), Path::new("a"));
        assert_eq!(parent(Path::new("/")), Path::new("/"));
    }
}
