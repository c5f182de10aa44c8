//! A transfer API with its own tables in PostgreSQL. Money, message and response commit together or
//! not at all. Each transfer is made once, even if a process dies at any point.
//!
//! ```text
//! onetake migrate --store postgres://localhost/bank
//! DATABASE_URL=postgres://localhost/bank cargo run -p onetake --example transfers --features axum,postgres
//! curl -d '{"from": "alice", "to": "bob", "cents": 500}' -H 'content-type: application/json' \
//!      -H 'idempotency-key: 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90' http://127.0.0.1:3000/transfers
//! ```

use std::error::Error;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use onetake::outbox::Message;
use onetake::prelude::*;
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, NoTls};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS accounts (name text PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0));
    CREATE TABLE IF NOT EXISTS transfers (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        payer text NOT NULL, payee text NOT NULL, cents bigint NOT NULL CHECK (cents > 0));
    INSERT INTO accounts VALUES ('alice', 1000), ('bob', 0) ON CONFLICT DO NOTHING;";

#[derive(Deserialize)]
struct Asked {
    from: String,
    to: String,
    cents: i64,
}

#[derive(Serialize)]
struct Receipt {
    transfer: i64,
    cents: i64,
}

async fn transfer(
    running: InTransaction,
    State(url): State<Arc<str>>,
    Json(Asked { from, to, cents }): Json<Asked>,
) -> Result<Response, Failed> {
    // A real service takes the connection from a pool.
    let mut client = connect(&url).await.map_err(Failed::unhandled)?;
    let tx = running.begin(&mut client).await?;
    let take = "UPDATE accounts SET cents = cents - $2 WHERE name = $1 AND cents >= $2 AND $2 > 0";
    if tx.execute(take, &[&from, &cents]).await? == 0 {
        // A refusal is an outcome too, and is recorded. Dropping the transaction rolls it back.
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "not enough there\n").into_response());
    }
    let give = "UPDATE accounts SET cents = cents + $2 WHERE name = $1";
    if tx.execute(give, &[&to, &cents]).await? == 0 {
        return Ok((StatusCode::NOT_FOUND, "no such payee\n").into_response());
    }
    let note = "INSERT INTO transfers (payer, payee, cents) VALUES ($1, $2, $3) RETURNING number";
    let number = tx.query_one(note, &[&from, &to, &cents]).await?.try_get(0)?;

    // The relay delivers the message after the commit, and the transfers of one payer in order.
    let message = Message::new("transfers.made", from, format!("{number} {cents}"));
    let receipt = (StatusCode::CREATED, Json(Receipt { transfer: number, cents }));
    Ok(tx.commit(receipt, [message]).await?)
}

/// An error after which nothing was committed, so a retry runs again. After `begin`, a 500 is
/// released: the transaction was rolled back. Before `begin`, only 503 says that nothing was done.
struct Failed(StatusCode, Box<dyn Error + Send + Sync>);

impl Failed {
    fn unhandled(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.into())
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.0, format!("nothing was transferred: {}\n", self.1)).into_response()
    }
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Returns the API. The records of onetake are in the database of its own tables.
pub(crate) async fn app(url: &str) -> Result<Router, Box<dyn Error>> {
    connect(url).await?.batch_execute(TABLES).await?;
    let store = PostgresStore::open(url, PostgresOptions::default()).await?;
    let policy = Policy::new().key_required().transactional(transfer);
    Ok(Router::new()
        .route("/transfers", post(transfer))
        .layer(OnetakeLayer::new(Engine::new(Arc::new(store)), policy)?)
        .with_state(url.into()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(&std::env::var("DATABASE_URL")?).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
