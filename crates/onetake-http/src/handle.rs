//! Handles of operations that were answered with 202. A client fetches the outcome by its handle.
//!
//! A handle holds the record's id, a short digest of the request, and a MAC over both, the tenant
//! and its proof. Clients cannot forge a handle, and a handle is useless to another tenant. The
//! store keeps nothing for it.
//!
//! The digest of the request distinguishes two uses of a key. A record can expire before its handle
//! is used. If another request is then sent under the same key, the handle does not lead to its
//! outcome (S9).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use onetake_core::{Fingerprint, RecordId};

use crate::tenant::Caller;

/// Bytes of the MAC in a handle: 128 bits.
const TAG_BYTES: usize = 16;
/// Bytes of each fingerprint's digest in a handle: 32 bits.
const PRINT_BYTES: usize = 4;
/// The most fingerprints in a handle: one for each secret that seals fingerprints.
const PRINTS_MAX: usize = 8;
/// The longest handle, in base64 without padding.
const TEXT_BYTES_MAX: usize =
    (RecordId::BYTES + TAG_BYTES + PRINT_BYTES * PRINTS_MAX).div_ceil(3) * 4;

/// Creates and verifies handles.
pub(crate) struct Handles(Hmac<Sha256>);

/// A handle whose MAC was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    /// The id of the operation's record.
    pub(crate) id: RecordId,
    prints: Vec<[u8; PRINT_BYTES]>,
}

impl Handles {
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        // A key of one block: the secret, padded with zeros.
        let mut block = [0; 64];
        block.iter_mut().zip(secret).for_each(|(to, from)| *to = *from);
        Self(<Hmac<Sha256> as KeyInit>::new(&block.into()))
    }

    /// Returns the handle of a record for this caller and this request.
    ///
    /// `fingerprints` are the request's fingerprints under all secrets that are in use. The record
    /// has one of them. The same request always gets the same handle.
    pub(crate) fn of<'a>(
        &self,
        id: RecordId,
        caller: &Caller,
        fingerprints: impl IntoIterator<Item = &'a Fingerprint>,
    ) -> String {
        let mut prints: Vec<_> =
            fingerprints.into_iter().take(PRINTS_MAX).map(|print| self.print(print)).collect();
        // Sorted, so that the order does not depend on which secret is the newest.
        prints.sort_unstable();
        let tag = self.mac(id, caller, &prints).finalize().into_bytes();
        let mut bytes: Vec<u8> =
            id.as_bytes().iter().chain(tag.iter().take(TAG_BYTES)).copied().collect();
        bytes.extend(prints.iter().flatten());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a handle, if it was created for one of these callers.
    pub(crate) fn read(&self, text: &str, callers: &[Caller]) -> Option<Handle> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (id, rest) = bytes.split_first_chunk::<{ RecordId::BYTES }>()?;
        let (tag, rest) = rest.split_first_chunk::<TAG_BYTES>()?;
        let (prints, odd) = rest.as_chunks::<PRINT_BYTES>();
        if prints.is_empty() || !odd.is_empty() {
            return None;
        }
        let id = RecordId::from_bytes(*id);
        // `verify_truncated_left` compares in constant time.
        let fits = |caller| self.mac(id, caller, prints).verify_truncated_left(tag).is_ok();
        callers.iter().any(fits).then(|| Handle { id, prints: prints.to_vec() })
    }

    /// Returns true if a record's fingerprint is that of the request that the handle was created
    /// for.
    pub(crate) fn is_for(&self, handle: &Handle, fingerprint: &Fingerprint) -> bool {
        handle.prints.contains(&self.print(fingerprint))
    }

    fn print(&self, fingerprint: &Fingerprint) -> [u8; PRINT_BYTES] {
        let mut mac = self.0.clone();
        mac.update(b"onetake handle print v1");
        mac.update(fingerprint.digest());
        let digest = mac.finalize().into_bytes();
        let mut print = [0; PRINT_BYTES];
        print.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        print
    }

    fn mac(&self, id: RecordId, caller: &Caller, prints: &[[u8; PRINT_BYTES]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(b"onetake handle v2");
        mac.update(id.as_bytes());
        for part in [&*caller.tenant, &*caller.proof, prints.as_flattened()] {
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
        let pay = [Fingerprint::of(b"pay")];
        let handle = handles.of(id, &alice, &pay);
        assert_eq!(handle, handles.of(id, &alice, &pay), "retries get the same");
        let read = handles.read(&handle, &[caller("bob", ""), alice.clone()]);
        assert_eq!(read.map(|handle| handle.id), Some(id));
        for other in [caller("bob", "one"), caller("alice", "two"), caller("aliceo", "ne")] {
            assert_eq!(handles.read(&handle, &[other]), None);
        }
        assert_eq!(handles.read(&handle, &[]), None);
        assert_eq!(Handles::new(&[8; 32]).read(&handle, &[alice]), None, "another server's secret");
    }

    #[test]
    fn a_handle_is_for_its_request_alone() {
        let (handles, alice) = (Handles::new(&[7; 32]), [caller("alice", "")]);
        let (newer, older) = (Fingerprint::of(b"pay, newer"), Fingerprint::of(b"pay, older"));
        let id = RecordId::from_bytes([1; 16]);
        let text = handles.of(id, &alice[0], [&newer, &older]);
        assert_eq!(text, handles.of(id, &alice[0], [&older, &newer]), "whichever secret is first");
        let handle = handles.read(&text, &alice).unwrap();
        assert!(handles.is_for(&handle, &newer) && handles.is_for(&handle, &older));
        assert!(!handles.is_for(&handle, &Fingerprint::of(b"something else")));
        let most: Vec<_> = (0..=20).map(|number| Fingerprint::of(&[number])).collect();
        assert!(handles.read(&handles.of(id, &alice[0], &most), &alice).is_some());
    }

    #[test]
    fn every_change_is_noticed() {
        let (handles, alice) = (Handles::new(&[7; 32]), [caller("alice", "")]);
        let handle =
            handles.of(RecordId::from_bytes([1; 16]), &alice[0], &[Fingerprint::of(b"pay")]);
        for at in 0..handle.len() {
            let mut bytes = handle.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(handles.read(&changed, &alice), None, "{at}");
            assert_eq!(handles.read(&handle[..at], &alice), None, "cut at {at}");
        }
        let mut odd = URL_SAFE_NO_PAD.decode(&handle).unwrap();
        odd.push(0);
        assert_eq!(handles.read(&URL_SAFE_NO_PAD.encode(odd), &alice), None, "a byte more");
        for longer in [format!("{handle}="), format!("{handle}A"), format!("{handle}/x")] {
            assert_eq!(handles.read(&longer, &alice), None);
        }
    }
}
