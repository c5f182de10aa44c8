//! The metrics of a relay.

use metrics::{Counter, counter, describe_counter, describe_gauge, gauge};
use onetake_core::outbox::OutboxCounts;

const WAITING: &str = "onetake_outbox_waiting";
const PARKED: &str = "onetake_outbox_parked";
const LAG: &str = "onetake_outbox_lag_seconds";

/// Counters of deliveries.
#[derive(Debug)]
pub(crate) struct DeliveryCounters {
    pub(crate) delivered: Counter,
    pub(crate) parked: Counter,
    pub(crate) failed: Counter,
}

impl DeliveryCounters {
    /// Creates the counters with the value zero, so that they exist from the start.
    pub(crate) fn new() -> Self {
        let made = |name, what| {
            describe_counter!(name, what);
            let counter = counter!(name);
            counter.increment(0);
            counter
        };
        describe_gauge!(WAITING, "Messages that wait for delivery (counted up to 100000).");
        describe_gauge!(PARKED, "Parked messages, which need an operator (counted up to 100000).");
        describe_gauge!(LAG, "Age of the oldest undelivered message.");
        Self {
            delivered: made("onetake_outbox_delivered_total", "Messages delivered."),
            parked: made("onetake_outbox_parked_total", "Messages parked."),
            failed: made(
                "onetake_outbox_failed_total",
                "Deliveries that failed and will be retried.",
            ),
        }
    }
}

/// Updates the gauges of the outbox.
#[expect(clippy::cast_precision_loss, reason = "counting stops long before")]
pub(crate) fn tell(counts: &OutboxCounts) {
    gauge!(WAITING).set(counts.waiting as f64);
    gauge!(PARKED).set(counts.parked as f64);
    gauge!(LAG).set(counts.lag.as_secs_f64());
}
