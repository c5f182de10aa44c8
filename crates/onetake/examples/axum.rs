//! The smallest API that is safe to retry.
//!
//! `cargo run -p onetake --example axum`, then twice `curl -i localhost:3000/charges -H
//! 'Idempotency-Key: 9b2d7c1e-0f64-4f5b-9a57-1c9f6b1f2d02' -d 10`: one charge, two answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::routing::post;
use onetake::prelude::*;

static CHARGES: AtomicU64 = AtomicU64::new(0);

async fn charge(amount: String) -> String {
    let number = CHARGES.fetch_add(1, Ordering::SeqCst) + 1;
    format!("charge {number} of {amount}\n")
}

pub(crate) fn app(engine: Engine) -> Result<Router, PolicyError> {
    let layer = OnetakeLayer::new(engine, Policy::new().key_required())?;
    Ok(Router::new().route("/charges", post(charge)).layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(Arc::new(EmbeddedStore::open("./onetake-data/axum")?));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app(engine)?).await?;
    Ok(())
}
