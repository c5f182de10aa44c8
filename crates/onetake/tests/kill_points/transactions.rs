//! Payments whose effect, message and outcome commit together.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use onetake::http::transaction::InTransaction;
use onetake::outbox::Message;
use onetake::postgres::finish;
use onetake_sim::servers::Postgres;
use rusqlite::{Connection, TransactionBehavior};
use tokio_postgres::NoTls;

use super::steps::Steps;
use super::victim::{Orders, middle};

const PAY: &str = "INSERT INTO payments (cents) VALUES (10)";

/// An error after which the transaction was rolled back, so that a retry may run again.
pub(crate) struct RolledBack;

impl<E: std::error::Error> From<E> for RolledBack {
    fn from(_: E) -> Self {
        Self
    }
}

impl IntoResponse for RolledBack {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

fn message() -> Vec<Message> {
    vec![Message::new("payments.made", "alice", "10 cents")]
}

/// Creates the table of effects, before any server starts.
pub(crate) async fn prepare(store: &str) {
    const TABLE: &str = "CREATE TABLE payments (cents integer NOT NULL)";
    if let Some(file) = store.strip_prefix("sqlite:") {
        Connection::open(file).unwrap().execute_batch(TABLE).unwrap();
        return;
    }
    let (client, connection) = tokio_postgres::connect(store, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(TABLE).await.unwrap();
}

/// Returns the number of payments and the number of messages.
pub(crate) fn count(store: &str, server: Option<&Postgres>) -> (usize, usize) {
    let of = |table: &str| -> usize {
        let sql = format!("SELECT count(*) FROM {table}");
        if let Some(file) = store.strip_prefix("sqlite:") {
            let connection = Connection::open(file).unwrap();
            let found: i64 = connection.query_row(&sql, [], |row| row.get(0)).unwrap();
            return found.try_into().unwrap();
        }
        let database = store.rsplit('/').next().unwrap();
        server.unwrap().sql(database, &sql).trim().parse().unwrap()
    };
    (of("payments"), of("onetake_outbox"))
}

/// Pays in one transaction with the outcome.
pub(crate) async fn pay_in_transaction(
    running: InTransaction,
    State(place): State<Arc<(Orders, Arc<Steps>)>>,
) -> Result<Response, RolledBack> {
    let (orders, steps) = &*place;
    match orders.store.strip_prefix("sqlite:") {
        Some(file) => on_sqlite(file, running, orders, steps).await,
        None => on_postgres(running, orders, steps).await,
    }
}

async fn on_postgres(
    running: InTransaction,
    orders: &Orders,
    steps: &Steps,
) -> Result<Response, RolledBack> {
    let (mut client, connection) = tokio_postgres::connect(&orders.store, NoTls).await?;
    tokio::spawn(connection);
    steps.reach("before the transaction");
    let tx = client.transaction().await?;
    tx.batch_execute(PAY).await?;
    steps.reach("after the effect is written");
    middle(orders, steps).await;
    let (completion, response) = running.complete("paid", message()).await?;
    finish(&tx, running.attempt(), &completion).await?;
    steps.reach("before the commit");
    tx.commit().await?;
    steps.reach("after the commit");
    Ok(response)
}

async fn on_sqlite(
    file: &str,
    running: InTransaction,
    orders: &Orders,
    steps: &Steps,
) -> Result<Response, RolledBack> {
    // SQLite allows one writer at a time. The server is therefore frozen before its transaction.
    middle(orders, steps).await;
    let (completion, response) = running.complete("paid", message()).await?;
    tokio::task::block_in_place(|| {
        let mut connection = Connection::open(file)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        steps.reach("before the transaction");
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute_batch(PAY)?;
        steps.reach("after the effect is written");
        onetake::sqlite::finish(&tx, running.attempt(), &completion)?;
        steps.reach("before the commit");
        tx.commit()?;
        steps.reach("after the commit");
        Ok(response)
    })
}
