//! Where onetake keeps its records.
//!
//! Every store here keeps the contract of [`onetake_core::store`] and passes its conformance suite.
//!
//! | feature | store | for |
//! | --- | --- | --- |
//! | `embedded` (default) | [`EmbeddedStore`] | one node, one folder, no server |
//! | `filtered` | [`FilteredStore`] | Redis in front of another store, as a filter |

#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
mod breaker;
mod diagnosis;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "filtered")]
pub mod filtered;

pub use diagnosis::{Diagnosis, Finding, Weight};

#[cfg(feature = "embedded")]
pub use embedded::{EmbeddedStore, OpenError};
#[cfg(feature = "filtered")]
pub use filtered::{FilterOptions, FilteredStore};
