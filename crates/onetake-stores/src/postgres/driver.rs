//! Operations in transactions of tokio-postgres, on connections of your own.

use onetake_core::{Attempt, Completion, FinishError, OpenTransaction, TransactionSource};
use tokio_postgres::{Client, Error, Transaction};

use super::finish::finish;

/// tokio-postgres, as a source of transactions.
#[derive(Debug)]
pub enum TokioPostgres {}

/// A transaction of a [`Client`]. It is rolled back if it is dropped.
pub struct ClientTransaction<'c>(Transaction<'c>);

impl std::fmt::Debug for ClientTransaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTransaction").finish_non_exhaustive()
    }
}

/// The connections of a pool dereference to a client: with deadpool, pass `&mut **client`; with
/// bb8, `&mut *client`.
impl<'c> TransactionSource<TokioPostgres> for &'c mut Client {
    type Transaction = ClientTransaction<'c>;
    type Error = Error;

    async fn begin(self) -> Result<ClientTransaction<'c>, Error> {
        self.transaction().await.map(ClientTransaction)
    }
}

impl<'c> OpenTransaction for ClientTransaction<'c> {
    type Native = Transaction<'c>;
    type Executor = Transaction<'c>;
    type Error = Error;

    fn native(&mut self) -> &mut Transaction<'c> {
        &mut self.0
    }

    fn executor(&self) -> &Transaction<'c> {
        &self.0
    }

    fn executor_mut(&mut self) -> &mut Transaction<'c> {
        &mut self.0
    }

    async fn finish(
        &mut self,
        attempt: &Attempt,
        completion: &Completion,
    ) -> Result<(), FinishError<Error>> {
        finish(&self.0, attempt, completion).await
    }

    async fn commit(self) -> Result<(), Error> {
        self.0.commit().await
    }
}
