//! Runs without a record, while the store is unreachable and the caller allows that (S10).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;

use super::{Engine, EngineError, Inner};

/// The permission of one run without a record. Until it is dropped, the run counts among the
/// operations that run (S19).
#[derive(Debug)]
#[must_use = "the run counts among the operations that run until this is dropped"]
pub struct Bypass {
    _permit: OwnedSemaphorePermit,
}

impl Engine {
    /// Permits an operation to run without a record, and counts it in the metrics. Use it only if the
    /// store is unreachable ([`EngineError::is_store_down`]) and the caller prefers two runs to none
    /// (S10).
    ///
    /// # Errors
    /// If the engine is shutting down, its store must not be used any more, or too many operations
    /// run. The operation must not run then.
    pub fn bypass(&self) -> Result<Bypass, EngineError> {
        let _permit = self.inner.admit()?;
        self.inner.metrics.bypassed.increment(1);
        Ok(Bypass { _permit })
    }
}

impl Inner {
    /// Returns the permit of one more operation.
    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit, EngineError> {
        if self.closing.load(Ordering::Acquire) {
            return Err(EngineError::Closing);
        }
        // A store that must not be used any more gets no claim: each one would only end up in the
        // journal.
        if let Some(error) = self.fatal.borrow().clone() {
            return Err(error.into());
        }
        Arc::clone(&self.running).try_acquire_owned().map_err(|_| {
            self.metrics.overloaded.increment(1);
            EngineError::Overloaded
        })
    }
}
