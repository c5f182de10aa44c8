//! The audit log. It is in the `meta` table, which has few entries.
//!
//! | key | value |
//! | --- | --- |
//! | `entry:`, place | the note |
//! | `entry-of:`, record, place | nothing: an index of the notes of one record |

use std::ops::Bound;

use bytes::Bytes;

use onetake_core::audit::{AUDIT_KEPT, AuditEntry, AuditPage, AuditPosition};
use onetake_core::{RecordId, StoreError, StoreErrorKind, Timestamp, clock::micros};

use super::lsm_table::LsmTable;
use super::read_errors::{damaged_entry, unread};
use super::time_index::TimeIndex;

/// The prefix of all notes, in the order of time.
pub(super) const ALL: &[u8] = b"note:";
const OF: &[u8] = b"note-of:";

/// Returns the two keys of a note.
pub(super) fn keys(place: &AuditPosition, id: RecordId) -> [Vec<u8>; 2] {
    [key(place), [OF, id.as_bytes(), place.as_bytes()].concat()]
}

fn key(place: &AuditPosition) -> Vec<u8> {
    [ALL, place.as_bytes()].concat()
}

/// Reads notes before this place, the newest first: those of one record, or all.
pub(super) fn read(
    table: &LsmTable,
    of: Option<RecordId>,
    from: Option<AuditPosition>,
    limit: usize,
) -> Result<AuditPage, StoreError> {
    let prefix = of.map_or_else(|| ALL.to_vec(), |id| [OF, id.as_bytes()].concat());
    // After every place that exists: no time is that far in the future.
    let end = from.map_or([0xff; AuditPosition::BYTES], |place| *place.as_bytes());
    let end = [prefix.as_slice(), &end].concat();
    let range = (Bound::Included(prefix), Bound::Excluded(end));
    let mut places = Vec::new();
    for key in table.keys(range).rev().take(limit) {
        places.push(place(&key.map_err(unread)?)?);
    }
    let mut entries = Vec::new();
    for place in &places {
        entries.extend(load(table, *place)?);
    }
    // By the places that were found. Some of their notes may be unreadable.
    let next = places.last().filter(|_| places.len() >= limit).map(AuditPosition::cursor);
    Ok(AuditPage { entries, next })
}

/// Returns the places and records of notes whose retention has ended, the oldest first. `index` has
/// the places of all notes.
pub(super) fn old(
    table: &LsmTable,
    index: &TimeIndex,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(AuditPosition, RecordId)>, StoreError> {
    let kept_since = now.as_micros().saturating_sub(micros(AUDIT_KEPT));
    let before = Timestamp::from_micros(kept_since.saturating_sub(1));
    let mut old = Vec::new();
    for place in index.until(before)?.take(limit).map(AuditPosition::from_bytes) {
        if let Some(entry) = load(table, place)? {
            old.push((place, entry.id));
        }
    }
    Ok(old)
}

/// Loads a note. An unreadable note is skipped, so that it hides no other.
fn load(table: &LsmTable, place: AuditPosition) -> Result<Option<AuditEntry>, StoreError> {
    let entry = match table.get(&key(&place)).map_err(unread) {
        Ok(None) => return Ok(None),
        Ok(Some(value)) => AuditEntry::decode(place, Bytes::copy_from_slice(&value))
            .map_err(|error| damaged_entry(&error.to_string())),
        Err(error) => Err(error),
    };
    match entry {
        Err(error) if error.kind() == StoreErrorKind::Invalid => {
            tracing::warn!(%error, "an entry of the audit log cannot be read");
            Ok(None)
        }
        entry => entry.map(Some),
    }
}

fn place(key: &[u8]) -> Result<AuditPosition, StoreError> {
    key.last_chunk()
        .copied()
        .map(AuditPosition::from_bytes)
        .ok_or_else(|| damaged_entry("the key of an entry of the audit log is damaged"))
}
