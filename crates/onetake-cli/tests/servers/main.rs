//! Tests of the gateway and of the other commands with real servers: PostgreSQL, Redis, DynamoDB.

mod admin_api_schemathesis;
mod blackbox;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod deadlines;
mod grpc;
#[cfg(feature = "otlp")]
mod log_secrecy;
mod reconcile;
mod secrets_at_rest;
mod two_nodes;
mod unsaved_outcomes;
