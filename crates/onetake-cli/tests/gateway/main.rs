//! Tests of the gateway and of the other commands, in this process and as processes. No server is
//! needed.

mod admin;
mod blackbox;
mod broken_uploads;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod deliberate_bugs;
mod demo;
mod documented_metrics;
mod grpc;
mod kills_and_signals;
#[cfg(feature = "otlp")]
mod log_secrecy;
#[cfg(feature = "otlp")]
mod opentelemetry_traces;
mod payments_with_kills;
mod reconcile;
mod secrets_at_rest;
mod tenants;
mod tls;
