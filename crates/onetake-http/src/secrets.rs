//! What this side knows and nobody else does.

use std::fmt;

use onetake_core::{DerivingSecret, Fingerprint, FingerprintKey, Rng, TenantDigest};

use crate::handle::Handles;
use crate::issued::IssuingKey;

/// Secrets of a layer. All nodes that share a store must have the same.
#[derive(Clone, Default)]
pub struct Secrets {
    fingerprint: Vec<FingerprintKey>,
    pub(crate) issued_keys: Vec<IssuingKey>,
    handles: Option<[u8; 32]>,
    pub(crate) derived_keys: Option<DerivingSecret>,
    tenants: Option<[u8; 32]>,
}

impl Secrets {
    /// Seals fingerprints: the first secret seals, and those behind it, which were first earlier, still
    /// recognise what they sealed. Without any, fingerprints are plain digests, and whoever reads the
    /// store can try out what they were made from.
    #[must_use]
    pub fn fingerprint(mut self, keys: impl IntoIterator<Item = FingerprintKey>) -> Self {
        self.fingerprint = keys.into_iter().collect();
        self
    }

    /// Signs issued keys: the first secret signs, all verify. Without any, none are issued and none
    /// accepted.
    #[must_use]
    pub fn issued_keys(mut self, keys: impl IntoIterator<Item = IssuingKey>) -> Self {
        self.issued_keys = keys.into_iter().collect();
        self
    }

    /// Signs the handles by which outcomes are fetched later. Without it, each layer makes up a secret of
    /// its own: its handles die with the process, and other nodes do not know them.
    #[must_use]
    pub fn handles(mut self, secret: [u8; 32]) -> Self {
        self.handles = Some(secret);
        self
    }

    /// Makes the keys that operations have for their own calls. It must not change while calls may be
    /// repeated. Without it, one is made at first use and kept in the store.
    #[must_use]
    pub fn derived_keys(mut self, secret: DerivingSecret) -> Self {
        self.derived_keys = Some(secret);
        self
    }

    /// Makes the digests by which operators find the keys of one tenant. Without it, records do not tell
    /// whose they are.
    #[must_use]
    pub fn tenants(mut self, secret: [u8; 32]) -> Self {
        self.tenants = Some(secret);
        self
    }

    /// Whose a record is, as it is kept.
    pub(crate) fn tenant(&self, tenant: &[u8]) -> TenantDigest {
        self.tenants.map_or_else(TenantDigest::default, |secret| TenantDigest::of(&secret, tenant))
    }

    pub(crate) fn make_handles(&self, rng: &dyn Rng) -> Handles {
        let secret = self.handles.unwrap_or_else(|| {
            let mut secret = [0; 32];
            rng.fill(&mut secret);
            secret
        });
        Handles::new(&secret)
    }

    /// A fingerprint as it is recorded now, and as it was recorded under earlier secrets. One without
    /// a secret is among those: secrets may come later than records.
    pub(crate) fn seal(&self, plain: Fingerprint) -> (Fingerprint, Vec<Fingerprint>) {
        let mut sealed = self.fingerprint.iter().map(|key| key.seal(plain));
        match sealed.next() {
            None => (plain, Vec::new()),
            Some(current) => (current, sealed.chain([plain]).collect()),
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}
