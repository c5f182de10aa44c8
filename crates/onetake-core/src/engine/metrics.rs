//! Metrics of the engine. docs/OPERATIONS.md describes them.

use std::future::Future;

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::clock::Clock;

/// All metrics, looked up once.
pub(crate) struct Metrics {
    pub(crate) executed: Counter,
    pub(crate) replayed: Counter,
    pub(crate) in_flight: Counter,
    pub(crate) wait_timeouts: Counter,
    pub(crate) mismatches: Counter,
    pub(crate) unknown: Counter,
    pub(crate) unknown_answers: Counter,
    pub(crate) unknown_expired: Counter,
    pub(crate) released: Counter,
    pub(crate) stale: Counter,
    pub(crate) overloaded: Counter,
    pub(crate) store_errors: Counter,
    pub(crate) bypassed: Counter,
    pub(crate) pending: Counter,
    pub(crate) swept: Counter,
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) lost_claims: Gauge,
    pub(crate) claims: Writes,
    pub(crate) settlements: Writes,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        describe();
        Self {
            executed: counter!("onetake_executed_total"),
            replayed: counter!("onetake_replayed_total"),
            in_flight: counter!("onetake_in_flight_refused_total"),
            wait_timeouts: counter!("onetake_wait_timeouts_total"),
            mismatches: counter!("onetake_mismatches_total"),
            unknown: counter!("onetake_unknown_total"),
            unknown_answers: counter!("onetake_unknown_answers_total"),
            unknown_expired: counter!("onetake_unknown_expired_total"),
            released: counter!("onetake_released_total"),
            stale: counter!("onetake_stale_settlements_total"),
            overloaded: counter!("onetake_overloaded_total", "reason" => "operations"),
            store_errors: counter!("onetake_store_errors_total"),
            bypassed: counter!("onetake_bypassed_total"),
            pending: counter!("onetake_outcomes_pending_total"),
            swept: counter!("onetake_swept_total"),
            running: gauge!("onetake_running"),
            waiting: gauge!("onetake_waiting"),
            lost_claims: gauge!("onetake_lost_claims"),
            claims: Writes::new("claim"),
            settlements: Writes::new("settle"),
        }
    }
}

/// The counter of reconciliations, with a label for the result.
pub(crate) const RECONCILED: &str = "onetake_reconciled_total";

/// The counter of operators' actions, with a label for the action.
pub(crate) const INTERVENTIONS: &str = "onetake_interventions_total";

const COUNTERS: [(&str, &str); 17] = [
    ("onetake_executed_total", "Operations that were started."),
    ("onetake_replayed_total", "Retries answered from a recording."),
    (
        "onetake_in_flight_refused_total",
        "Requests refused because an attempt with the same key was running.",
    ),
    (
        "onetake_wait_timeouts_total",
        "Requests that waited for a running attempt until wait_timeout.",
    ),
    (
        "onetake_mismatches_total",
        "Requests refused because their key was used with another payload.",
    ),
    ("onetake_unknown_total", "Attempts whose outcome became unknown."),
    ("onetake_unknown_answers_total", "Retries refused because of an unknown outcome."),
    ("onetake_unknown_expired_total", "Keys that expired with an unknown outcome."),
    ("onetake_released_total", "Attempts released because they had no effect."),
    ("onetake_stale_settlements_total", "Late settlements that were ignored."),
    ("onetake_overloaded_total", "Requests refused by a limit, by its reason."),
    ("onetake_store_errors_total", "Errors returned by the store."),
    (
        "onetake_bypassed_total",
        "Operations that ran without a record because the store was unreachable (fail-open).",
    ),
    ("onetake_outcomes_pending_total", "Outcomes that could not be saved in time."),
    ("onetake_swept_total", "Expired records that were deleted."),
    (RECONCILED, "Reconciliations of unknown attempts, by result."),
    (INTERVENTIONS, "Operator actions on keys, by action and result."),
];

fn describe() {
    for (name, what) in COUNTERS {
        describe_counter!(name, what);
    }
    describe_gauge!("onetake_running", "Running operations.");
    describe_gauge!("onetake_waiting", "Requests that wait for a running attempt.");
    describe_gauge!(
        "onetake_lost_claims",
        "Claims without a response from the store, which are released if the store has recorded them."
    );
    describe_histogram!("onetake_store_seconds", "Duration of one write to the store.");
    describe_histogram!("onetake_batch_size", "Items in one write to the store.");
}

/// The duration and the batch size of one kind of write.
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
