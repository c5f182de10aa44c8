//! Tenants: tokens, authentication services, and isolation between tenants.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod authentication_service;
mod isolation;
mod issuers;
mod jwks;
mod jwt;
mod kinds;
