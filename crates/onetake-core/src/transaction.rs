//! Mode T: operations whose effects commit in one transaction with their completion.
//!
//! The engine first makes the claim durable. Then the operation writes its effects in a transaction
//! of its own, in the database that also keeps the records. The last statement of the transaction
//! writes the outcome and the messages of a [`Completion`], conditional on the attempt (S3). If
//! another attempt was granted the key meanwhile, that statement fails and the whole transaction is
//! rolled back. So an attempt that lost its key had no effect. To learn how an attempt ended,
//! [`Engine::transact`](crate::Engine::transact) reads the record.

//!
//! [`TransactionSource`] and [`OpenTransaction`] are for database drivers: the stores implement
//! them, and the HTTP layer begins and commits transactions through them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::Attempt;
use crate::outbox::{Message, MessageRefused};
use crate::record::{Failure, Recording};
use crate::store::StoreError;

/// The outcome that a transaction writes as its last statement.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// The outcome.
    pub recording: Recording,
    /// The messages of the operation, in this order.
    pub messages: Vec<Message>,
    witness: FinishWitness,
}

/// Whether the statement that writes a [`Completion`] was executed. All clones are one witness.
#[derive(Clone, Debug, Default)]
pub struct FinishWitness(Arc<AtomicBool>);

impl FinishWitness {
    /// Whether the statement was executed.
    #[must_use]
    pub fn is_executed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PartialEq for Completion {
    fn eq(&self, other: &Self) -> bool {
        (&self.recording, &self.messages) == (&other.recording, &other.messages)
    }
}

impl Eq for Completion {}

impl Completion {
    /// Creates a completion without messages.
    #[must_use]
    pub fn new(recording: Recording) -> Self {
        Self { recording, ..Self::default() }
    }

    /// The same with these messages behind its own.
    #[must_use]
    pub fn with_messages(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.messages.extend(messages);
        self
    }

    /// The witness of this completion and its clones.
    #[must_use]
    pub fn witness(&self) -> FinishWitness {
        self.witness.clone()
    }

    /// Says that the database answered the statement that writes this completion: from then on the
    /// transaction holds the outcome, or cannot commit. Each `finish` calls it.
    ///
    /// **Warning:** without that statement, a retry may repeat the operation's effect.
    pub fn mark_executed(&self) {
        self.witness.0.store(true, Ordering::Release);
    }

    /// Adds one more message.
    #[must_use]
    pub fn with_message(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }
}

/// The reason why a transaction was not finished. Roll it back, and report that the attempt failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError<E> {
    /// Another attempt was granted the key, or the record is settled. The transaction must be
    /// rolled back, and the database no longer lets it commit.
    #[error("the attempt no longer owns its key: roll back its transaction")]
    Stale,
    /// A message is invalid. Nothing was written.
    #[error(transparent)]
    Message(#[from] MessageRefused),
    /// The recording could not be sealed. Nothing was written.
    #[error("the recording cannot be sealed")]
    Unsealed(#[source] StoreError),
    /// The connection is not inside a transaction. Without one, the outcome would be durable
    /// without its effects. Nothing was written.
    #[error(
        "the connection is not in a transaction: finish the operation inside the transaction that holds its effects"
    )]
    NoTransaction,
    /// The record cannot be read.
    #[error("the record cannot be read")]
    Unreadable(#[source] StoreError),
    /// Commits on this connection are not durable. Nothing was written.
    #[error("commits on this connection are not durable: {0}")]
    NotDurable(&'static str),
    /// The database refused, or did not answer.
    #[error("the transaction could not be finished")]
    Database(#[source] E),
}

/// The code of the [`Failure`] that [`unfinished`] returns.
pub const UNFINISHED: &str = "outcome_unknown";

/// The failure of an attempt that was to complete itself and has no outcome, without proof that its
/// transaction was rolled back. Its effects may be there, so its key never runs again (S16).
#[must_use]
pub fn unfinished() -> Failure {
    Failure {
        code: UNFINISHED.to_owned(),
        detail:
            "the attempt ended without an outcome, and nothing proves that its transaction was rolled back"
                .to_owned(),
    }
}

/// A place where transactions begin: a connection, or a pool of connections.
///
/// `Driver` is a type of the crate that implements this. It lets that crate implement the trait for
/// the database driver's own types.
pub trait TransactionSource<Driver>: Send {
    /// The transactions that begin here.
    type Transaction: OpenTransaction<Error = Self::Error>;
    /// Why one could not begin.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Begins a transaction.
    fn begin(self) -> impl Future<Output = Result<Self::Transaction, Self::Error>> + Send;
}

/// A transaction that has begun. It is rolled back if it is dropped.
pub trait OpenTransaction: Send {
    /// The driver's transaction.
    type Native;
    /// The executor of statements.
    type Executor;
    /// Why a statement or the commit failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The driver's transaction.
    fn native(&mut self) -> &mut Self::Native;

    /// The executor of statements.
    fn executor(&self) -> &Self::Executor;

    /// The exclusive executor of statements.
    fn executor_mut(&mut self) -> &mut Self::Executor;

    /// Writes the outcome and the messages, as the last statement. After an error, the transaction
    /// must not be able to commit.
    fn finish(
        &mut self,
        attempt: &Attempt,
        completion: &Completion,
    ) -> impl Future<Output = Result<(), FinishError<Self::Error>>> + Send;

    /// Commits everything.
    fn commit(self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}
