//! What the engine counts. The names are documented in docs/OPERATIONS.md.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// Handles, looked up once.
pub(crate) struct Metrics {
    pub(crate) executed: Counter,
    pub(crate) replayed: Counter,
    pub(crate) in_flight: Counter,
    pub(crate) wait_timeouts: Counter,
    pub(crate) mismatches: Counter,
    pub(crate) unknown: Counter,
    pub(crate) unknown_answers: Counter,
    pub(crate) released: Counter,
    pub(crate) stale: Counter,
    pub(crate) overloaded: Counter,
    pub(crate) store_errors: Counter,
    pub(crate) pending: Counter,
    pub(crate) swept: Counter,
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) claim_seconds: Histogram,
    pub(crate) settle_seconds: Histogram,
    pub(crate) claim_batch: Histogram,
    pub(crate) settle_batch: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            executed: counter!("onetake_executed_total"),
            replayed: counter!("onetake_replayed_total"),
            in_flight: counter!("onetake_in_flight_refused_total"),
            wait_timeouts: counter!("onetake_wait_timeouts_total"),
            mismatches: counter!("onetake_mismatches_total"),
            unknown: counter!("onetake_unknown_total"),
            unknown_answers: counter!("onetake_unknown_answers_total"),
            released: counter!("onetake_released_total"),
            stale: counter!("onetake_stale_settlements_total"),
            overloaded: counter!("onetake_overloaded_total"),
            store_errors: counter!("onetake_store_errors_total"),
            pending: counter!("onetake_outcomes_pending_total"),
            swept: counter!("onetake_swept_total"),
            running: gauge!("onetake_running"),
            waiting: gauge!("onetake_waiting"),
            claim_seconds: histogram!("onetake_store_seconds", "operation" => "claim"),
            settle_seconds: histogram!("onetake_store_seconds", "operation" => "settle"),
            claim_batch: histogram!("onetake_batch_size", "operation" => "claim"),
            settle_batch: histogram!("onetake_batch_size", "operation" => "settle"),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
