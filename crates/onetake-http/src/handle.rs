//! Handles: by what a client asks later for the outcome of an operation that took long.
//!
//! A handle is the record's id and a MAC over it, the tenant and its proof: nobody can make one up,
//! and somebody else's is worth nothing. Nothing is stored for it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use onetake_core::RecordId;

use crate::tenant::Caller;

/// How much of the MAC stands in a handle: 128 bits.
const TAG_BYTES: usize = 16;
/// Base64 of the id and the tag, without padding.
const TEXT_BYTES: usize = (RecordId::BYTES + TAG_BYTES) * 4 / 3 + 1;

/// Makes handles, and recognises them.
pub(crate) struct Handles(Hmac<Sha256>);

impl Handles {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        // A key of the length of a block: the secret, and zeros.
        let mut block = [0; 64];
        block.iter_mut().zip(secret).for_each(|(to, from)| *to = *from);
        Self(<Hmac<Sha256> as KeyInit>::new(&block.into()))
    }

    /// The handle of a record, for this caller. It is always the same.
    pub(crate) fn of(&self, id: RecordId, caller: &Caller) -> String {
        let tag = self.mac(id, caller).finalize().into_bytes();
        let bytes: Vec<u8> =
            id.as_bytes().iter().chain(tag.iter().take(TAG_BYTES)).copied().collect();
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The record of a handle, if it was made for one of these callers.
    pub(crate) fn read(&self, text: &str, callers: &[Caller]) -> Option<RecordId> {
        if text.len() != TEXT_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (id, tag) = bytes.split_first_chunk::<{ RecordId::BYTES }>()?;
        let id = RecordId::from_bytes(*id);
        // `verify_truncated_left` takes the same time wherever the difference is; shorter tags, which
        // it would take too, cannot come from a text of this length.
        let fits = |caller| self.mac(id, caller).verify_truncated_left(tag).is_ok();
        callers.iter().any(fits).then_some(id)
    }

    fn mac(&self, id: RecordId, caller: &Caller) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(b"onetake handle v1");
        mac.update(id.as_bytes());
        for part in [&caller.tenant, &caller.proof] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tenant: &str, proof: &str) -> Caller {
        Caller { tenant: tenant.into(), proof: proof.into() }
    }

    #[test]
    fn a_handle_is_good_for_its_caller_alone() {
        let handles = Handles::new(&[7; 32]);
        let (id, alice) = (RecordId::from_bytes([1; 16]), caller("alice", "one"));
        let handle = handles.of(id, &alice);
        assert_eq!(handle, handles.of(id, &alice), "retries get the same");
        assert_eq!(handles.read(&handle, &[caller("bob", ""), alice.clone()]), Some(id));
        for other in [caller("bob", "one"), caller("alice", "two"), caller("aliceo", "ne")] {
            assert_eq!(handles.read(&handle, &[other]), None);
        }
        assert_eq!(handles.read(&handle, &[]), None);
        assert_eq!(Handles::new(&[8; 32]).read(&handle, &[alice]), None, "another server's secret");
    }

    #[test]
    fn every_change_is_noticed() {
        let (handles, alice) = (Handles::new(&[7; 32]), [caller("alice", "")]);
        let handle = handles.of(RecordId::from_bytes([1; 16]), &alice[0]);
        for at in 0..handle.len() {
            let mut bytes = handle.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(handles.read(&changed, &alice), None, "{at}");
            assert_eq!(handles.read(&handle[..at], &alice), None, "cut at {at}");
        }
        for longer in [format!("{handle}="), format!("{handle}A"), format!("{handle}/x")] {
            assert_eq!(handles.read(&longer, &alice), None);
        }
    }
}
