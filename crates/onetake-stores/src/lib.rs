//! The stores of onetake: the places where it keeps its records.
//!
//! Every store keeps the contract of [`onetake_core::store`] and passes the conformance suite.
//!
//! | feature | store | for |
//! | --- | --- | --- |
//! | `embedded` (default) | `EmbeddedStore` | one node, one folder, no server |
//! | `postgres` | `PostgresStore` | many nodes on one PostgreSQL |
//! | `filtered` | `FilteredStore` | Redis in front of PostgreSQL, as a filter that answers duplicates |
//! | `redis` | `RedisStore` | many nodes on one Redis, Valkey or Redis Cluster, for records that may be lost |
//! | `sqlite` | `SqliteStore` | one node, one file, no server |
//! | `dynamodb` | `DynamoStore` | many nodes, one DynamoDB table |
//! | `sealed` | `SealedStore` | a wrapper of any store: recordings compressed and encrypted, memos encrypted |

#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
mod breaker;
mod diagnosis;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "filtered")]
pub mod filtered;
mod folders;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod journal;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod outbox_codes;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sealed")]
pub mod sealed;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod state_names;
#[cfg(any(feature = "embedded", feature = "sqlite"))]
mod thread;
pub mod url;
#[cfg(any(feature = "embedded", feature = "sqlite"))]
mod write_contact;

pub use diagnosis::{Diagnosis, Finding, Weight};
pub use journal::FileJournal;
pub use url::{ServerUrl, StoreUrl, UrlError};

#[cfg(feature = "dynamodb")]
pub use dynamodb::{DynamoOptions, DynamoStore};
#[cfg(feature = "embedded")]
pub use embedded::{EmbeddedStore, OpenError};
#[cfg(feature = "filtered")]
pub use filtered::{FilterOptions, FilteredStore};
#[cfg(feature = "postgres")]
pub use postgres::{Migrated, PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
pub use redis::{RedisOptions, RedisStore, RedisVelocity};
#[cfg(feature = "sealed")]
pub use sealed::{EncryptionKey, SealedJournal, SealedStore, Sealer};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
