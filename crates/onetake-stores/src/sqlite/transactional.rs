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

/// Why the work of an operation has no outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError<E> {
    /// What the work itself said: it was rolled back.
    #[error("{0}")]
    Own(E),
    /// The transaction could not be begun: the file is locked, or out of reach. The work was not tried.
    #[error("the transaction could not be begun: {0}")]
    Begin(#[source] rusqlite::Error),
    /// The transaction could not be committed.
    #[error("the transaction failed: {0}")]
    Transaction(#[source] rusqlite::Error),
    /// The transaction could not be finished.
    #[error(transparent)]
    Finish(FinishError<rusqlite::Error>),
}

impl<E> WorkError<E> {
    /// Whether the work was tried at all.
    fn is_try(&self) -> bool {
        !matches!(self, Self::Begin(_))
    }
}

/// Runs operations in transactions on a connection of its own, in the file that keeps the records.
///
/// SQLite has one writer at a time: while one of these transactions is open, the engine cannot claim or renew
/// anything. Keep them short.
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
    /// Transactions in this file: the one that the engine's store was opened in
    /// ([`SqliteStore::open_in`](super::SqliteStore::open_in)).
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(engine: Engine, file: &Path) -> Result<Self, StoreError> {
        let connection = Arc::new(Mutex::new(schema::open_again(file)?));
        Ok(Self { engine, connection })
    }

    /// The inbox of the consumer of this name: two consumers of one message each deal with it.
    #[must_use]
    pub fn inbox(&self, consumer: &str, options: InboxOptions) -> TransactionalInbox {
        let messages = inbox::Inbox::new(self.engine.clone(), consumer, options);
        TransactionalInbox { messages, transactional: self.clone() }
    }

    /// Runs the operation, or tells what became of it before. `work` writes its effects in the transaction, on a
    /// thread where blocking is fine, and answers what it comes to; then that is written too, and all of it is
    /// committed. If it fails or panics, everything is rolled back and the key is released. Work that takes
    /// longer than `run_max` is not stopped: until it ends nobody else can write, so what it commits is its outcome.
    ///
    /// # Errors
    /// If the engine could not try, or the operation has no outcome; then it had no effect.
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
        // Waited for here, and not on a thread of which there are few.
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
            // The engine catches it, as it would any other.
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down: it never began.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// Deals with each message of a consumer once, in transactions: see [`Transactional::inbox`].
#[derive(Clone, Debug)]
pub struct TransactionalInbox {
    messages: inbox::Inbox,
    transactional: Transactional,
}

impl TransactionalInbox {
    /// Deals with a message, unless somebody did: `work` writes its effects in the transaction, and
    /// answers what is remembered of it, and what it says to others.
    ///
    /// # Errors
    /// If it could not even be tried.
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

    /// See [`forget`](inbox::Inbox::forget): lets poison be tried anew.
    ///
    /// # Errors
    /// If the id cannot be a key, or the store does not answer in time.
    pub async fn forget(&self, message: &str, by: &str, why: &str) -> Result<bool, ReceiveError> {
        self.messages.forget(message, by, why).await
    }
}
