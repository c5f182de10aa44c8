//! Where an operation came from, and what became of its earlier attempts: for operators. Nothing is
//! decided by it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::clock::Timestamp;
use crate::record::Fence;

/// The longest name of a route that is kept, in bytes; longer ones are cut.
pub const ROUTE_BYTES_MAX: usize = 200;

/// The longest memo that is kept, in bytes, before it is encrypted.
pub const MEMO_BYTES_MAX: usize = 2048;

/// The longest history that is kept, in bytes: about twenty attempts, the latest.
pub const HISTORY_BYTES_MAX: usize = 1024;

/// A tenant as it is kept: a keyed digest, so that what is on disk names nobody, and equal for equal
/// tenants, so that an operator can ask for all keys of one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantDigest([u8; TenantDigest::BYTES]);

impl TenantDigest {
    /// How many bytes it has.
    pub const BYTES: usize = 16;

    /// The digest of `tenant` under `secret`.
    #[must_use]
    pub fn of(secret: &[u8; 32], tenant: &[u8]) -> Self {
        let mut digest = [0; Self::BYTES];
        // A key of any length will do.
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) {
            mac.update(b"onetake tenant v1");
            mac.update(tenant);
            for (to, from) in digest.iter_mut().zip(mac.finalize().into_bytes()) {
                *to = from;
            }
        }
        Self(digest)
    }

    /// A digest as a store kept it.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes to keep.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Display for TenantDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TenantDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a tenant's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a tenant's digest: expected 32 hexadecimal digits, as `onetake keys get` shows them")]
pub struct TenantDigestError;

impl FromStr for TenantDigest {
    type Err = TenantDigestError;

    fn from_str(text: &str) -> Result<Self, TenantDigestError> {
        crate::hex::decode(text).map(Self).ok_or(TenantDigestError)
    }
}

/// What whoever reconciles an operation needs to know it by, in words of its own: a derived key, say. A store
/// does not look into it, and a `SealedStore` encrypts it. Its `Debug` form hides it, as it may name a key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Memo(Bytes);

impl Memo {
    /// A memo of these bytes; `None` if it is longer than [`MEMO_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() <= MEMO_BYTES_MAX).then_some(Self(bytes))
    }

    /// A memo as a store keeps it: of any length, as one that is encrypted is longer.
    #[must_use]
    pub fn as_kept(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether there is nothing to know.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memo({} bytes)", self.0.len())
    }
}

/// Who asked for an operation, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whose key it is; all zeros where nobody said.
    pub tenant: TenantDigest,
    /// What its route is called; empty where nobody said.
    pub route: Arc<str>,
    /// What its reconciler needs; empty where there is none.
    pub memo: Memo,
}

impl Origin {
    /// An origin; the name of the route is cut to what is kept.
    #[must_use]
    pub fn new(tenant: TenantDigest, route: &str) -> Self {
        let mut end = route.len().min(ROUTE_BYTES_MAX);
        while !route.is_char_boundary(end) {
            end -= 1;
        }
        // A zero is where the memo begins.
        let route = route.get(..end).unwrap_or_default().replace('\0', " ");
        Self { tenant, route: route.into(), memo: Memo::default() }
    }

    /// The same, with what its reconciler needs.
    #[must_use]
    pub fn with_memo(self, memo: Memo) -> Self {
        Self { memo, ..self }
    }

    /// The bytes to keep: none where nobody said anything.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        if *self == Self::default() {
            return Bytes::new();
        }
        let memo = self.memo.as_bytes();
        let mut out =
            BytesMut::with_capacity(TenantDigest::BYTES + self.route.len() + memo.len() + 1);
        out.put_slice(self.tenant.as_bytes());
        out.put_slice(self.route.as_bytes());
        if !memo.is_empty() {
            out.put_u8(0);
            out.put_slice(memo);
        }
        out.freeze()
    }

    /// What [`to_bytes`](Self::to_bytes) wrote.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let (tenant, route) = bytes.split_first_chunk()?;
        let mut parts = route.splitn(2, |byte| *byte == 0);
        let route = std::str::from_utf8(parts.next()?).ok()?;
        let memo = Memo(Bytes::copy_from_slice(parts.next().unwrap_or_default()));
        Some(Self { tenant: TenantDigest(*tenant), route: route.into(), memo })
    }
}

/// An attempt that was followed by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastAttempt {
    /// Its fence.
    pub fence: Fence,
    /// When it was given the key.
    pub claimed_at: Timestamp,
    /// When it was settled; or when the next one took the key, if it never was.
    pub ended_at: Timestamp,
    /// Where it stood by then: `released`, `unknown`, or `running`.
    pub stood: &'static str,
}

/// The earlier attempts of a record's life, a line each: fence, claimed, ended, state. It is text so that
/// stores that decide in a language of their own can write it too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History(String);

impl History {
    /// A history as a store kept it.
    #[must_use]
    pub const fn from_text(text: String) -> Self {
        Self(text)
    }

    /// The text to keep.
    #[must_use]
    pub fn as_text(&self) -> &str {
        &self.0
    }

    /// The same, with one more attempt; the oldest go where there are too many.
    #[must_use]
    pub fn with(&self, past: &PastAttempt) -> Self {
        let PastAttempt { fence, claimed_at, ended_at, stood } = past;
        let (claimed_at, ended_at) = (claimed_at.as_micros(), ended_at.as_micros());
        let text = format!("{}{fence} {claimed_at} {ended_at} {stood}\n", self.0);
        let mut from = text.len().saturating_sub(HISTORY_BYTES_MAX);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        Self(text.get(from..).unwrap_or_default().to_owned())
    }

    /// The attempts, the earliest first.
    pub fn attempts(&self) -> impl Iterator<Item = PastAttempt> + '_ {
        // The first line of a text that was cut may be a part of one.
        let cut = usize::from(self.0.len() >= HISTORY_BYTES_MAX);
        self.0.lines().skip(cut).filter_map(read)
    }
}

fn read(line: &str) -> Option<PastAttempt> {
    let mut words = line.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (fence, claimed_at, ended_at) = (number()?, number()?, number()?);
    let stood = match words.next()? {
        "released" => "released",
        "unknown" => "unknown",
        "running" => "running",
        _ => return None,
    };
    Some(PastAttempt {
        fence: Fence::new(fence),
        claimed_at: Timestamp::from_micros(claimed_at),
        ended_at: Timestamp::from_micros(ended_at),
        stood,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_comes_back_as_it_was() {
        let tenant = TenantDigest::of(&[7; 32], b"acme");
        for origin in [
            Origin::default(),
            Origin::new(tenant, ""),
            Origin::new(TenantDigest::default(), "POST /v1/charges"),
            Origin::new(tenant, &"ä".repeat(300)),
            Origin::new(tenant, "POST /a\0b").with_memo(Memo::new("\0with\0zeros").unwrap()),
            Origin::new(TenantDigest::default(), "").with_memo(Memo::new("m").unwrap()),
        ] {
            assert!(origin.route.len() <= ROUTE_BYTES_MAX);
            assert_eq!(Origin::from_bytes(&origin.to_bytes()), Some(origin));
        }
        assert_eq!(Origin::from_bytes(b"short"), None);
        assert_eq!(tenant.to_string().parse(), Ok(tenant));
        assert!("0".repeat(31).parse::<TenantDigest>().is_err());
        assert_ne!(tenant, TenantDigest::of(&[8; 32], b"acme"), "another secret");
        assert_ne!(tenant, TenantDigest::of(&[7; 32], b"acne"), "another tenant");
    }

    #[test]
    fn a_history_keeps_the_latest_attempts() {
        let past = |number: u64| PastAttempt {
            fence: Fence::new(1_800_000_000_000_000 + number),
            claimed_at: Timestamp::from_micros(1_800_000_000_000_000 + number),
            ended_at: Timestamp::from_micros(1_800_000_000_000_001 + number),
            stood: "released",
        };
        let mut history = History::default();
        for number in 0..100 {
            history = history.with(&past(number));
            assert!(history.as_text().len() <= HISTORY_BYTES_MAX);
            let last = history.attempts().last();
            assert_eq!(last, Some(past(number)));
        }
        let kept: Vec<_> = history.attempts().collect();
        assert!(kept.len() >= 15, "{}", kept.len());
        assert!(kept.iter().rev().zip((0..100).rev()).all(|(kept, number)| *kept == past(number)));
        assert_eq!(History::from_text("odd\n1 2 3 released\n".into()).attempts().count(), 1);
    }
}
