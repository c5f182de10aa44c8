//! Keys: one per intent, and those of an operation's own calls.

use std::fmt;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use crate::clock::{Clock, Rng, SystemClock, SystemRng};

/// The header that carries the key of an operation.
pub const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The lengths that a key can have, in characters.
const KEY_LENGTHS: std::ops::RangeInclusive<usize> = 16..=255;

/// One action of a user. Its key is the same in every attempt.
///
/// A request gets its key from the header `Idempotency-Key`, or from an intent in its extensions. A
/// request without either gets a new key. The `Debug` form hides the key, because keys never belong
/// in logs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Intent(String);

impl Intent {
    /// Makes an intent with a new key (UUIDv7). Call it when the user acts, not when a request is
    /// sent, and keep the key.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each call makes another key")]
    pub fn new() -> Self {
        Self::made(&SystemClock, &SystemRng)
    }

    pub(crate) fn made(clock: &dyn Clock, rng: &dyn Rng) -> Self {
        let mut id = [0; 16];
        rng.fill(&mut id);
        // A clock before 1970 counts as 1970: the key is random all the same.
        let millis = clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let time = u64::try_from(millis).unwrap_or_default().to_be_bytes();
        id.iter_mut().zip(time.iter().skip(2)).for_each(|(to, from)| *to = *from);
        Self(uuid(&id, 0x70))
    }

    /// Makes an intent from business ids. The same ids give the same key on every machine.
    ///
    /// **Warning:** include everything that makes the action another one, such as a number that
    /// counts the user's tries. A second action with the same ids is answered with the outcome of
    /// the first.
    #[must_use]
    pub fn from_ids(first: &str, others: &[&str]) -> Self {
        let mut digest = Sha256::new();
        digest.update("onetake intent v1");
        for part in std::iter::once(&first).chain(others) {
            digest.update(length(part));
            digest.update(part);
        }
        Self(uuid(&digest.finalize(), 0x80))
    }

    /// Makes an intent from a key that was stored.
    ///
    /// # Errors
    /// If the server would refuse the key.
    pub fn with_key(key: impl Into<String>) -> Result<Self, InvalidKey> {
        let key = key.into();
        if !KEY_LENGTHS.contains(&key.len()) {
            return Err(InvalidKey::Length(key.len()));
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidKey::Characters);
        }
        if key.contains(['"', '\\']) { Err(InvalidKey::Quotes) } else { Ok(Self(key)) }
    }

    /// Returns the key. Keep it where the intent is kept.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0
    }

    /// Returns the value of the header `Idempotency-Key`.
    pub(crate) fn header_value(&self) -> Result<HeaderValue, InvalidKey> {
        HeaderValue::from_str(&self.0).map_err(|_| InvalidKey::Characters)
    }
}

impl fmt::Debug for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Intent")
    }
}

/// A key that cannot be sent. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The key is too short or too long.
    #[error("a key has 16 to 255 characters, this one has {0}")]
    Length(usize),
    /// The key has other characters than visible ones of ASCII.
    #[error("a key consists of visible ASCII characters, without spaces")]
    Characters,
    /// The key has quotes or backslashes.
    #[error("a key must not contain quotes or backslashes")]
    Quotes,
    /// The text is not a derived key.
    #[error("a derived key is a UUID, such as 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90")]
    NoDerivedKey,
}

/// A key for the calls that an operation makes itself. It is the same in every attempt.
///
/// The gateway sends it to the service as `Idempotency-Derived-Key`. Its text form is a UUID; its
/// `Debug` form hides the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DerivedKey([u8; 16]);

impl DerivedKey {
    /// Returns the key for one of several calls. The name must be the same in every attempt.
    #[must_use]
    pub fn step(&self, name: &str) -> Self {
        self.mac(&[b"onetake step v1", &length(name), name.as_bytes()])
    }

    /// Returns the key for the call that undoes the call under this key.
    #[must_use]
    pub fn compensation(&self) -> Self {
        self.mac(&[b"onetake compensation v1"])
    }

    fn mac(&self, parts: &[&[u8]]) -> Self {
        // HMAC pads a short key with zeros to the length of a block.
        let mut block = [0; 64];
        block.iter_mut().zip(self.0).for_each(|(to, from)| *to = from);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
        parts.iter().for_each(|part| mac.update(part));
        Self(marked(&mac.finalize().into_bytes(), 0x40))
    }
}

impl fmt::Display for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_uuid(f, &self.0)
    }
}

impl fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedKey")
    }
}

impl FromStr for DerivedKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let has_form = text.len() == 36
            && text.char_indices().all(|(at, char)| match at {
                8 | 13 | 18 | 23 => char == '-',
                _ => char.is_ascii_hexdigit(),
            });
        let mut digits = text.chars().filter_map(|char| char.to_digit(16));
        let mut id = [0; 16];
        for byte in &mut id {
            let (high, low) = (digits.next().unwrap_or_default(), digits.next());
            *byte = u8::try_from(high * 16 + low.unwrap_or_default()).unwrap_or_default();
        }
        if has_form { Ok(Self(id)) } else { Err(InvalidKey::NoDerivedKey) }
    }
}

/// The length of a part in eight bytes, the highest first.
fn length(part: &str) -> [u8; 8] {
    u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes()
}

/// The first sixteen bytes of a digest as those of a UUID of a version.
fn marked(digest: &[u8], version: u8) -> [u8; 16] {
    let mut id = [0; 16];
    for (at, (to, from)) in id.iter_mut().zip(digest).enumerate() {
        *to = match at {
            6 => (from & 0x0f) | version,
            8 => (from & 0x3f) | 0x80,
            _ => *from,
        };
    }
    id
}

fn uuid(digest: &[u8], version: u8) -> String {
    struct Uuid([u8; 16]);
    impl fmt::Display for Uuid {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_uuid(f, &self.0)
        }
    }
    Uuid(marked(digest, version)).to_string()
}

fn write_uuid(f: &mut fmt::Formatter<'_>, id: &[u8; 16]) -> fmt::Result {
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            f.write_str("-")?;
        }
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::clock::Sleep;

    fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
    }

    #[test]
    fn keys_from_business_ids_are_those_of_the_vectors() {
        let text = include_str!("../../../clients/conformance/keys.tsv");
        for row in rows(text) {
            let (key, parts) = row.split_last().unwrap();
            assert_eq!(Intent::from_ids(parts[0], &parts[1..]).key(), *key, "{parts:?}");
        }
        assert_eq!(rows(text).count(), 6);
    }

    #[test]
    fn keys_of_steps_and_compensations_are_those_of_the_vectors() {
        let text = include_str!("../../onetake-core/src/derived.tsv");
        for row in rows(text) {
            let step = row[4].parse::<DerivedKey>().unwrap().step("charge-card");
            assert_eq!(step.to_string(), row[5]);
            assert_eq!(step.compensation().to_string(), row[6]);
        }
        assert_eq!(rows(text).count(), 5);
    }

    #[test]
    fn a_derived_key_must_be_a_uuid() {
        for text in
            ["", "k", "6f1c8d6a3a094b6e9c8f2d1f5e7b8a90", "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a9ü"]
        {
            assert_eq!(text.parse::<DerivedKey>(), Err(InvalidKey::NoDerivedKey), "{text}");
        }
        let upper = "6F1C8D6A-3A09-4B6E-9C8F-2D1F5E7B8A90".parse::<DerivedKey>().unwrap();
        assert_eq!(upper.to_string(), "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90");
    }

    #[test]
    fn keys_that_the_server_would_refuse_are_refused() {
        let long = "x".repeat(256);
        for (key, error) in [
            ("short", InvalidKey::Length(5)),
            (long.as_str(), InvalidKey::Length(256)),
            ("0123456789 abcdef", InvalidKey::Characters),
            ("0123456789abcdeü", InvalidKey::Characters),
            ("\"0123456789abcdef\"", InvalidKey::Quotes),
            ("0123456789\\abcdef", InvalidKey::Quotes),
        ] {
            assert_eq!(Intent::with_key(key), Err(error), "{key}");
        }
        assert_eq!(Intent::with_key("order-2041-checkout").unwrap().key(), "order-2041-checkout");
    }

    struct Fixed(SystemTime);

    impl Clock for Fixed {
        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
        fn now(&self) -> SystemTime {
            self.0
        }
        fn sleep(&self, _: Duration) -> Sleep {
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn a_new_key_is_a_uuid_of_version_7_with_the_time_in_front() {
        let clock = Fixed(UNIX_EPOCH + Duration::from_millis(0x0123_4567_89ab));
        let intent = Intent::made(&clock, &SystemRng);
        assert!(intent.key().starts_with("01234567-89ab-7"), "{}", intent.key());
        assert!(intent.key().parse::<DerivedKey>().is_ok());
        assert!(matches!(intent.key().as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
        let before_1970 = Fixed(UNIX_EPOCH - Duration::from_secs(1));
        let [one, two] = [(); 2].map(|()| Intent::made(&before_1970, &SystemRng));
        assert_ne!(one, two);
    }

    #[test]
    fn keys_are_not_in_debug_output() {
        let intent = Intent::from_ids("checkout", &["order-2041"]);
        let derived: DerivedKey = intent.key().parse().unwrap();
        assert_eq!(format!("{intent:?} {derived:?}"), "Intent DerivedKey");
    }
}
