//! The audit, in the table of the store's own: few entries, beside many records.
//!
//! | key | value |
//! | --- | --- |
//! | `note:`, place | the note |
//! | `note-of:`, record, place | nothing: what the notes of one record are found by |

use std::ops::Bound;

use bytes::Bytes;
use fjall::Keyspace;

use onetake_core::note::{NOTES_KEPT, Note, NotePlace, Notes};
use onetake_core::{RecordId, StoreError, StoreErrorKind, Timestamp, clock::micros};

use super::tables::broken;

const ALL: &[u8] = b"note:";
const OF: &[u8] = b"note-of:";

/// The two keys of a note.
pub(super) fn keys(place: &NotePlace, id: RecordId) -> [Vec<u8>; 2] {
    [key(place), [OF, id.as_bytes(), place.as_bytes()].concat()]
}

fn key(place: &NotePlace) -> Vec<u8> {
    [ALL, place.as_bytes()].concat()
}

/// Notes in front of this place, the newest first: of one record, or of all.
pub(super) fn read(
    table: &Keyspace,
    of: Option<RecordId>,
    from: Option<NotePlace>,
    limit: usize,
) -> Result<Notes, StoreError> {
    let prefix = of.map_or_else(|| ALL.to_vec(), |id| [OF, id.as_bytes()].concat());
    // Behind every place there is: times are far from it.
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
    // By what was found, of which some may not have been read.
    let next = places.last().filter(|_| places.len() >= limit).map(NotePlace::cursor);
    Ok(Notes { notes, next })
}

/// Notes that were kept for long enough, the oldest first: their places, and the records.
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

/// One that cannot be read hides no other.
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
