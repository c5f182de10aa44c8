//! Memos: values of an operation that are kept in its record for reconciliation.
//!
//! A record holds neither its key nor its tenant. An implementation of
//! [`Reconcile`](onetake_core::Reconcile) needs one of them to ask for the operation, or the
//! derived key that the operation sent to other services. A route chooses the values with
//! [`Policy::remember`]. They are kept in the record's [`Memo`], and [`MemoValues`] reads them.
//!
//! [`Policy::remember`]: crate::Policy::remember

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use onetake_core::clock::micros;
use onetake_core::origin::MEMO_BYTES_MAX;
use onetake_core::{DerivedKey, DerivingSecret, Key, Memo, Scope};

/// A value by which a reconciler can ask for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MemoField {
    /// The derived key, for the operation's own calls: `Idempotency-Derived-Key`.
    DerivedKey,
    /// The key as the client wrote it, with its quotes and in its letter case. The inner service
    /// gets it in this form.
    Key,
    /// The tenant's name: the value of its header, its IP address, or the name that an
    /// authorization service returned.
    ///
    /// **Warning:** if the tenant is a credential, this is a secret. Only a `SealedStore` encrypts
    /// it.
    Tenant,
}

impl MemoField {
    const fn tag(self) -> u8 {
        match self {
            Self::DerivedKey => 1,
            Self::Key => 2,
            Self::Tenant => 3,
        }
    }
}

/// The tag of the attempt's maximum run time.
const RUN_MAX: u8 = 4;

/// Returns a memo with the wanted values and the attempt's maximum run time. It is empty if no
/// value is wanted. The value that is likely the longest, the tenant, comes last. A value that does
/// not fit is left out.
pub(crate) fn memo(
    wanted: &[MemoField],
    scope: &Scope,
    (key, written): (&Key, &[u8]),
    deriving: &DerivingSecret,
    run_max: Duration,
) -> Memo {
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let mut out = BytesMut::new();
    if !wanted.is_empty() {
        put(&mut out, RUN_MAX, &micros(run_max).to_be_bytes());
    }
    for what in wanted {
        let tag = what.tag();
        match what {
            MemoField::DerivedKey => put(&mut out, tag, deriving.derive(scope, key).as_bytes()),
            MemoField::Key => put(&mut out, tag, written),
            MemoField::Tenant => put(&mut out, tag, name_of(scope.tenant())),
        }
    }
    Memo::new(out.freeze()).unwrap_or_default()
}

fn put(out: &mut BytesMut, tag: u8, value: &[u8]) {
    let Ok(length) = u16::try_from(value.len()) else { return };
    if out.len() + 3 + value.len() <= MEMO_BYTES_MAX {
        out.put_u8(tag);
        out.put_u16(length);
        out.put_slice(value);
    }
}

/// Returns the name of a tenant without its kind.
fn name_of(tenant: &[u8]) -> &[u8] {
    let mut parts = tenant.splitn(2, |byte| *byte == 0);
    let (kind, name) = (parts.next(), parts.next());
    name.or(kind).unwrap_or_default()
}

/// The values in a record's [`Memo`]. The `Debug` form hides them. Of key and tenant it shows the
/// lengths.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MemoValues {
    /// See [`MemoField::DerivedKey`].
    pub derived_key: Option<DerivedKey>,
    /// See [`MemoField::Key`].
    pub key: Option<String>,
    /// See [`MemoField::Tenant`].
    pub tenant: Option<Bytes>,
    /// The attempt's maximum run time, by the policy under which it was claimed.
    pub run_max: Option<Duration>,
}

impl MemoValues {
    /// Reads a memo. Entries of an unknown kind are skipped. Reading ends at the first malformed
    /// entry.
    #[must_use]
    pub fn of(memo: &Memo) -> Self {
        let mut known = Self::default();
        let mut rest = &memo.as_bytes()[..];
        while let Some((tag, value, behind)) = entry(rest) {
            rest = behind;
            match tag {
                1 => known.derived_key = value.try_into().ok().map(DerivedKey::from_bytes),
                2 => known.key = std::str::from_utf8(value).ok().map(str::to_owned),
                3 => known.tenant = Some(Bytes::copy_from_slice(value)),
                RUN_MAX => {
                    let micros = value.try_into().ok().map(u64::from_be_bytes);
                    known.run_max = micros.map(Duration::from_micros);
                }
                _ => {}
            }
        }
        known
    }
}

impl fmt::Debug for MemoValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known")
            .field("derived_key", &self.derived_key)
            .field("key", &self.key.as_ref().map(String::len))
            .field("tenant", &self.tenant.as_ref().map(Bytes::len))
            .field("run_max", &self.run_max)
            .finish()
    }
}

/// Returns the tag and the value of the first entry, and the bytes that follow it.
fn entry(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (value, behind) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((*tag, value, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [MemoField; 3] = [MemoField::Tenant, MemoField::Key, MemoField::DerivedKey];

    #[test]
    fn what_was_asked_for_is_kept_and_nothing_else() {
        let deriving = DerivingSecret::new(&[7; 32]);
        let (scope, key) = (Scope::new("header\0acme"), Key::new("order-4711").unwrap());
        let run_max = Duration::from_secs(7);
        let memo = |wanted: &[MemoField]| {
            memo(wanted, &scope, (&key, b"\"Order-4711\""), &deriving, run_max)
        };
        let known = |wanted: &[MemoField]| MemoValues::of(&memo(wanted));
        let all = known(&ALL);
        assert_eq!(all.derived_key, Some(deriving.derive(&scope, &key)));
        assert_eq!(all.key.as_deref(), Some("\"Order-4711\""), "as it was written");
        assert_eq!(all.tenant.as_deref(), Some(&b"acme"[..]), "without its kind");
        assert_eq!(all.run_max, Some(run_max));
        let alone =
            MemoValues { key: all.key.clone(), run_max: Some(run_max), ..MemoValues::default() };
        assert_eq!(known(&[MemoField::Key]), alone);
        assert_eq!(known(&[]), MemoValues::default());
        assert!(memo(&[]).is_empty());
        let shown = format!("{all:?}");
        assert!(!shown.contains("acme") && !shown.contains("4711"), "{shown}");
        assert_eq!(name_of(b"public"), b"public");
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_the_rest_kept() {
        let deriving = DerivingSecret::new(&[7; 32]);
        let key = Key::new("k".repeat(255)).unwrap();
        for (length, fits) in [(1700, true), (1800, false), (70_000, false)] {
            let scope = Scope::new("t".repeat(length));
            let known = MemoValues::of(&memo(
                &ALL,
                &scope,
                (&key, key.as_str().as_bytes()),
                &deriving,
                Duration::ZERO,
            ));
            assert_eq!(known.tenant.is_some(), fits, "{length}");
            assert!(known.key.is_some() && known.derived_key.is_some(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_memo_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _known = MemoValues::of(&Memo::new(bytes).unwrap());
        }
    }
}
