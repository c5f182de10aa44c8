//! Sealing of recordings without a store.

use std::sync::Arc;

use onetake_core::{
    AttemptId, RecordId, Recording, Settlement, StoreError, StoreErrorKind, Transition,
};

use super::key::EncryptionKey;
use super::seal::{self, NotOpened, Of};

/// Seals recordings as a [`SealedStore`](super::SealedStore) with the same keys does. It is for
/// code that writes recordings without that store: into a table by its own transaction, or into a
/// journal.
///
/// A sealed recording belongs in the inner store. A `SealedStore` would seal it a second time. The
/// same recording of the same attempt is sealed to the same bytes, as long as the first key is the
/// same.
#[derive(Clone, Debug)]
pub struct Sealer {
    keys: Arc<[EncryptionKey]>,
}

impl Sealer {
    /// Creates a sealer that encrypts with the first of `keys` and opens with all of them. Without
    /// keys it only compresses.
    #[must_use]
    pub fn new(keys: Vec<EncryptionKey>) -> Self {
        Self { keys: keys.into() }
    }

    /// Seals the recording of this attempt of this record.
    ///
    /// # Errors
    /// `Invalid` if the body is larger than [`BODY_BYTES_MAX`](super::BODY_BYTES_MAX): 1 GiB.
    pub fn seal(
        &self,
        id: RecordId,
        attempt: AttemptId,
        recording: &Recording,
    ) -> Result<Recording, StoreError> {
        seal::seal(recording, Of { id, attempt }, self.keys.first()).ok_or_else(|| {
            let (bytes, max) = (recording.bytes(), seal::BODY_BYTES_MAX);
            let what = format!(
                "a recording of {bytes} bytes cannot be sealed: its body may have {max} bytes"
            );
            StoreError::new(StoreErrorKind::Invalid, what)
        })
    }

    /// Opens a recording of this attempt of this record. A recording that was never sealed is
    /// returned unchanged.
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

    /// Seals the recording of a settlement.
    pub(super) fn seal_settlement(&self, settlement: Settlement) -> Result<Settlement, StoreError> {
        let Settlement { id, attempt, transition } = settlement;
        let transition = match transition {
            Transition::Complete(recording) => {
                Transition::Complete(self.seal(id, attempt, &recording)?)
            }
            transition => transition,
        };
        Ok(Settlement { id, attempt, transition })
    }

    pub(super) fn try_open(&self, of: Of, sealed: &Recording) -> Result<Recording, NotOpened> {
        seal::open(sealed, of, &self.keys)
    }

    pub(super) fn keys(&self) -> &[EncryptionKey] {
        &self.keys
    }
}
