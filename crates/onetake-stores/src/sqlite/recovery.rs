//! Recovery of an earlier process's file: it is made durable, or refused if it is damaged, before
//! anything is written.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior};

use onetake_core::{StoreError, StoreErrorKind};

use super::error::{is_busy, unopened};
use super::schema::{Owner, wait_for_lock};
use super::wal_check;
use crate::folders;

/// The largest file whose pages are all checked when it is opened. It takes a few tenths of a
/// second.
const CHECKED_BYTES_MAX: i64 = 64 << 20;
/// The number of times that a log is read again before it counts as damaged.
const LOOKS_MAX: i32 = 3;
/// The size of the pieces in which the write-ahead log is written again.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns the path of the write-ahead log of a file.
fn log_of(file: &Path) -> PathBuf {
    PathBuf::from([file.as_os_str(), "-wal".as_ref()].join("".as_ref()))
}

/// Refuses a damaged write-ahead log. SQLite would ignore everything after the damage.
pub(super) fn check_log(file: &Path) -> Result<(), StoreError> {
    let log = log_of(file);
    let failed = |error| {
        let what = format!("{} cannot be read: {error}", log.display());
        StoreError::new(StoreErrorKind::Unavailable, what).with_source(error)
    };
    let mut tries = 0;
    loop {
        match wal_check::damage(&log).map_err(failed)? {
            None => return Ok(()),
            // Another process may be writing to the log at this moment.
            Some(_) if tries < LOOKS_MAX => tries += i32::from(wait_for_lock(tries)),
            Some(what) => return Err(damaged(file, &what)),
        }
    }
}

fn damaged(file: &Path, what: &str) -> StoreError {
    let what = format!(
        "{} cannot be opened: the database is damaged; restore it from a backup ({what})",
        file.display()
    );
    StoreError::new(StoreErrorKind::Corrupt, what)
}

/// Makes the write-ahead log and its name durable.
///
/// After a failed sync, the operating system shows bytes that are not on disk, also to the next
/// process. Data that the next process writes after those bytes would be lost with them. So the log
/// is written once more and synced. The write lock keeps other processes from changing it
/// meanwhile. A process that holds the lock for long has done this itself.
pub(super) fn make_durable(connection: &mut Connection, file: &Path) -> Result<(), StoreError> {
    let lock = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Err(error) if is_busy(&error) => return Ok(()),
        lock => lock.map_err(|error| unopened(file, error))?,
    };
    let log = log_of(file);
    // SQLite syncs the folder too, but skips that if too many files are open.
    let written = write_again(&log).and_then(|()| folders::sync(folders::parent(file)));
    written.map_err(|error| {
        let what = format!("{} cannot be made durable: {error}", log.display());
        StoreError::new(StoreErrorKind::Unavailable, what).with_source(error)
    })?;
    lock.rollback().map_err(|error| unopened(file, error))
}

fn write_again(log: &Path) -> io::Result<()> {
    let mut file = match File::options().read(true).write(true).open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        file.seek(SeekFrom::Start(at))?;
        let count = file.read(&mut chunk)?;
        let read = chunk.get(..count).unwrap_or_default();
        if read.is_empty() {
            return file.sync_all();
        }
        file.seek(SeekFrom::Start(at))?;
        file.write_all(read)?;
        at += count as u64;
    }
}

/// Moves everything from the log to the database file, and empties the log.
///
/// Afterwards a new file is not empty any more: SQLite discards the log of an empty file. And no
/// rest of a torn transaction is left, which [`wal_check`] could mistake for a later one after the
/// next crash.
pub(super) fn checkpoint(connection: &Connection, file: &Path) -> Result<(), StoreError> {
    // If another process uses the file, the pragma reports that in its row. That process has done
    // this itself.
    let moved = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    moved.map_err(|error| unopened(file, error))
}

/// Refuses a file whose pages contradict each other. An index that has lost a key would let the key
/// run again.
///
/// SQLite has no checksums of its pages. Rows have their own checksum, which is verified when they
/// are read.
pub(super) fn check_pages(
    connection: &Connection,
    file: &Path,
    owner: Owner,
) -> Result<(), StoreError> {
    const BYTES: &str = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let failed = |error| unopened(file, error);
    let bytes: i64 = connection.query_row(BYTES, [], |row| row.get(0)).map_err(failed)?;
    if bytes > CHECKED_BYTES_MAX {
        return Ok(());
    }
    let checks: &[&str] = match owner {
        Owner::Onetake => &["PRAGMA integrity_check(1)"],
        // Damage in the other program's tables is not checked here.
        Owner::Another => &[
            "PRAGMA integrity_check(onetake_records)",
            "PRAGMA integrity_check(onetake_meta)",
            "PRAGMA integrity_check(onetake_secrets)",
        ],
    };
    for check in checks {
        let found: String = connection.query_row(check, [], |row| row.get(0)).map_err(failed)?;
        if found != "ok" {
            return Err(damaged(file, &found));
        }
    }
    Ok(())
}
