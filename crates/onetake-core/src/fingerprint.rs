//! A digest of what was asked: compared, never part of a record's identity.

use std::fmt;

use sha2::{Digest, Sha256};

/// What was asked, as a digest, with the scheme by which it was made.
///
/// Two fingerprints of different schemes are never equal, so a change of scheme refuses live keys
/// instead of replaying the wrong outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    scheme: u8,
    digest: [u8; 32],
}

impl Fingerprint {
    /// The scheme that this version writes: SHA-256 over length-prefixed parts.
    pub const SCHEME: u8 = 1;

    /// A fingerprint over one piece of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Fingerprinter::new().part(bytes).finish()
    }

    /// A fingerprint as a store kept it.
    #[must_use]
    pub const fn from_parts(scheme: u8, digest: [u8; 32]) -> Self {
        Self { scheme, digest }
    }

    /// How it was made.
    #[must_use]
    pub const fn scheme(&self) -> u8 {
        self.scheme
    }

    /// The digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bodies may be guessed from their digest: keep it out of logs.
        write!(f, "Fingerprint(scheme {})", self.scheme)
    }
}

/// Builds a fingerprint from parts that cannot run into each other.
#[derive(Clone, Debug)]
pub struct Fingerprinter(Sha256);

impl Fingerprinter {
    /// Nothing asked yet.
    #[must_use]
    pub fn new() -> Self {
        let mut hash = Sha256::new();
        hash.update(b"onetake fingerprint v1");
        Self(hash)
    }

    /// Adds one part.
    #[must_use]
    pub fn part(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    /// The fingerprint of all parts, in their order.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        Fingerprint { scheme: Fingerprint::SCHEME, digest: self.0.finalize().into() }
    }
}

impl Default for Fingerprinter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_borders() {
        let one = Fingerprinter::new().part(b"ab").part(b"c").finish();
        let other = Fingerprinter::new().part(b"a").part(b"bc").finish();
        assert_ne!(one, other);
        assert_ne!(Fingerprint::of(b""), Fingerprinter::new().finish());
    }
}
