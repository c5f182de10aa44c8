//! The audit log: what operators, the reconciler and the reaper did to keys (S20).
//!
//! A store keeps a [`AuditEntry`] without reading it, ordered by the time it was made and a random
//! number. An entry is written before the action, and replaced once the result is known. So no
//! operator's action happens without an entry.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::clock::{Rng, Timestamp};
use crate::codec::{DecodeError, Reader, put_slice};
use crate::record::{AttemptId, clip};
use crate::scope::RecordId;
use crate::store::{Cursor, StoreError};

/// The time for which entries are kept: ninety days.
pub const AUDIT_KEPT: std::time::Duration = std::time::Duration::from_secs(90 * 24 * 3600);

const VERSION: u8 = 1;

/// The position of an entry among all entries: by its time, then by a random number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditPosition([u8; AuditPosition::BYTES]);

impl AuditPosition {
    /// The number of bytes of a position.
    pub const BYTES: usize = 24;

    /// Creates a position for an action at `at`.
    #[must_use]
    pub fn new(at: Timestamp, rng: &dyn Rng) -> Self {
        let mut bytes = [0; Self::BYTES];
        let (time, number) = bytes.split_at_mut(8);
        time.copy_from_slice(&at.as_micros().to_be_bytes());
        rng.fill(number);
        Self(bytes)
    }

    /// Returns the position before all entries that were made at `at` or later.
    #[must_use]
    pub fn before(at: Timestamp) -> Self {
        let mut bytes = [0; Self::BYTES];
        for (to, from) in bytes.iter_mut().zip(at.as_micros().to_be_bytes()) {
            *to = from;
        }
        Self(bytes)
    }

    /// Creates a position from stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to store. They sort in the order of the positions.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Returns the time of the entry.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        let time = self.0.first_chunk().copied().unwrap_or_default();
        Timestamp::from_micros(u64::from_be_bytes(time))
    }

    /// Returns the cursor after which older entries follow.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor::from_bytes(self.0.to_vec())
    }

    /// Returns the position that a cursor names.
    ///
    /// # Errors
    /// If the cursor was not made by [`cursor`](Self::cursor).
    pub fn of(cursor: &Cursor) -> Result<Self, StoreError> {
        let bytes = cursor.as_bytes().as_ref();
        bytes.try_into().map(Self).map_err(|_| Cursor::foreign())
    }
}

impl fmt::Debug for AuditPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotePlace({})", self.at().as_micros())
    }
}

/// An action on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditAction {
    /// The attempt was declared to have had no effect.
    Release,
    /// The attempt was declared to have failed permanently.
    Fail,
    /// The outcome was supplied from outside.
    Resolve,
    /// The key was forgotten.
    Forget,
    /// The attempt lost its lease: lease and grace ended without a renewal or an outcome.
    ExpireLease,
}

impl AuditAction {
    /// Returns the name of the action.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Fail => "fail",
            Self::Resolve => "resolve",
            Self::Forget => "forget",
            Self::ExpireLease => "abandon",
        }
    }
}

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditResult {
    /// The action was requested, and no result was written: the process may have died in the
    /// middle.
    Asked,
    /// The action was done.
    Done,
    /// The action changed nothing: the key had changed meanwhile.
    Stale,
    /// The store did not answer, or refused: it is not known whether the action was done.
    Failed,
}

impl AuditResult {
    /// Returns the name of the result.
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

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// The position.
    pub place: AuditPosition,
    /// The record.
    pub id: RecordId,
    /// The attempt that the action was for.
    pub attempt: AttemptId,
    /// The action.
    pub action: AuditAction,
    /// The result.
    pub ended: AuditResult,
    /// The name of the state before the action; for an unknown record, the cause may follow.
    pub before: String,
    /// The author of the action.
    pub by: String,
    /// The reason.
    pub reason: String,
}

impl AuditEntry {
    /// Returns the bytes to store, without the position, which is the store's key.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        out.put_slice(self.id.as_bytes());
        out.put_slice(self.attempt.as_bytes());
        out.put_u8(match self.action {
            AuditAction::Release => 0,
            AuditAction::Fail => 1,
            AuditAction::Resolve => 2,
            AuditAction::Forget => 3,
            AuditAction::ExpireLease => 4,
        });
        out.put_u8(match self.ended {
            AuditResult::Asked => 0,
            AuditResult::Done => 1,
            AuditResult::Stale => 2,
            AuditResult::Failed => 3,
        });
        for text in [&self.before, &self.by, &self.reason] {
            put_slice(&mut out, clip(text.clone()).as_bytes());
        }
        out.freeze()
    }

    /// Reads the bytes that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If the bytes are truncated, are followed by others, or have another version.
    pub fn decode(place: AuditPosition, bytes: Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader(bytes);
        if from.u8("version")? != VERSION {
            return Err(DecodeError::new("unsupported version of an audit entry"));
        }
        let entry = Self {
            place,
            id: RecordId::from_bytes(from.array("id")?),
            attempt: AttemptId::from_bytes(from.array("attempt")?),
            action: match from.u8("action")? {
                0 => AuditAction::Release,
                1 => AuditAction::Fail,
                2 => AuditAction::Resolve,
                3 => AuditAction::Forget,
                4 => AuditAction::ExpireLease,
                _ => return Err(DecodeError::new("action")),
            },
            ended: match from.u8("ended")? {
                0 => AuditResult::Asked,
                1 => AuditResult::Done,
                2 => AuditResult::Stale,
                3 => AuditResult::Failed,
                _ => return Err(DecodeError::new("ended")),
            },
            before: from.text("before")?,
            by: from.text("by")?,
            reason: from.text("reason")?,
        };
        from.end()?;
        Ok(entry)
    }
}

/// One page of entries, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// The position of older entries; `None` at the end.
    pub next: Option<Cursor>,
}

impl AuditPage {
    /// Creates a page for a store that lists entries in the order of their positions. `entries` are
    /// all entries after the cursor up to the last one given, the newest first. Fewer than `limit`
    /// entries are the last page.
    #[must_use]
    pub fn in_order(entries: Vec<AuditEntry>, limit: usize) -> Self {
        let next =
            entries.last().filter(|_| entries.len() >= limit).map(|entry| entry.place.cursor());
        Self { entries, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemRng;

    #[test]
    fn a_note_comes_back_as_it_was() {
        let at = Timestamp::from_micros(1_800_000_000_000_000);
        let entry = AuditEntry {
            place: AuditPosition::new(at, &SystemRng),
            id: RecordId::from_bytes([1; 16]),
            attempt: AttemptId::from_bytes([2; 16]),
            action: AuditAction::Resolve,
            ended: AuditResult::Stale,
            before: "unknown".into(),
            by: "ops".into(),
            reason: "looked it up at the bank".into(),
        };
        assert_eq!(entry.place.at(), at);
        assert_eq!(AuditPosition::of(&entry.place.cursor()).unwrap(), entry.place);
        let bytes = entry.encode();
        assert_eq!(AuditEntry::decode(entry.place, bytes.clone()), Ok(entry.clone()));
        for cut in 0..bytes.len() {
            assert!(AuditEntry::decode(entry.place, bytes.slice(..cut)).is_err());
        }
        let later = AuditPosition::new(at.plus(std::time::Duration::from_micros(1)), &SystemRng);
        assert!(later > entry.place && AuditPosition::before(at) < entry.place);
    }
}
