//! Operations that write their own completion, in their own transactions (mode T).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use crate::record::{OnUnknown, State};
use crate::store::StoreError;
use crate::transaction::Completion;

use super::operation::{Attempt, EngineError, Operation, Outcome, Verdict};
use super::{Engine, Settling};

/// The reason why an operation has no outcome. It had no effect and its key is released, except for
/// an error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotDone<E> {
    /// The engine could not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The work failed, and its transaction was rolled back.
    #[error("{0}")]
    Work(E),
    /// The work panicked or took too long, and its transaction was rolled back.
    #[error("the operation was interrupted, and rolled back")]
    Interrupted,
    /// The work reported success, but the completion is not in the store: it was never written, or
    /// its transaction was not committed.
    #[error("the operation's transaction was not committed: its completion is not there")]
    NotCommitted,
}

impl Engine {
    /// Returns a completion in the form in which a transaction must write it: encrypted, if the
    /// store encrypts. A `Transactional` and an `InTransaction` do this themselves.
    ///
    /// # Errors
    /// If it cannot be encrypted.
    pub fn seal(
        &self,
        attempt: &Attempt,
        completion: Completion,
    ) -> Result<Completion, StoreError> {
        let Completion { recording, messages } = completion;
        let recording = self.inner.store.seal(attempt.id, attempt.attempt, recording)?;
        Ok(Completion { recording, messages })
    }

    /// Runs an operation that writes its own completion in the transaction of its effects; see
    /// [`transaction`](crate::transaction). `work` returns once it has committed, or with the
    /// reason why it did not.
    ///
    /// The engine does not rely on the result of `work`, but checks the store. If the completion is
    /// there, the outcome is returned, even if the answer to the commit was lost. If it is not
    /// there, the key is released, and a transaction that commits later is stale. The check waits
    /// for a transaction that is being committed.
    ///
    /// # Errors
    /// If the engine could not start, or the operation has no outcome.
    pub async fn transact<E, F, Fut>(
        &self,
        mut operation: Operation,
        work: F,
    ) -> Result<Outcome, NotDone<E>>
    where
        E: Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
    {
        operation.terms.on_unknown = OnUnknown::Rollback;
        let said = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&said);
        let outcome = self.run(operation, move |attempt| async move {
            let answer = (attempt, work(attempt).await);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            Verdict::Release
        });
        let outcome = outcome.await?;
        let said = said.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Outcome::Ran(Settling::Recorded(record) | Settling::Stale(Some(record))) = &outcome
        else {
            return Ok(outcome);
        };
        match (&record.state, said) {
            // Committed by this attempt, or by the one that took over.
            (State::Completed { .. }, Some((attempt, _))) if record.attempt == attempt.attempt => {
                Ok(Outcome::Ran(Settling::Recorded(Arc::clone(record))))
            }
            (State::Completed { .. } | State::Failed { .. }, _) => Ok(outcome),
            (_, Some((_, Ok(())))) => Err(NotDone::NotCommitted),
            (_, Some((_, Err(error)))) => Err(NotDone::Work(error)),
            (_, None) => Err(NotDone::Interrupted),
        }
    }
}
