//! Real proxies: onetake inside Envoy, and the gateway behind Envoy, nginx, HAProxy and Caddy.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

mod ext_proc;
mod recipes;
