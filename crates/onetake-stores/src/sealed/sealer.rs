//! Sealing without a store around.

use std::sync::Arc;

use onetake_core::{AttemptId, RecordId, Recording, Settlement, StoreError, StoreErrorKind, Verb};

use super::seal::{self, EncryptionKey, NotOpened, Of};

/// Seals recordings as a [`SealedStore`](super::SealedStore) with the same keys does, for whoever writes one past
/// it: into a table by a transaction of one's own, or into a journal.
///
/// What it made belongs where the inner store would have put it: given to a `SealedStore` it would be sealed twice.
/// The same recording of the same attempt is sealed to the same bytes, as long as the first key is the same.
#[derive(Clone, Debug)]
pub struct Sealer {
    keys: Arc<[EncryptionKey]>,
}

impl Sealer {
    /// Encrypts with the first of `keys`, opens with all of them, and only compresses if there is none.
    #[must_use]
    pub fn new(keys: Vec<EncryptionKey>) -> Self {
        Self { keys: keys.into() }
    }

    /// Seals what this attempt recorded for this record.
    ///
    /// # Errors
    /// `Invalid` if it is too large: four gigabytes.
    pub fn seal(
        &self,
        id: RecordId,
        attempt: AttemptId,
        recording: &Recording,
    ) -> Result<Recording, StoreError> {
        seal::seal(recording, Of { id, attempt }, self.keys.first()).ok_or_else(|| {
            let what = format!("a recording of {} bytes cannot be sealed", recording.bytes());
            StoreError::new(StoreErrorKind::Invalid, what)
        })
    }

    /// Opens what was sealed for this attempt of this record; what was never sealed is as it is.
    ///
    /// # Errors
    /// `Invalid` if its key is not among these, or if it was changed.
    pub fn open(
        &self,
        id: RecordId,
        attempt: AttemptId,
        sealed: &Recording,
    ) -> Result<Recording, StoreError> {
        let opened = self.try_open(Of { id, attempt }, sealed);
        opened.map_err(|error| StoreError::new(StoreErrorKind::Invalid, error.to_string()))
    }

    /// Seals what a settlement recorded.
    pub(super) fn seal_settlement(&self, settlement: Settlement) -> Result<Settlement, StoreError> {
        let Settlement { id, attempt, verb } = settlement;
        let verb = match verb {
            Verb::Complete(recording) => Verb::Complete(self.seal(id, attempt, &recording)?),
            verb => verb,
        };
        Ok(Settlement { id, attempt, verb })
    }

    pub(super) fn try_open(&self, of: Of, sealed: &Recording) -> Result<Recording, NotOpened> {
        seal::open(sealed, of, &self.keys)
    }

    pub(super) fn keys(&self) -> &[EncryptionKey] {
        &self.keys
    }
}
