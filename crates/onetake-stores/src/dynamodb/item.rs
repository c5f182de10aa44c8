//! Conversion between records and items.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use onetake_core::clock::micros;
use onetake_core::store::DueAttempt;
use onetake_core::{
    AttemptId, Record, RecordId, Reference, Settlement, State, StoreError, StoreErrorKind,
    Transition, codec,
};

/// The largest item that DynamoDB accepts, names and values together.
const ITEM_BYTES_MAX: usize = 400 * 1024;
/// The space in an item beside its recording. A memo may need the larger part of it.
const OVERHEAD_BYTES: usize = 8192;

/// The largest recording, head and body together, that is stored completely.
pub const RECORDING_BYTES_MAX: usize = ITEM_BYTES_MAX - OVERHEAD_BYTES;

/// The number of index partitions over which running records, and records to reconcile, are spread.
pub(super) const SHARDS: u8 = 16;

/// An item of DynamoDB's client.
pub(super) type Item = HashMap<String, AttributeValue>;

/// A record that was read, and its version. A write that replaces it is conditional on both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionedRecord {
    pub(super) record: Record,
    pub(super) version: u64,
}

impl VersionedRecord {
    /// Reads a record from an item.
    pub(super) fn decode(item: &Item) -> Result<Self, StoreError> {
        let id = id(item).ok_or_else(|| unreadable("an item", "its id"))?;
        let bytes = item.get("r").and_then(|value| value.as_b().ok());
        let version =
            item.get("v").and_then(|value| value.as_n().ok()).and_then(|v| v.parse().ok());
        let reference = id.reference();
        let bytes = bytes.ok_or_else(|| unreadable(reference, "its record"))?.clone();
        let record = codec::decode(id, bytes.into_inner().into())
            .map_err(|error| unreadable(reference, error))?;
        let version = version.ok_or_else(|| unreadable(reference, "its version"))?;
        Ok(Self { record, version })
    }

    /// Returns the item to write. The server may delete it `margin` after its expiry.
    pub(super) fn encode(&self, margin: Duration) -> Item {
        let Self { record, version } = self;
        let mut item = HashMap::from([
            ("id".to_owned(), bytes(record.id.as_bytes())),
            ("v".to_owned(), number(*version)),
            ("s".to_owned(), AttributeValue::S(record.state.name().to_owned())),
            ("a".to_owned(), bytes(record.attempt.as_bytes())),
            ("f".to_owned(), number(record.fence.get())),
            ("p".to_owned(), bytes(record.fingerprint.digest())),
            ("c".to_owned(), number(record.created_at.as_micros())),
            ("h".to_owned(), reference(record.id.reference())),
            ("o".to_owned(), bytes(record.id.as_bytes())),
            ("r".to_owned(), bytes(&codec::encode(record))),
        ]);
        if let Some(at) = record.ask_at() {
            item.insert("q".to_owned(), number(u64::from(shard(record.id))));
            item.insert("t".to_owned(), number(at.as_micros()));
        }
        match record.expires_at() {
            None => {
                item.insert("w".to_owned(), number(u64::from(shard(record.id))));
            }
            Some(at) => {
                item.insert("e".to_owned(), number(at.as_micros()));
                let deletable =
                    at.plus(margin).as_micros().div_ceil(micros(Duration::from_secs(1)));
                item.insert("ttl".to_owned(), number(deletable));
            }
        }
        item
    }
}

/// The id of an item.
pub(super) fn id(item: &Item) -> Option<RecordId> {
    let bytes = item.get("id")?.as_b().ok()?.as_ref().try_into().ok()?;
    Some(RecordId::from_bytes(bytes))
}

/// Returns the attempt that an item of the index `asks` names.
pub(super) fn asked_for(item: &Item) -> Option<DueAttempt> {
    let attempt = item.get("a")?.as_b().ok()?.as_ref().try_into().ok()?;
    Some(DueAttempt { id: id(item)?, attempt: AttemptId::from_bytes(attempt) })
}

/// Returns the time from which the item is to be reconciled.
pub(super) fn ask_at(item: &Item) -> Option<u64> {
    item.get("t")?.as_n().ok()?.parse().ok()
}

/// Returns the attribute `h` of all records that have a reference: the first eight bytes of their
/// ids, with the last four bits zero, because they are not part of the reference.
pub(super) fn reference(reference: Reference) -> AttributeValue {
    bytes(&(reference.bits() << 4).to_be_bytes())
}

/// The key of a record.
pub(super) fn key(id: RecordId) -> AttributeValue {
    bytes(id.as_bytes())
}

pub(super) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(super) fn bytes(value: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

fn shard(id: RecordId) -> u8 {
    let [first, ..] = *id.as_bytes();
    first % SHARDS
}

/// Returns a settlement that fits into an item. A recording that is too large loses its body and,
/// if its head alone is too large, its head. This happens before the decision, so that the same
/// settlement sent twice is still the same.
pub(super) fn fitting(mut settlement: Settlement) -> Settlement {
    if let Transition::Complete(recording) = &mut settlement.transition {
        if recording.bytes() > RECORDING_BYTES_MAX {
            recording.body = None;
        }
        if recording.bytes() > RECORDING_BYTES_MAX {
            recording.head = bytes::Bytes::new();
        }
    }
    settlement
}

/// Returns true if an operator made the record be forgotten
/// ([`decide::settle`](onetake_core::decide::settle)). It is released with a ttl of zero, and so
/// expired by every clock, without a margin.
pub(super) fn is_forgotten(record: &Record) -> bool {
    record.terms.ttl.is_zero() && matches!(record.state, State::Released { .. })
}

/// Returns true if the record runs.
pub(super) fn runs(record: &Record) -> bool {
    matches!(record.state, State::Running { .. })
}

/// The error for one unreadable item: another program changed it, or a newer version wrote it. It
/// affects this key alone (S21).
fn unreadable(whose: impl Display, what: impl Display) -> StoreError {
    let what = format!("the record {whose} cannot be read: {what}");
    StoreError::new(StoreErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::origin::{
        AttemptHistory, HISTORY_BYTES_MAX, MEMO_BYTES_MAX, ROUTE_BYTES_MAX,
    };
    use onetake_core::{
        Cause, Failure, Fence, Fingerprint, Memo, OnUnknown, Origin, Recording, TenantDigest,
        Terms, Timestamp,
    };

    fn seen(state: State) -> VersionedRecord {
        let record = Record {
            id: RecordId::from_bytes([0xff; 16]),
            attempt: AttemptId::from_bytes([7; 16]),
            fence: Fence::new(u64::MAX),
            fingerprint: Fingerprint::of(b"x"),
            terms: Terms::default(),
            origin: Origin::new(TenantDigest::from_bytes([5; 16]), &"r".repeat(ROUTE_BYTES_MAX))
                .with_memo(Memo::new(vec![7; MEMO_BYTES_MAX]).unwrap()),
            created_at: Timestamp::from_micros(1_893_456_000_000_001),
            claimed_at: Timestamp::from_micros(1_893_456_000_000_001),
            history: AttemptHistory::from_text("h".repeat(HISTORY_BYTES_MAX)),
            state,
        };
        VersionedRecord { record, version: u64::MAX }
    }

    fn at() -> Timestamp {
        Timestamp::from_micros(1_893_456_100_000_001)
    }

    /// The size of an item as DynamoDB counts it: names and values in bytes, and at most 21 for a
    /// number.
    fn size(item: &Item) -> usize {
        let value = |value: &AttributeValue| match value {
            AttributeValue::B(bytes) => bytes.as_ref().len(),
            AttributeValue::S(text) => text.len(),
            AttributeValue::N(_) => 21,
            other => panic!("{other:?}"),
        };
        item.iter().map(|(name, held)| name.len() + value(held)).sum()
    }

    #[test]
    fn what_was_written_is_read() {
        for state in [
            State::Running { lease_until: at() },
            State::Completed { at: at(), recording: Recording::new("x") },
            State::Failed { at: at(), failure: Failure { code: "c".into(), detail: "d".into() } },
            State::Released { at: at() },
            State::Unknown { at: at(), cause: Cause::LeaseEnded, ask_at: at() },
        ] {
            let seen = seen(state);
            let item = seen.encode(Duration::from_secs(60));
            assert_eq!(VersionedRecord::decode(&item).unwrap(), seen);
            assert_eq!(
                item.contains_key("w"),
                runs(&seen.record),
                "only what runs is in the index"
            );
            let of_reference = [[0xff; 7].as_slice(), &[0xf0]].concat();
            assert_eq!(item["h"], bytes(&of_reference), "what all of its reference have");
            assert_eq!(item.contains_key("ttl"), !runs(&seen.record), "what runs never expires");
        }
    }

    #[test]
    fn the_server_deletes_a_margin_after_expiry_and_not_a_moment_before() {
        let seen = seen(State::Unknown { at: at(), cause: Cause::LeaseEnded, ask_at: at() });
        let item = seen.encode(Duration::from_secs(60));
        let ttl: u64 = item["ttl"].as_n().unwrap().parse().unwrap();
        let due = at().plus(Terms::default().ttl + Duration::from_secs(60)).as_micros();
        assert!(ttl * 1_000_000 >= due && ttl * 1_000_000 < due + 1_000_000);
    }

    #[test]
    fn whatever_is_kept_fits_into_an_item() {
        let texts = Failure { code: "c".repeat(512), detail: "d".repeat(512) };
        let long = seen(State::Failed { at: at(), failure: texts });
        assert!(size(&long.encode(Duration::ZERO)) < ITEM_BYTES_MAX);
        let recording = Recording::new(vec![0; RECORDING_BYTES_MAX]);
        let largest = seen(State::Completed { at: at(), recording });
        let left = ITEM_BYTES_MAX - size(&largest.encode(Duration::ZERO));
        // Encryption of a memo adds the name of its key, and some bytes.
        assert!(left > OVERHEAD_BYTES / 2, "{left} bytes to spare");
    }

    #[test]
    fn only_what_is_to_be_reconciled_is_in_the_index_of_asks() {
        let later = at().plus(Duration::from_secs(5));
        let unknown = State::Unknown { at: at(), cause: Cause::LeaseEnded, ask_at: later };
        for (on_unknown, state, is_asked_for) in [
            (OnUnknown::Reconcile, unknown.clone(), true),
            (OnUnknown::Reconcile, State::Running { lease_until: at() }, false),
            (OnUnknown::Reconcile, State::Released { at: at() }, false),
            (OnUnknown::Fail, unknown.clone(), false),
            (OnUnknown::Retry, unknown, false),
        ] {
            let mut seen = seen(state);
            seen.record.terms.on_unknown = on_unknown;
            let item = seen.encode(Duration::ZERO);
            assert_eq!(ask_at(&item), is_asked_for.then_some(later.as_micros()));
            assert_eq!(item.contains_key("q"), is_asked_for);
            let named = DueAttempt { id: seen.record.id, attempt: seen.record.attempt };
            assert_eq!(asked_for(&item), Some(named));
        }
    }

    #[test]
    fn what_does_not_fit_is_kept_as_not_replayable() {
        let fitted = |head: usize, body: usize| {
            let recording =
                Recording { head: vec![1; head].into(), body: Some(vec![2; body].into()) };
            let transition = Transition::Complete(recording);
            let VersionedRecord { record, .. } = seen(State::Released { at: at() });
            let settlement = Settlement { id: record.id, attempt: record.attempt, transition };
            match fitting(settlement).transition {
                Transition::Complete(kept) => (kept.head.len(), kept.body.map(|body| body.len())),
                other => panic!("{other:?}"),
            }
        };
        let most = RECORDING_BYTES_MAX;
        assert_eq!(fitted(100, most - 100), (100, Some(most - 100)));
        assert_eq!(fitted(100, most - 99), (100, None));
        assert_eq!(fitted(most, 1), (most, None));
        assert_eq!(fitted(most + 1, 1), (0, None));
    }
}
