//! Tests of the layer, in memory and on the embedded store. No server is needed.

mod accepted_202;
mod client_attacks;
mod common;
mod deadlines_and_stores;
#[cfg(feature = "axum")]
mod duplicate_payloads;
mod fingerprints;
#[cfg(feature = "axum")]
mod handlers;
mod ietf_draft;
#[cfg(feature = "axum")]
mod keys_from_values;
mod known_keys_in_outages;
mod operator_actions;
#[path = "../policy_matrix/mod.rs"]
mod policy_matrix;
mod policy_matrix_on_local_stores;
#[cfg(feature = "axum")]
mod repeated_keys;
mod requests;
mod route_policies;
mod route_table;
mod store_calls_per_request;
mod store_unavailable;
mod tasks_per_request;
#[cfg(feature = "jwt")]
mod tenants;
mod unknown_outcomes;
mod velocity_limits;
#[cfg(feature = "axum")]
mod wrong_password;
