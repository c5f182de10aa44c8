//! The format of a journal file.

use bytes::{BufMut, Bytes, BytesMut};

use onetake_core::codec::{DecodeError, Reader, put_cause, put_slice};
use onetake_core::{AttemptId, Failure, Fingerprint, RecordId, Recording, Settlement, Transition};

/// The first bytes of every file.
pub(super) const TITLE: &[u8] = b"onetake journal 1\n";

/// A digest that identifies the store that a file belongs to.
pub(super) type StoreDigest = [u8; 32];

pub(super) type Decoded = Result<(StoreDigest, Vec<Settlement>), DecodeError>;

/// Encodes settlements into files. A file contains the title, the store's identity, settlements
/// (each after its length), and a digest of everything before it. A file takes no more settlements
/// once it has at least `bytes` bytes.
pub(super) fn encode(
    store: &StoreDigest,
    settlements: &[Settlement],
    bytes: usize,
) -> impl Iterator<Item = Bytes> {
    let mut rest = settlements.iter().peekable();
    std::iter::from_fn(move || {
        rest.peek()?;
        let mut out = BytesMut::new();
        out.put_slice(TITLE);
        out.put_slice(store);
        while out.len() < bytes
            && let Some(settlement) = rest.next()
        {
            put_slice(&mut out, &encode_one(settlement));
        }
        let digest = Fingerprint::of(&out);
        out.put_slice(digest.digest());
        Some(out.freeze())
    })
}

pub(super) fn decode(mut bytes: Bytes) -> Decoded {
    let cut = DecodeError::new("the file is truncated");
    let end = bytes.len().checked_sub(32).ok_or(cut.clone())?;
    let digest = bytes.split_off(end);
    if Fingerprint::of(&bytes).digest().as_slice() != digest.as_ref() {
        return Err(DecodeError::new("the checksum of the file is wrong"));
    }
    let entries = bytes.strip_prefix(TITLE).ok_or(cut)?;
    let mut from = Reader(Bytes::copy_from_slice(entries));
    let store = from.array("the store")?;
    let mut settlements = Vec::new();
    while !from.0.is_empty() {
        settlements.push(decode_one(from.slice("a settlement")?)?);
    }
    Ok((store, settlements))
}

fn encode_one(settlement: &Settlement) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(settlement.id.as_bytes());
    out.put_slice(settlement.attempt.as_bytes());
    match &settlement.transition {
        Transition::Complete(recording) => {
            out.put_u8(1);
            put_slice(&mut out, &recording.head);
            out.put_u8(u8::from(recording.body.is_some()));
            put_slice(&mut out, recording.body.as_deref().unwrap_or_default());
        }
        Transition::Fail(failure) => {
            out.put_u8(2);
            put_slice(&mut out, failure.code.as_bytes());
            put_slice(&mut out, failure.detail.as_bytes());
        }
        Transition::Release => out.put_u8(3),
        Transition::Unknown(cause) => {
            out.put_u8(4);
            put_cause(&mut out, cause);
        }
        Transition::Renew
        | Transition::ExpireLease
        | Transition::PostponeReconcile(_)
        | Transition::Forget => out.put_u8(0),
    }
    out.freeze()
}

fn decode_one(bytes: Bytes) -> Result<Settlement, DecodeError> {
    let mut from = Reader(bytes);
    let id = RecordId::from_bytes(from.array("id")?);
    let attempt = AttemptId::from_bytes(from.array("attempt")?);
    let transition = match from.u8("verb")? {
        // A transition that only mattered while the attempt ran.
        0 => Transition::Renew,
        1 => {
            let head = from.slice("head")?;
            let kept = from.u8("body flag")? == 1;
            let body = from.slice("body")?;
            Transition::Complete(Recording { head, body: kept.then_some(body) })
        }
        2 => Transition::Fail(Failure { code: from.text("code")?, detail: from.text("detail")? }),
        3 => Transition::Release,
        4 => Transition::Unknown(from.cause("cause")?),
        _ => return Err(DecodeError::new("verb")),
    };
    from.end()?;
    Ok(Settlement { id, attempt, transition })
}
