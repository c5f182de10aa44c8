//! The `onetake` binary as a library; `main` only calls it.
//!
//! [`gateway`] puts a proxy behind the tower layer that Rust services use. There is no second
//! implementation.

pub mod cli;
pub mod config;
pub mod demo;
pub mod doctor;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gateway;
mod keys;
pub mod logs;
mod probe;
mod relay;
pub mod stores;
mod traces;
