//! A wrapper of any store: recordings are compressed, and recordings and memos are encrypted if
//! there is a key.
//!
//! A thief of the disk, a dump or a replica learns when something was recorded, but not its
//! content. Ids are digests, fingerprints are sealed with a secret of their own, and recordings and
//! memos are opened only here. The engine's memory holds the opened form.
//!
//! The first key encrypts, and all keys open, so keys can be rotated without downtime. Every node
//! first gets the new key after the old one, then before it. The old key can be removed when
//! nothing that it encrypted is left.
//!
//! A recording whose key is missing leads to an error that names the key. It is never treated as
//! absent, so nothing runs again. A memo whose key is missing is returned as empty, with an error
//! in the log; the rest of the record is still valid. Recordings from before the first key stay
//! readable.

mod census;
mod journal;
mod key;
mod memo;
mod seal;
mod sealer;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::store::{Answers, Sealing};
use onetake_core::{
    AttemptId, Claim, Claimed, Memo, Origin, Record, RecordId, Recording, Settled, Settlement,
    State, Store, StoreError, StoreErrorKind, Transition, delegate_store,
};

pub use census::{KeysInUse, keys_in_use};
pub use journal::SealedJournal;
pub use key::{EncryptionKey, KEY_ID_BYTES_MAX};
pub use seal::BODY_BYTES_MAX;
use seal::{NotOpened, Of};
pub use sealer::Sealer;

/// A store whose recordings and memos are sealed.
pub struct SealedStore {
    inner: Arc<dyn Store>,
    sealer: Sealer,
}

impl SealedStore {
    /// Seals everything that goes into `inner`: compressed, and encrypted with the first of `keys`
    /// if there is one.
    #[must_use]
    pub fn around(inner: Arc<dyn Store>, keys: Vec<EncryptionKey>) -> Self {
        Self { inner, sealer: Sealer::new(keys) }
    }

    /// The sealer of this store, for code that writes recordings without this store.
    #[must_use]
    pub fn sealer(&self) -> Sealer {
        self.sealer.clone()
    }

    fn seal_memo(&self, claim: Claim) -> Result<Claim, StoreError> {
        if claim.origin.memo.is_empty() {
            return Ok(claim);
        }
        let memo = memo::seal(&claim.origin.memo, claim.id, self.sealer.keys().first());
        let memo = memo.ok_or_else(|| {
            StoreError::new(StoreErrorKind::Invalid, "a memo cannot be encrypted")
        })?;
        Ok(Claim { origin: Origin { memo, ..claim.origin }, ..claim })
    }

    /// Returns the record with its memo opened. A memo that cannot be opened is replaced by an
    /// empty one: no reconciler can use it, but the rest of the record is still valid.
    fn with_memo(&self, record: Arc<Record>) -> Arc<Record> {
        if record.origin.memo.is_empty() {
            return record;
        }
        let memo = memo::open(&record.origin.memo, record.id, self.sealer.keys());
        let memo = memo.unwrap_or_else(|error| {
            let reference = record.id.reference();
            tracing::error!(%reference, %error, "the memo of a record cannot be decrypted, so its outcome cannot be reconciled");
            Memo::default()
        });
        let origin = record.origin.clone().with_memo(memo);
        Arc::new(Record { origin, ..Arc::unwrap_or_clone(record) })
    }

    /// Returns the record with its recording opened.
    fn open(&self, record: Arc<Record>) -> Result<Arc<Record>, NotOpened> {
        let State::Completed { at, recording } = &record.state else {
            return Ok(record);
        };
        let of = Of { id: record.id, attempt: record.attempt };
        let recording = self.sealer.try_open(of, recording)?;
        Ok(Arc::new(record.with_state(State::Completed { at: *at, recording })))
    }

    fn opened(&self, record: Arc<Record>) -> Result<Arc<Record>, StoreError> {
        let reference = record.id.reference();
        self.open(self.with_memo(record)).map_err(|error| {
            tracing::error!(%reference, %error, "a recorded outcome cannot be read, so its retries are refused");
            StoreError::new(StoreErrorKind::Invalid, error.to_string())
        })
    }

    /// Converts the answer to a claim.
    fn claimed(&self, answer: Claimed) -> Result<Claimed, StoreError> {
        Ok(match answer {
            Claimed::Found { record, now } => Claimed::Found { record: self.opened(record)?, now },
            granted @ Claimed::Granted { .. } => granted,
        })
    }

    /// Converts the answer to a settlement. `ours` has the recording of the settlement, if it is a
    /// completion.
    fn settled(&self, answer: Settled, ours: Option<SealedAndPlain>) -> Settled {
        match answer {
            Settled::Done { record, now } => {
                let record = self.with_memo(record);
                let record = match (ours, &record.state) {
                    // The recording is durable, and its content is known. So it need not be opened,
                    // and cannot fail to open on a node that lacks its key. A store that kept less,
                    // such as no body, returns another recording.
                    (Some(ours), State::Completed { at, recording })
                        if *recording == ours.sealed =>
                    {
                        let recording = ours.plain;
                        Arc::new(record.with_state(State::Completed { at: *at, recording }))
                    }
                    _ => self.open(Arc::clone(&record)).unwrap_or(record),
                };
                Settled::Done { record, now }
            }
            // The current record cannot be returned, but the caller must learn that the attempt is
            // stale.
            Settled::Stale { current } => {
                Settled::Stale { current: current.and_then(|record| self.opened(record).ok()) }
            }
        }
    }
}

/// The recording of a completion, as the store gets it and as the caller made it.
struct SealedAndPlain {
    sealed: Recording,
    plain: Recording,
}

fn recording_of(settlement: &Settlement) -> Option<&Recording> {
    match &settlement.transition {
        Transition::Complete(recording) => Some(recording),
        _ => None,
    }
}

/// The error for a store that returns fewer answers than items.
fn no_answer() -> StoreError {
    let what = "the store returned fewer results than items";
    StoreError::new(StoreErrorKind::Indeterminate, what)
}

impl std::fmt::Debug for SealedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedStore")
            .field("inner", &self.inner)
            .field("keys", &self.sealer.keys())
            .finish()
    }
}

impl Store for SealedStore {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    // These two take part in every operation. Vectors with room for all items save the growth, or
    // the shrinking, of those that `collect` makes.
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let mut sent = Vec::with_capacity(batch.len());
            let mut sealed = Vec::with_capacity(batch.len());
            for claim in batch {
                sealed.push(self.seal_memo(claim).map(|claim| sent.push(claim)));
            }
            let mut answers = self.inner.claim(sent).await.into_iter();
            let mut next = || answers.next().unwrap_or_else(|| Err(no_answer()));
            let mut opened = Vec::with_capacity(sealed.len());
            for sealed in sealed {
                opened.push(sealed.and_then(|()| self.claimed(next()?)));
            }
            opened
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            let mut sent = Vec::with_capacity(batch.len());
            let mut sealed = Vec::with_capacity(batch.len());
            for settlement in batch {
                let plain = recording_of(&settlement).cloned();
                sealed.push(self.sealer.seal_settlement(settlement).map(|settlement| {
                    let sealed = recording_of(&settlement).cloned();
                    sent.push(settlement);
                    plain.zip(sealed).map(|(plain, sealed)| SealedAndPlain { sealed, plain })
                }));
            }
            let mut answers = self.inner.settle(sent).await.into_iter();
            let mut next = || answers.next().unwrap_or_else(|| Err(no_answer()));
            let mut opened = Vec::with_capacity(sealed.len());
            for sealed in sealed {
                opened.push(sealed.and_then(|ours| Ok(self.settled(next()?, ours))));
            }
            opened
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            let answers = self.inner.load(ids).await.into_iter();
            let open =
                |found: Option<Arc<Record>>| found.map(|record| self.opened(record)).transpose();
            answers.map(|answer| answer.and_then(open)).collect()
        }
        .boxed()
    }

    delegate_store!(self => self.inner; due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets for SealedStore, self => self.inner);

impl Sealing for SealedStore {
    fn seal(
        &self,
        id: RecordId,
        attempt: AttemptId,
        recording: Recording,
    ) -> Result<Recording, StoreError> {
        let sealed = self.sealer.seal(id, attempt, &recording)?;
        self.inner.seal(id, attempt, sealed)
    }
}
