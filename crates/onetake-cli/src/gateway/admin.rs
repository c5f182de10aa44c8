//! The admin listener: probes and metrics.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::readiness::Readiness;

/// Seconds that a store's write may take.
const SECONDS: [f64; 12] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0];
/// Items in a batch.
const ITEMS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// What the listener tells of.
#[derive(Clone)]
pub(super) struct Status {
    pub(super) readiness: Readiness,
    pub(super) metrics: Option<PrometheusHandle>,
    /// Cancelled as soon as nothing new should be sent here.
    pub(super) draining: CancellationToken,
}

/// Serves until it is stopped.
pub(super) async fn serve(listener: TcpListener, status: Status, stop: CancellationToken) {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .with_state(status);
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "the admin listener ended");
    }
}

async fn ready(State(status): State<Status>) -> impl IntoResponse {
    if status.draining.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    match status.readiness.check().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn render(State(status): State<Status>) -> impl IntoResponse {
    match status.metrics {
        Some(metrics) => {
            metrics.run_upkeep();
            let text = [("content-type", "text/plain; version=0.0.4")];
            (StatusCode::OK, text, metrics.render()).into_response()
        }
        None => (StatusCode::NOT_FOUND, "another recorder is installed\n").into_response(),
    }
}

/// Makes this process record its metrics; `None` if something else does already.
pub(super) fn install_recorder() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full("onetake_store_seconds".to_owned()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full("onetake_batch_size".to_owned()), &ITEMS)
        });
    builder.ok()?.install_recorder().ok()
}
