//! `onetake demo api`: a small payment API to try the gateway with.
//!
//! Like most APIs, it ignores idempotency keys: every `POST /charges` makes a charge, unless its body
//! has the word `decline`. It prints a line for each, so that a user sees what runs and what does
//! not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;

use onetake_core::Clock;

use super::DemoError;
use crate::cli::say;

/// Default of `--listen`.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:3000";

/// Duration of a charge. Two requests at once overlap.
const CHARGE_TAKES: Duration = Duration::from_millis(200);

/// A body with this word is declined with 402: no charge is made.
const DECLINED: &[u8] = b"decline";

/// Largest part of a request's body that is printed and answered, in bytes.
const SHOWN_BYTES_MAX: usize = 80;

#[derive(Debug)]
struct SampleApi {
    charges: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// Serves the sample API until `stop` resolves.
///
/// # Errors
/// If the address cannot be used.
pub async fn serve_sample(
    listen: SocketAddr,
    clock: Arc<dyn Clock>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), DemoError> {
    let failed = |source| DemoError::Io { what: "listen for the sample API", source };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let api = Arc::new(SampleApi { charges: AtomicU64::new(0), clock });
    let router = Router::new().route("/charges", post(charge).get(count)).with_state(api);
    say(&format!(
        "sample API on http://{address}: POST /charges makes a charge, GET /charges counts them\n"
    ));
    let served = axum::serve(listener, router).with_graceful_shutdown(stop).await;
    served.map_err(|source| DemoError::Io { what: "serve the sample API", source })
}

async fn charge(State(api): State<Arc<SampleApi>>, body: Bytes) -> Response {
    if body.windows(DECLINED.len()).any(|part| part == DECLINED) {
        let error = Json(json!({ "error": "the card was declined" }));
        return (StatusCode::PAYMENT_REQUIRED, error).into_response();
    }
    let number = api.charges.fetch_add(1, Ordering::SeqCst) + 1;
    let shown = body.get(..SHOWN_BYTES_MAX).unwrap_or(&body);
    let shown: String = String::from_utf8_lossy(shown)
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect();
    say(&format!("charge {number}: {shown}\n"));
    api.clock.sleep(CHARGE_TAKES).await;
    let location = [(header::LOCATION, format!("/charges/{number}"))];
    (StatusCode::CREATED, location, Json(json!({ "charge": number, "of": shown }))).into_response()
}

async fn count(State(api): State<Arc<SampleApi>>) -> impl IntoResponse {
    Json(json!({ "charges": api.charges.load(Ordering::SeqCst) }))
}
