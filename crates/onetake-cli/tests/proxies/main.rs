//! Real proxies: onetake inside Envoy, and the gateway behind Envoy, nginx, HAProxy and Caddy.

#[path = "../common/mod.rs"]
mod common;

mod ext_proc;
mod recipes;
