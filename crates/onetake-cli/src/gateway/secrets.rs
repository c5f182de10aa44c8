//! Secrets of the layer: from the configuration, else created at first use and kept in the store.

use onetake_core::{DerivingSecret, FingerprintKey, Rng, Store, StoreError, SystemRng};
use onetake_http::{InFlight, IssuingKey, KeySource, Policy, Secrets};

use crate::config::{Config, Secret};

/// The id of the fingerprint secret that is kept in the store.
const IN_STORE: &str = "in the store";

/// Returns the secrets of the layer, and the one for digests of tenants.
pub(super) async fn secrets(
    config: &Config,
    store: &dyn Store,
) -> Result<(Secrets, [u8; 32]), StoreError> {
    let configured = &config.secrets;
    let seal = |secret: &Secret| FingerprintKey::new(&secret.id, &secret.secret);
    // The store's secret follows the configured ones, so that older fingerprints are still
    // recognised.
    let in_store = FingerprintKey::new(IN_STORE, &kept(store, "fingerprint").await?);
    let sealing = configured.request_digests.iter().map(seal).chain([in_store]);
    let deriving = DerivingSecret::new(&kept(store, "derived_keys").await?);
    let tenants = kept(store, "tenants").await?;
    let mut secrets =
        Secrets::default().fingerprint(sealing).derived_keys(deriving).tenants(tenants);
    if policies(config).any(|policy| policy.key.source == KeySource::Issued) {
        let sign = |secret: &Secret| IssuingKey::new(&secret.secret);
        let in_store = IssuingKey::new(&kept(store, "issued_keys").await?);
        secrets = secrets.issued_keys(configured.issued_keys.iter().map(sign).chain([in_store]));
    }
    // Handles must be valid on all nodes and after a restart.
    let later = |policy: &Policy| matches!(policy.in_flight, InFlight::Async(_));
    if policies(config).any(later) {
        secrets = secrets.handles(kept(store, "handles").await?);
    }
    Ok((secrets, tenants))
}

fn policies(config: &Config) -> impl Iterator<Item = &Policy> {
    config.settings().map(|settings| &settings.policy)
}

async fn kept(store: &dyn Store, name: &'static str) -> Result<[u8; 32], StoreError> {
    let mut fresh = [0; 32];
    SystemRng.fill(&mut fresh);
    store.secret(name, fresh).await
}
