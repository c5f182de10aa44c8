//! Where onetake keeps its records.
//!
//! Every store here keeps the contract of [`onetake_core::store`] and passes its conformance suite.
//!
//! | feature | store | for |
//! | --- | --- | --- |
//! | `embedded` (default) | [`EmbeddedStore`] | one node, one folder, no server |

#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
mod breaker;
mod diagnosis;
#[cfg(feature = "embedded")]
pub mod embedded;

pub use diagnosis::{Diagnosis, Finding, Weight};

#[cfg(feature = "embedded")]
pub use embedded::{EmbeddedStore, OpenError};
