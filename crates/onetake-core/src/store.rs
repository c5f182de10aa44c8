//! The contract between the engine and a store.
//!
//! A store keeps one [`Record`] per [`RecordId`] and changes it only by the rules of
//! [`decide`](crate::decide). Every store promises:
//!
//! 1. **Atomic.** Reading a record, deciding and writing it are one step that no other change can
//!    interrupt. Read-then-write is never enough.
//! 2. **Durable.** When `claim` or `settle` returns, its answer survives a crash (S5, S6).
//! 3. **The store's clock decides.** Callers send durations, never moments. All callers of a store
//!    see one clock.
//! 4. **Fences rise.** A granted fence is above every fence that was ever granted for the record,
//!    also after the record expired, was swept or forgotten (S2).
//! 5. **Items are independent.** The answers have the order of the batch, one for each item. One
//!    item's conflict, size or fault never fails or delays another's (S21). Items with the same id
//!    behave as if they had arrived one after the other.
//! 6. **Expired is absent,** at once, before any sweep. A record that is not expired is never
//!    deleted (S12, S13).
//! 7. **Secrets are permanent.** All nodes that share a store get the same secret under the same
//!    name. A secret is durable before it is returned, and never changes afterwards. It is not a
//!    record: it does not expire, and no method for records returns it.
//! 8. **Audit entries are kept** for [`AUDIT_KEPT`](crate::audit::AUDIT_KEPT), whatever happens to
//!    their records. They are durable when `audit` returns.
//!
//! `onetake_conformance::run` checks all of this.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
#[doc(no_inline)]
pub use futures_util::future::BoxFuture;

use crate::audit::{AuditEntry, AuditPage};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::origin::Origin;
use crate::record::{AttemptId, Cause, Failure, Fence, Record, Recording, Terms};
use crate::scope::{RecordId, Reference};

/// A request for the right to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The record.
    pub id: RecordId,
    /// The attempt that would run.
    pub attempt: AttemptId,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The terms that the attempt would run under.
    pub terms: Terms,
    /// The tenant's digest, the route and the memo: kept for operators and reconcilers.
    pub origin: Origin,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The attempt owns the lease, durably.
    Granted {
        /// The attempt's fence.
        fence: Fence,
    },
    /// The key has a record already. It is returned as it is after this claim.
    Found {
        /// The record.
        record: Arc<Record>,
        /// The store's time when it read the record.
        now: Timestamp,
    },
}

/// A change to a record, requested by its attempt, by the reaper or by an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The record.
    pub id: RecordId,
    /// The attempt that must own it.
    pub attempt: AttemptId,
    /// The requested change.
    pub transition: Transition,
}

/// Returns the time that a write of this many bytes may take in addition to the usual one: a second
/// for each MiB.
///
/// Timeouts grow by it, so that a slow network does not refuse a large recording again and again.
#[must_use]
pub fn transfer_time(bytes: usize) -> Duration {
    const BYTES_PER_SECOND: u64 = 1 << 20;
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    Duration::from_micros(bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND)
}

/// The change that a settlement requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The attempt still runs: its lease lasts for a whole lease from now.
    Renew,
    /// The attempt has an outcome.
    Complete(Recording),
    /// The attempt failed permanently.
    Fail(Failure),
    /// The attempt is known to have had no effect (S16).
    Release,
    /// The attempt started, and its outcome is unknown.
    Unknown(Cause),
    /// The owner went silent: the attempt becomes unknown if its lease and grace are over when the
    /// store looks.
    ExpireLease,
    /// The attempt is unknown and due for reconciliation: the next reconciliation is due after this
    /// duration. Other nodes do not reconcile the record before then.
    PostponeReconcile(Duration),
    /// An operator removes the record in any state except running. The recording is removed at
    /// once, and the record is expired from then on.
    Forget,
}

/// The answer to a settlement. A stale settlement is a value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The change is durable. The answer to a renewal need not hold the current record.
    Done {
        /// The record after the change.
        record: Arc<Record>,
        /// The store's time when it read the record.
        now: Timestamp,
    },
    /// Nothing was changed (S3).
    Stale {
        /// The current record, if there is one.
        current: Option<Arc<Record>>,
    },
}

/// The reason why a store could not answer, by what the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Nothing was written. A later call may succeed.
    Unavailable,
    /// The store works, but another transaction holds this key. Nothing was written, and another
    /// attempt may be about to run. The engine also reports a lost claim in this way if another
    /// attempt has the key.
    Busy,
    /// The write may have been applied. Read the record again: if it holds the caller's own attempt
    /// id, the write succeeded.
    Indeterminate,
    /// The stored data cannot be trusted, or a write failed in a way that leaves the disk's state
    /// unknown (a failed fsync). The process must end; the store is never retried.
    Corrupt,
    /// The caller requested something that this store can never do.
    Invalid,
}

/// An error of a store that could not answer.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// Creates an error of `kind`. The message names the cause and, where there is one, the fix.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into().into(), source: None }
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the error for an impossible decision: to keep a record that was not found.
    #[must_use]
    pub fn kept_nothing() -> Self {
        Self::new(StoreErrorKind::Invalid, "a claim on an absent record was not granted")
    }

    /// Returns the error for a stored secret that is not what was once written.
    #[must_use]
    pub fn damaged_secret(name: &str) -> Self {
        let what = format!("the secret `{name}` in the store is damaged: restore it from a backup");
        Self::new(StoreErrorKind::Invalid, what)
    }

    /// Returns the kind of the error, which says what the caller should do.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source: &(dyn std::error::Error + 'static) = self.source.as_deref()?;
        Some(source)
    }
}

/// One answer for each item of a batch, in its order.
pub type Answers<T> = Vec<Result<T, StoreError>>;

/// An attempt that needs attention: its lease and grace were over when the store looked, or its
/// reconciliation is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueAttempt {
    /// The record.
    pub id: RecordId,
    /// The attempt that held it.
    pub attempt: AttemptId,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Records that were deleted.
    pub removed: usize,
    /// The number of deleted records whose outcome was still unknown. They are worth a line in the
    /// log.
    pub unknown: usize,
    /// True if more records are due for deletion right away.
    pub more: bool,
}

/// The position in a listing of all records. It is valid only for the store that returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Bytes);

impl Cursor {
    /// Creates a cursor from the bytes that a caller sends back.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes that a caller sends back for the next page.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Returns the position after this record, for a store that lists records in the order of ids.
    #[must_use]
    pub fn behind(id: RecordId) -> Self {
        Self(Bytes::copy_from_slice(id.as_bytes()))
    }

    /// Returns the record whose position this is.
    ///
    /// # Errors
    /// If the cursor was not made by [`behind`](Self::behind).
    pub fn id(&self) -> Result<RecordId, StoreError> {
        self.0.as_ref().try_into().map(RecordId::from_bytes).map_err(|_| Self::foreign())
    }

    /// Returns the error for a cursor of another store.
    #[must_use]
    pub fn foreign() -> StoreError {
        let what = "the cursor is not valid for this store: start again without a cursor";
        StoreError::new(StoreErrorKind::Invalid, what)
    }
}

/// One page of the listing of all records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The ids of the records.
    pub ids: Vec<RecordId>,
    /// The position of the next page; `None` at the end.
    pub next: Option<Cursor>,
}

impl Page {
    /// Creates a page for a store that lists records in the order of ids. `ids` are all records
    /// after the cursor up to the last one given, in order. Fewer than `limit` ids are the last
    /// page.
    #[must_use]
    pub fn in_order(ids: Vec<RecordId>, limit: usize) -> Self {
        let next = ids.last().filter(|_| ids.len() >= limit).map(|id| Cursor::behind(*id));
        Self { ids, next }
    }
}

/// The maximum number of records returned for one reference. With a billion records, two
/// occasionally have the same reference.
pub const FOUND_MAX: usize = 16;

/// The store contract. The module's documentation lists the promises of a store.
///
/// A store also implements four other traits. They are separate because no operation needs them to
/// run: operators find records and read the audit log, nodes share secrets, and transactions seal
/// recordings themselves.
///
/// A decorator writes the methods that it changes, and [`delegate_store!`](crate::delegate_store)
/// writes the others. No method has a default body: a decorator that forgot one would bypass the
/// store inside it.
pub trait Store:
    RecordIndex + AuditLog + SharedSecrets + Sealing + Send + Sync + fmt::Debug + 'static
{
    /// Returns a short name for logs and metrics, such as `embedded`.
    fn name(&self) -> &'static str;

    /// Decides each claim as [`decide::claim`](crate::decide::claim) does.
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>>;

    /// Decides each settlement as [`decide::settle`](crate::decide::settle) does.
    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>>;

    /// Reads records. A record that is absent or expired is `None`.
    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>>;

    /// Finds up to `limit` attempts that are due, the longest due first, and none that expired. It
    /// must not read all records to find them.
    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>>;

    /// Deletes up to `limit` expired records. Each is checked again by
    /// [`decide::may_sweep`](crate::decide::may_sweep) in the step that deletes it.
    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>>;

    /// Checks that the store can answer now. This is for readiness checks, not for decisions.
    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Makes everything durable and frees all resources. No method is called afterwards.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// The reason why an attempt is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// The attempt runs, and its lease and grace are over
    /// ([`decide::is_abandoned`](crate::decide::is_abandoned)).
    LeaseEnd,
    /// The attempt's outcome is unknown, and its reconciliation is due ([`Record::ask_at`]).
    Reconcile,
}

/// Access to records without their keys, for operators.
pub trait RecordIndex {
    /// Lists all records, about `limit` ids at a time. A record that exists from the first page to
    /// the last is listed at least once. A record that is expired, created or deleted meanwhile may
    /// be listed. The time for a page does not grow with the number of records. A page may be empty
    /// without being the last.
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>>;

    /// Finds the records with this reference, by an index: rarely more than one, and [`FOUND_MAX`]
    /// at most. Expired records may be among them.
    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>>;
}

/// The audit log.
pub trait AuditLog {
    /// Writes an entry. It replaces an entry with the same position and record.
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Reads up to `limit` entries of one record or of all records, by an index, the newest first.
    /// A sweep deletes entries that are older than [`AUDIT_KEPT`](crate::audit::AUDIT_KEPT).
    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>>;
}

/// Secrets that all nodes of a store share.
pub trait SharedSecrets {
    /// Returns the secret of this name, the same for all nodes that share the store. If there is
    /// none, `fresh` becomes the secret. A secret is durable before it is returned, and never
    /// changes afterwards. Names are short words chosen by this project.
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>>;
}

/// Sealing of recordings, for transactions that write the completion of their operation themselves.
pub trait Sealing {
    /// Returns the recording of an attempt as this store would write it: encrypted, if the store
    /// encrypts. A decorator also calls the store inside it.
    ///
    /// **Warning:** a store that returns the recording unchanged declares that it writes plain
    /// text.
    ///
    /// # Errors
    /// If the recording cannot be sealed.
    fn seal(
        &self,
        id: RecordId,
        attempt: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        (**self).claim(batch)
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        (**self).settle(batch)
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        (**self).load(ids)
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        (**self).due(which, limit)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        (**self).sweep(limit)
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        (**self).ready()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        (**self).close()
    }
}

impl<S: RecordIndex + ?Sized> RecordIndex for Arc<S> {
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>> {
        (**self).page(from, limit)
    }

    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>> {
        (**self).find(reference)
    }
}

impl<S: AuditLog + ?Sized> AuditLog for Arc<S> {
    fn audit(&self, entry: AuditEntry) -> BoxFuture<'_, Result<(), StoreError>> {
        (**self).audit(entry)
    }

    fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<AuditPage, StoreError>> {
        (**self).audit_entries(of, from, limit)
    }
}

impl<S: SharedSecrets + ?Sized> SharedSecrets for Arc<S> {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        (**self).secret(name, fresh)
    }
}

impl<S: Sealing + ?Sized> Sealing for Arc<S> {
    fn seal(
        &self,
        id: RecordId,
        attempt: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        (**self).seal(id, attempt, recording)
    }
}
