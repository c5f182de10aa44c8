//! Keys that encrypt recordings and memos.

use std::fmt;

use aws_lc_rs::aead::{LessSafeKey, NONCE_LEN};
use aws_lc_rs::hmac;

use onetake_core::RecordId;

use super::seal::{Of, cipher, nonce};

/// The longest name of a key.
pub const KEY_ID_BYTES_MAX: usize = 255;

/// A key that encrypts recordings, and its name, which is kept beside them.
#[derive(Clone)]
pub struct EncryptionKey {
    id: String,
    key: hmac::Key,
}

impl EncryptionKey {
    /// Creates a key from its bytes. A name is cut to 255 bytes.
    #[must_use]
    pub fn new(id: &str, key: &[u8; 32]) -> Self {
        let mut end = id.len().min(KEY_ID_BYTES_MAX);
        while !id.is_char_boundary(end) {
            end -= 1;
        }
        let id = id.get(..end).unwrap_or_default().to_owned();
        Self { id, key: hmac::Key::new(hmac::HMAC_SHA256, key) }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The cipher for one attempt's recording.
    pub(super) fn cipher(&self, of: Of) -> Option<LessSafeKey> {
        cipher(self.mac(b"onetake recording v1", of))
    }

    /// A nonce that is used for this text of this attempt alone.
    pub(super) fn nonce(&self, of: Of, aad: &[u8], plain: &[u8]) -> [u8; NONCE_LEN] {
        nonce(self.mac(b"onetake nonce v1", of), aad, plain)
    }

    fn mac(&self, purpose: &[u8], of: Of) -> hmac::Context {
        let mut mac = self.mac_of_record(purpose, of.id);
        mac.update(of.attempt.as_bytes());
        mac
    }

    pub(super) fn mac_of_record(&self, purpose: &[u8], id: RecordId) -> hmac::Context {
        let mut mac = hmac::Context::with_key(&self.key);
        mac.update(purpose);
        mac.update(id.as_bytes());
        mac
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncryptionKey({})", self.id)
    }
}
