//! What a store owes. This file is a contract first, code second.
//!
//! A store keeps one [`Record`] per [`RecordId`] and changes it only by the rules of
//! [`decide`](crate::decide). Whatever a store is made of, it promises:
//!
//! 1. **Atomic.** Reading a record, deciding and writing it are one step that nothing else can get
//!    between. Read-then-write is never enough.
//! 2. **Durable.** When `claim` or `settle` answers, what it answered survives a crash (S5, S6).
//! 3. **Its own clock decides.** Callers send durations, never moments; all callers of a store see
//!    one clock.
//! 4. **Fences rise.** A granted fence is above every fence that was ever granted for the record,
//!    also after it expired, was swept or forgotten (S2).
//! 5. **Items are independent.** The answers stand in the order of the batch, one for each item.
//!    One item's conflict, size or fault never fails or delays another's (S21). Items with the
//!    same id behave as if they had come one after the other.
//! 6. **Expired is absent,** at once, whether or not a sweep came by; and nothing that is not
//!    expired is ever deleted (S12, S13).
//! 7. **Secrets stay.** All who share a store are told the same secret under the same name. Once it
//!    was told to anybody it never changes, and it is durable before it is told. It is no record:
//!    it does not expire, and nothing that is done with records sees it.
//! 8. **Notes stay** for [`NOTES_KEPT`](crate::note::NOTES_KEPT), whatever becomes of the records that they
//!    are about, and are durable when `note` answers.
//!
//! `onetake_conformance::run` checks all of this.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
#[doc(no_inline)]
pub use futures_util::future::BoxFuture;

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::note::{Note, Notes};
use crate::origin::Origin;
use crate::record::{AttemptId, Cause, Failure, Fence, Record, Recording, Terms};
use crate::scope::{RecordId, Reference};

/// Asks for the right to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The record.
    pub id: RecordId,
    /// The attempt that would run.
    pub attempt: AttemptId,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// What it would run under.
    pub terms: Terms,
    /// Who asks, and where: kept for operators.
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
    /// Somebody was here before. The record is as it stands after this claim.
    Found {
        /// The record.
        record: Arc<Record>,
        /// The store's time when it looked.
        now: Timestamp,
    },
}

/// What an attempt says of itself, or the reaper of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The record.
    pub id: RecordId,
    /// The attempt that must own it.
    pub attempt: AttemptId,
    /// What became of it.
    pub verb: Verb,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It still runs: a whole lease from now.
    Renew,
    /// It has an outcome.
    Complete(Recording),
    /// It failed for good.
    Fail(Failure),
    /// It is known to have had no effect (S16).
    Release,
    /// It started, and its outcome is not known.
    Unknown(Cause),
    /// Nobody heard of it: unknown, if its lease and grace are over when the store looks.
    Abandon,
    /// It is unknown, to be reconciled, and due to be asked for: nobody else asks for so long.
    Defer(Duration),
    /// An operator wants it gone, whatever came of it, unless it runs: what was recorded is gone at once,
    /// and the record is expired from then on.
    Forget,
}

/// The answer to a settlement. Being stale is a value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is so, durably. A renewal says nothing of the record.
    Done {
        /// The record as it stands now.
        record: Arc<Record>,
        /// The store's time when it looked.
        now: Timestamp,
    },
    /// Nothing was changed (S3).
    Stale {
        /// The record as it stands, if there is one.
        current: Option<Arc<Record>>,
    },
}

/// Why a store could not answer, by what the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Nothing was written. Later may be better.
    Unavailable,
    /// The store is there, and this key is in somebody's hands: nothing was written, and somebody else
    /// may be about to run it.
    Busy,
    /// The write may have landed: read again; the own attempt id means own success.
    Indeterminate,
    /// What is stored cannot be trusted, or writing failed in a way that leaves the disk's state
    /// open (a failed fsync). The process must end; the store is never retried.
    Corrupt,
    /// The caller asked for something that this store can never do.
    Invalid,
}

/// A store that could not answer.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// An error of `kind`; the message names the cause and, where there is one, the fix.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into().into(), source: None }
    }

    /// The error below it.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The error for a decision that cannot be: to keep a record that was never found.
    #[must_use]
    pub fn kept_nothing() -> Self {
        Self::new(StoreErrorKind::Invalid, "a claim on an absent record was not granted")
    }

    /// The error for a secret that is not what was once written.
    #[must_use]
    pub fn damaged_secret(name: &str) -> Self {
        let what = format!("the secret `{name}` in the store is damaged: restore it from a backup");
        Self::new(StoreErrorKind::Invalid, what)
    }

    /// What the caller should do.
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

/// An attempt that somebody should look after: its lease and grace were over when the store looked, or it is
/// time to ask what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueAttempt {
    /// The record.
    pub id: RecordId,
    /// The attempt that held it.
    pub attempt: AttemptId,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Records that were deleted.
    pub removed: usize,
    /// Of them, those whose outcome was still unknown: worth a line in the log.
    pub unknown: usize,
    /// Whether more is due right away.
    pub more: bool,
}

/// Where going through all records goes on. It is good for the store that gave it, and for no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Bytes);

impl Cursor {
    /// A cursor, as it was told to somebody who comes back with it.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes to come back with.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Behind this record, in a store that goes by ids.
    #[must_use]
    pub fn behind(id: RecordId) -> Self {
        Self(Bytes::copy_from_slice(id.as_bytes()))
    }

    /// The record that it is behind.
    ///
    /// # Errors
    /// If it is none of [`behind`](Self::behind).
    pub fn id(&self) -> Result<RecordId, StoreError> {
        self.0.as_ref().try_into().map(RecordId::from_bytes).map_err(|_| Self::foreign())
    }

    /// The error for one that this store did not give.
    #[must_use]
    pub fn foreign() -> StoreError {
        let what = "the cursor is not one of this store: begin anew without one";
        StoreError::new(StoreErrorKind::Invalid, what)
    }
}

/// Some of all records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Their ids.
    pub ids: Vec<RecordId>,
    /// Where it goes on; `None` at the end.
    pub next: Option<Cursor>,
}

impl Page {
    /// A page of a store that goes by ids: these stand behind the cursor, in their order, and there are
    /// no others up to the last of them. Fewer than `limit` are the last.
    #[must_use]
    pub fn in_order(ids: Vec<RecordId>, limit: usize) -> Self {
        let next = ids.last().filter(|_| ids.len() >= limit).map(|id| Cursor::behind(*id));
        Self { ids, next }
    }
}

/// How many records with one reference are told at most: with a billion records, two have the same one
/// now and then.
pub const FOUND_MAX: usize = 16;

/// The store contract: it keeps records. The module's documentation says what a store owes.
///
/// A store owes its four other traits too. They are apart because they are nobody's who runs operations:
/// operators find records and read the audit log, nodes share secrets, and transactions seal recordings
/// themselves. A decorator writes the methods that it changes, and [`delegate_store!`](crate::delegate_store)
/// writes the others. No method has a default body: a decorator that forgot one would bypass what is inside.
pub trait Store:
    RecordIndex + AuditLog + SharedSecrets + Sealing + Send + Sync + fmt::Debug + 'static
{
    /// A short word for logs and metrics, such as `embedded`.
    fn name(&self) -> &'static str;

    /// Decides each claim as [`decide::claim`](crate::decide::claim) does.
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>>;

    /// Decides each settlement as [`decide::settle`](crate::decide::settle) does.
    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>>;

    /// Reads records; one that is absent or expired is `None`.
    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>>;

    /// Finds up to `limit` attempts that are due, the longest due first, and none that expired. It must not
    /// read all keys to find them.
    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>>;

    /// Deletes up to `limit` expired records, each looked at again by
    /// [`decide::may_sweep`](crate::decide::may_sweep) in the step that deletes it.
    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>>;

    /// Whether the store could answer now: for readiness, not for decisions.
    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Makes everything durable and lets go of what is held. Nothing is asked afterwards.
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// What an attempt is due for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// To be passed over: it runs, and its lease and grace are over
    /// ([`decide::is_abandoned`](crate::decide::is_abandoned)).
    LeaseEnd,
    /// To be reconciled: its outcome is unknown, and somebody should ask for it now ([`Record::ask_at`]).
    Reconcile,
}

/// Finding records without their keys: for operators.
pub trait RecordIndex {
    /// Goes through all records, about `limit` ids at a time. A record that is there from the first page to
    /// the last is told at least once; one that expired, comes or goes meanwhile may be. A page takes no
    /// longer where there are more records, and may be empty without being the last.
    fn page(&self, from: Option<Cursor>, limit: usize) -> BoxFuture<'_, Result<Page, StoreError>>;

    /// The records whose reference it is, by an index: hardly ever more than one, and
    /// [`FOUND_MAX`] at most. One that expired may be among them.
    fn find(&self, reference: Reference) -> BoxFuture<'_, Result<Vec<RecordId>, StoreError>>;
}

/// The audit log.
pub trait AuditLog {
    /// Writes an entry, over one of the same place and record.
    fn note(&self, note: Note) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Reads up to `limit` entries, the newest first: of one record or of all, by an index. A sweep deletes
    /// those that were kept for long enough.
    fn notes(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Notes, StoreError>>;
}

/// Secrets that all nodes of a store share.
pub trait SharedSecrets {
    /// A secret of this name, the same for all who share the store: `fresh` if there was none. Once
    /// it was told to anybody it never changes, and it is durable before it is told. Names are short
    /// words of our own.
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>>;
}

/// Recordings as a store writes them, for transactions that complete their own operation past it.
pub trait Sealing {
    /// The recording of an attempt as this store would write it: encrypted, where it encrypts. A decorator
    /// asks the store inside it, too.
    ///
    /// **Warning:** a store that returns the recording as it is says that it writes plain text.
    ///
    /// # Errors
    /// If it cannot be.
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
    fn note(&self, note: Note) -> BoxFuture<'_, Result<(), StoreError>> {
        (**self).note(note)
    }

    fn notes(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Notes, StoreError>> {
        (**self).notes(of, from, limit)
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
