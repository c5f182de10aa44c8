//! Operations in transactions of the store's own database, from claim to commit (mode T).

use std::sync::Arc;

use futures_util::future::BoxFuture;
use onetake_core::inbox::{self, InboxOptions, ReceiveError, Received};
use onetake_core::{
    Attempt, Completion, Engine, FinishError, NotDone, Operation, Outcome, StoreError,
    StoreErrorKind,
};
use tokio_postgres::Transaction;

use super::PostgresOptions;
use super::address::Address;
use super::finish::finish;
use super::pool::{Demands, Pool};

/// The reason why an operation's work has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError<E> {
    /// The error of the work itself. Its transaction was rolled back.
    #[error("{0}")]
    Own(E),
    /// The transaction could not begin: the database is unreachable. The work was not tried.
    #[error(transparent)]
    Connect(StoreError),
    /// The transaction could not be committed.
    #[error("the transaction failed")]
    Transaction(#[source] tokio_postgres::Error),
    /// The transaction could not be finished.
    #[error(transparent)]
    Finish(FinishError<tokio_postgres::Error>),
}

impl<E> WorkError<E> {
    /// Returns true if the work was tried.
    fn is_try(&self) -> bool {
        !matches!(self, Self::Connect(_))
    }
}

/// Runs operations in transactions on its own connections to the database that contains the
/// records.
///
/// An application that has a pool already does not need this: [`Engine::transact`] and [`finish`]
/// do the same.
#[derive(Clone)]
pub struct Transactional {
    engine: Engine,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Transactional {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactional").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Transactional {
    /// Creates transactions in the database at `url`. It must be the database of the engine's
    /// store. They use up to `connections` connections at once, in addition to those of the store.
    ///
    /// # Errors
    /// `Invalid` if the URL is wrong.
    pub fn new(engine: Engine, url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        let pool = Pool::new(Address::parse(url)?, options, Demands::None)?;
        Ok(Self { engine, pool: Arc::new(pool) })
    }

    /// Returns the inbox of the consumer of this name. Two consumers of one message each process
    /// it.
    #[must_use]
    pub fn inbox(&self, consumer: &str, options: InboxOptions) -> TransactionalInbox {
        let messages = inbox::Inbox::new(self.engine.clone(), consumer, options);
        TransactionalInbox { messages, transactional: self.clone() }
    }

    /// Runs the operation, or returns its earlier outcome.
    ///
    /// `work` writes its effects in the transaction and returns its completion. The completion is
    /// written in the same transaction, which is then committed. If `work` fails, panics or takes
    /// longer than `run_max`, everything is rolled back and the key is released.
    ///
    /// # Errors
    /// If the engine could not run the operation, or the operation has no outcome. Then it had no
    /// effect.
    pub async fn run<E, F>(
        &self,
        operation: Operation,
        work: F,
    ) -> Result<Outcome, NotDone<WorkError<E>>>
    where
        E: Send + 'static,
        F: for<'t> FnOnce(&'t Transaction<'t>, Attempt) -> BoxFuture<'t, Result<Completion, E>>
            + Send
            + 'static,
    {
        let this = self.clone();
        let worked = move |attempt| async move { this.work(attempt, work).await };
        self.engine.transact(operation, worked).await
    }

    async fn work<E, F>(&self, attempt: Attempt, work: F) -> Result<(), WorkError<E>>
    where
        F: for<'t> FnOnce(&'t Transaction<'t>, Attempt) -> BoxFuture<'t, Result<Completion, E>>,
    {
        let mut link = self.pool.link().await.map_err(WorkError::Connect)?;
        let client = link.borrowed().map_err(WorkError::Connect)?;
        let transaction = client.transaction().await.map_err(|error| {
            let what = format!("the transaction could not be started: {error}");
            let error = StoreError::new(StoreErrorKind::Unavailable, what).with_source(error);
            WorkError::Connect(error)
        })?;
        let completion = work(&transaction, attempt).await.map_err(WorkError::Own)?;
        let sealed = self.engine.seal(&attempt, completion);
        let completion = sealed.map_err(|error| WorkError::Finish(FinishError::Unsealed(error)))?;
        finish(&transaction, &attempt, &completion).await.map_err(WorkError::Finish)?;
        transaction.commit().await.map_err(WorkError::Transaction)?;
        link.returned();
        Ok(())
    }
}

/// Processes each message of a consumer once, in transactions: see [`Transactional::inbox`].
#[derive(Clone, Debug)]
pub struct TransactionalInbox {
    messages: inbox::Inbox,
    transactional: Transactional,
}

impl TransactionalInbox {
    /// Processes a message, unless it was processed already: `work` writes its effects in the
    /// transaction, and answers what is remembered of it, and what it says to others.
    ///
    /// # Errors
    /// If the message could not be tried.
    pub async fn process<E, F>(
        &self,
        message: &str,
        work: F,
    ) -> Result<Received<WorkError<E>>, ReceiveError>
    where
        E: Send + 'static,
        F: for<'t> FnOnce(&'t Transaction<'t>, Attempt) -> BoxFuture<'t, Result<Completion, E>>
            + Send
            + 'static,
    {
        let this = self.transactional.clone();
        let worked = move |attempt| async move { this.work(attempt, work).await };
        self.messages.receive_counting(message, WorkError::is_try, worked).await
    }

    /// Forgets a poison message, so that it can be tried again: see
    /// [`forget`](inbox::Inbox::forget).
    ///
    /// # Errors
    /// If the id cannot be a key, or the store does not answer in time.
    pub async fn forget(&self, message: &str, by: &str, why: &str) -> Result<bool, ReceiveError> {
        self.messages.forget(message, by, why).await
    }
}
