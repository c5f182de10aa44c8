//! Scopes of keys, record ids, and the short references of records.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::key::Key;

/// The tenant and namespace of a key. A key is unique inside its scope, whatever the path.
///
/// Its `Debug` form hides the tenant, which may be a credential.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    tenant: Vec<u8>,
    namespace: String,
}

impl Scope {
    /// Creates the scope of `tenant` in the default namespace.
    ///
    /// The tenant must not change between the retries of one operation. The bytes must include the
    /// tenant's kind (credential, header, public), so that no two kinds can name the same tenant.
    #[must_use]
    pub fn new(tenant: impl Into<Vec<u8>>) -> Self {
        Self { tenant: tenant.into(), namespace: String::new() }
    }

    /// Sets the namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.namespace
    }

    /// The tenant, which may be a credential.
    #[must_use]
    pub fn tenant(&self) -> &[u8] {
        &self.tenant
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// The id of a record: 128 bits of SHA-256 over the length-prefixed tenant, namespace and key.
///
/// 128 bits are enough although clients choose the keys: reaching another tenant's record takes a
/// second preimage, not a collision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; RecordId::BYTES]);

impl RecordId {
    /// The number of bytes of an id.
    pub const BYTES: usize = 16;

    /// Returns the id of `key` inside `scope`.
    #[must_use]
    pub fn derive(scope: &Scope, key: &Key) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"onetake record v1");
        for part in [&*scope.tenant, scope.namespace.as_bytes(), key.as_str().as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut id = [0; Self::BYTES];
        for (to, from) in id.iter_mut().zip(hash.finalize()) {
            *to = from;
        }
        Self(id)
    }

    /// Creates an id from stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Returns the short form for people: the first sixty bits.
    #[must_use]
    pub fn reference(&self) -> Reference {
        let mut bits = 0_u64;
        for byte in self.0.iter().take(8) {
            bits = bits << 8 | u64::from(*byte);
        }
        Reference(bits >> 4)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({})", self.reference())
    }
}

/// A short name of a record for people and support, as `XXXX-XXXX-XXXX`.
///
/// It is the beginning of the record's id, so stores that keep records in the order of their ids
/// find it without a separate index.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reference(u64);

/// Thirty-two characters without 0, O, 1 and I, which people confuse.
const ALPHABET: &[u8; 32] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";

impl Reference {
    /// Returns the range of ids that have this reference.
    #[must_use]
    pub fn ids(self) -> RangeInclusive<RecordId> {
        let id = |rest: u128| RecordId((u128::from(self.0) << 68 | rest).to_be_bytes());
        id(0)..=id((1 << 68) - 1)
    }

    /// Returns the sixty bits, in the low end of the number.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl Reference {
    /// The bytes of the text: twelve characters and two hyphens.
    const TEXT_BYTES: usize = 14;

    /// Returns the text, in ASCII. It needs no allocation: the reference is a header of most
    /// responses.
    #[must_use]
    pub fn to_ascii(self) -> [u8; Self::TEXT_BYTES] {
        let mut text = [b'-'; Self::TEXT_BYTES];
        let places = text.iter_mut().enumerate().filter(|(at, _)| !matches!(at, 4 | 9));
        for ((_, place), number) in places.zip(0..12_u32) {
            let sign = (self.0 >> (55 - 5 * number)) & 31;
            let sign = ALPHABET.get(usize::try_from(sign).unwrap_or_default()).copied();
            *place = sign.unwrap_or(b'?');
        }
        text
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.to_ascii()).unwrap_or_default())
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a reference: expected twelve characters of 2-9 and A-Z (without I and O), such as ABCD-EFGH-JKLM"
)]
pub struct ReferenceError;

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let mut bits = 0_u64;
        let mut signs = 0;
        for byte in text.bytes().filter(|b| *b != b'-') {
            let byte = byte.to_ascii_uppercase();
            let sign = ALPHABET.iter().position(|a| *a == byte).ok_or(ReferenceError)?;
            bits = bits << 5 | sign as u64;
            signs += 1;
            if signs > 12 {
                return Err(ReferenceError);
            }
        }
        if signs == 12 { Ok(Self(bits)) } else { Err(ReferenceError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(tenant: &str, namespace: &str, key: &str) -> RecordId {
        RecordId::derive(&Scope::new(tenant).namespace(namespace), &Key::new(key).unwrap())
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(id("ab", "c", "k"), id("a", "bc", "k"));
        assert_ne!(id("a", "", "bk"), id("a", "b", "k"));
        assert_ne!(id("a", "", "k"), id("b", "", "k"));
        assert_eq!(id("a", "n", "k"), id("a", "n", "k"));
    }

    #[test]
    fn ids_stay_what_they_are() {
        // A change of this id breaks every key in existing stores.
        let id = id("credential:abc", "", "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90");
        assert_eq!(id.reference().to_string(), "9B5H-6U57-LCAG");
    }

    #[test]
    fn references_are_read_leniently() {
        let reference = id("t", "", "k").reference();
        let text = reference.to_string();
        assert_eq!(text.parse(), Ok(reference));
        assert_eq!(text.to_lowercase().replace('-', "").parse(), Ok(reference));
        let id = id("t", "", "k");
        assert!(reference.ids().contains(&id));
        assert_eq!(reference.ids().start().reference(), reference);
        assert_eq!(reference.ids().end().reference(), reference);
        assert!("ABCD-EFGH".parse::<Reference>().is_err());
        assert!("0BCD-EFGH-JKLM".parse::<Reference>().is_err());
    }

    proptest! {
        #[test]
        fn other_parts_other_id(
            a in ("[a-c]{0,3}", "[a-c]{0,3}", "[a-c]{1,3}"),
            b in ("[a-c]{0,3}", "[a-c]{0,3}", "[a-c]{1,3}"),
        ) {
            let same = id(&a.0, &a.1, &a.2) == id(&b.0, &b.1, &b.2);
            prop_assert_eq!(same, a == b);
        }
    }
}
