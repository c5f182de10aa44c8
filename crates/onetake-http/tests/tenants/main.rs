//! Whose key it is: tokens, and what one tenant can find out about another.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may panic")]

mod apart;
mod asked;
mod jwks;
mod jwt;
mod modes;
mod sign;
