//! The digest of a request. It is compared, and is never part of a record's id.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::derived::keyed;

/// The digest of a request, with the scheme by which it was made.
///
/// Two fingerprints of different schemes are never equal. So after a change of scheme, live keys
/// are refused instead of replaying the wrong outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    scheme: u8,
    digest: [u8; 32],
}

impl Fingerprint {
    /// The scheme without a secret: SHA-256 over length-prefixed parts.
    pub const SCHEME: u8 = 1;

    /// Returns the fingerprint of one sequence of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Fingerprinter::new().part(bytes).finish()
    }

    /// Creates a fingerprint from stored parts.
    #[must_use]
    pub const fn from_parts(scheme: u8, digest: [u8; 32]) -> Self {
        Self { scheme, digest }
    }

    /// Returns the scheme.
    #[must_use]
    pub const fn scheme(&self) -> u8 {
        self.scheme
    }

    /// Returns the digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bodies could be guessed from their digest: it stays out of logs.
        write!(f, "Fingerprint(scheme {})", self.scheme)
    }
}

/// A server's secret for fingerprints. Without the secret, a reader of sealed fingerprints cannot
/// find out by trial what they were made from, such as card numbers.
#[derive(Clone)]
pub struct FingerprintKey {
    scheme: u8,
    mac: Hmac<Sha256>,
}

impl FingerprintKey {
    /// Creates a key from a secret and its name. The scheme of its fingerprints is made from the
    /// name, so that a record shows which secret was used.
    #[must_use]
    pub fn new(id: &str, secret: &[u8; 32]) -> Self {
        // Schemes below 128 are for fingerprints without a secret.
        let first = Sha256::digest(id.as_bytes()).first().copied().unwrap_or_default();
        Self { scheme: first | 0x80, mac: keyed(secret) }
    }

    /// Returns the fingerprint sealed with the secret.
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

/// Builds a fingerprint from parts. Each part is prefixed with its length, so that parts cannot run
/// into each other.
#[derive(Clone, Debug)]
pub struct Fingerprinter(Sha256);

impl Fingerprinter {
    /// Creates a fingerprinter without parts.
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

    /// Returns the fingerprint of all parts, in their order.
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
