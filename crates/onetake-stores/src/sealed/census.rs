//! A count of the encryption keys that are still needed.

use std::collections::BTreeMap;

use onetake_core::{State, Store, StoreError};

use super::seal::key_of;

/// The number of records in one step. This many are in memory at once, and other callers may wait
/// for them.
const STEP: usize = 16;

/// The keys that recordings are encrypted with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysInUse {
    /// The number of recordings that need each key.
    pub by_key: BTreeMap<String, usize>,
    /// The number of recordings that need no key.
    pub open: usize,
    /// True if all records were read.
    pub is_whole: bool,
}

/// Reads up to `records_max` records of a store and counts the keys that their recordings are
/// encrypted with. `store` is the inner store, not a [`SealedStore`](super::SealedStore) around it.
///
/// # Errors
/// If the store does not answer.
pub async fn keys_in_use(store: &dyn Store, records_max: usize) -> Result<KeysInUse, StoreError> {
    let mut found = KeysInUse::default();
    let (mut from, mut looked_at) = (None, 0);
    while looked_at < records_max {
        let page = store.page(from, STEP.min(records_max - looked_at)).await?;
        looked_at += page.ids.len();
        // Unreadable records are skipped.
        for record in store.load(page.ids).await.into_iter().filter_map(|answer| answer.ok()?) {
            let State::Completed { recording, .. } = &record.state else { continue };
            match key_of(&recording.head) {
                Some(key) => *found.by_key.entry(key).or_default() += 1,
                None => found.open += 1,
            }
        }
        from = page.next;
        if from.is_none() {
            found.is_whole = true;
            break;
        }
    }
    Ok(found)
}
