//! Tests of the embedded store. No server is needed.
#![cfg(feature = "embedded")]

mod conformance;
mod deliberate_bugs;
#[cfg(feature = "sealed")]
mod encryption;
mod failed_commit;
mod folder;
