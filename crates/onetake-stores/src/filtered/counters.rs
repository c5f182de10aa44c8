//! The metrics of the filter. docs/OPERATIONS.md explains them.

use metrics::{Counter, counter, describe_counter};

use super::entry::EntryError;

/// All metrics, looked up once.
pub(super) struct FilterMetrics {
    pub(super) hits: Counter,
    pub(super) misses: Counter,
    pub(super) errors: Counter,
    pub(super) dropped: Counter,
    pub(super) checked: Counter,
    pub(super) overruled: Counter,
    pub(super) restored: Counter,
}

const COUNTERS: [(&str, &str); 7] = [
    ("onetake_filter_hits_total", "Reads answered by the filter."),
    ("onetake_filter_misses_total", "Reads passed on to the authority."),
    (
        "onetake_filter_refused_total",
        "Entries that were refused because they are not authentic or not valid.",
    ),
    ("onetake_filter_errors_total", "Reads for which the filter was unreachable."),
    ("onetake_filter_writes_dropped_total", "Entries that were not written."),
    ("onetake_filter_checked_total", "Entries compared with the authority."),
    ("onetake_filter_repairs_total", "Entries that differed from the authority."),
];

impl FilterMetrics {
    pub(super) fn new() -> Self {
        for (name, what) in COUNTERS {
            describe_counter!(name, what);
        }
        Self {
            hits: counter!("onetake_filter_hits_total"),
            misses: counter!("onetake_filter_misses_total"),
            errors: counter!("onetake_filter_errors_total"),
            dropped: counter!("onetake_filter_writes_dropped_total"),
            checked: counter!("onetake_filter_checked_total"),
            overruled: counter!("onetake_filter_repairs_total", "repaired" => "filter"),
            restored: counter!("onetake_filter_repairs_total", "repaired" => "authority"),
        }
    }

    /// Counts an entry that was refused.
    pub(super) fn refused(why: EntryError) {
        let why = match why {
            EntryError::Format => "format",
            EntryError::Mac => "mac",
            EntryError::Content => "content",
        };
        counter!("onetake_filter_refused_total", "why" => why).increment(1);
    }
}

impl std::fmt::Debug for FilterMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").finish_non_exhaustive()
    }
}
