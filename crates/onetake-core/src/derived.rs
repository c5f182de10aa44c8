//! Keys for the calls that an operation makes itself.
//!
//! An operation that charges a card at another service needs a key there. The key must be the same
//! in every attempt on every node: then the other service deduplicates (mode D). The key is made
//! from the operation's scope and key and a server's secret, so that a client that knows its own
//! key cannot compute the derived key.
//!
//! - [`DerivingSecret::derive`] is HMAC-SHA-256 under the secret of `onetake derived key v1` and
//!   the tenant, the namespace and the key, each after its length.
//! - [`DerivedKey::step`] is HMAC-SHA-256 under the sixteen bytes of the parent key of
//!   `onetake step v1` and the step's name, after its length.
//! - [`DerivedKey::compensation`] is HMAC-SHA-256 under the sixteen bytes of the parent key of
//!   `onetake compensation v1`.
//!
//! Lengths are eight bytes, big-endian. The first sixteen bytes of each MAC are used, in the form
//! of a UUID of version 4, which every service accepts. This does not change between versions.
//! `derived.tsv` beside this file has examples for other languages.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::key::Key;
use crate::scope::Scope;

/// The server's secret from which derived keys are made. It must not change while there are
/// operations whose calls may be repeated.
#[derive(Clone)]
pub struct DerivingSecret(Hmac<Sha256>);

impl DerivingSecret {
    /// Creates the secret from its bytes.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(keyed(secret))
    }

    /// Returns the key for the calls of an operation.
    #[must_use]
    pub fn derive(&self, scope: &Scope, key: &Key) -> DerivedKey {
        let parts = [scope.tenant(), scope.name().as_bytes(), key.as_str().as_bytes()];
        made(self.0.clone(), b"onetake derived key v1", &parts)
    }
}

impl fmt::Debug for DerivingSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivingSecret")
    }
}

/// A key for a call that an operation makes. It is the same in every attempt.
///
/// It is written as a UUID. Its `Debug` form hides the value, because keys never belong in logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DerivedKey([u8; DerivedKey::BYTES]);

impl DerivedKey {
    /// The number of bytes of a derived key.
    pub const BYTES: usize = 16;

    /// Returns the key for one of several calls. The name must be the same in every attempt.
    #[must_use]
    pub fn step(&self, name: &str) -> Self {
        made(keyed(&self.0), b"onetake step v1", &[name.as_bytes()])
    }

    /// Returns the key for the call that undoes the call under this key.
    #[must_use]
    pub fn compensation(&self) -> Self {
        made(keyed(&self.0), b"onetake compensation v1", &[])
    }

    /// Creates a key from the bytes of its UUID.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the text of the UUID, in ASCII. It needs no allocation.
    #[must_use]
    pub fn to_ascii(&self) -> [u8; 36] {
        crate::hex::uuid(&self.0)
    }

    /// Returns the bytes of the UUID.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Display for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::hex::write_uuid(f, &self.0)
    }
}

impl fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedKey")
    }
}

/// The error for a text that is not a derived key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a derived key is a UUID of 36 characters, such as 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90")]
pub struct NoDerivedKey;

/// Reads the key that a service received, so that the service can make the keys of its steps.
impl FromStr for DerivedKey {
    type Err = NoDerivedKey;

    fn from_str(text: &str) -> Result<Self, NoDerivedKey> {
        // Dashes elsewhere, signs and other forms are refused: onetake never writes them.
        crate::hex::parse_uuid(text).map(Self).ok_or(NoDerivedKey)
    }
}

/// Creates a MAC from a secret that is padded with zeros to the length of a block.
pub(crate) fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    let mut block = [0; 64];
    block.iter_mut().zip(secret).for_each(|(to, from)| *to = *from);
    <Hmac<Sha256> as KeyInit>::new(&block.into())
}

fn made(mut mac: Hmac<Sha256>, purpose: &[u8], parts: &[&[u8]]) -> DerivedKey {
    mac.update(purpose);
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    let mut bytes = [0; DerivedKey::BYTES];
    bytes.iter_mut().zip(mac.finalize().into_bytes()).for_each(|(to, from)| *to = from);
    let [_, _, _, _, _, _, version, _, variant, ..] = &mut bytes;
    *version = *version & 0x0f | 0x40;
    *variant = *variant & 0x3f | 0x80;
    DerivedKey(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// `secret`, `tenant`, `namespace`, `key`, the key, its step `charge-card`, and that step's
    /// compensation. Made with Python's `hmac`, not with this code.
    const EXAMPLES: &str = include_str!("derived.tsv");

    #[test]
    fn the_examples_for_other_languages_hold() {
        let lines: Vec<&str> = EXAMPLES.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.len() >= 4);
        for line in lines {
            let fields: Vec<&str> = line.split('\t').collect();
            let [secret, tenant, namespace, key, derived, step, compensation] = fields[..] else {
                panic!("{line}")
            };
            let secret: Vec<u8> = (0..32)
                .map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap())
                .collect();
            let scope = Scope::new(tenant).namespace(namespace);
            let secret = DerivingSecret::new(&secret.try_into().unwrap());
            let made = secret.derive(&scope, &Key::new(key).unwrap());
            assert_eq!(made.to_string(), derived);
            let charge = made.step("charge-card");
            assert_eq!(charge.to_string(), step);
            assert_eq!(charge.compensation().to_string(), compensation);
            assert_eq!(derived.parse::<DerivedKey>().unwrap().step("charge-card"), charge);
        }
    }

    #[test]
    fn whatever_differs_leads_to_another_key() {
        let key = |secret: u8, tenant: &str, namespace: &str, key: &str| {
            let scope = Scope::new(tenant).namespace(namespace);
            DerivingSecret::new(&[secret; 32]).derive(&scope, &Key::new(key).unwrap())
        };
        let first = key(1, "alice", "pay", "order-1");
        let all = [
            first,
            key(2, "alice", "pay", "order-1"),
            key(1, "bob", "pay", "order-1"),
            key(1, "alicep", "ay", "order-1"),
            key(1, "alice", "payo", "rder-1"),
            key(1, "alice", "pay", "order-2"),
            first.step("order-1"),
            first.step("a").step("b"),
            first.step("ab"),
            first.step(""),
            first.compensation(),
            first.step("compensation"),
            first.compensation().compensation(),
        ];
        let texts: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), all.len());
        assert_eq!(first, key(1, "alice", "pay", "order-1"));
    }

    #[test]
    fn only_its_own_form_is_read() {
        let text = "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90";
        assert_eq!(text.parse::<DerivedKey>().unwrap().to_string(), text);
        let upper = text.to_uppercase().parse::<DerivedKey>().unwrap();
        assert_eq!(upper.to_string(), text, "some services write them so");
        for wrong in ["", "6f1c8d6a", &text.replace('-', ""), &text.replace('6', "+"), "ä"] {
            assert_eq!(wrong.parse::<DerivedKey>(), Err(NoDerivedKey), "{wrong}");
        }
        assert_eq!(format!("{upper:?}"), "DerivedKey", "keys are not logged");
    }
}
