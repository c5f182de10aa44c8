//! Operations that complete themselves, in their own transactions (mode T).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use crate::record::{OnUnknown, State};
use crate::store::StoreError;
use crate::transaction::Completion;

use super::operation::{Attempt, EngineError, Operation, Outcome, Verdict};
use super::{Engine, Settling};

/// Why an operation has no outcome. It had no effect and its key is released, unless the engine says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotDone<E> {
    /// The engine could not even try.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The work failed, and its transaction was rolled back.
    #[error("{0}")]
    Work(E),
    /// The work panicked, or took longer than it may, and its transaction was rolled back.
    #[error("the operation was interrupted, and rolled back")]
    Interrupted,
    /// The work said that it is done, but its completion is not there: it was never finished, or its transaction
    /// was not committed.
    #[error("the operation's transaction was not committed: its completion is not there")]
    NotCommitted,
}

impl Engine {
    /// A completion as it has to be written past the store, in a transaction: encrypted, where the store encrypts. Those of a
    /// `Transactional` and of `InTransaction` are so already.
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
    /// [`transaction`](crate::transaction). `work` answers once it has committed, or with why it did not.
    ///
    /// What it says is not taken for it: the engine looks. If the completion is there, also where the answer to
    /// the commit got lost, the outcome is told; if it is not, the key is released, and a transaction that should
    /// still arrive is stale. The look waits for a transaction that is being committed.
    ///
    /// # Errors
    /// If the engine could not try, or the operation has no outcome.
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
