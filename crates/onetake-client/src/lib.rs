//! A client that makes a key per intent and retries safely, for tower and reqwest.
#![cfg_attr(all(feature = "axum", feature = "reqwest"), doc = "")]
#![cfg_attr(all(feature = "axum", feature = "reqwest"), doc = include_str!("../README.md"))]

mod body;
mod budget;
mod call;
mod clock;
mod error;
mod keys;
mod onetake;
#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(feature = "axum")]
pub mod service;
mod tower;
mod verdict;

pub use body::ReplayBody;
pub use budget::Budget;
pub use clock::{Clock, Rng, Sleep, SystemClock, SystemRng};
pub use error::{BoxError, EndReason, Error, Failure, Kind, Problem};
pub use keys::{DerivedKey, Intent, InvalidKey, KEY_HEADER};
pub use onetake::{CallDeadline, CallEvent, CallReport, Limits, Onetake, OnetakeBuilder};
pub use tower::{OnetakeLayer, OnetakeService, ResponseBody};
