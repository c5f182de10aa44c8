//! Tests of the SQLite store, its transactions and its outbox. No server is needed.
#![cfg(feature = "sqlite")]
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod outbox;
#[path = "../common/outbox_repair.rs"]
mod outbox_repair;
mod store;
mod transactions;
