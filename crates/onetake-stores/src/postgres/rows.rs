//! Rows to records, and back.

use std::time::Duration;

use bytes::Bytes;
use onetake_core::clock::{Timestamp, micros};
use onetake_core::{
    AttemptId, Cause, Failure, Fence, Fingerprint, OnUnknown, Record, RecordId, Recording, State,
    StoreError, StoreErrorKind, Terms,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// No duration is longer here: a hundred years, so that sums of a few stay far from overflowing.
const DURATION_MAX: u64 = 100 * 365 * 24 * 3600 * 1_000_000;

/// What every statement on records answers with, a row for each.
pub(super) struct Answer {
    /// 0: it was done; 1: this is how it stands.
    pub(super) kind: i16,
    /// The server's time when it looked.
    pub(super) now: Timestamp,
    /// Claims: the fence that was granted. Settlements: when the record expires.
    pub(super) number: Option<i64>,
    /// Whose row it is.
    pub(super) id: RecordId,
    row: Row,
}

/// The first columns are the answer's own; the record begins behind them.
const ID: usize = 3;

impl Answer {
    pub(super) fn read(row: Row) -> Result<Self, StoreError> {
        let kind = get(&row, 0)?;
        let now = timestamp(get(&row, 1)?);
        let number = get(&row, 2)?;
        let id = RecordId::from_bytes(array(&row, ID)?);
        Ok(Self { kind, now, number, id, row })
    }

    pub(super) fn fence(&self) -> Fence {
        Fence::new(unsigned(self.number.unwrap_or_default()))
    }

    /// Whether the record is expired, where the statement tells when it does.
    pub(super) fn is_expired(&self) -> bool {
        self.number.is_some_and(|at| timestamp(at) <= self.now)
    }

    /// The record, with a state that the caller knows already.
    pub(super) fn record_with(&self, state: State) -> Result<Record, StoreError> {
        let row = &self.row;
        let fingerprint: &[u8] = get(row, ID + 4)?;
        let fingerprint = fingerprint
            .split_first()
            .and_then(|(scheme, digest)| {
                Some(Fingerprint::from_parts(*scheme, digest.try_into().ok()?))
            })
            .ok_or_else(|| odd("fingerprint"))?;
        Ok(Record {
            id: self.id,
            attempt: AttemptId::from_bytes(array(row, ID + 2)?),
            fence: Fence::new(unsigned(get(row, ID + 3)?)),
            fingerprint,
            terms: Terms {
                ttl: duration(get(row, ID + 5)?),
                lease: duration(get(row, ID + 6)?),
                grace: duration(get(row, ID + 7)?),
                on_unknown: match get::<i16>(row, ID + 8)? {
                    0 => OnUnknown::Fail,
                    1 => OnUnknown::Reconcile,
                    2 => OnUnknown::Retry,
                    _ => return Err(odd("on_unknown")),
                },
            },
            created_at: timestamp(get(row, ID + 9)?),
            state,
        })
    }

    /// The end of the lease, or since when it is so.
    pub(super) fn state_at(&self) -> Result<Timestamp, StoreError> {
        Ok(timestamp(get(&self.row, ID + 10)?))
    }

    /// The whole record.
    pub(super) fn record(&self) -> Result<Record, StoreError> {
        self.record_with(self.state()?)
    }

    fn state(&self) -> Result<State, StoreError> {
        let (row, at) = (&self.row, self.state_at()?);
        Ok(match get::<i16>(row, ID + 1)? {
            0 => State::Running { lease_until: at },
            1 => State::Completed {
                at,
                recording: Recording {
                    head: bytes(get(row, ID + 11)?).unwrap_or_default(),
                    body: bytes(get(row, ID + 12)?),
                },
            },
            2 => State::Failed {
                at,
                failure: Failure { code: text(row, ID + 13)?, detail: text(row, ID + 14)? },
            },
            3 => State::Released { at },
            4 => {
                let cause = match text(row, ID + 13)?.as_str() {
                    "lease_ended" => Cause::LeaseEnded,
                    "restarted" => Cause::Restarted,
                    "interrupted" => Cause::Interrupted,
                    "timed_out" => Cause::TimedOut,
                    "reported" => Cause::Reported(text(row, ID + 14)?),
                    _ => return Err(odd("code")),
                };
                State::Unknown { at, cause }
            }
            _ => return Err(odd("state")),
        })
    }
}

/// A cause as the columns `code` and `detail`.
pub(super) fn cause(cause: &Cause) -> (&'static str, String) {
    match cause {
        Cause::LeaseEnded => ("lease_ended", String::new()),
        Cause::Restarted => ("restarted", String::new()),
        Cause::Interrupted => ("interrupted", String::new()),
        Cause::TimedOut => ("timed_out", String::new()),
        // And whatever comes later, in words.
        other => ("reported", other.to_string()),
    }
}

/// A fingerprint as one column.
pub(super) fn fingerprint(fingerprint: &Fingerprint) -> Vec<u8> {
    let mut bytes = vec![fingerprint.scheme()];
    bytes.extend_from_slice(fingerprint.digest());
    bytes
}

/// A duration as a column.
pub(super) fn column(duration: Duration) -> i64 {
    i64::try_from(micros(duration).min(DURATION_MAX)).unwrap_or(i64::MAX)
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(|error| odd("type of a column").with_source(error))
}

pub(super) fn array<const N: usize>(row: &Row, at: usize) -> Result<[u8; N], StoreError> {
    get::<&[u8]>(row, at)?.try_into().map_err(|_| odd("length of an id"))
}

fn bytes(column: Option<&[u8]>) -> Option<Bytes> {
    column.map(Bytes::copy_from_slice)
}

fn text(row: &Row, at: usize) -> Result<String, StoreError> {
    let bytes: Option<&[u8]> = get(row, at)?;
    String::from_utf8(bytes.unwrap_or_default().to_vec()).map_err(|_| odd("text"))
}

pub(super) fn timestamp(column: i64) -> Timestamp {
    Timestamp::from_micros(unsigned(column))
}

fn duration(column: i64) -> Duration {
    Duration::from_micros(unsigned(column))
}

fn unsigned(column: i64) -> u64 {
    u64::try_from(column).unwrap_or_default()
}

/// One row that nobody here wrote. The others are fine, so it is not the end of the process.
fn odd(what: &str) -> StoreError {
    let said =
        format!("a row of onetake_records holds an odd {what}: it was not written by onetake");
    StoreError::new(StoreErrorKind::Invalid, said)
}
