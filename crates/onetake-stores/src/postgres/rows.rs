//! Conversion between rows and records.

use std::time::Duration;

use bytes::Bytes;
use onetake_core::clock::{Timestamp, micros};
use onetake_core::origin::AttemptHistory;
use onetake_core::{
    AttemptId, Cause, Failure, Fence, Fingerprint, Origin, Record, RecordId, Recording, State,
    StoreError, StoreErrorKind, Terms,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::codes;

/// The longest duration that is stored: a hundred years, so that sums of a few durations cannot
/// overflow.
const DURATION_MAX: u64 = 100 * 365 * 24 * 3600 * 1_000_000;

/// The meaning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// The item was done.
    Done,
    /// The item was not done. This is its current record.
    Stands,
    /// All items were done. There is no other row, and only the columns `now` and `number` have a
    /// meaning.
    AllDone,
}

/// The row that statements on records return, one for each record.
pub(super) struct RecordRow {
    pub(super) kind: RowKind,
    /// The server's time when it read the record.
    pub(super) now: Timestamp,
    /// Claims: the fence that was granted. Settlements: the expiry of the record.
    pub(super) number: Option<i64>,
    /// The id of the record.
    pub(super) id: RecordId,
    row: Row,
}

// The columns of an answer.
const KIND: usize = 0;
const NOW: usize = 1;
const NUMBER: usize = 2;
const ID: usize = 3;
const NUMBERS: usize = 4;
const TEXTS: usize = 5;
const HEAD: usize = 6;
const BODY: usize = 7;

/// The numbers of a record, in the order of the column.
pub(super) struct Numbers {
    state: i64,
    fence: i64,
    ttl: i64,
    lease: i64,
    grace: i64,
    on_unknown: i64,
    created_at: i64,
    state_at: i64,
    claimed_at: i64,
    ask_at: Option<i64>,
}

/// The texts of a record, in the order of the column.
pub(super) struct Texts<'a> {
    attempt: &'a [u8],
    fingerprint: &'a [u8],
    origin: &'a [u8],
    history: Option<&'a [u8]>,
    pub(super) code: Option<&'a [u8]>,
    pub(super) detail: Option<&'a [u8]>,
}

impl RecordRow {
    pub(super) fn read(row: Row) -> Result<Self, StoreError> {
        let kind = match get::<i16>(&row, KIND)? {
            codes::row::DONE => RowKind::Done,
            codes::row::STANDS => RowKind::Stands,
            codes::row::ALL_DONE => RowKind::AllDone,
            _ => return Err(odd("kind")),
        };
        let now = timestamp(get(&row, NOW)?);
        let number = get(&row, NUMBER)?;
        let id = match kind {
            RowKind::AllDone => RecordId::from_bytes([0; 16]),
            _ => RecordId::from_bytes(array(&row, ID)?),
        };
        Ok(Self { kind, now, number, id, row })
    }

    pub(super) fn fence(&self) -> Fence {
        Fence::new(unsigned(self.number.unwrap_or_default()))
    }

    /// Returns true if the record is expired, for statements that return the expiry.
    pub(super) fn is_expired(&self) -> bool {
        self.number.is_some_and(|at| timestamp(at) <= self.now)
    }

    /// Returns a completed record with the recording that the caller has already.
    pub(super) fn record_with(&self, recording: &Recording) -> Result<Record, StoreError> {
        let numbers = self.numbers()?;
        let at = timestamp(numbers.state_at);
        let state = State::Completed { at, recording: recording.clone() };
        assemble(self.id, &numbers, &self.texts()?, state)
    }

    /// Returns the whole record.
    pub(super) fn record(&self) -> Result<Record, StoreError> {
        let (numbers, texts) = (self.numbers()?, self.texts()?);
        let state = state(&numbers, &texts, || self.recording())?;
        assemble(self.id, &numbers, &texts, state)
    }

    fn numbers(&self) -> Result<Numbers, StoreError> {
        Numbers::read(&get::<Vec<Option<i64>>>(&self.row, NUMBERS)?)
    }

    fn texts(&self) -> Result<Texts<'_>, StoreError> {
        Texts::read(&get::<Vec<Option<&[u8]>>>(&self.row, TEXTS)?)
    }

    fn recording(&self) -> Result<Recording, StoreError> {
        Ok(Recording {
            head: bytes(get(&self.row, HEAD)?).unwrap_or_default(),
            body: bytes(get(&self.row, BODY)?),
        })
    }
}

impl Numbers {
    pub(super) fn read(numbers: &[Option<i64>]) -> Result<Self, StoreError> {
        let [
            Some(state),
            Some(fence),
            Some(ttl),
            Some(lease),
            Some(grace),
            Some(on_unknown),
            Some(created_at),
            Some(state_at),
            Some(claimed_at),
            ask_at,
        ] = *numbers
        else {
            return Err(odd("number"));
        };
        Ok(Self {
            state,
            fence,
            ttl,
            lease,
            grace,
            on_unknown,
            created_at,
            state_at,
            claimed_at,
            ask_at,
        })
    }
}

impl<'a> Texts<'a> {
    pub(super) fn read(texts: &[Option<&'a [u8]>]) -> Result<Self, StoreError> {
        let [Some(attempt), Some(fingerprint), Some(origin), history, code, detail] = *texts else {
            return Err(odd("attempt, fingerprint or origin"));
        };
        Ok(Self { attempt, fingerprint, origin, history, code, detail })
    }
}

/// Puts a record together.
pub(super) fn assemble(
    id: RecordId,
    numbers: &Numbers,
    texts: &Texts<'_>,
    state: State,
) -> Result<Record, StoreError> {
    let attempt = <[u8; 16]>::try_from(texts.attempt).map_err(|_| odd("attempt"))?;
    let fingerprint = texts
        .fingerprint
        .split_first()
        .and_then(|(scheme, digest)| {
            Some(Fingerprint::from_parts(*scheme, digest.try_into().ok()?))
        })
        .ok_or_else(|| odd("fingerprint"))?;
    Ok(Record {
        id,
        attempt: AttemptId::from_bytes(attempt),
        fence: Fence::new(unsigned(numbers.fence)),
        fingerprint,
        terms: Terms {
            ttl: duration(numbers.ttl),
            lease: duration(numbers.lease),
            grace: duration(numbers.grace),
            on_unknown: codes::read_on_unknown(numbers.on_unknown)
                .ok_or_else(|| odd("on_unknown"))?,
        },
        origin: Origin::from_bytes(texts.origin).ok_or_else(|| odd("origin"))?,
        created_at: timestamp(numbers.created_at),
        claimed_at: timestamp(numbers.claimed_at),
        history: AttemptHistory::from_text(text(texts.history)?),
        state,
    })
}

/// The state of a record. `recording` is read only if the record is completed.
pub(super) fn state(
    numbers: &Numbers,
    texts: &Texts<'_>,
    recording: impl FnOnce() -> Result<Recording, StoreError>,
) -> Result<State, StoreError> {
    let at = timestamp(numbers.state_at);
    let Texts { code, detail, .. } = *texts;
    Ok(match numbers.state {
        codes::RUNNING => State::Running { lease_until: at },
        codes::COMPLETED => State::Completed { at, recording: recording()? },
        codes::FAILED => {
            let failure = Failure { code: text(code)?, detail: text(detail)? };
            State::Failed { at, failure }
        }
        codes::RELEASED => State::Released { at },
        codes::UNKNOWN => {
            let cause = match text(code)?.as_str() {
                codes::LEASE_ENDED => Cause::LeaseEnded,
                codes::RESTARTED => Cause::Restarted,
                codes::INTERRUPTED => Cause::Interrupted,
                codes::TIMED_OUT => Cause::TimedOut,
                codes::STATUS => Cause::Status(text(detail)?.parse().map_err(|_| odd("detail"))?),
                codes::REPORTED => Cause::Reported(text(detail)?),
                _ => return Err(odd("code")),
            };
            // Only a record that is to be reconciled has its own time.
            State::Unknown { at, cause, ask_at: numbers.ask_at.map_or(at, timestamp) }
        }
        _ => return Err(odd("state")),
    })
}

/// A cause as the columns `code` and `detail`.
pub(super) fn cause(cause: &Cause) -> (&'static str, String) {
    match cause {
        Cause::LeaseEnded => (codes::LEASE_ENDED, String::new()),
        Cause::Restarted => (codes::RESTARTED, String::new()),
        Cause::Interrupted => (codes::INTERRUPTED, String::new()),
        Cause::TimedOut => (codes::TIMED_OUT, String::new()),
        Cause::Status(status) => (codes::STATUS, status.to_string()),
        // Other causes, also future ones, are stored as text.
        other => (codes::REPORTED, other.to_string()),
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

fn text(bytes: Option<&[u8]>) -> Result<String, StoreError> {
    String::from_utf8(bytes.unwrap_or_default().to_vec()).map_err(|_| odd("text"))
}

pub(super) fn timestamp(column: i64) -> Timestamp {
    Timestamp::from_micros(unsigned(column))
}

fn duration(column: i64) -> Duration {
    Duration::from_micros(unsigned(column))
}

pub(super) fn unsigned(column: i64) -> u64 {
    u64::try_from(column).unwrap_or_default()
}

/// The error for one row that onetake did not write. Other rows are fine, so the process goes on.
fn odd(what: &str) -> StoreError {
    let said =
        format!("a row in a table of onetake has an invalid {what}: onetake did not write it");
    StoreError::new(StoreErrorKind::Invalid, said)
}
