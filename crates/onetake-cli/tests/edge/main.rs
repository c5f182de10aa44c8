//! The edge of the gateway with real clients and real load balancers.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;
mod early_answers;
mod early_hints;
mod rolling_restart;
