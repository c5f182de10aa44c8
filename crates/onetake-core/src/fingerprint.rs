//! A digest of what was asked: compared, never part of a record's identity.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::derived::keyed;

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
    /// Made without a secret: SHA-256 over length-prefixed parts.
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

/// A server's secret: whoever sees fingerprints that were sealed with it cannot try out what they were
/// made from, such as card numbers.
#[derive(Clone)]
pub struct FingerprintKey {
    scheme: u8,
    mac: Hmac<Sha256>,
}

impl FingerprintKey {
    /// A secret and its name. The name decides on the scheme of what it seals, so that a record tells
    /// which secret was in use.
    #[must_use]
    pub fn new(id: &str, secret: &[u8; 32]) -> Self {
        // The lower half of all schemes is for those without a secret.
        let first = Sha256::digest(id.as_bytes()).first().copied().unwrap_or_default();
        Self { scheme: first | 0x80, mac: keyed(secret) }
    }

    /// The fingerprint with the secret in it.
    #[must_use]
    pub fn seal(&self, plain: Fingerprint) -> Fingerprint {
        let mut mac = self.mac.clone();
        mac.update(b"onetake fingerprint v1");
        mac.update(&[plain.scheme]);
        mac.update(&plain.digest);
        Fingerprint { scheme: self.scheme, digest: mac.finalize().into_bytes().into() }
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FingerprintKey(scheme {})", self.scheme)
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
    fn a_secret_changes_everything_about_it() {
        let plain = Fingerprint::of(b"4242 4242 4242 4242");
        let one = FingerprintKey::new("f1", &[1; 32]);
        assert_eq!(one.seal(plain), FingerprintKey::new("f1", &[1; 32]).seal(plain));
        assert_ne!(one.seal(plain).digest(), plain.digest());
        assert_ne!(
            one.seal(plain).digest(),
            FingerprintKey::new("f1", &[2; 32]).seal(plain).digest()
        );
        assert_ne!(
            one.seal(plain).scheme(),
            FingerprintKey::new("f2", &[1; 32]).seal(plain).scheme()
        );
        assert_ne!(one.seal(plain), one.seal(Fingerprint::of(b"another")));
    }

    #[test]
    fn parts_keep_their_borders() {
        let one = Fingerprinter::new().part(b"ab").part(b"c").finish();
        let other = Fingerprinter::new().part(b"a").part(b"bc").finish();
        assert_ne!(one, other);
        assert_ne!(Fingerprint::of(b""), Fingerprinter::new().finish());
    }
}
