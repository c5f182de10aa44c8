//! Makes operations safe to retry: one key, one run, one recorded outcome.
//!
//! | module | for | features |
//! | --- | --- | --- |
//! | [`prelude`] | the names that most services use | |
//! | `http` | [`OnetakeLayer`], [`Policy`], tenants, extractors, problems | `http`, `axum`, `jwt` |
//! | [`engine`] | operations without HTTP: [`Engine::run`], [`Engine::begin`] and their types | |
//! | [`job`] | work with a typed result | |
//! | [`inbox`], [`outbox`] | message consumers, and messages that commit with an outcome | |
//! | [`transaction`] | effects that commit with their outcome | `postgres`, `sqlite`, `sqlx` |
//! | [`stores`] | the stores, and their options | one for each store |
//! | [`store`] | the contract for a store of your own | `conformance` has its tests |
//! | [`clock`] | time and randomness, for tests | |
//!
//! Structs of options, such as [`engine::Limits`], have public fields and are exhaustive. Build them
//! with `..Default::default()`, so that a new option does not break your code. Results that a caller
//! must handle case by case are exhaustive too, because a forgotten case can run an operation twice or
//! never: [`engine::Outcome`], [`engine::Answer`], [`engine::Settling`], [`engine::Verdict`],
//! [`engine::OnUnknown`], and the values of the contract of stores, such as [`store::Transition`],
//! [`engine::State`], [`store::Claimed`], [`store::Settled`] and [`store::Due`]. A new case of these is
//! a compile error in your code.
//!
//! ```
//! use std::sync::Arc;
//! use onetake::prelude::*;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::new(Arc::new(MemoryStore::new()));
//! let key = Key::new("invoice-2041-reminder-1")?;
//! let operation = || Operation::new(&Scope::new("acme"), &key, Fingerprint::of(b"send it"));
//!
//! let first = engine.run(operation(), |attempt| async move {
//!     // Runs once for all callers. `attempt.fence` rises with every later attempt.
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
//! # use onetake::prelude::*;
//! use onetake::engine::Begin;
//!
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
//!     Begin::Answer(answer) => println!("another attempt ran it: {answer:?}"),
//! }
//! # Ok(())
//! # }
//! ```

pub use onetake_core::store::Store;
pub use onetake_core::{Engine, ErrorChain, delegate_store};
pub use onetake_core::{clock, inbox, job, outbox, store, transaction};

#[cfg(feature = "http")]
pub use onetake_http::{OnetakeLayer, Policy, Routes};

#[cfg(feature = "axum")]
mod serve;
#[cfg(feature = "axum")]
pub use serve::{ServeError, Served, serve, stop_signal};

/// The layer for HTTP services: policies, tenants, extractors and problems.
#[cfg(feature = "http")]
pub use onetake_http as http;

/// The conformance tests for a store of your own.
#[cfg(feature = "conformance")]
pub use onetake_conformance as conformance;

/// PostgreSQL: `Transactional`, and `finish` for transactions of tokio-postgres and of sqlx.
#[cfg(feature = "postgres")]
pub use onetake_stores::postgres;
/// SQLite: `Transactional`, and `finish` for transactions of rusqlite.
#[cfg(feature = "sqlite")]
pub use onetake_stores::sqlite;

/// The engine, its operations, and their records.
pub mod engine {
    pub use onetake_core::derived::{DerivedKey, DerivingSecret};
    pub use onetake_core::engine::{
        Again, Answer, Attempt, Begin, Engine, EngineBuilder, EngineError, Executed, ExpectedState,
        Housekeeping, Inquiry, Intervened, Intervention, Journal, JournalBatch, Lease, LeaseLost,
        Limits, NotDone, OnRetry, Operation, OperatorAction, Outcome, Promise, Reconcile,
        ReconcileAnswer, ReconcileOptions, RecordWith, Replays, SPANS, Settling, Traffic, Verdict,
        WhileRunning, Work,
    };
    pub use onetake_core::fingerprint::{Fingerprint, FingerprintKey, Fingerprinter};
    pub use onetake_core::key::{Key, KeyError};
    pub use onetake_core::origin::{Memo, Origin, TenantDigest};
    pub use onetake_core::record::{
        AttemptId, Cause, Failure, Fence, OnUnknown, Record, Recording, State, Terms,
    };
    pub use onetake_core::scope::{RecordId, Reference, Scope};
    pub use onetake_core::velocity::{Rate, RateError, SharedVelocity, VelocityDecision};
}

/// The stores, each with its feature, and the journal for outcomes that a store did not accept.
pub mod stores {
    pub use onetake_core::memory::MemoryStore;
    pub use onetake_stores::*;
}

/// The names that most services use: `use onetake::prelude::*;`.
pub mod prelude {
    pub use onetake_core::engine::{Attempt, Engine, Operation, Outcome, Verdict};
    pub use onetake_core::memory::MemoryStore;
    pub use onetake_core::store::Store;
    pub use onetake_core::{Fingerprint, Key, OnUnknown, Recording, Scope, Terms};

    #[cfg(feature = "http")]
    pub use onetake_http::json::Selection;
    #[cfg(feature = "http")]
    pub use onetake_http::{
        By, FingerprintMode, HttpLimits, InFlight, KeyFormat, KeySource, OnStoreDown, OnetakeLayer,
        Policy, PolicyError, Preset, RequestValue, Routes, Secrets, Stored, Tenant, Typed,
    };

    #[cfg(feature = "axum")]
    pub use onetake_http::extract::{DownstreamKey, IdempotencyKey, RunningAttempt};
    #[cfg(feature = "axum")]
    pub use onetake_http::transaction::InTransaction;

    #[cfg(feature = "embedded")]
    pub use onetake_stores::EmbeddedStore;
    #[cfg(feature = "sqlite")]
    pub use onetake_stores::SqliteStore;
    #[cfg(feature = "dynamodb")]
    pub use onetake_stores::{DynamoOptions, DynamoStore};
    #[cfg(feature = "postgres")]
    pub use onetake_stores::{PostgresOptions, PostgresStore};
    #[cfg(feature = "redis")]
    pub use onetake_stores::{RedisOptions, RedisStore};
}

/// Compiles the examples in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles the examples in the guide for Rust services.
#[cfg(all(doctest, feature = "axum", feature = "embedded"))]
#[doc = include_str!("../../../docs/LIBRARY.md")]
struct LibraryGuide;

/// Compiles the examples in the guide for transactions.
#[cfg(all(doctest, feature = "axum", feature = "sqlx", feature = "sqlite"))]
#[doc = include_str!("../../../docs/TRANSACTIONS.md")]
struct TransactionsGuide;
