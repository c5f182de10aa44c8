//! The audit: what people, and the reaper on their behalf, did to keys (S20).
//!
//! A store keeps a [`Note`] without looking into it, by the time it was made and a random number. It is
//! written before anything is done and written over once it is known how that ended, so that nothing is
//! ever done without one.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::clock::{Rng, Timestamp};
use crate::codec::{DecodeError, Reader, put_slice};
use crate::record::{AttemptId, clip};
use crate::scope::RecordId;
use crate::store::{Cursor, StoreError};

/// How long notes are kept: ninety days.
pub const NOTES_KEPT: std::time::Duration = std::time::Duration::from_secs(90 * 24 * 3600);

const VERSION: u8 = 1;

/// Where a note stands among all others: by its time, then by chance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NotePlace([u8; NotePlace::BYTES]);

impl NotePlace {
    /// How many bytes it has.
    pub const BYTES: usize = 24;

    /// A place for something that is done now.
    #[must_use]
    pub fn new(at: Timestamp, rng: &dyn Rng) -> Self {
        let mut bytes = [0; Self::BYTES];
        let (time, number) = bytes.split_at_mut(8);
        time.copy_from_slice(&at.as_micros().to_be_bytes());
        rng.fill(number);
        Self(bytes)
    }

    /// The place in front of all that were made at `at` or later.
    #[must_use]
    pub fn before(at: Timestamp) -> Self {
        let mut bytes = [0; Self::BYTES];
        for (to, from) in bytes.iter_mut().zip(at.as_micros().to_be_bytes()) {
            *to = from;
        }
        Self(bytes)
    }

    /// A place as a store kept it.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes to keep. They sort as the places do.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// When it was made.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        let time = self.0.first_chunk().copied().unwrap_or_default();
        Timestamp::from_micros(u64::from_be_bytes(time))
    }

    /// The cursor behind which older notes are.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor::from_bytes(self.0.to_vec())
    }

    /// The place that a cursor names.
    ///
    /// # Errors
    /// If it is none of [`cursor`](Self::cursor).
    pub fn of(cursor: &Cursor) -> Result<Self, StoreError> {
        let bytes = cursor.as_bytes().as_ref();
        bytes.try_into().map(Self).map_err(|_| Cursor::foreign())
    }
}

impl fmt::Debug for NotePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotePlace({})", self.at().as_micros())
    }
}

/// What was done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Its attempt was declared to have had no effect.
    Release,
    /// Its attempt was declared to have failed for good.
    Fail,
    /// Its outcome was told by somebody who knows it.
    Resolve,
    /// It was forgotten.
    Forget,
    /// Its attempt was passed over, because its lease and grace ended without a word from it.
    Abandon,
}

impl Action {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Fail => "fail",
            Self::Resolve => "resolve",
            Self::Forget => "forget",
            Self::Abandon => "abandon",
        }
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// It was asked for, and nobody wrote how it ended: the process may have died in the middle.
    Asked,
    /// It was done.
    Done,
    /// It changed nothing: the key had changed meanwhile.
    Stale,
    /// The store did not answer, or refused: nobody knows whether it was done.
    Failed,
}

impl Ended {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Done => "done",
            Self::Stale => "stale",
            Self::Failed => "failed",
        }
    }
}

/// One entry of the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Where it stands.
    pub place: NotePlace,
    /// The record.
    pub id: RecordId,
    /// The attempt that it was done to.
    pub attempt: AttemptId,
    /// What was done.
    pub action: Action,
    /// How that ended.
    pub ended: Ended,
    /// The state before, by its name.
    pub before: String,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl Note {
    /// The bytes to keep, without the place, which is the store's key.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        out.put_slice(self.id.as_bytes());
        out.put_slice(self.attempt.as_bytes());
        out.put_u8(match self.action {
            Action::Release => 0,
            Action::Fail => 1,
            Action::Resolve => 2,
            Action::Forget => 3,
            Action::Abandon => 4,
        });
        out.put_u8(match self.ended {
            Ended::Asked => 0,
            Ended::Done => 1,
            Ended::Stale => 2,
            Ended::Failed => 3,
        });
        for text in [&self.before, &self.by, &self.reason] {
            put_slice(&mut out, clip(text.clone()).as_bytes());
        }
        out.freeze()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If the bytes are cut, have something behind them, or are of another version.
    pub fn decode(place: NotePlace, bytes: Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader(bytes);
        if from.u8("version")? != VERSION {
            return Err(DecodeError::new("another version of a note"));
        }
        let note = Self {
            place,
            id: RecordId::from_bytes(from.array("id")?),
            attempt: AttemptId::from_bytes(from.array("attempt")?),
            action: match from.u8("action")? {
                0 => Action::Release,
                1 => Action::Fail,
                2 => Action::Resolve,
                3 => Action::Forget,
                4 => Action::Abandon,
                _ => return Err(DecodeError::new("action")),
            },
            ended: match from.u8("ended")? {
                0 => Ended::Asked,
                1 => Ended::Done,
                2 => Ended::Stale,
                3 => Ended::Failed,
                _ => return Err(DecodeError::new("ended")),
            },
            before: from.text("before")?,
            by: from.text("by")?,
            reason: from.text("reason")?,
        };
        from.end()?;
        Ok(note)
    }
}

/// Some notes, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The notes.
    pub notes: Vec<Note>,
    /// Where older ones are; `None` at the end.
    pub next: Option<Cursor>,
}

impl Notes {
    /// A page of a store that goes by places: these stand behind the cursor, the newest first, and there
    /// are no others up to the last of them. Fewer than `limit` are the last.
    #[must_use]
    pub fn in_order(notes: Vec<Note>, limit: usize) -> Self {
        let next = notes.last().filter(|_| notes.len() >= limit).map(|note| note.place.cursor());
        Self { notes, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemRng;

    #[test]
    fn a_note_comes_back_as_it_was() {
        let at = Timestamp::from_micros(1_800_000_000_000_000);
        let note = Note {
            place: NotePlace::new(at, &SystemRng),
            id: RecordId::from_bytes([1; 16]),
            attempt: AttemptId::from_bytes([2; 16]),
            action: Action::Resolve,
            ended: Ended::Stale,
            before: "unknown".into(),
            by: "ops".into(),
            reason: "looked it up at the bank".into(),
        };
        assert_eq!(note.place.at(), at);
        assert_eq!(NotePlace::of(&note.place.cursor()).unwrap(), note.place);
        let bytes = note.encode();
        assert_eq!(Note::decode(note.place, bytes.clone()), Ok(note.clone()));
        for cut in 0..bytes.len() {
            assert!(Note::decode(note.place, bytes.slice(..cut)).is_err());
        }
        let later = NotePlace::new(at.plus(std::time::Duration::from_micros(1)), &SystemRng);
        assert!(later > note.place && NotePlace::before(at) < note.place);
    }
}
