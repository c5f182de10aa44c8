//! The layer as handlers see it: what they may know, and what they return.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests may panic")]

mod extract;
mod shared;
mod transaction;
mod typed;
