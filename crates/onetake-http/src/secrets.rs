//! The secrets of a layer.

use std::fmt;

use onetake_core::{DerivingSecret, Fingerprint, FingerprintKey, Rng, TenantDigest};

use crate::handle::Handles;
use crate::issued::IssuingKey;

/// The secrets of a layer. All nodes that share a store must have the same secrets.
#[derive(Clone, Default)]
pub struct Secrets {
    fingerprint: Vec<FingerprintKey>,
    pub(crate) issued_keys: Vec<IssuingKey>,
    handles: Option<[u8; 32]>,
    pub(crate) derived_keys: Option<DerivingSecret>,
    tenants: Option<[u8; 32]>,
}

impl Secrets {
    /// Sets the secrets that seal fingerprints. The first secret seals new fingerprints. The others
    /// were first before, and only recognise the fingerprints that they sealed.
    ///
    /// Without a secret, fingerprints are plain digests. A reader of the store could then guess a
    /// request and compare its digest.
    #[must_use]
    pub fn fingerprint(mut self, keys: impl IntoIterator<Item = FingerprintKey>) -> Self {
        self.fingerprint = keys.into_iter().collect();
        self
    }

    /// Sets the secrets that sign issued keys. The first secret signs, and all of them verify.
    /// Without a secret, no keys are issued and no issued keys are accepted.
    #[must_use]
    pub fn issued_keys(mut self, keys: impl IntoIterator<Item = IssuingKey>) -> Self {
        self.issued_keys = keys.into_iter().collect();
        self
    }

    /// Sets the secret that signs the handles of 202 answers. Without it, each layer makes a random
    /// secret. Its handles are then invalid after a restart and on other nodes.
    #[must_use]
    pub fn handles(mut self, secret: [u8; 32]) -> Self {
        self.handles = Some(secret);
        self
    }

    /// Sets the secret for derived keys. It must not change while an operation may still repeat its
    /// calls. Without it, a secret is made at first use and kept in the store.
    #[must_use]
    pub fn derived_keys(mut self, secret: DerivingSecret) -> Self {
        self.derived_keys = Some(secret);
        self
    }

    /// Sets the secret for the tenant digests by which operators find the keys of one tenant.
    /// Without it, records hold no tenant digest.
    #[must_use]
    pub fn tenants(mut self, secret: [u8; 32]) -> Self {
        self.tenants = Some(secret);
        self
    }

    /// Returns the tenant digest for a record.
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

    /// Returns a fingerprint sealed with the current secret, and its forms under the earlier
    /// secrets. The plain form is one of these, because records may be older than the first secret.
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
