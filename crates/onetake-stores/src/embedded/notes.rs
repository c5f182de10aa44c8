//! The audit log. It is in the `meta` table, which has few entries.
//!
//! | key | value |
//! | --- | --- |
//! | `note:`, place | the note |
//! | `note-of:`, record, place | nothing: an index of the notes of one record |

use std::ops::Bound;

use bytes::Bytes;
use fjall::Keyspace;

use onetake_core::note::{NOTES_KEPT, Note, NotePlace, Notes};
use onetake_core::{RecordId, StoreError, StoreErrorKind, Timestamp, clock::micros};

use super::tables::broken;

const ALL: &[u8] = b"note:";
const OF: &[u8] = b"note-of:";

/// Returns the two keys of a note.
pub(super) fn keys(place: &NotePlace, id: RecordId) -> [Vec<u8>; 2] {
    [key(place), [OF, id.as_bytes(), place.as_bytes()].concat()]
}

fn key(place: &NotePlace) -> Vec<u8> {
    [ALL, place.as_bytes()].concat()
}

/// Reads notes before this place, the newest first: those of one record, or all.
pub(super) fn read(
    table: &Keyspace,
    of: Option<RecordId>,
    from: Option<NotePlace>,
    limit: usize,
) -> Result<Notes, StoreError> {
    let prefix = of.map_or_else(|| ALL.to_vec(), |id| [OF, id.as_bytes()].concat());
    // After every place that exists: no time is that far in the future.
    let end = from.map_or([0xff; NotePlace::BYTES], |place| *place.as_bytes());
    let end = [prefix.as_slice(), &end].concat();
    let range = (Bound::Included(prefix), Bound::Excluded(end));
    let mut places = Vec::new();
    for entry in table.range(range).rev().take(limit) {
        places.push(place(&entry.key().map_err(broken)?)?);
    }
    let mut notes = Vec::new();
    for place in &places {
        notes.extend(load(table, *place)?);
    }
    // By the places that were found. Some of their notes may be unreadable.
    let next = places.last().filter(|_| places.len() >= limit).map(NotePlace::cursor);
    Ok(Notes { notes, next })
}

/// Returns the places and records of notes whose retention has ended, the oldest first.
pub(super) fn old(
    table: &Keyspace,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(NotePlace, RecordId)>, StoreError> {
    let kept_since = Timestamp::from_micros(now.as_micros().saturating_sub(micros(NOTES_KEPT)));
    let end = key(&NotePlace::before(kept_since));
    let mut old = Vec::new();
    for entry in table.range(ALL.to_vec()..end).take(limit) {
        let place = place(&entry.key().map_err(broken)?)?;
        if let Some(note) = load(table, place)? {
            old.push((place, note.id));
        }
    }
    Ok(old)
}

/// Loads a note. An unreadable note is skipped, so that it hides no other.
fn load(table: &Keyspace, place: NotePlace) -> Result<Option<Note>, StoreError> {
    let Some(value) = table.get(key(&place)).map_err(broken)? else { return Ok(None) };
    match Note::decode(place, Bytes::copy_from_slice(&value)) {
        Ok(note) => Ok(Some(note)),
        Err(error) => {
            tracing::warn!(%error, "an entry of the audit cannot be read");
            Ok(None)
        }
    }
}

fn place(key: &[u8]) -> Result<NotePlace, StoreError> {
    key.last_chunk().copied().map(NotePlace::from_bytes).ok_or_else(|| {
        StoreError::new(StoreErrorKind::Corrupt, "the key of an entry of the audit is damaged")
    })
}
