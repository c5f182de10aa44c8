//! An API that charges cards at another service. It shows a policy for each route, a result that is
//! stored as a value, and a key for the call that the operation makes itself.
//!
//! `cargo run -p onetake --example payments --features axum`, then
//! `curl -i localhost:3000/charges -H 'Authorization: Bearer alice' -H 'Content-Type: application/json'
//! -H 'Idempotency-Key: 3f0a6a52-51a4-4c0e-8a53-7d0f3a3f9c01' -d '{"cents": 1999}'`, any number of
//! times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use onetake::http::typed::json;
use onetake::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Charge {
    cents: u64,
}

/// The stored result of a charge. The response is built from it, at first and for every retry.
#[derive(Serialize, Deserialize)]
struct Receipt {
    charge: usize,
    cents: u64,
}

impl Typed for Receipt {
    const NAME: &'static str = "receipt";

    fn respond(&self) -> Response<Bytes> {
        json(StatusCode::CREATED, self)
    }
}

/// A stand-in for another service that deduplicates by key, as card networks do.
#[derive(Clone, Default)]
struct CardNetwork(Arc<Mutex<HashMap<String, usize>>>);

impl CardNetwork {
    fn charge(&self, key: &str) -> usize {
        let mut charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = charges.len() + 1;
        *charges.entry(key.to_owned()).or_insert(next)
    }
}

async fn charge(
    State(network): State<CardNetwork>,
    RunningAttempt(attempt): RunningAttempt,
    DownstreamKey(key): DownstreamKey,
    Json(wanted): Json<Charge>,
) -> Stored<Receipt> {
    // If this attempt dies here, the next one has a higher fence and the same key for the same
    // call. The card is charged once.
    let charge = network.charge(&key.step("charge-card").to_string());
    println!("charge {charge} under fence {}", attempt.fence);
    Stored(Receipt { charge, cents: wanted.cents })
}

async fn sign_up(key: Option<IdempotencyKey>) -> &'static str {
    if key.is_some() { "welcome, once\n" } else { "welcome\n" }
}

pub(crate) fn app(engine: Engine) -> Result<Router, PolicyError> {
    // The options have the names that the gateway's file uses.
    let payments = Policy::preset(Preset::Payment)
        .tenant("credential")
        .fingerprint("json")
        .in_flight(InFlight::Wait(Duration::from_secs(5)));
    let signups = Policy::preset(Preset::Signup).namespace("signups");
    let routes = Routes::new().route("POST /charges", payments).route("POST /signups", signups);
    let layer = OnetakeLayer::builder(engine).routes(routes).typed::<Receipt>().build()?;
    Ok(Router::new()
        .route("/charges", post(charge))
        .route("/signups", post(sign_up))
        .with_state(CardNetwork::default())
        .layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(Arc::new(EmbeddedStore::open("./onetake-data/payments")?));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app(engine)?).await?;
    Ok(())
}
