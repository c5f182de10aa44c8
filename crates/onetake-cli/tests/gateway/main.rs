//! Tests of the gateway and of the other commands, in this process and as processes. No server is
//! needed.

mod admin;
mod ambiguous_requests;
mod blackbox;
mod broken_uploads;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod cors;
mod counted_refusals;
mod deliberate_bugs;
mod demo;
mod documented_metrics;
mod duplicate_payloads;
mod early_answers;
mod early_hints;
mod forwarding;
mod graceful_shutdown;
mod grpc;
mod hostile_connections;
mod keep_alive;
mod kills_and_signals;
mod limits;
#[cfg(feature = "otlp")]
mod log_secrecy;
mod message_heads;
#[cfg(feature = "otlp")]
mod opentelemetry_traces;
mod payments_with_kills;
mod probe;
mod reconcile;
mod secrets_at_rest;
mod tenants;
mod tls;
mod trailers;
mod webhooks;
