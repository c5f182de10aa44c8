//! The layer's secrets: as configured, else made at first use and kept in the store.

use onetake_core::{FingerprintKey, Rng, Store, StoreError, SystemRng};
use onetake_http::{IssuingKey, KeySource, Secrets};

use crate::config::{Config, Secret};

/// How the secret that is kept in the store is called where names matter.
const IN_STORE: &str = "in the store";

pub(super) async fn secrets(config: &Config, store: &dyn Store) -> Result<Secrets, StoreError> {
    let configured = &config.secrets;
    let seal = |secret: &Secret| FingerprintKey::new(&secret.id, &secret.key);
    // Behind those that are configured: what was sealed before they were is still recognised.
    let kept = FingerprintKey::new(IN_STORE, &kept(store, "fingerprint").await?);
    let mut secrets =
        Secrets::default().fingerprint(configured.fingerprint.iter().map(seal).chain([kept]));
    let policies = config.routes.iter().map(|route| &route.policy).chain([&config.defaults]);
    if policies.into_iter().any(|policy| policy.key.source == KeySource::Issued) {
        let sign = |secret: &Secret| IssuingKey::new(&secret.key);
        let kept = IssuingKey::new(&self::kept(store, "issued_keys").await?);
        let signing = configured.issued_keys.iter().map(sign).chain([kept]);
        secrets = secrets.issued_keys(signing);
    }
    Ok(secrets)
}

async fn kept(store: &dyn Store, name: &'static str) -> Result<[u8; 32], StoreError> {
    let mut fresh = [0; 32];
    SystemRng.fill(&mut fresh);
    store.secret(name, fresh).await
}
