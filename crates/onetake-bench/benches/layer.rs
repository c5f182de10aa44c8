//! The cost of the layer inside axum: a handler by itself, and behind the layer, as a request
//! without a key, as a replay, and with a new key on a store in memory, also with
//! `duplicate_payload`. Each new key has a payload of its own.
//!
//! Requests are calls of the router, without sockets, one at a time on one thread. The differences
//! are the result. The contenders alternate in one run, because machines are noisy.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark may panic")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use onetake_core::{Clock, Engine, MemoryStore, SystemClock};
use onetake_http::{DuplicateAction, OnetakeLayer, Policy};
use tower::ServiceExt;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 9;
const REQUESTS: usize = 20_000;
/// The time for which payloads are remembered: longer than the benchmark.
const WINDOW: Duration = Duration::from_secs(3600);

/// The keys of a contender.
#[derive(Clone, Copy, Debug)]
enum Keys {
    None,
    Same,
    New,
}

fn main() {
    // `cargo test --benches` uses other arguments. Then the benchmark only shows that it runs.
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let requests = if is_bench { REQUESTS } else { REQUESTS / 100 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(requests));
}

fn handler() -> Router {
    let charge = |body: String| async move { (StatusCode::CREATED, format!("charged {body}")) };
    Router::new().route("/charges", post(charge))
}

/// The handler behind a layer with this policy and a store of its own.
fn behind(policy: Policy) -> Router {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let layer = OnetakeLayer::builder(engine).policy(policy).build();
    handler().layer(layer.unwrap_or_else(|error| panic!("{error}")))
}

async fn run(requests: usize) {
    let layered = behind(Policy::new());
    let detecting = behind(Policy::new().duplicate_payload(WINDOW, DuplicateAction::Log));
    let contenders = [
        ("plain handler", handler(), Keys::Same),
        ("layer, no key", layered.clone(), Keys::None),
        ("layer, replay", layered.clone(), Keys::Same),
        ("layer, new key", layered, Keys::New),
        ("layer, new key, duplicate_payload", detecting, Keys::New),
    ];
    let mut micros = vec![Vec::new(); contenders.len()];
    for round in 0..ROUNDS {
        for ((_, router, keys), micros) in contenders.iter().zip(&mut micros) {
            micros.push(measure(router, *keys, round, requests).await);
        }
    }
    println!("axum, one thread, {requests} requests in each of {ROUNDS} rounds, µs per request");
    let plain = micros.first().cloned().unwrap_or_default();
    for ((name, ..), micros) in contenders.iter().zip(&micros) {
        let added: Vec<f64> = micros.iter().zip(&plain).map(|(one, plain)| one - plain).collect();
        let (median, low, high) = spread(&added);
        println!(
            "  {name:<34} {:>7.2}   adds {median:.2} ({low:.2} to {high:.2})",
            spread(micros).0
        );
    }
}

/// Returns the time of one request, in microseconds.
async fn measure(router: &Router, keys: Keys, round: usize, requests: usize) -> f64 {
    let from = SystemClock.monotonic();
    for number in 0..requests {
        let request = Request::post("/charges").header("authorization", "Bearer benchmark");
        let (round, number) = match keys {
            Keys::New => (round, number),
            Keys::None | Keys::Same => (0, 0),
        };
        let payload = format!("order={round:02}-{number:06}");
        let request = match keys {
            Keys::None => request,
            Keys::Same => request.header("idempotency-key", "benchmark-of-the-layer"),
            Keys::New => {
                request.header("idempotency-key", format!("benchmark-{round:02}-{number:06}"))
            }
        };
        let request = request.body(Body::from(payload.clone())).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.strip_prefix(b"charged "), Some(payload.as_bytes()));
    }
    (SystemClock.monotonic() - from).as_secs_f64() * 1e6 / requests as f64
}

/// Returns the median, the lowest and the highest value.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}
