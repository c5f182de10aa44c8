//! Tests of the layer, in memory and on the embedded store. No server is needed.

mod accepted_202;
mod client_attacks;
mod common;
mod fingerprints;
#[cfg(feature = "axum")]
mod handlers;
mod ietf_draft;
mod operator_actions;
#[path = "../policy_matrix/mod.rs"]
mod policy_matrix;
mod policy_matrix_on_local_stores;
mod requests;
mod route_policies;
mod route_table;
mod store_unavailable;
mod tasks_per_request;
#[cfg(feature = "jwt")]
mod tenants;
mod unknown_outcomes;
mod velocity_limits;
