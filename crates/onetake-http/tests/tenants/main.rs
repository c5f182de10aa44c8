//! Tenants: tokens, authentication services, and isolation between tenants.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod apart;
mod asked;
mod jwks;
mod jwt;
mod modes;
mod sign;
