//! Tests of the embedded store. No server is needed.
#![cfg(feature = "embedded")]

mod conformance;
mod deliberate_bugs;
mod durability;
#[cfg(feature = "sealed")]
mod encryption;
mod failed_commit;
mod folder;
mod full_disk;
mod reopened;
mod segments;
mod space;
mod store_folder;
