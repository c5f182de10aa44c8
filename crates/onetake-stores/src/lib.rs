//! Where onetake keeps its records.
//!
//! Every store here keeps the contract of [`onetake_core::store`] and passes its conformance suite.
//!
//! | feature | store | for |
//! | --- | --- | --- |
//! | `embedded` (default) | [`EmbeddedStore`] | one node, one folder, no server |

// Stands in for the stores that are not merged yet.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis", feature = "dynamodb"))]
mod assumed;
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
#[allow(dead_code, clippy::allow_attributes, reason = "its users are not merged yet")]
mod breaker;
mod diagnosis;
#[cfg(feature = "embedded")]
pub mod embedded;

#[cfg(feature = "sqlite")]
pub use assumed::SqliteStore;
#[cfg(feature = "dynamodb")]
pub use assumed::{DynamoOptions, DynamoStore};
#[cfg(feature = "filtered")]
pub use assumed::{FilterOptions, FilteredStore};
#[cfg(feature = "postgres")]
pub use assumed::{Migrated, PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
pub use assumed::{RedisOptions, RedisStore};
pub use diagnosis::{Diagnosis, Finding, Weight};

#[cfg(feature = "embedded")]
pub use embedded::{EmbeddedStore, OpenError};
