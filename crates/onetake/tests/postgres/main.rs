//! The examples that need a real PostgreSQL, run as users run them.

#[cfg(feature = "sqlx")]
mod example_service;
mod example_transfers;
