//! The client for Rust: tower and reqwest, and services with axum.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

#[expect(unreachable_pub, reason = "the README has the same text")]
mod after_reqwest;
#[expect(unreachable_pub, reason = "the README has the same text")]
mod after_tower;
#[expect(unreachable_pub, reason = "the README has the same text")]
mod before_reqwest;
mod calls;
mod readme;
mod server;
mod services;
mod streams_and_keys;
mod traces;
