//! What the engine counts. The names are documented in docs/OPERATIONS.md.

use std::future::Future;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::clock::Clock;

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
    pub(crate) claims: Writes,
    pub(crate) settlements: Writes,
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
            claims: Writes::new("claim"),
            settlements: Writes::new("settle"),
        }
    }
}

/// How long one kind of write takes, and how much goes together.
pub(crate) struct Writes {
    seconds: Histogram,
    items: Histogram,
}

impl Writes {
    fn new(operation: &'static str) -> Self {
        Self {
            seconds: histogram!("onetake_store_seconds", "operation" => operation),
            items: histogram!("onetake_batch_size", "operation" => operation),
        }
    }

    pub(crate) async fn observe<T>(
        &self,
        clock: &dyn Clock,
        items: usize,
        write: impl Future<Output = T>,
    ) -> T {
        self.items.record(items as f64);
        let from = clock.monotonic();
        let answers = write.await;
        self.seconds.record((clock.monotonic() - from).as_secs_f64());
        answers
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
