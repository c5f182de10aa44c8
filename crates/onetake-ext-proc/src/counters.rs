//! Metrics of the processor. docs/OPERATIONS.md describes them.

use std::fmt;
use std::sync::Once;

use metrics::{Counter, counter, describe_counter};

const RETRIED: &str = "onetake_ext_proc_retried_total";
const UNVERIFIED: &str = "onetake_ext_proc_unverified_total";

/// The counters, looked up once.
pub(crate) struct Counters {
    /// Attempts whose request Envoy sent more than once.
    pub(crate) retried: Counter,
    unverified: Counter,
    warned: Once,
}

impl Default for Counters {
    fn default() -> Self {
        describe_counter!(RETRIED, "Attempts whose request Envoy sent more than once.");
        describe_counter!(UNVERIFIED, "Responses without the attributes that show their origin.");
        Self { retried: counter!(RETRIED), unverified: counter!(UNVERIFIED), warned: Once::new() }
    }
}

impl Counters {
    /// Counts a response without the attributes that show its origin. The first one is logged.
    pub(crate) fn unverified(&self) {
        self.unverified.increment(1);
        self.warned.call_once(|| {
            tracing::error!(
                "the filter does not send the attributes of responses: every response with a \
                 status from 500 leaves an unknown outcome. Write response_attributes: \
                 [response.code_details, upstream.request_attempt_count] in its configuration"
            );
        });
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counters")
    }
}
