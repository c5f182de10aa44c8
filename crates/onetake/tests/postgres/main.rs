//! The examples that need a real PostgreSQL, run as users run them.

#[cfg(feature = "sqlx")]
mod example_service;
mod example_transfers;
#[path = "../service/tonic_layer.rs"]
mod tonic_layer;
mod tonic_postgres;

use tonic_postgres::open_store;
