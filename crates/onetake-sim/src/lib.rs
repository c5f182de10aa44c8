//! Checks of onetake as a whole. Not published.
//!
//! | module | contents |
//! | --- | --- |
//! | [`simulation`] | several real engines and layers on simulated time, with faults of every kind |
//! | [`model`] | an exhaustive model of a record's life (binary: `onetake-model`) |
//! | [`blackbox`] | tests of a gateway as its clients see it, over any store |
//! | [`history`] | histories of concurrent clients on real servers, and the checker for them |
//! | [`upstream`] | an upstream that acts as its path says, and counts its actions |
//! | [`servers`] | PostgreSQL, Redis, DynamoDB, NATS and other servers that tests start |
//! | [`fault_proxy`] | a TCP proxy that can be slow, silent or dead |
//! | [`scenarios`] | the server of the clients' suite (binary: `onetake-scenarios`) |
//! | [`lossy`] | a gateway behind a proxy that loses responses, for the clients' tests |
//! | [`client`] | a client that returns everything it received |

pub mod blackbox;
pub mod client;
pub mod fault_proxy;
pub mod grpc;
pub mod history;
pub mod lossy;
pub mod model;
pub mod scenarios;
pub mod servers;
pub mod simulation;
pub mod upstream;
