//! Lookups in the filter.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use onetake_core::{Record, RecordId, Timestamp};

use super::counters::FilterMetrics;
use super::{CLOCK_MARGIN, FilterState, writer};

/// The filter's content for one id.
#[derive(Clone, Debug)]
pub(super) enum FilterContent {
    /// The finished record.
    Hit(Arc<Record>),
    /// A value that must not be used, and may be replaced.
    Unusable,
}

/// The filter's content for some ids. Ids without content are missing.
#[derive(Debug)]
pub(super) struct FilterContents {
    pub(super) answers: HashMap<RecordId, FilterContent>,
    /// The time of the lookup, which is ahead of the authority's time.
    pub(super) now: Timestamp,
}

impl FilterState {
    /// Reads entries, each id once. After any error the result is empty.
    pub(super) async fn look(&self, ids: impl Iterator<Item = RecordId>) -> FilterContents {
        let mut ids: Vec<RecordId> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        let found = self.link.get_many(&ids, self.entry_bytes_max).await;
        // The time is read after the answer, which may have taken long.
        let now = self.time.now().plus(CLOCK_MARGIN);
        let mut answers = HashMap::new();
        let mut hits = 0;
        for (id, found) in ids.iter().zip(found) {
            let bytes = found.unwrap_or_else(|error| {
                self.counters.errors.increment(1);
                tracing::debug!(%error, "the filter could not be read");
                Bytes::new()
            });
            if bytes.is_empty() || *bytes == *writer::FORGOTTEN {
                continue;
            }
            let look = match self.seal.open(*id, bytes) {
                Ok(entry) if entry.until > now => {
                    hits += 1;
                    FilterContent::Hit(Arc::new(entry.record))
                }
                Ok(_ended) => FilterContent::Unusable,
                Err(why) => {
                    FilterMetrics::refused(why);
                    tracing::debug!(reference = %id.reference(), ?why, "an entry of the filter was refused");
                    FilterContent::Unusable
                }
            };
            answers.insert(*id, look);
        }
        self.counters.hits.increment(hits);
        self.counters.misses.increment((ids.len() as u64).saturating_sub(hits));
        FilterContents { answers, now }
    }
}

impl FilterContents {
    pub(super) fn hit(&self, id: &RecordId) -> Option<Arc<Record>> {
        match self.answers.get(id) {
            Some(FilterContent::Hit(record)) => Some(Arc::clone(record)),
            _ => None,
        }
    }
}
