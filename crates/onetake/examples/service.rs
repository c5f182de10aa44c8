//! A service ready for production: axum and sqlx, onetake's records in the service's own
//! PostgreSQL, a transactional route, a payment route, logs, and a graceful shutdown.
//!
//! ```text
//! onetake migrate --store postgres://localhost/shop
//! DATABASE_URL=postgres://localhost/shop cargo run -p onetake --example service --features axum,sqlx
//! curl -d '{"item": "book", "quantity": 1}' -H 'content-type: application/json' \
//!      -H 'authorization: Bearer alice' \
//!      -H 'idempotency-key: 6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90' http://127.0.0.1:3000/orders
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use onetake::outbox::Message;
use onetake::prelude::*;
use onetake::stores::FileJournal;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// The time for requests and operations to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(30);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        item text NOT NULL, quantity integer NOT NULL CHECK (quantity > 0))";

#[derive(Deserialize)]
struct NewOrder {
    item: String,
    quantity: i32,
}

#[derive(Serialize)]
struct Order {
    order: i64,
}

/// Takes an order. Its only effect is in the service's own database and commits with the response
/// and the message.
async fn order(
    running: InTransaction,
    State(pool): State<PgPool>,
    Json(NewOrder { item, quantity }): Json<NewOrder>,
) -> Result<Response, RolledBack> {
    if quantity > 100 {
        // A refusal is an outcome too. It is recorded, and a retry gets the same answer.
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "not so many\n").into_response());
    }
    let mut tx = running.begin(&pool).await?;
    let insert = "INSERT INTO orders (item, quantity) VALUES ($1, $2) RETURNING number";
    let number: i64 =
        sqlx::query_scalar(insert).bind(&item).bind(quantity).fetch_one(&mut *tx).await?;
    let message = Message::new("orders.placed", item, number.to_string());
    Ok(tx.commit((StatusCode::CREATED, Json(Order { order: number })), [message]).await?)
}

/// Charges a card. The effect is at a payment provider, which gets the same key in every attempt.
async fn charge(DownstreamKey(key): DownstreamKey, cents: String) -> String {
    tracing::info!(%cents, "the provider is called");
    let _sent_as_idempotency_key = key.to_string();
    format!("charged {cents}\n")
}

/// An error after which the transaction was rolled back. A 5xx is released on a transactional
/// route, and a retry runs again.
struct RolledBack(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for RolledBack {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for RolledBack {
    fn into_response(self) -> Response {
        tracing::error!(error = &*self.0, "an operation was rolled back");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// Returns the app and its engine. The records are in the database of the orders.
pub(crate) async fn service(url: &str, journal: &Path) -> Result<(Router, Engine), Box<dyn Error>> {
    let pool = PgPool::connect(url).await?;
    sqlx::query(TABLES).execute(&pool).await?;
    let store = Arc::new(PostgresStore::open(url, PostgresOptions::default()).await?);
    let journal = FileJournal::of(&*store, journal).await?;
    let engine = Engine::builder(store).journal(Arc::new(journal)).build();

    let orders = Policy::new().key_required().tenant(Tenant::Credential).transactional(order);
    let charges = Policy::preset(Preset::Payment).tenant("credential");
    let routes = Routes::new().route("POST /orders", orders).route("POST /charges", charges);
    let app = Router::new()
        .route("/orders", post(order))
        .route("/charges", post(charge))
        .layer(OnetakeLayer::builder(engine.clone()).routes(routes).build()?)
        .with_state(pool);
    Ok((app, engine))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let (app, engine) = service(&std::env::var("DATABASE_URL")?, Path::new("./journal")).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    tracing::info!(address = %listener.local_addr()?, "ready");
    let served = onetake::serve(listener, app, engine, onetake::stop_signal(), PATIENCE).await?;
    tracing::info!(?served, "ended");
    Ok(())
}
