//! What checks onetake as a whole. Not published.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`simulation`] | several real engines and layers on simulated time, with faults of every kind |
//! | [`model`] | an exhaustive model of a record's life, over the functions that stores apply; the binary `onetake-model` runs it |
//! | [`blackbox`] | what a client sees of a gateway, whatever store is behind it |
//! | [`history`] | histories of concurrent clients on real servers, and the checker for them |
//! | [`upstream`] | an upstream that does what its path says, and counts what it did |
//! | [`servers`] | PostgreSQL, PgBouncer, Redis, Valkey, Redis Cluster, DynamoDB, NATS and a Stripe, started by tests |
//! | [`fault_proxy`] | a TCP proxy that can be slow, deaf or dead |
//! | [`client`] | a client that shows everything it got |

pub mod blackbox;
pub mod client;
pub mod fault_proxy;
pub mod history;
pub mod model;
pub mod servers;
pub mod simulation;
pub mod upstream;
