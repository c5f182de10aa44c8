//! The last statement of a transaction that completes its own operation (mode T).

use onetake_core::{Attempt, Completion, FinishError, Message, MessageId};
use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

/// The SQLSTATE of a stale completion. Its transaction cannot commit.
pub const STALE_SQLSTATE: &str = "OT001";
/// The SQLSTATE of a completion behind a savepoint. Its transaction cannot commit either.
pub(super) const SAVEPOINT_SQLSTATE: &str = "OT002";

/// See `transactions.sql`.
pub(super) const FINISH: &str = "SELECT onetake_finish_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

/// Messages as columns, one for each field.
pub(super) struct MessageColumns<'a> {
    pub(super) ids: Vec<Vec<u8>>,
    pub(super) lanes: Vec<i16>,
    pub(super) orders: Vec<&'a str>,
    pub(super) topics: Vec<&'a str>,
    pub(super) headers: Vec<Vec<u8>>,
    pub(super) payloads: Vec<&'a [u8]>,
}

impl<'a> MessageColumns<'a> {
    pub(super) fn of(attempt: &Attempt, messages: &'a [Message]) -> Self {
        let id = |number| MessageId::of(attempt.id, attempt.fence, number).as_bytes().to_vec();
        Self {
            ids: (0..).zip(messages).map(|(number, _)| id(number)).collect(),
            lanes: messages.iter().map(|message| i16::from(message.lane())).collect(),
            orders: messages.iter().map(|message| message.order.as_str()).collect(),
            topics: messages.iter().map(|message| message.topic.as_str()).collect(),
            headers: messages.iter().map(|message| message.headers_to_bytes().to_vec()).collect(),
            payloads: messages.iter().map(|message| message.payload.as_ref()).collect(),
        }
    }
}

/// Writes the messages and the outcome of an attempt, as the last statement of the transaction that
/// contains its effects. Commit the transaction immediately afterwards: until then the key, and the
/// ordering keys of the messages, are locked.
///
/// After an error from the server, the transaction cannot commit any more. It is refused behind a
/// savepoint, which would let it. A completion that is refused before it is sent (a message is too
/// large) leaves the transaction as it was: drop it.
///
/// # Errors
/// If the attempt is stale, a message is too large, or the server refuses or does not answer.
pub async fn finish(
    transaction: &Transaction<'_>,
    attempt: &Attempt,
    completion: &Completion,
) -> Result<(), FinishError<tokio_postgres::Error>> {
    let Completion { recording, messages, .. } = completion;
    Message::check(messages)?;
    let columns = MessageColumns::of(attempt, messages);
    let (id, of): (&[u8], &[u8]) = (attempt.id.as_bytes(), attempt.attempt.as_bytes());
    let (head, body): (&[u8], Option<&[u8]>) = (&recording.head, recording.body.as_deref());
    let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
        (&id, Type::BYTEA),
        (&of, Type::BYTEA),
        (&head, Type::BYTEA),
        (&body, Type::BYTEA),
        (&columns.ids, Type::BYTEA_ARRAY),
        (&columns.lanes, Type::INT2_ARRAY),
        (&columns.orders, Type::TEXT_ARRAY),
        (&columns.topics, Type::TEXT_ARRAY),
        (&columns.headers, Type::BYTEA_ARRAY),
        (&columns.payloads, Type::BYTEA_ARRAY),
    ];
    // Unnamed and with its types: nothing of it stays behind on a connection that a pooler lends.
    let answer = transaction.query_typed(FINISH, &parameters).await;
    if answer.as_ref().err().is_none_or(|error| error.as_db_error().is_some() || error.is_closed())
    {
        completion.mark_executed();
    }
    match answer {
        Ok(_) => Ok(()),
        Err(error) if error.code().is_some_and(|code| code.code() == STALE_SQLSTATE) => {
            Err(FinishError::Stale)
        }
        Err(error) => Err(FinishError::Database(error)),
    }
}
