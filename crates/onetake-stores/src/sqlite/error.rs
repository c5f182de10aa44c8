//! Conversion of SQLite's errors to store errors.

use std::path::Path;

use rusqlite::ffi;

use onetake_core::{StoreError, StoreErrorKind};

/// The phase in which an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum During {
    /// Before the commit: all writes are rolled back.
    Work,
    /// During the commit.
    Commit,
}

/// Returns the error for the caller.
pub(super) fn refused(error: rusqlite::Error, during: During) -> StoreError {
    let code = code(&error);
    let (kind, what) = match code & 0xff {
        ffi::SQLITE_FULL => {
            let what = "the disk is full; nothing was written; onetake continues when there is \
                        free space";
            (StoreErrorKind::Unavailable, what)
        }
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => {
            // The store is available and has the records, so a fail-open route must not run without
            // it.
            let what = "another process holds the write lock of the database for too long";
            (StoreErrorKind::Busy, what)
        }
        // After a failed fsync the state on disk is unknown. A second fsync would succeed without
        // writing, because the operating system forgets the data that it could not write.
        ffi::SQLITE_IOERR if is_fsync(code) => {
            (StoreErrorKind::Corrupt, "writes could not be made durable")
        }
        ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => {
            (StoreErrorKind::Corrupt, "the database is damaged; restore it from a backup")
        }
        ffi::SQLITE_READONLY | ffi::SQLITE_PERM | ffi::SQLITE_AUTH => (
            StoreErrorKind::Invalid,
            "the database is not writable; check its owner and permissions",
        ),
        ffi::SQLITE_IOERR if during == During::Commit => {
            (StoreErrorKind::Indeterminate, "the database could not be written")
        }
        _ => (StoreErrorKind::Unavailable, "the database could not be read or written"),
    };
    StoreError::new(kind, format!("{what} ({error})")).with_source(error)
}

/// The error for a file that could not be opened.
pub(super) fn unopened(file: &Path, error: rusqlite::Error) -> StoreError {
    let below = refused(error, During::Work);
    let hint = match below.kind() {
        StoreErrorKind::Corrupt => "; is it a SQLite database? Nothing was changed",
        _ => "",
    };
    let what = format!("{} cannot be opened: {below}{hint}", file.display());
    StoreError::new(below.kind(), what).with_source(below)
}

/// Returns true if the item is larger than SQLite can store. Only this item fails (S21).
pub(super) fn is_too_big(error: &rusqlite::Error) -> bool {
    code(error) == ffi::SQLITE_TOOBIG
}

/// Returns true if another connection holds the lock.
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
