//! For those who come back later: what became of an operation.

use std::sync::Arc;

use crate::record::Record;
use crate::scope::RecordId;

use super::operation::EngineError;
use super::{Engine, Inner};

impl Engine {
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
            None => Ok(None),
        }
    }
}
