//! Operations that write their own completion, in their own transactions (mode T).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use crate::record::{OnUnknown, State};
use crate::store::StoreError;
use crate::transaction::{Completion, UNFINISHED, unfinished};

use super::operation::{Attempt, EngineError, Operation, Outcome, Verdict};
use super::{Engine, Settling};

/// Why an operation has no outcome. It had no effect and its key is released, unless the variant
/// says otherwise.
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
    #[error("the operation panicked or timed out, and its transaction was rolled back")]
    Interrupted,
    /// The work returned success, but its completion is not in the store: the transaction was never
    /// finished, or it was not committed. Its effects may be there, so its key is not released: it
    /// never runs again.
    #[error(
        "the operation returned success, but its transaction was not finished or not committed: its outcome is unknown"
    )]
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
        mut completion: Completion,
    ) -> Result<Completion, StoreError> {
        let recording = std::mem::take(&mut completion.recording);
        completion.recording = self.inner.store.seal(attempt.id, attempt.attempt, recording)?;
        Ok(completion)
    }

    /// Runs an operation that writes its own completion in the transaction of its effects; see
    /// [`transaction`](crate::transaction). `work` returns once it has committed, or with the
    /// reason why it did not.
    ///
    /// The engine reads the store, whatever `work` returned. If the completion is there, also where
    /// the answer to the commit got lost, the outcome is returned. If it is not, a transaction that
    /// should still arrive is stale; and the key is released if `work` returned an error, panicked
    /// or took too long. The engine waits for a transaction that is being committed.
    ///
    /// Work that returns success without a completion has broken its promise, and may have had its
    /// effect: the key never runs again ([`NotDone::NotCommitted`]).
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
            let worked = work(attempt).await;
            let verdict = verdict_if_absent(&worked);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some((attempt, worked));
            verdict
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
            (State::Failed { failure, .. }, Some((attempt, Ok(()))))
                if record.attempt == attempt.attempt && failure.code == UNFINISHED =>
            {
                Err(NotDone::NotCommitted)
            }
            (State::Completed { .. } | State::Failed { .. }, _) => Ok(outcome),
            (_, Some((_, Ok(())))) => Err(NotDone::NotCommitted),
            (_, Some((_, Err(error)))) => Err(NotDone::Work(error)),
            (_, None) => Err(NotDone::Interrupted),
        }
    }
}

/// The verdict on work whose completion is not in the store. An error says that the work was rolled
/// back; a success without a completion says nothing that can be relied on (S16).
pub(crate) fn verdict_if_absent<E>(worked: &Result<(), E>) -> Verdict {
    match worked {
        Ok(()) => Verdict::Fail(unfinished()),
        Err(_) => Verdict::Release,
    }
}
