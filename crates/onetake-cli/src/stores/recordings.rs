//! Encryption keys that recordings still need: reported by `onetake doctor` and in the log of a
//! gateway that starts.

use std::sync::Arc;

use onetake_core::Store;
use onetake_stores::Finding;
use onetake_stores::sealed::{KeysInUse, keys_in_use};

use crate::config::{StoreConfig, StoreUrl};

/// Maximum number of records that are read. For larger stores the counts are lower bounds.
const RECORDS_MAX: usize = 100_000;

/// Checks the recordings of a store that can be opened while a gateway uses it.
pub(super) async fn examine(config: &StoreConfig) -> Vec<Finding> {
    match &config.url {
        StoreUrl::Memory => return Vec::new(),
        // Opening it would end the operations that a gateway runs in it.
        StoreUrl::Embedded(_) => return Vec::new(),
        // Opening the file would create it.
        StoreUrl::Sqlite(file) if !file.exists() => return Vec::new(),
        _ => {}
    }
    // Problems of the store itself are already in the findings.
    let bare = StoreConfig { allow_lossy: true, filter: None, ..config.clone() };
    let Ok(opened) = super::open_bare(&bare).await else { return Vec::new() };
    let found = keys_in_use(&*opened.store, RECORDS_MAX).await;
    drop(opened.store.close().await);
    match found {
        Ok(found) => findings(config, &found),
        Err(error) => {
            let what =
                format!("cannot determine the encryption keys that recordings need: {error}");
            vec![Finding::weak(what, "try again")]
        }
    }
}

/// Logs the keys that recordings need and that are not configured, so that a key that was removed
/// too early is noticed at the start.
pub(super) async fn miss_keys(store: Arc<dyn Store>, configured: Vec<String>) {
    // If the store does not respond, other checks report it.
    let Ok(found) = keys_in_use(&*store, RECORDS_MAX).await else { return };
    for (key, count) in found.by_key.iter().filter(|(key, _)| !configured.contains(key)) {
        tracing::error!(
            %key, count, all_counted = found.is_whole,
            "recordings need an encryption key that is not in [secrets] encryption, so their \
             retries are refused: add the key again after the key in use until these recordings \
             expire"
        );
    }
}

fn findings(config: &StoreConfig, found: &KeysInUse) -> Vec<Finding> {
    let KeysInUse { by_key, open, is_whole } = found;
    let at_least = if *is_whole { "" } else { "at least " };
    let mut findings = Vec::new();
    for (key, count) in by_key {
        let is_known = config.encryption.iter().any(|secret| secret.id == *key);
        let what = format!("recordings that need the key `{key}`: {at_least}{count}");
        findings.push(if is_known {
            Finding::fine(what)
        } else if config.encryption.is_empty() {
            let fix = "name the gateway's file with --config; if the key is not in that file, add it again";
            Finding::weak(format!("{what}; no encryption key is configured here"), fix)
        } else {
            let what =
                format!("{what}; the key is not in [secrets] encryption, so retries of these recordings are refused");
            Finding::broken(
                what,
                format!("add `{key}` again after the key in use until these recordings expire"),
            )
        });
    }
    if *open > 0 && !config.encryption.is_empty() {
        let what = format!("recordings that are not encrypted: {at_least}{open}");
        findings.push(Finding::fine(what));
    }
    findings
}
