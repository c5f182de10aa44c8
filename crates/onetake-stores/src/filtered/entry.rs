//! The format of an entry in Redis: a finished record under a MAC.
//!
//! Redis is not trusted: anyone who can write to it may copy an entry under another id, cut it, or
//! restore an older one. The MAC covers the format, the id, the fence, the expiry, the end of use
//! and the record. So an entry is either exactly what a node wrote for this id, or it is refused.

use aws_lc_rs::{constant_time, hmac};
use bytes::{BufMut, Bytes, BytesMut};

use onetake_core::codec::{self, Reader};
use onetake_core::{Record, RecordId, State, Timestamp};

/// The format that is written. Entries of any other format are refused.
const VERSION: u8 = 1;
/// The length of the MAC in bytes.
const MAC_BYTES: usize = 32;
/// The length of the fields before the record: version, fence, expiry, end of use, MAC.
pub(super) const HEAD_BYTES: usize = 1 + 3 * 8 + MAC_BYTES;

/// Returns true if a record may be in the filter: its outcome is known and cannot change any more
/// (S4).
pub(super) fn is_finished(record: &Record) -> bool {
    matches!(record.state, State::Completed { .. } | State::Failed { .. })
}

/// An entry whose MAC is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The finished record.
    pub(super) record: Record,
    /// The end of use: the record's expiry, or earlier.
    pub(super) until: Timestamp,
}

/// The reason why bytes are not an entry for the requested id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryError {
    /// The bytes are cut, or have another version.
    Format,
    /// The MAC is wrong: it was made with another secret or for another id, or the entry was
    /// changed.
    Mac,
    /// The MAC is right, but its fields contradict the record as this version reads it.
    Content,
}

/// Creates and reads entries.
pub(super) struct Seal {
    key: hmac::Key,
}

impl Seal {
    /// Creates a seal with a derived key, so that the secret can be used elsewhere too.
    pub(super) fn new(secret: &[u8]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = hmac::sign(&secret, b"onetake filter entry v1");
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()) }
    }

    /// Returns the entry of a finished record; `None` for any other record, which must never get
    /// into the filter.
    pub(super) fn close(&self, record: &Record, until: Timestamp) -> Option<Bytes> {
        let expires_at = record.expires_at().filter(|_| is_finished(record))?;
        let encoded = codec::encode(record);
        let mut out = BytesMut::with_capacity(HEAD_BYTES + encoded.len());
        out.put_u8(VERSION);
        out.put_u64(record.fence.get());
        out.put_u64(expires_at.as_micros());
        out.put_u64(until.min(expires_at).as_micros());
        let mac = self.mac(record.id, &out, &encoded);
        out.put_slice(mac.as_ref());
        out.put_slice(&encoded);
        Some(out.freeze())
    }

    /// Reads an entry that [`close`](Self::close) created for this id.
    pub(super) fn open(&self, id: RecordId, mut bytes: Bytes) -> Result<Entry, EntryError> {
        if bytes.len() < HEAD_BYTES {
            return Err(EntryError::Format);
        }
        let mut head = bytes.split_to(HEAD_BYTES);
        let mac = head.split_off(HEAD_BYTES - MAC_BYTES);
        if head.first() != Some(&VERSION) {
            return Err(EntryError::Format);
        }
        // The MAC is verified before anything else is used.
        let expected = self.mac(id, &head, &bytes);
        constant_time::verify_slices_are_equal(expected.as_ref(), &mac)
            .map_err(|_| EntryError::Mac)?;

        let mut fields = Reader(head.slice(1..));
        let mut number = || fields.array("head").map(u64::from_be_bytes);
        let (Ok(fence), Ok(expires_at), Ok(until)) = (number(), number(), number()) else {
            return Err(EntryError::Format);
        };
        let record = codec::decode(id, bytes).map_err(|_| EntryError::Content)?;
        let fits = is_finished(&record)
            && record.fence.get() == fence
            && record.expires_at() == Some(Timestamp::from_micros(expires_at));
        if !fits {
            return Err(EntryError::Content);
        }
        Ok(Entry { record, until: Timestamp::from_micros(until.min(expires_at)) })
    }

    /// Returns the MAC. Every part but the last has a fixed length, so no two entries have the same
    /// bytes under the MAC.
    fn mac(&self, id: RecordId, head: &[u8], record: &[u8]) -> hmac::Tag {
        let mut mac = hmac::Context::with_key(&self.key);
        mac.update(id.as_bytes());
        mac.update(head);
        mac.update(record);
        mac.sign()
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::{
        AttemptId, Cause, Failure, Fence, Fingerprint, OnUnknown, Recording, Terms,
    };
    use proptest::prelude::*;
    use std::time::Duration;

    fn record(id: [u8; 16], state: State) -> Record {
        Record {
            id: RecordId::from_bytes(id),
            attempt: AttemptId::from_bytes([2; 16]),
            fence: Fence::new(77),
            fingerprint: Fingerprint::of(b"pay"),
            terms: Terms { on_unknown: OnUnknown::Fail, ..Terms::default() },
            origin: onetake_core::Origin::new(
                onetake_core::TenantDigest::from_bytes([5; 16]),
                "POST /pay",
            ),
            created_at: at(1_000),
            claimed_at: at(1_000),
            history: onetake_core::origin::AttemptHistory::from_text("1 2 3 released\n".to_owned()),
            state,
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn finished(id: [u8; 16], body: Vec<u8>, failed: bool) -> Record {
        let state = if failed {
            let failure = Failure { code: "declined".into(), detail: "no".into() };
            State::Failed { at: at(1_001), failure }
        } else {
            State::Completed { at: at(1_001), recording: Recording::new(body) }
        };
        record(id, state)
    }

    proptest! {
        #[test]
        fn what_was_closed_opens_for_its_own_id_and_secret_alone(
            id in any::<[u8; 16]>(),
            other in any::<[u8; 16]>(),
            body in proptest::collection::vec(any::<u8>(), 0..200),
            failed in any::<bool>(),
        ) {
            prop_assume!(id != other);
            let seal = Seal::new(b"a secret of a node");
            let record = finished(id, body, failed);
            let bytes = seal.close(&record, at(2_000)).unwrap();
            let entry = Entry { record: record.clone(), until: at(2_000) };
            prop_assert_eq!(seal.open(record.id, bytes.clone()), Ok(entry));
            prop_assert_eq!(seal.open(RecordId::from_bytes(other), bytes.clone()), Err(EntryError::Mac));
            prop_assert_eq!(Seal::new(b"another secret").open(record.id, bytes), Err(EntryError::Mac));
        }

        #[test]
        fn any_changed_byte_is_refused(
            body in proptest::collection::vec(any::<u8>(), 0..200),
            place in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
        ) {
            let seal = Seal::new(b"a secret of a node");
            let record = finished([1; 16], body, false);
            let mut bytes = seal.close(&record, at(2_000)).unwrap().to_vec();
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            prop_assert!(seal.open(record.id, bytes.into()).is_err());
        }

        #[test]
        fn cut_longer_or_made_up_bytes_are_refused(
            body in proptest::collection::vec(any::<u8>(), 0..200),
            cut in any::<prop::sample::Index>(),
            garbage in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let seal = Seal::new(b"a secret of a node");
            let record = finished([1; 16], body, false);
            let bytes = seal.close(&record, at(2_000)).unwrap();
            prop_assert!(seal.open(record.id, bytes.slice(..cut.index(bytes.len()))).is_err());
            let mut longer = bytes.to_vec();
            longer.extend_from_slice(&[0]);
            prop_assert!(seal.open(record.id, longer.into()).is_err());
            prop_assert!(seal.open(record.id, garbage.into()).is_err());
        }
    }

    #[test]
    fn only_the_finished_gets_in() {
        let seal = Seal::new(b"a secret of a node");
        for state in [
            State::Running { lease_until: at(1_030) },
            State::Released { at: at(1_001) },
            State::Unknown { at: at(1_001), cause: Cause::TimedOut, ask_at: at(1_001) },
        ] {
            assert_eq!(seal.close(&record([1; 16], state), at(2_000)), None);
        }
    }

    #[test]
    fn it_is_not_used_past_the_expiry_of_its_record() {
        let seal = Seal::new(b"a secret of a node");
        let record = finished([1; 16], vec![], false);
        let far = record.expires_at().unwrap().plus(Duration::from_secs(1));
        let bytes = seal.close(&record, far).unwrap();
        let entry = seal.open(record.id, bytes).unwrap();
        assert_eq!(Some(entry.until), record.expires_at());
    }

    #[test]
    fn another_version_is_refused() {
        let seal = Seal::new(b"a secret of a node");
        let record = finished([1; 16], vec![], false);
        let mut bytes = seal.close(&record, at(2_000)).unwrap().to_vec();
        bytes[0] = VERSION + 1;
        assert_eq!(seal.open(record.id, bytes.into()), Err(EntryError::Format));
    }
}
