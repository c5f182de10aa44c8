//! Operations in transactions of sqlx, on connections of your own.

use ::sqlx::{PgConnection, PgPool, Postgres, Transaction};
use onetake_core::{Attempt, Completion, FinishError, Message, OpenTransaction, TransactionSource};

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
    let Completion { recording, messages, .. } = completion;
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
    let answer = finishing.execute(&mut **transaction).await;
    if matches!(answer, Ok(_) | Err(::sqlx::Error::Database(_) | ::sqlx::Error::Io(_))) {
        completion.mark_executed();
    }
    match answer {
        Ok(_) => Ok(()),
        Err(::sqlx::Error::Database(error)) if error.code().as_deref() == Some(STALE_SQLSTATE) => {
            Err(FinishError::Stale)
        }
        Err(error) => Err(FinishError::Database(error)),
    }
}

/// sqlx, as a source of transactions.
#[derive(Debug)]
pub enum Sqlx {}

/// A transaction of a [`PgPool`]. It is rolled back if it is dropped.
#[derive(Debug)]
pub struct PoolTransaction(Transaction<'static, Postgres>);

impl TransactionSource<Sqlx> for &PgPool {
    type Transaction = PoolTransaction;
    type Error = ::sqlx::Error;

    async fn begin(self) -> Result<PoolTransaction, ::sqlx::Error> {
        PgPool::begin(self).await.map(PoolTransaction)
    }
}

impl OpenTransaction for PoolTransaction {
    type Native = Transaction<'static, Postgres>;
    type Executor = PgConnection;
    type Error = ::sqlx::Error;

    fn native(&mut self) -> &mut Self::Native {
        &mut self.0
    }

    fn executor(&self) -> &PgConnection {
        &self.0
    }

    fn executor_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }

    async fn finish(
        &mut self,
        attempt: &Attempt,
        completion: &Completion,
    ) -> Result<(), FinishError<::sqlx::Error>> {
        finish(&mut self.0, attempt, completion).await
    }

    async fn commit(self) -> Result<(), ::sqlx::Error> {
        self.0.commit().await
    }
}
