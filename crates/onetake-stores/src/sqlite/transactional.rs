//! Operations in transactions of the store's own file, from claim to commit (mode T).

use std::path::Path;
use std::sync::Arc;

use onetake_core::inbox::{self, InboxOptions, ReceiveError, Received};
use onetake_core::{
    Attempt, Completion, Engine, FinishError, NotDone, Operation, Outcome, StoreError,
};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::Mutex;

use super::finish::finish;
use super::schema;

/// The reason why an operation's work has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError<E> {
    /// The error of the work itself. Its transaction was rolled back.
    #[error("{0}")]
    Own(E),
    /// The transaction could not begin: the file is locked or unreachable. The work was not tried.
    #[error("the transaction could not begin")]
    Begin(#[source] rusqlite::Error),
    /// The transaction could not be committed.
    #[error("the transaction failed")]
    Transaction(#[source] rusqlite::Error),
    /// The transaction could not be finished.
    #[error(transparent)]
    Finish(FinishError<rusqlite::Error>),
}

impl<E> WorkError<E> {
    /// Returns true if the work was tried.
    fn is_try(&self) -> bool {
        !matches!(self, Self::Begin(_))
    }
}

/// Runs operations in transactions on its own connection, in the file that contains the records.
///
/// SQLite has one writer at a time: while one of these transactions is open, the engine can neither
/// claim nor renew. Keep the transactions short.
#[derive(Clone)]
pub struct Transactional {
    engine: Engine,
    connection: Arc<Mutex<Connection>>,
}

impl std::fmt::Debug for Transactional {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactional").finish_non_exhaustive()
    }
}

impl Transactional {
    /// Opens a connection for transactions in this file. It must be the file in which the engine's
    /// store was opened ([`SqliteStore::open_in`](super::SqliteStore::open_in)).
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(engine: Engine, file: &Path) -> Result<Self, StoreError> {
        let connection = Arc::new(Mutex::new(schema::open_again(file)?));
        Ok(Self { engine, connection })
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
    /// `work` writes its effects in the transaction, on a thread where blocking is allowed, and
    /// returns its completion. The completion is written in the same transaction, which is then
    /// committed. If `work` fails or panics, everything is rolled back and the key is released.
    /// Work that takes longer than `run_max` is not stopped: no other process can write until it
    /// ends, so its commit is its outcome.
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
        F: FnOnce(&Transaction<'_>, Attempt) -> Result<Completion, E> + Send + 'static,
    {
        let this = self.clone();
        let worked = move |attempt| async move { this.work(attempt, work).await };
        self.engine.transact(operation, worked).await
    }

    async fn work<E, F>(self, attempt: Attempt, work: F) -> Result<(), WorkError<E>>
    where
        E: Send + 'static,
        F: FnOnce(&Transaction<'_>, Attempt) -> Result<Completion, E> + Send + 'static,
    {
        // The wait is here, because the blocking threads are few.
        let mut connection = Arc::clone(&self.connection).lock_owned().await;
        let engine = self.engine;
        let working = tokio::task::spawn_blocking(move || {
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(WorkError::Begin)?;
            let completion = work(&transaction, attempt).map_err(WorkError::Own)?;
            let sealed = engine.seal(&attempt, completion);
            let completion =
                sealed.map_err(|error| WorkError::Finish(FinishError::Unsealed(error)))?;
            finish(&transaction, &attempt, &completion).map_err(WorkError::Finish)?;
            transaction.commit().map_err(WorkError::Transaction)
        });
        match working.await {
            Ok(worked) => worked,
            // The engine catches this panic like any other.
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down, and the work never began.
                Err(_) => std::future::pending().await,
            },
        }
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
        F: FnOnce(&Transaction<'_>, Attempt) -> Result<Completion, E> + Send + 'static,
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
