//! The engine of onetake: one recorded outcome per key.
//!
//! A caller names an operation by a [`Key`] inside a [`Scope`]. The [`Engine`] claims the key in a
//! [`Store`], runs the operation once, records its outcome durably, and replays it to every other
//! attempt until the key expires. This crate knows nothing of HTTP and nothing of databases.
//!
//! | module | contents |
//! | --- | --- |
//! | [`key`], [`scope`], [`fingerprint`] | names of operations, and the comparison of two requests |
//! | [`record`], [`origin`] | the record that a store keeps, its expiry and its origin |
//! | [`audit`] | the audit log: what operators did to keys |
//! | [`decide`] | the state machine, as pure functions that every store applies atomically |
//! | [`store`] | the contract that every store must keep |
//! | [`memory`] | the reference store |
//! | [`engine`] | claim, run, settle, replay; waiters, leases, draining |
//! | [`derived`] | keys for the calls that an operation makes itself |
//! | [`outbox`] | messages that an operation sends when it completes |
//! | [`job`] | work that runs once for its key, with a typed result |
//! | [`inbox`] | messages that are delivered more than once and processed once |
//! | [`transaction`] | operations whose effects commit with their completion |
//! | [`velocity`] | limits on the rate of new operations |
//! | [`clock`] | the only source of time and randomness |
//!
//! Types that a store or a caller must handle case by case are exhaustive, because a forgotten case can
//! run an operation twice or never: [`Transition`], [`State`], [`store::Due`], [`store::Claimed`],
//! [`store::Settled`], [`OnUnknown`], [`Verdict`], [`Outcome`], [`Answer`] and [`Settling`]. A new case
//! of these is a compile error in the code that handles them.

pub mod audit;
pub mod clock;
pub mod codec;
pub mod decide;
mod delegate;
pub mod derived;
pub mod engine;
mod error_chain;
pub mod fingerprint;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod hex;
pub mod inbox;
pub mod job;
pub mod key;
pub mod memory;
pub mod origin;
pub mod outbox;
#[doc(hidden)]
pub mod record;
pub mod scope;
pub mod store;
pub mod transaction;
pub mod velocity;

pub use clock::{Clock, ManualClock, Rng, Shift, SystemClock, SystemRng, Timestamp};
pub use derived::{DerivedKey, DerivingSecret};
pub use engine::{
    Again, Answer, Attempt, Begin, Engine, EngineError, Executed, Inquiry, Journal, Lease, Limits,
    NotDone, OnRetry, Operation, Outcome, Reconcile, ReconcileAnswer, ReconcileOptions, RecordWith,
    Settling, Traffic, Verdict, WhileRunning, Work,
};
pub use error_chain::ErrorChain;
pub use fingerprint::{Fingerprint, FingerprintKey, Fingerprinter};
pub use inbox::{Inbox, InboxOptions, Received};
pub use job::{Job, JobAttempt, JobError, Retry};
pub use key::{Key, KeyError};
pub use memory::MemoryStore;
pub use origin::{Memo, Origin, TenantDigest};
pub use outbox::{Message, MessageId, Outbox};
pub use record::{AttemptId, Cause, Failure, Fence, OnUnknown, Record, Recording, State, Terms};
pub use scope::{RecordId, Reference, Scope};
pub use store::{
    Claim, Claimed, Settled, Settlement, Store, StoreError, StoreErrorKind, Transition,
};
pub use transaction::{Completion, FinishError, OpenTransaction, TransactionSource};
pub use velocity::{Rate, RateError, SharedVelocity, VelocityDecision};
