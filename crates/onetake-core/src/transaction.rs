//! Mode T: operations whose effects commit in one transaction with their completion.
//!
//! The engine first makes the claim durable. Then the operation writes its effects in a transaction
//! of its own, in the database that also keeps the records. The last statement of the transaction
//! writes the outcome and the messages of a [`Completion`], conditional on the attempt (S3). If
//! another attempt was granted the key meanwhile, that statement fails and the whole transaction is
//! rolled back. So an attempt that lost its key had no effect. To learn how an attempt ended,
//! [`Engine::transact`](crate::Engine::transact) reads the record.

use crate::outbox::{Message, MessageRefused};
use crate::record::Recording;
use crate::store::StoreError;

/// The outcome and the messages that a transaction ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The outcome.
    pub recording: Recording,
    /// The messages of the operation, in this order.
    pub messages: Vec<Message>,
}

impl Completion {
    /// Creates a completion without messages.
    #[must_use]
    pub const fn new(recording: Recording) -> Self {
        Self { recording, messages: Vec::new() }
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
    #[error("the attempt does not own its key any more, so its transaction is rolled back")]
    Stale,
    /// A message is invalid. Nothing was written.
    #[error(transparent)]
    Message(#[from] MessageRefused),
    /// The recording could not be sealed. Nothing was written.
    #[error("the recording cannot be sealed: {0}")]
    Unsealed(#[source] StoreError),
    /// The connection is not inside a transaction. Without one, the outcome would be durable
    /// without its effects. Nothing was written.
    #[error("finish it in the transaction that holds its effects")]
    NoTransaction,
    /// The record cannot be read.
    #[error("the record cannot be read: {0}")]
    Unreadable(#[source] StoreError),
    /// Commits on this connection are not durable. Nothing was written.
    #[error("commits on this connection are not durable: {0}")]
    NotDurable(&'static str),
    /// The database refused, or did not answer.
    #[error("the transaction could not be finished: {0}")]
    Database(#[source] E),
}
