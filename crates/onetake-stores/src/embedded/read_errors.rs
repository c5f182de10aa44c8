//! Errors of reads and writes of the folder, by what they mean for the store.

use std::io;

use onetake_core::{RecordId, StoreError, StoreErrorKind};

use super::files::is_too_many;

/// The error for an entry that makes no sense. All other entries still work.
pub(super) fn damaged_entry(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, what)
}

/// The error for one unreadable record. Its key is refused; all other keys still work.
pub(super) fn unreadable(id: RecordId) -> StoreError {
    let message = format!("the record {} is damaged and cannot be read", id.reference());
    StoreError::new(StoreErrorKind::Invalid, message)
}

/// The error of a read without which the store cannot go on.
pub(super) fn broken(error: lsm_tree::Error) -> StoreError {
    if is_out_of_files(&error) { unread(error) } else { failed(error) }
}

/// The error of a read of several entries. A damaged block costs the entries in it, and the store
/// goes on. Other errors of the operating system may be over later, such as too many open files.
pub(super) fn unread(error: lsm_tree::Error) -> StoreError {
    let (kind, what) = match &error {
        error if is_out_of_files(error) => {
            (StoreErrorKind::Unavailable, "the process has too many open files".to_owned())
        }
        lsm_tree::Error::Io(error) if !is_damage(error) => {
            (StoreErrorKind::Unavailable, error.to_string())
        }
        error => (StoreErrorKind::Invalid, format!("a table is damaged ({error})")),
    };
    StoreError::new(kind, format!("reading the data folder failed: {what}")).with_source(error)
}

/// True if the bytes of a file are gone: a bad sector, or a file that is too short.
fn is_damage(error: &io::Error) -> bool {
    /// The number of the error "input/output error".
    const EIO: i32 = 5;
    error.raw_os_error() == Some(EIO) || error.kind() == io::ErrorKind::UnexpectedEof
}

fn is_out_of_files(error: &lsm_tree::Error) -> bool {
    matches!(error, lsm_tree::Error::Io(error) if is_too_many(error))
}

/// The error of a write: the state on disk is unknown.
pub(super) fn failed(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("reading or writing the data folder failed: {error}"),
    )
    .with_source(error)
}

/// True if the record of this error may be readable later: the operating system reported the error.
/// Changed bytes stay changed.
pub(super) fn may_pass(error: &StoreError) -> bool {
    let error: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.raw_os_error().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_of_the_operating_system_may_pass() {
        let of_record = |error: lsm_tree::Error| {
            unreadable(RecordId::from_bytes([1; RecordId::BYTES])).with_source(unread(error))
        };
        let io = |error: io::Error| of_record(error.into());
        let bad_sector = io(io::Error::from_raw_os_error(5));
        assert_eq!(bad_sector.kind(), StoreErrorKind::Invalid);
        assert!(may_pass(&bad_sector));
        assert!(!may_pass(&io(io::ErrorKind::UnexpectedEof.into())), "the file is too short");
        assert!(!may_pass(&of_record(lsm_tree::Error::InvalidTrailer)));
        assert!(!may_pass(&damaged_entry("a record's key is damaged")));
    }
}
