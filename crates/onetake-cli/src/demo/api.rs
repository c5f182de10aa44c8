//! The payment API of the demo: `POST /charges`. Like most APIs, it ignores idempotency keys.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use onetake_core::Clock;

use super::ledger::{Charge, Ledger};
use super::random::Random;

/// Percentage of slow charges, as when the card's bank is slow.
const SLOW_PERCENT: u64 = 5;

/// A running payment API and its ledger. Dropping it stops the server.
#[derive(Debug)]
pub(super) struct Api {
    address: SocketAddr,
    inner: Arc<Inner>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    clock: Arc<dyn Clock>,
    random: Mutex<Random>,
    charging: TaskTracker,
}

impl Api {
    /// Listens on a free port of this machine.
    pub(super) async fn start(random: Random, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            ledger: Ledger::default(),
            clock,
            random: Mutex::new(random),
            charging: TaskTracker::new(),
        });
        let router = Router::new().route("/charges", post(charge)).with_state(Arc::clone(&inner));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            // `axum::serve` never returns an error.
            let _ended = axum::serve(listener, router).with_graceful_shutdown(stopped).await;
        });
        Ok(Self { address, inner, _stop: stop.drop_guard() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.inner.ledger
    }

    /// Waits until no charge is running, so that the ledger is complete.
    pub(super) async fn quiet(&self) {
        self.inner.charging.close();
        self.inner.charging.wait().await;
    }
}

impl Inner {
    /// Draws the duration of the next charge, and a part of its id.
    fn draw(&self) -> (Duration, u64) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let millis = match random.chance(SLOW_PERCENT) {
            true => random.between(100, 250),
            false => random.between(5, 40),
        };
        (Duration::from_millis(millis), random.next())
    }
}

async fn charge(
    State(api): State<Arc<Inner>>,
    Json(asked): Json<Value>,
) -> (StatusCode, Json<Value>) {
    let number = |field: &str| asked.get(field).and_then(Value::as_u64);
    let card = asked.get("card").and_then(Value::as_str);
    let (Some(order), Some(amount_cents), Some(_)) = (number("order"), number("amount"), card)
    else {
        let error = json!({ "error": "order, amount and card are required" });
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(error));
    };
    let (takes, drawn) = api.draw();
    let id = format!("ch_{drawn:016x}");
    let answer = json!({ "id": id, "order": order, "amount": amount_cents, "status": "paid" });
    // In a task of its own: the charge is made even if the customer has hung up by then.
    let work = api.charging.spawn({
        let api = Arc::clone(&api);
        async move {
            api.clock.sleep(takes).await;
            api.ledger.append(Charge { id, order, amount_cents });
        }
    });
    match work.await {
        Ok(()) => (StatusCode::CREATED, Json(answer)),
        Err(_) => {
            let error = json!({ "error": "the charge failed" });
            (StatusCode::INTERNAL_SERVER_ERROR, Json(error))
        }
    }
}
