//! Support for transactions of sqlx.

use ::sqlx::{Postgres, Transaction};
use onetake_core::{Attempt, Completion, FinishError, Message};

use super::finish::{Columns, FINISH, STALE_SQLSTATE};

/// The same as [`finish`](super::finish()), in a transaction of sqlx.
///
/// # Errors
/// If the attempt is stale, a message is too large, or the server refuses or does not answer.
pub async fn finish(
    transaction: &mut Transaction<'_, Postgres>,
    attempt: &Attempt,
    completion: &Completion,
) -> Result<(), FinishError<::sqlx::Error>> {
    let Completion { recording, messages } = completion;
    Message::check(messages)?;
    let columns = Columns::of(attempt, messages);
    let finishing = ::sqlx::query(FINISH)
        // The statement is unnamed, so that nothing of it remains on a connection that a pooler
        // shares.
        .persistent(false)
        .bind(attempt.id.as_bytes().as_slice())
        .bind(attempt.attempt.as_bytes().as_slice())
        .bind(recording.head.as_ref())
        .bind(recording.body.as_deref())
        .bind(&columns.ids)
        .bind(&columns.lanes)
        .bind(&columns.orders)
        .bind(&columns.topics)
        .bind(&columns.headers)
        .bind(&columns.payloads);
    match finishing.execute(&mut **transaction).await {
        Ok(_) => Ok(()),
        Err(::sqlx::Error::Database(error)) if error.code().as_deref() == Some(STALE_SQLSTATE) => {
            Err(FinishError::Stale)
        }
        Err(error) => Err(FinishError::Database(error)),
    }
}
