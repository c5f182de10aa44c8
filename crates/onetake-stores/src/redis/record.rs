//! The format of a record in Redis.
//!
//! The values that scripts decide by are fields of a hash: decimal numbers, words or bytes.
//! Everything else is in one field, `outcome`, which the scripts do not read.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use onetake_core::codec::{DecodeError, Reader, put_cause, put_slice};
use onetake_core::origin::AttemptHistory;
use onetake_core::{
    AttemptId, Cause, Failure, Fence, Fingerprint, OnUnknown, Origin, Record, RecordId, Recording,
    State, Terms, Timestamp,
};
use redis::Value;

use crate::state_names;

/// The version of a record's fields, in its field `v`.
pub(super) const VERSION: &str = "1";

/// A script's answer.
#[derive(Debug)]
pub(super) struct ScriptReply {
    /// The first word of the answer.
    pub(super) word: Bytes,
    fields: std::vec::IntoIter<Value>,
}

impl ScriptReply {
    pub(super) fn read(value: Value) -> Result<Self, DecodeError> {
        let Value::Array(fields) = value else { return Err(DecodeError::new("an answer")) };
        let mut fields = fields.into_iter();
        let word = bytes(fields.next()).ok_or(DecodeError::new("the first word of a reply"))?;
        Ok(Self { word, fields })
    }

    /// Returns the next field as a number.
    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        let field = self.bytes(what)?;
        let digits = std::str::from_utf8(&field).ok();
        digits.and_then(|digits| digits.parse().ok()).ok_or(DecodeError::new(what))
    }

    fn bytes(&mut self, what: &'static str) -> Result<Bytes, DecodeError> {
        bytes(self.fields.next()).ok_or(DecodeError::new(what))
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        self.bytes(what)?.as_ref().try_into().map_err(|_| DecodeError::new(what))
    }

    fn duration(&mut self, what: &'static str) -> Result<Duration, DecodeError> {
        self.number(what).map(Duration::from_micros)
    }

    /// Returns true if there is no field left.
    pub(super) fn is_empty(&self) -> bool {
        self.fields.as_slice().is_empty()
    }

    /// Returns the store's time and the record. `sent` is the outcome that the caller sent; it is
    /// used if the script left the outcome out because it is the same.
    pub(super) fn record(
        mut self,
        id: RecordId,
        sent: &Bytes,
    ) -> Result<(Timestamp, Record), DecodeError> {
        let now = self.number("now").map(Timestamp::from_micros)?;
        let attempt = AttemptId::from_bytes(self.array("attempt")?);
        let fence = self.number("fence").map(Fence::new)?;
        let [scheme, digest @ ..] = self.array::<33>("fingerprint")?;
        let terms = Terms {
            ttl: self.duration("ttl")?,
            lease: self.duration("lease")?,
            grace: self.duration("grace")?,
            on_unknown: read_on_unknown(&self.bytes("on_unknown")?)
                .ok_or(DecodeError::new("on_unknown"))?,
        };
        let created_at = self.number("created").map(Timestamp::from_micros)?;
        let origin =
            Origin::from_bytes(&self.bytes("origin")?).ok_or(DecodeError::new("origin"))?;
        let claimed_at = self.number("claimed").map(Timestamp::from_micros)?;
        let history = String::from_utf8(self.bytes("history")?.to_vec());
        let history = AttemptHistory::from_text(history.map_err(|_| DecodeError::new("history"))?);
        let word = self.bytes("state")?;
        let at = self.number("at").map(Timestamp::from_micros)?;
        let ask_at = self.number("ask").map(Timestamp::from_micros)?;
        let outcome = bytes(self.fields.next()).unwrap_or_else(|| sent.clone());
        let state = state(&word, at, ask_at, outcome)?;
        let fingerprint = Fingerprint::from_parts(scheme, digest);
        let record = Record {
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
        };
        Ok((now, record))
    }
}

pub(super) fn bytes(value: Option<Value>) -> Option<Bytes> {
    match value? {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

fn state(
    word: &[u8],
    at: Timestamp,
    ask_at: Timestamp,
    outcome: Bytes,
) -> Result<State, DecodeError> {
    let mut from = Reader(outcome);
    let word = std::str::from_utf8(word).map_err(|_| DecodeError::new("state"))?;
    let state = match word {
        state_names::RUNNING => State::Running { lease_until: at },
        state_names::RELEASED => State::Released { at },
        state_names::COMPLETED => {
            let head = from.slice("head")?;
            let body = match from.u8("body flag")? {
                0 => None,
                _ => Some(std::mem::take(&mut from.0)),
            };
            State::Completed { at, recording: Recording { head, body } }
        }
        state_names::FAILED => {
            let failure = Failure { code: from.text("code")?, detail: from.text("detail")? };
            State::Failed { at, failure }
        }
        state_names::UNKNOWN => State::Unknown { at, cause: from.cause("cause")?, ask_at },
        _ => return Err(DecodeError::new("state")),
    };
    from.end()?;
    Ok(state)
}

pub(super) fn fingerprint(fingerprint: &Fingerprint) -> Bytes {
    let mut out = BytesMut::with_capacity(33);
    out.put_u8(fingerprint.scheme());
    out.put_slice(fingerprint.digest());
    out.freeze()
}

fn read_on_unknown(word: &[u8]) -> Option<OnUnknown> {
    [OnUnknown::Fail, OnUnknown::Reconcile, OnUnknown::Retry, OnUnknown::Rollback]
        .into_iter()
        .find(|rule| on_unknown(*rule).as_bytes() == word)
}

pub(super) fn on_unknown(on_unknown: OnUnknown) -> &'static str {
    match on_unknown {
        OnUnknown::Fail => "fail",
        OnUnknown::Reconcile => "reconcile",
        OnUnknown::Retry => "retry",
        OnUnknown::Rollback => "rollback",
    }
}

pub(super) fn recording(recording: &Recording) -> Bytes {
    let mut out = BytesMut::with_capacity(recording.bytes() + 5);
    put_slice(&mut out, &recording.head);
    out.put_u8(u8::from(recording.body.is_some()));
    out.put_slice(recording.body.as_deref().unwrap_or_default());
    out.freeze()
}

pub(super) fn failure(failure: &Failure) -> Bytes {
    let mut out = BytesMut::new();
    put_slice(&mut out, failure.code.as_bytes());
    put_slice(&mut out, failure.detail.as_bytes());
    out.freeze()
}

/// Encodes a cause. The first byte is its kind; `record.lua` writes the kind `LeaseEnded` too.
pub(super) fn cause(cause: &Cause) -> Bytes {
    let mut out = BytesMut::new();
    put_cause(&mut out, cause);
    out.freeze()
}
