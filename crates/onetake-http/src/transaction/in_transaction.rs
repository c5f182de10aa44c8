//! The extractor of transactional routes, and the transaction that it begins.

use std::fmt;
use std::ops::{Deref, DerefMut};

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;

use onetake_core::{Attempt, Completion, Message, OpenTransaction, TransactionSource};

use super::{CommitError, NotRecorded, Progress, Recorder};
use crate::context::OperationContext;
use crate::extract::{NotThere, RunningAttempt};

/// The running operation of a transactional route, for its handler. It begins the transaction that
/// commits the operation's effects with its outcome.
///
/// It is the handler's first argument ([`Policy::transactional`](crate::Policy::transactional)). On
/// a route that is not transactional, the extraction fails and the handler does not run.
#[derive(Clone)]
pub struct InTransaction {
    attempt: Attempt,
    recorder: Recorder,
}

impl InTransaction {
    /// The attempt that runs.
    #[must_use]
    pub const fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Begins the transaction for the operation's effects, in the database that keeps the records.
    /// Sources are `&sqlx::PgPool` (feature `sqlx`) and `&mut tokio_postgres::Client` (feature
    /// `postgres`).
    ///
    /// # Errors
    /// If the database does not begin a transaction.
    pub async fn begin<Driver, Source>(
        &self,
        source: Source,
    ) -> Result<AttemptTransaction<Source::Transaction>, Source::Error>
    where
        Source: TransactionSource<Driver>,
    {
        let begun = source.begin().await;
        self.note(if begun.is_ok() { Progress::begin } else { Progress::fail_to_begin });
        let transaction = begun?;
        Ok(AttemptTransaction { transaction, running: self.clone() })
    }

    /// Returns a completion and a response, for transactions that [`begin`](Self::begin) does not
    /// support.
    ///
    /// Write the completion with `finish` of the store, as the last statement of the transaction.
    /// Commit, and then return the response. If `finish` or the commit fails, return an error with
    /// a 5xx status.
    ///
    /// **Warning:** if the attempt ends without `finish` after this call, its key never runs again,
    /// because the transaction may have been committed without an outcome. The attempt is recorded
    /// as failed, also if it ends with a 5xx or with the response of this call. Another response
    /// that the route's status rules record is recorded. If it is a success, an error is logged.
    /// Only the handler's own word (`Onetake-Outcome: release`) releases the key.
    ///
    /// # Errors
    /// If the body of the response ends early, a message is refused, or the recording cannot be
    /// encrypted.
    pub async fn complete(
        &self,
        response: impl IntoResponse,
        messages: Vec<Message>,
    ) -> Result<(Completion, Response), NotRecorded> {
        let (completion, response) = self.completion(response.into_response(), messages).await?;
        self.note(|progress| progress.complete(completion.witness()));
        Ok((completion, response))
    }

    async fn completion(
        &self,
        response: Response,
        messages: Vec<Message>,
    ) -> Result<(Completion, Response), NotRecorded> {
        let completing = self.recorder.complete(&self.attempt, response, messages);
        let (completion, response) = completing.await?;
        Ok((completion, response.map(Body::new)))
    }

    fn note(&self, note: impl FnOnce(&Progress)) {
        if let Some(progress) = &self.recorder.progress {
            note(progress);
        }
    }
}

impl fmt::Debug for InTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

impl<S: Sync> FromRequestParts<S> for InTransaction {
    type Rejection = NotThere;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, NotThere> {
        let running =
            <RunningAttempt as FromRequestParts<S>>::from_request_parts(parts, state).await?;
        let context = OperationContext::of(&parts.extensions);
        let recorder = context.and_then(OperationContext::recorder).cloned();
        let recorder = recorder.ok_or(NotThere::NoLayer)?;
        let Some(progress) = &recorder.progress else {
            tracing::error!(
                route = recorder.policy.label, reference = %running.0.id.reference(),
                "a handler has an InTransaction argument, but its route is not transactional: nothing was run. Set Policy::transactional(handler) for this route"
            );
            return Err(NotThere::NotTransactional);
        };
        progress.take();
        Ok(Self { attempt: running.0, recorder })
    }
}

/// The transaction of a running operation. It executes statements like the driver's own
/// transaction: `&mut *tx` with sqlx, `tx.execute(…)` with tokio-postgres.
///
/// A transaction that is dropped is rolled back. In that case the handler returns an error (5xx is
/// released) or a refusal (4xx is recorded). A success without a commit is not shown to the client,
/// because it is not true.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct AttemptTransaction<T> {
    transaction: T,
    running: InTransaction,
}

impl<T: OpenTransaction> AttemptTransaction<T> {
    /// The driver's own transaction, for functions that take one.
    pub fn native(&mut self) -> &mut T::Native {
        self.transaction.native()
    }

    /// Records the response and the messages in the transaction, and commits. Returns the response
    /// that the handler must return.
    ///
    /// # Errors
    /// If the response cannot be recorded, another attempt owns the key, or the database does not
    /// commit. In these cases, return an error with a 5xx status.
    pub async fn commit(
        self,
        response: impl IntoResponse,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Response, CommitError<T::Error>> {
        let Self { mut transaction, running } = self;
        let (response, messages) = (response.into_response(), messages.into_iter().collect());
        let (completion, response) = running.completion(response, messages).await?;
        running.note(|progress| progress.complete_by_guard(completion.witness()));
        transaction.finish(&running.attempt, &completion).await?;
        transaction.commit().await.map_err(CommitError::Commit)?;
        Ok(response)
    }
}

impl<T: OpenTransaction> Deref for AttemptTransaction<T> {
    type Target = T::Executor;

    fn deref(&self) -> &T::Executor {
        self.transaction.executor()
    }
}

impl<T: OpenTransaction> DerefMut for AttemptTransaction<T> {
    fn deref_mut(&mut self) -> &mut T::Executor {
        self.transaction.executor_mut()
    }
}

impl<T> fmt::Debug for AttemptTransaction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptTransaction")
            .field("attempt", &self.running.attempt)
            .finish_non_exhaustive()
    }
}
