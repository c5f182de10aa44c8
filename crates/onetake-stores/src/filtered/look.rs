//! Lookups in the filter.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use onetake_core::{Record, RecordId, Timestamp};

use super::counters::Counters;
use super::{CLOCK_MARGIN, Shared, writer};

/// The filter's content for one id.
#[derive(Clone, Debug)]
pub(super) enum Look {
    /// The finished record.
    Hit(Arc<Record>),
    /// A value that must not be used, and may be replaced.
    Unusable,
}

/// The filter's content for some ids. Ids without content are missing.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) answers: HashMap<RecordId, Look>,
    /// The time of the lookup, which is ahead of the authority's time.
    pub(super) now: Timestamp,
}

impl Shared {
    /// Reads entries, each id once. After any error the result is empty.
    pub(super) async fn look(&self, ids: impl Iterator<Item = RecordId>) -> Looked {
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
                tracing::debug!(%error, "the filter could not be asked");
                Bytes::new()
            });
            if bytes.is_empty() || *bytes == *writer::FORGOTTEN {
                continue;
            }
            let look = match self.seal.open(*id, bytes) {
                Ok(entry) if entry.until > now => {
                    hits += 1;
                    Look::Hit(Arc::new(entry.record))
                }
                Ok(_ended) => Look::Unusable,
                Err(why) => {
                    Counters::refused(why);
                    tracing::debug!(reference = %id.reference(), ?why, "an entry was refused");
                    Look::Unusable
                }
            };
            answers.insert(*id, look);
        }
        self.counters.hits.increment(hits);
        self.counters.misses.increment((ids.len() as u64).saturating_sub(hits));
        Looked { answers, now }
    }
}

impl Looked {
    pub(super) fn hit(&self, id: &RecordId) -> Option<Arc<Record>> {
        match self.answers.get(id) {
            Some(Look::Hit(record)) => Some(Arc::clone(record)),
            _ => None,
        }
    }
}
