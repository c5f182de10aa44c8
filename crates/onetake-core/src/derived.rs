//! Keys for the calls that an operation makes itself.
//!
//! An operation that charges a card at another service needs a key there, and the same one in every
//! attempt, whichever node it runs on: then the other service deduplicates (mode D). It is made from what
//! names the operation and a server's secret, so that nobody who knows a key can tell what it leads to.
//!
//! | key | is |
//! | --- | --- |
//! | [`DerivingSecret::derive`] | HMAC-SHA-256 under the secret of `onetake derived key v1` and the tenant, the namespace and the key, each behind its length |
//! | [`DerivedKey::step`] | HMAC-SHA-256 under the sixteen bytes of the key before it of `onetake step v1` and the step's name, behind its length |
//! | [`DerivedKey::compensation`] | HMAC-SHA-256 under the sixteen bytes of the key before it of `onetake compensation v1` |
//!
//! Lengths are eight bytes, the highest first. Of each MAC the first sixteen bytes count, laid out as a UUID
//! of version 4, since that is what every service takes. This does not change between versions;
//! `derived.tsv` beside this file has examples for other languages.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::key::Key;
use crate::scope::Scope;

/// A server's secret that keys for further calls are made with. It must not change while there are
/// operations whose calls may be repeated.
#[derive(Clone)]
pub struct DerivingSecret(Hmac<Sha256>);

impl DerivingSecret {
    /// From its bytes.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(keyed(secret))
    }

    /// The key for what an operation calls.
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

/// A key for a call that an operation makes: the same in every attempt.
///
/// It is written as a UUID. Its `Debug` form hides the value, because keys never belong into logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DerivedKey([u8; DerivedKey::BYTES]);

impl DerivedKey {
    /// How many bytes it has.
    pub const BYTES: usize = 16;

    /// The key for one of several calls, by a name that stays the same in every attempt.
    #[must_use]
    pub fn step(&self, name: &str) -> Self {
        made(keyed(&self.0), b"onetake step v1", &[name.as_bytes()])
    }

    /// The key for the call that undoes what was done under this one.
    #[must_use]
    pub fn compensation(&self) -> Self {
        made(keyed(&self.0), b"onetake compensation v1", &[])
    }

    /// A key from the bytes of its UUID.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the UUID.
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

/// The text is no derived key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a derived key is a UUID of 36 characters, such as 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90")]
pub struct NoDerivedKey;

/// Reads what a service was handed, so that it can make the keys of its steps.
impl FromStr for DerivedKey {
    type Err = NoDerivedKey;

    fn from_str(text: &str) -> Result<Self, NoDerivedKey> {
        // Dashes elsewhere, signs and other spellings are not what was handed over.
        crate::hex::parse_uuid(text).map(Self).ok_or(NoDerivedKey)
    }
}

/// A key of the length of a block: the secret, and zeros.
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
