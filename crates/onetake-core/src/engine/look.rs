//! For those who come back later: what became of an operation, and the promise that it will have an
//! outcome.

use std::sync::Arc;

use crate::record::Record;
use crate::scope::RecordId;

use super::flight::Phase;
use super::operation::{EngineError, Operation};
use super::{Engine, Inner};

/// Whether an operation that runs will have an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It will: its attempt is not released any more.
    Given,
    /// It will not, or not this operation's: it is being released, has not started, or another payload
    /// came with its key.
    Refused,
    /// No attempt of this process runs. One of another node may.
    Elsewhere,
}

impl Engine {
    /// Promises an outcome to somebody who will come back for it: from then on the attempt that runs is
    /// not released. Of a promise and a release, whichever comes first excludes the other.
    #[must_use]
    pub fn promise(&self, operation: &Operation) -> Promise {
        let Some(flight) = self.inner.flights.get(&operation.id) else {
            return Promise::Elsewhere;
        };
        let is_ours = match flight.phase() {
            Phase::Running(found) => operation.clone().recognise(&found),
            Phase::Claiming | Phase::Landed(_) => false,
        };
        if is_ours && flight.promise() { Promise::Given } else { Promise::Refused }
    }

    /// Reads a record, and changes nothing. `None`: there is none, or it has expired.
    ///
    /// # Errors
    /// If the store does not answer in time, or too many wait for it.
    pub async fn look(&self, id: RecordId) -> Result<Option<Arc<Record>>, EngineError> {
        let inner: &Inner = &self.inner;
        if let Some(record) = inner.cache.get(&id, inner.clock.monotonic()) {
            return Ok(Some(record));
        }
        let _place = inner.waiting.try_acquire().map_err(|_| EngineError::Overloaded)?;
        let mut found = tokio::select! {
            biased;
            found = inner.store.load(vec![id]) => found,
            () = inner.clock.sleep(inner.limits.claim_patience) => {
                return Err(EngineError::no_answer());
            }
        };
        match found.pop() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => {
                inner.failed(&error);
                Err(error.into())
            }
            None => Err(EngineError::no_answer()),
        }
    }
}
