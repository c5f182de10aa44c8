//! Which keys are still needed.

use std::collections::BTreeMap;

use onetake_core::{State, Store, StoreError};

use super::seal::key_of;

/// Records that are looked at in one step: all that is in memory at once, and what others may have to wait for.
const STEP: usize = 16;

/// What recordings were encrypted with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysInUse {
    /// How many of them need each key.
    pub by_key: BTreeMap<String, usize>,
    /// How many need none.
    pub open: usize,
    /// Whether all were looked at.
    pub is_whole: bool,
}

/// Goes through up to `records_max` records of a store (not of a [`SealedStore`](super::SealedStore) around it)
/// and counts what their recordings were encrypted with.
///
/// # Errors
/// If the store does not answer.
pub async fn keys_in_use(store: &dyn Store, records_max: usize) -> Result<KeysInUse, StoreError> {
    let mut found = KeysInUse::default();
    let (mut from, mut looked_at) = (None, 0);
    while looked_at < records_max {
        let page = store.page(from, STEP.min(records_max - looked_at)).await?;
        looked_at += page.ids.len();
        // One that cannot be read is somebody else's trouble.
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
