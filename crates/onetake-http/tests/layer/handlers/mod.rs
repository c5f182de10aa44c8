//! The layer from the view of handlers: extractors and return values.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests may panic")]

mod closure_policies;
mod extractors;
mod helpers;
mod service_rules;
mod transactions;
mod typed_results;
