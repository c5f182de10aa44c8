//! The origin of an operation and the history of its attempts, for operators. No decision depends
//! on it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::clock::Timestamp;
use crate::record::Fence;

/// The maximum length of a stored route name, in bytes; longer names are cut.
pub const ROUTE_BYTES_MAX: usize = 200;

/// The maximum length of a memo before encryption, in bytes.
pub const MEMO_BYTES_MAX: usize = 2048;

/// The maximum length of a stored history, in bytes: about the latest twenty attempts.
pub const HISTORY_BYTES_MAX: usize = 1024;

/// A tenant as a keyed digest. The stored bytes do not reveal the tenant. The digests of equal
/// tenants are equal, so that an operator can list all keys of one tenant.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantDigest([u8; TenantDigest::BYTES]);

impl TenantDigest {
    /// The number of bytes of a digest.
    pub const BYTES: usize = 16;

    /// Returns the digest of `tenant` under `secret`.
    #[must_use]
    pub fn of(secret: &[u8; 32], tenant: &[u8]) -> Self {
        let mut digest = [0; Self::BYTES];
        // This always succeeds: HMAC accepts keys of any length.
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) {
            mac.update(b"onetake tenant v1");
            mac.update(tenant);
            for (to, from) in digest.iter_mut().zip(mac.finalize().into_bytes()) {
                *to = from;
            }
        }
        Self(digest)
    }

    /// Creates a digest from stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to store.
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

/// The error for a text that is not a tenant's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a tenant digest: expected 32 hexadecimal digits, as `onetake keys get` shows them")]
pub struct TenantDigestError;

impl FromStr for TenantDigest {
    type Err = TenantDigestError;

    fn from_str(text: &str) -> Result<Self, TenantDigestError> {
        crate::hex::decode(text).map(Self).ok_or(TenantDigestError)
    }
}

/// The information by which a reconciler identifies an operation, in the reconciler's own format:
/// for example a derived key. A store does not read it, and a `SealedStore` encrypts it. Its
/// `Debug` form hides it, because it may contain a key.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Memo(Bytes);

impl Memo {
    /// Creates a memo; `None` if it is longer than [`MEMO_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() <= MEMO_BYTES_MAX).then_some(Self(bytes))
    }

    /// Creates a memo from stored bytes of any length: an encrypted memo is longer.
    #[must_use]
    pub fn as_kept(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// True if there is no memo.
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

/// The tenant and the route of an operation, and the memo for its reconciler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The tenant that the key belongs to; all zeros if it is not given.
    pub tenant: TenantDigest,
    /// The name of the route; empty if it is not given.
    pub route: Arc<str>,
    /// The memo for the reconciler; empty if there is none.
    pub memo: Memo,
}

impl Origin {
    /// Creates an origin. The route's name is cut to [`ROUTE_BYTES_MAX`].
    #[must_use]
    pub fn new(tenant: TenantDigest, route: &str) -> Self {
        let mut end = route.len().min(ROUTE_BYTES_MAX);
        while !route.is_char_boundary(end) {
            end -= 1;
        }
        // A zero byte separates the route from the memo.
        let route = route.get(..end).unwrap_or_default();
        let route = match route.contains('\0') {
            true => route.replace('\0', " ").into(),
            false => route.into(),
        };
        Self { tenant, route, memo: Memo::default() }
    }

    /// Sets the memo for the reconciler.
    #[must_use]
    pub fn with_memo(self, memo: Memo) -> Self {
        Self { memo, ..self }
    }

    /// Returns the bytes to store; empty for the default origin.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.stored_bytes());
        self.write_to(&mut out);
        out.freeze()
    }

    /// Returns the number of bytes to store.
    pub(crate) fn stored_bytes(&self) -> usize {
        if *self == Self::default() {
            return 0;
        }
        let memo = self.memo.as_bytes().len();
        TenantDigest::BYTES + self.route.len() + if memo > 0 { 1 + memo } else { 0 }
    }

    /// Appends the bytes to store.
    pub(crate) fn write_to(&self, out: &mut BytesMut) {
        if *self == Self::default() {
            return;
        }
        out.put_slice(self.tenant.as_bytes());
        out.put_slice(self.route.as_bytes());
        let memo = self.memo.as_bytes();
        if !memo.is_empty() {
            out.put_u8(0);
            out.put_slice(memo);
        }
    }

    /// Reads the bytes that [`to_bytes`](Self::to_bytes) wrote.
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

/// An attempt that was followed by another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastAttempt {
    /// The fence.
    pub fence: Fence,
    /// The time at which the attempt was granted the key.
    pub claimed_at: Timestamp,
    /// The time at which the attempt was settled. If it never was: the time at which the next
    /// attempt took the key.
    pub ended_at: Timestamp,
    /// The state of the record at that time: `released`, `unknown`, or `running`.
    pub stood: &'static str,
}

/// The earlier attempts of a record, one line each: fence, claimed, ended, state. It is text, so
/// that stores that decide in their own language can write it too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttemptHistory(String);

impl AttemptHistory {
    /// Creates a history from stored text.
    #[must_use]
    pub const fn from_text(text: String) -> Self {
        Self(text)
    }

    /// Returns the text to store.
    #[must_use]
    pub fn as_text(&self) -> &str {
        &self.0
    }

    /// Adds one more attempt. The oldest attempts are dropped if the text becomes too long.
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

    /// Returns the attempts, the earliest first.
    pub fn attempts(&self) -> impl Iterator<Item = PastAttempt> + '_ {
        // If the text was cut, its first line may be incomplete.
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
        let mut history = AttemptHistory::default();
        for number in 0..100 {
            history = history.with(&past(number));
            assert!(history.as_text().len() <= HISTORY_BYTES_MAX);
            let last = history.attempts().last();
            assert_eq!(last, Some(past(number)));
        }
        let kept: Vec<_> = history.attempts().collect();
        assert!(kept.len() >= 15, "{}", kept.len());
        assert!(kept.iter().rev().zip((0..100).rev()).all(|(kept, number)| *kept == past(number)));
        assert_eq!(AttemptHistory::from_text("odd\n1 2 3 released\n".into()).attempts().count(), 1);
    }
}
