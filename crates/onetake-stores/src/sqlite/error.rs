//! What SQLite's errors mean to a caller.

use std::path::Path;

use rusqlite::ffi;

use onetake_core::{StoreError, StoreErrorKind};

/// When an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum During {
    /// Before the commit: whatever was written is rolled back.
    Work,
    /// In the commit itself.
    Commit,
}

/// The error that a caller gets.
pub(super) fn refused(error: rusqlite::Error, during: During) -> StoreError {
    let code = code(&error);
    let (kind, what) = match code & 0xff {
        ffi::SQLITE_FULL => {
            let what = "the disk is full; nothing was written, and it goes on by itself once there \
                        is room";
            (StoreErrorKind::Unavailable, what)
        }
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => {
            // It is there, and remembers: nobody may run anything past it.
            let what = "another process holds the database's write lock for too long";
            (StoreErrorKind::Busy, what)
        }
        // After a failed fsync nobody knows what is on disk, and asking again would lie: the
        // operating system forgets what it could not write.
        ffi::SQLITE_IOERR if is_fsync(code) => {
            (StoreErrorKind::Corrupt, "what was written could not be made durable")
        }
        ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => {
            (StoreErrorKind::Corrupt, "the database is damaged; restore it from a backup")
        }
        ffi::SQLITE_READONLY | ffi::SQLITE_PERM | ffi::SQLITE_AUTH => {
            (StoreErrorKind::Invalid, "the database cannot be written to; check who owns it")
        }
        ffi::SQLITE_IOERR if during == During::Commit => {
            (StoreErrorKind::Indeterminate, "the database could not be written")
        }
        _ => (StoreErrorKind::Unavailable, "the database could not be read or written"),
    };
    StoreError::new(kind, format!("{what} ({error})")).with_source(error)
}

/// An error about a file that is being opened.
pub(super) fn unopened(file: &Path, error: rusqlite::Error) -> StoreError {
    let below = refused(error, During::Work);
    let hint = match below.kind() {
        StoreErrorKind::Corrupt => "; is it a SQLite database? Nothing was changed",
        _ => "",
    };
    let what = format!("{} cannot be opened: {below}{hint}", file.display());
    StoreError::new(below.kind(), what).with_source(below)
}

/// The item was larger than SQLite keeps: its own fault, and nobody else's (S21).
pub(super) fn is_too_big(error: &rusqlite::Error) -> bool {
    code(error) == ffi::SQLITE_TOOBIG
}

/// Another connection holds the lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    code(error) & 0xff == ffi::SQLITE_BUSY
}

fn is_fsync(code: i32) -> bool {
    code == ffi::SQLITE_IOERR_FSYNC || code == ffi::SQLITE_IOERR_DIR_FSYNC
}

fn code(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(0, |error| error.extended_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: i32, during: During) -> StoreErrorKind {
        refused(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None), during).kind()
    }

    #[test]
    fn errors_mean_what_is_to_be_done_next() {
        use During::{Commit, Work};
        use StoreErrorKind::{Busy, Corrupt, Indeterminate, Invalid, Unavailable};
        for during in [Work, Commit] {
            assert_eq!(kind(ffi::SQLITE_FULL, during), Unavailable);
            assert_eq!(kind(ffi::SQLITE_BUSY, during), Busy);
            assert_eq!(kind(ffi::SQLITE_BUSY_SNAPSHOT, during), Busy);
            assert_eq!(kind(ffi::SQLITE_IOERR_FSYNC, during), Corrupt);
            assert_eq!(kind(ffi::SQLITE_IOERR_DIR_FSYNC, during), Corrupt);
            assert_eq!(kind(ffi::SQLITE_CORRUPT, during), Corrupt);
            assert_eq!(kind(ffi::SQLITE_NOTADB, during), Corrupt);
            assert_eq!(kind(ffi::SQLITE_READONLY, during), Invalid);
        }
        assert_eq!(kind(ffi::SQLITE_IOERR_WRITE, Work), Unavailable);
        assert_eq!(kind(ffi::SQLITE_IOERR_WRITE, Commit), Indeterminate);
    }
}
