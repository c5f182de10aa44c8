//! Makes operations safe to retry: one key, one run, one recorded outcome.
//!
//! - For HTTP services, wrap them in the [`OnetakeLayer`] (feature `http`).
//! - For jobs and consumers, call [`Engine::run`], or [`Engine::begin`] and settle the [`Lease`].
//! - With the feature `axum`, handlers can ask for the key, the attempt and a key for their own calls, and return
//!   values that are kept ([`Typed`]); with `jwt`, tenants are told by verified tokens.
//! - Where the effects are in the PostgreSQL or SQLite database that keeps the records, they commit with the outcome:
//!   [`transaction`], the example `transfers`, and the [`Inbox`] for consumers.
//! - Records are kept in an [`EmbeddedStore`] (feature `embedded`), in a store that several nodes share
//!   (features `postgres`, `redis`, `filtered`, `dynamodb`), in SQLite (`sqlite`), or in any other [`Store`];
//!   a `SealedStore` (`sealed`) around it compresses and encrypts them.
//!
//! ```
//! use std::sync::Arc;
//! use onetake::{Engine, Fingerprint, Key, MemoryStore, Operation, Recording, Scope, Verdict};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::new(Arc::new(MemoryStore::new()));
//! let key = Key::new("invoice-2041-reminder-1")?;
//! let operation = || Operation::new(&Scope::new("acme"), &key, Fingerprint::of(b"send it"));
//!
//! let first = engine.run(operation(), |attempt| async move {
//!     // Runs once, whoever asks how often. `attempt.fence` is higher for every later attempt.
//!     Verdict::Complete(Recording::new(format!("sent under fence {}", attempt.fence)))
//! });
//! let first = first.await?;
//! let again = engine.run(operation(), |_| async { unreachable!("it ran already") }).await?;
//! assert_eq!(first.recording(), again.recording());
//! # Ok(())
//! # }
//! ```
//!
//! The explicit form, for operations that do not fit into a closure:
//!
//! ```
//! # use std::sync::Arc;
//! # use onetake::{Begin, Engine, Fingerprint, Key, MemoryStore, Operation, Recording, Scope};
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = Engine::new(Arc::new(MemoryStore::new()));
//! let key = Key::new("payout-77")?;
//! let operation = Operation::new(&Scope::new("acme"), &key, Fingerprint::of(b"100 EUR"));
//! match engine.begin(&operation).await? {
//!     Begin::Run(lease) => {
//!         lease.start()?; // immediately before the first effect
//!         let settled = lease.complete(Recording::new("paid")).await;
//!         println!("{settled:?}");
//!     }
//!     Begin::Answer(answer) => println!("somebody else ran it: {answer:?}"),
//! }
//! # Ok(())
//! # }
//! ```

pub use onetake_core::engine::{EngineBuilder, Housekeeping, LeaseLost};
pub use onetake_core::*;

#[cfg(feature = "conformance")]
pub use onetake_conformance as conformance;

#[cfg(feature = "http")]
pub use onetake_http::json::{Pointer, Selection};
#[cfg(feature = "http")]
pub use onetake_http::status::StatusPattern;
#[cfg(feature = "http")]
pub use onetake_http::{
    Answers, Ask, By, ClientIp, Dialect, Disposition, FingerprintMode, FingerprintPolicy,
    HttpLimits, IssuingKey, KeyFormat, KeyPolicy, KeySource, Known, OnStoreDown, OnetakeLayer,
    Policy, Preset, ProblemStatuses, Remembered, Resolve, Secrets, StatusRules, Stored, Tenant,
    Typed, Velocity,
};

#[cfg(feature = "jwt")]
pub use onetake_http::{Jwt, JwtKey};

#[cfg(feature = "axum")]
mod serve;
#[cfg(feature = "axum")]
pub use serve::{ServeError, Served, serve};

#[cfg(feature = "axum")]
pub use onetake_http::extract::{DownstreamKey, IdempotencyKey, NotThere, RunningAttempt};
#[cfg(feature = "axum")]
pub use onetake_http::transaction::{AttemptTransaction, CommitError, InTransaction};

/// PostgreSQL: `Transactional`, and `finish` for transactions of tokio-postgres and of sqlx.
#[cfg(feature = "postgres")]
pub use onetake_stores::postgres;
/// SQLite: `Transactional`, and `finish` for transactions of rusqlite.
#[cfg(feature = "sqlite")]
pub use onetake_stores::sqlite;

/// Everything of the HTTP layer.
#[cfg(feature = "http")]
pub use onetake_http as layer;

pub use onetake_stores::FileJournal;
#[cfg(feature = "sqlite")]
pub use onetake_stores::SqliteStore;
#[cfg(feature = "dynamodb")]
pub use onetake_stores::{DynamoOptions, DynamoStore};
#[cfg(feature = "embedded")]
pub use onetake_stores::{EmbeddedStore, OpenError};
#[cfg(feature = "sealed")]
pub use onetake_stores::{EncryptionKey, SealedJournal, SealedStore, Sealer};
#[cfg(feature = "filtered")]
pub use onetake_stores::{FilterOptions, FilteredStore};
#[cfg(feature = "postgres")]
pub use onetake_stores::{Migrated, PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
pub use onetake_stores::{RedisOptions, RedisStore, RedisVelocity};

/// The examples in the README are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
