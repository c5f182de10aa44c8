//! Mode T: an operation whose every effect commits in one transaction with its completion.
//!
//! The claim is durable first, by the engine. Then the operation writes what it does in a transaction of its own
//! database, where the records are kept too, and finishes it as the last statement: the outcome and the messages
//! of a [`Completion`], conditional on the attempt (S3). If somebody else was given the key meanwhile, that
//! statement fails and nothing of the transaction remains. So an attempt that is passed over had no effect, and
//! what became of one is told by looking: [`Engine::transact`](crate::Engine::transact).

use crate::outbox::{Message, MessageRefused};
use crate::record::Recording;
use crate::store::StoreError;

/// What a transaction ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The outcome.
    pub recording: Recording,
    /// What the operation says to others, in this order.
    pub messages: Vec<Message>,
}

impl Completion {
    /// A completion that says nothing to others.
    #[must_use]
    pub const fn new(recording: Recording) -> Self {
        Self { recording, messages: Vec::new() }
    }

    /// The same with one more message.
    #[must_use]
    pub fn with_message(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }
}

/// Why a transaction was not finished: roll it back, and say that the attempt failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError<E> {
    /// Another attempt was given the key, or it is settled: nothing of this transaction may remain. The
    /// database does not let it commit any more.
    #[error("the attempt does not own its key any more, so its transaction is rolled back")]
    Stale,
    /// A message cannot be written as it is. Nothing was written.
    #[error(transparent)]
    Message(#[from] MessageRefused),
    /// The recording could not be sealed. Nothing was written.
    #[error("the recording cannot be sealed: {0}")]
    Unsealed(#[source] StoreError),
    /// There is no transaction that holds its effects: outside of one, the outcome would stand without them.
    /// Nothing was written.
    #[error("finish it in the transaction that holds its effects")]
    NoTransaction,
    /// The record cannot be read.
    #[error("the record cannot be read: {0}")]
    Unreadable(#[source] StoreError),
    /// The connection does not make durable what it commits. Nothing was written.
    #[error("commits on this connection are not durable: {0}")]
    NotDurable(&'static str),
    /// The database refused, or did not answer.
    #[error("the transaction could not be finished: {0}")]
    Database(#[source] E),
}
