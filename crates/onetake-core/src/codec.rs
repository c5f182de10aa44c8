//! The binary form of a record, for stores that keep it whole.
//!
//! Big-endian, length-prefixed, one version byte first. Decoding never panics and never allocates
//! more than the size of its input.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::clock::{Timestamp, micros};
use crate::fingerprint::Fingerprint;
use crate::origin::{AttemptHistory, Origin};
use crate::record::{AttemptId, Cause, Failure, Fence, OnUnknown, Record, Recording, State, Terms};
use crate::scope::RecordId;

/// The version that is written. Version 1, which had no origin, time of claim or history, is still
/// read.
const VERSION: u8 = 2;

/// The error for bytes that are not a record of a known version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored bytes are not a valid record of version {VERSION}: {0}")]
pub struct DecodeError(&'static str);

impl DecodeError {
    /// Creates an error that names the field that could not be read.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self(what)
    }
}

/// Returns the record's bytes, without its id, which is the store's key.
#[must_use]
pub fn encode(record: &Record) -> Bytes {
    let mut out = BytesMut::new();
    encode_into(record, &mut out);
    out.freeze()
}

/// Appends the bytes that [`encode`] returns.
pub fn encode_into(record: &Record, out: &mut BytesMut) {
    let (origin, history) = (record.origin.stored_bytes(), record.history.as_text());
    out.reserve(240 + history.len() + origin + body_bytes(&record.state));
    out.put_u8(VERSION);
    out.put_slice(record.attempt.as_bytes());
    out.put_u64(record.fence.get());
    out.put_u8(record.fingerprint.scheme());
    out.put_slice(record.fingerprint.digest());
    out.put_u64(micros(record.terms.ttl));
    out.put_u64(micros(record.terms.lease));
    out.put_u64(micros(record.terms.grace));
    out.put_u8(match record.terms.on_unknown {
        OnUnknown::Fail => 0,
        OnUnknown::Reconcile => 1,
        OnUnknown::Retry => 2,
        OnUnknown::Rollback => 3,
    });
    out.put_u64(record.created_at.as_micros());
    out.put_u32(u32::try_from(origin).unwrap_or(u32::MAX));
    record.origin.write_to(out);
    out.put_u64(record.claimed_at.as_micros());
    put_slice(out, history.as_bytes());
    encode_state(out, &record.state);
}

fn body_bytes(state: &State) -> usize {
    match state {
        State::Completed { recording, .. } => recording.bytes(),
        _ => 0,
    }
}

fn encode_state(out: &mut BytesMut, state: &State) {
    match state {
        State::Running { lease_until } => {
            out.put_u8(0);
            out.put_u64(lease_until.as_micros());
        }
        State::Completed { at, recording } => {
            out.put_u8(1);
            out.put_u64(at.as_micros());
            put_slice(out, &recording.head);
            out.put_u8(u8::from(recording.body.is_some()));
            put_slice(out, recording.body.as_deref().unwrap_or_default());
        }
        State::Failed { at, failure } => {
            out.put_u8(2);
            out.put_u64(at.as_micros());
            put_slice(out, failure.code.as_bytes());
            put_slice(out, failure.detail.as_bytes());
        }
        State::Released { at } => {
            out.put_u8(3);
            out.put_u64(at.as_micros());
        }
        State::Unknown { at, cause, ask_at } => {
            out.put_u8(5);
            out.put_u64(at.as_micros());
            out.put_u64(ask_at.as_micros());
            put_cause(out, cause);
        }
    }
}

/// Writes the kind of a cause as one byte, then the text or the status that belongs to it.
pub fn put_cause(out: &mut BytesMut, cause: &Cause) {
    match cause {
        Cause::LeaseEnded => out.put_u8(0),
        Cause::Restarted => out.put_u8(1),
        Cause::Interrupted => out.put_u8(2),
        Cause::TimedOut => out.put_u8(3),
        Cause::Reported(what) => {
            out.put_u8(4);
            put_slice(out, what.as_bytes());
        }
        Cause::Status(status) => {
            out.put_u8(5);
            out.put_u16(*status);
        }
    }
}

/// Writes a length of four bytes, then the bytes.
pub fn put_slice(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

/// Reads the bytes that [`encode`] wrote.
///
/// # Errors
/// If the bytes are truncated, are followed by others, or have another version.
pub fn decode(id: RecordId, bytes: Bytes) -> Result<Record, DecodeError> {
    let mut from = Reader(bytes);
    let version = from.u8("version")?;
    if version != VERSION && version != 1 {
        return Err(DecodeError("another version"));
    }
    let attempt = AttemptId::from_bytes(from.array("attempt")?);
    let fence = Fence::new(from.u64("fence")?);
    let fingerprint =
        Fingerprint::from_parts(from.u8("fingerprint scheme")?, from.array("fingerprint")?);
    let terms = Terms {
        ttl: from.duration("ttl")?,
        lease: from.duration("lease")?,
        grace: from.duration("grace")?,
        on_unknown: match from.u8("on_unknown")? {
            0 => OnUnknown::Fail,
            1 => OnUnknown::Reconcile,
            2 => OnUnknown::Retry,
            3 => OnUnknown::Rollback,
            _ => return Err(DecodeError("on_unknown")),
        },
    };
    let created_at = from.timestamp("created_at")?;
    let (mut origin, mut claimed_at, mut history) =
        (Origin::default(), created_at, AttemptHistory::default());
    if version > 1 {
        origin = Origin::from_bytes(&from.slice("origin")?).ok_or(DecodeError("origin"))?;
        claimed_at = from.timestamp("claimed_at")?;
        history = AttemptHistory::from_text(from.text("history")?);
    }
    let state = decode_state(&mut from)?;
    from.end()?;
    Ok(Record {
        id,
        attempt,
        fence,
        fingerprint,
        terms,
        origin,
        created_at,
        claimed_at,
        history,
        state,
    })
}

fn decode_state(from: &mut Reader) -> Result<State, DecodeError> {
    let tag = from.u8("state")?;
    let at = from.timestamp("time of the state")?;
    Ok(match tag {
        0 => State::Running { lease_until: at },
        1 => {
            let head = from.slice("head")?;
            let kept = from.u8("body flag")? == 1;
            let body = from.slice("body")?;
            State::Completed { at, recording: Recording { head, body: kept.then_some(body) } }
        }
        2 => {
            let failure = Failure { code: from.text("code")?, detail: from.text("detail")? };
            State::Failed { at, failure }
        }
        3 => State::Released { at },
        4 | 5 => {
            // Form 4 had no such time.
            let ask_at = if tag == 5 { from.timestamp("ask_at")? } else { at };
            State::Unknown { at, cause: from.cause("cause")?, ask_at }
        }
        _ => return Err(DecodeError("state")),
    })
}

/// A reader of big-endian, length-prefixed fields. It shares bytes instead of copying them where
/// possible.
#[derive(Debug)]
pub struct Reader(pub Bytes);

impl Reader {
    fn take(&mut self, count: usize, what: &'static str) -> Result<Bytes, DecodeError> {
        if self.0.len() < count {
            return Err(DecodeError(what));
        }
        Ok(self.0.split_to(count))
    }

    /// Reads a fixed number of bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        self.take(N, what)?.as_ref().try_into().map_err(|_| DecodeError(what))
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// If there is none.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(what).map(u8::from_be_bytes)
    }

    /// Reads two bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_be_bytes)
    }

    /// Reads four bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_be_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_be_bytes)
    }

    fn duration(&mut self, what: &'static str) -> Result<Duration, DecodeError> {
        self.u64(what).map(Duration::from_micros)
    }

    fn timestamp(&mut self, what: &'static str) -> Result<Timestamp, DecodeError> {
        self.u64(what).map(Timestamp::from_micros)
    }

    /// Reads the bytes that [`put_slice`] wrote.
    ///
    /// # Errors
    /// If they are truncated.
    pub fn slice(&mut self, what: &'static str) -> Result<Bytes, DecodeError> {
        let length = self.u32(what)?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX), what)
    }

    /// Reads a text that [`put_slice`] wrote.
    ///
    /// # Errors
    /// If it is truncated, or not UTF-8.
    pub fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        String::from_utf8(self.slice(what)?.to_vec()).map_err(|_| DecodeError(what))
    }

    /// Reads a cause that [`put_cause`] wrote.
    ///
    /// # Errors
    /// If it is truncated, or of a kind that this version does not know.
    pub fn cause(&mut self, what: &'static str) -> Result<Cause, DecodeError> {
        Ok(match self.u8(what)? {
            0 => Cause::LeaseEnded,
            1 => Cause::Restarted,
            2 => Cause::Interrupted,
            3 => Cause::TimedOut,
            4 => Cause::Reported(self.text(what)?),
            5 => Cause::Status(self.u16(what)?),
            _ => return Err(DecodeError(what)),
        })
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// If there are any.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError("unexpected bytes at the end")) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::origin::TenantDigest;
    use proptest::prelude::*;

    pub(crate) fn any_record() -> impl Strategy<Value = Record> {
        let body = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..64));
        let at = any::<u32>().prop_map(|s| Timestamp::from_micros(u64::from(s) * 1_000_000));
        let state = (at.clone(), 0..11_u8, body, "[a-z ]{0,20}").prop_map(
            |(at, tag, body, text)| match tag {
                0 => State::Running { lease_until: at },
                1..=3 => State::Completed {
                    at,
                    recording: Recording { head: Bytes::from(text), body: body.map(Bytes::from) },
                },
                4 => State::Failed { at, failure: Failure { code: text.clone(), detail: text } },
                5 => State::Released { at },
                6 => State::Unknown {
                    at,
                    cause: Cause::LeaseEnded,
                    ask_at: at.plus(Duration::from_secs(9)),
                },
                7 => State::Unknown { at, cause: Cause::Restarted, ask_at: at },
                8 => State::Unknown { at, cause: Cause::TimedOut, ask_at: at },
                9 => State::Unknown { at, cause: Cause::Status(502), ask_at: at },
                _ => State::Unknown { at, cause: Cause::Reported(text), ask_at: at },
            },
        );
        let unknown = prop_oneof![
            Just(OnUnknown::Fail),
            Just(OnUnknown::Reconcile),
            Just(OnUnknown::Retry),
            Just(OnUnknown::Rollback)
        ];
        let seconds = (0..100_000_u64).prop_map(Duration::from_secs);
        let terms = (seconds.clone(), seconds.clone(), seconds, unknown)
            .prop_map(|(ttl, lease, grace, on_unknown)| Terms { ttl, lease, grace, on_unknown });
        (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u64>(), any::<[u8; 32]>(), terms, at, state)
            .prop_map(|(id, attempt, fence, digest, terms, created_at, state)| Record {
                id: RecordId::from_bytes(id),
                attempt: AttemptId::from_bytes(attempt),
                fence: Fence::new(fence),
                fingerprint: Fingerprint::from_parts(1, digest),
                terms,
                origin: Origin::new(TenantDigest::from_bytes(attempt), "POST /pay"),
                created_at,
                claimed_at: created_at,
                history: AttemptHistory::from_text("1 2 3 released\n".to_owned()),
                state,
            })
    }

    /// A text that reads like a status stays a text.
    #[test]
    fn every_cause_is_read_as_it_was_written() {
        for cause in [
            Cause::LeaseEnded,
            Cause::Restarted,
            Cause::Interrupted,
            Cause::TimedOut,
            Cause::Reported(Cause::Status(502).to_string()),
            Cause::Status(502),
        ] {
            let mut bytes = BytesMut::new();
            put_cause(&mut bytes, &cause);
            let mut from = Reader(bytes.freeze());
            assert_eq!(from.cause("cause"), Ok(cause));
            assert_eq!(from.end(), Ok(()));
        }
        assert!(Reader(Bytes::from_static(&[6])).cause("cause").is_err());
    }

    #[test]
    fn the_first_version_is_still_read() {
        let record = Record {
            id: RecordId::from_bytes([1; 16]),
            attempt: AttemptId::from_bytes([2; 16]),
            fence: Fence::new(3),
            fingerprint: Fingerprint::from_parts(1, [4; 32]),
            terms: Terms::default(),
            origin: Origin::default(),
            created_at: Timestamp::from_micros(5),
            claimed_at: Timestamp::from_micros(5),
            history: AttemptHistory::default(),
            state: State::Released { at: Timestamp::from_micros(6) },
        };
        let mut bytes = encode(&record).to_vec();
        // Removes the two empty slices and the time between them, which precede the state.
        bytes.drain(bytes.len() - 25..bytes.len() - 9);
        bytes[0] = 1;
        assert_eq!(decode(record.id, bytes.into()), Ok(record));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(record in any_record()) {
            prop_assert_eq!(decode(record.id, encode(&record)), Ok(record));
        }

        #[test]
        fn cut_or_longer_bytes_are_refused(record in any_record(), cut in any::<prop::sample::Index>()) {
            let bytes = encode(&record);
            let cut = cut.index(bytes.len());
            prop_assert!(decode(record.id, bytes.slice(..cut)).is_err());
            let mut longer = bytes.to_vec();
            longer.push(0);
            prop_assert!(decode(record.id, longer.into()).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _either = decode(RecordId::from_bytes([0; 16]), bytes.into());
        }
    }
}
