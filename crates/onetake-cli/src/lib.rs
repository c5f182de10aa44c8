//! The binary `onetake`, as a library with a thin `main`.
//!
//! [`gateway`] is the same tower layer that Rust services use, around a proxy: there is no second
//! implementation.

pub mod cli;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod gateway;
mod keys;
pub mod logs;
mod relay;
pub mod stores;
mod traces;
