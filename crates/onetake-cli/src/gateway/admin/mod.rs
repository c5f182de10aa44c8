//! The admin listener: keys and the audit log for operators, probes, and metrics.
//!
//! Probes are open to every client that can connect. Everything else is behind the [`guard`]: the
//! token, if one is configured, no web pages, and rate limits.

mod acts;
mod error;
mod guard;
mod health;
mod input;
mod keys;
mod listener;
mod scan;
mod views;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use onetake_core::{Clock, Engine};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, InfoBuilder, OpenApi, SecurityRequirement};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::gauges::Gauges;
use super::readiness::Readiness;
use error::{ApiError, ApiProblem};
use guard::Guard;

use crate::config::Token;

/// Histogram buckets for writes to the store, in seconds.
const SECONDS: [f64; 12] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0];
/// Histogram buckets for questions to `forward_auth`, in seconds.
const ASKED_SECONDS: [f64; 14] =
    [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];
/// Histogram buckets for batch sizes.
const ITEMS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// Maximum number of concurrent requests that scan keys.
const SCANS_MAX: usize = 2;

/// State behind probes and metrics.
#[derive(Clone)]
pub(super) struct Status {
    pub(super) readiness: Readiness,
    pub(super) metrics: Option<PrometheusHandle>,
    pub(super) gauges: Arc<Gauges>,
    /// Cancelled when shutdown begins; the node is then no longer ready.
    pub(super) draining: CancellationToken,
}

/// State behind the API for operators.
#[derive(Clone)]
pub(super) struct Api {
    engine: Engine,
    /// The secret for digests of tenants.
    tenants: [u8; 32],
    scans: Arc<Semaphore>,
}

impl Api {
    pub(super) fn new(engine: Engine, tenants: [u8; 32]) -> Self {
        Self { engine, tenants, scans: Arc::new(Semaphore::new(SCANS_MAX)) }
    }
}

/// Error responses that every request may get.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "it stands for the schema")]
enum CommonErrors {
    /// The request is invalid.
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(#[to_schema] ApiProblem),
    /// The token is missing or wrong.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(#[to_schema] ApiProblem),
    /// A web page sent the request.
    #[response(status = 403, content_type = "application/problem+json")]
    CrossOrigin(#[to_schema] ApiProblem),
    /// Too many requests.
    #[response(status = 429, content_type = "application/problem+json")]
    TooMany(#[to_schema] ApiProblem),
    /// The store does not respond.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(#[to_schema] ApiProblem),
}

/// More error responses of requests for one key.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "it stands for the schema")]
enum Missed {
    /// There is no such key.
    #[response(status = 404, content_type = "application/problem+json")]
    NoKey(#[to_schema] ApiProblem),
    /// The key's state or attempt does not allow the request.
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(#[to_schema] ApiProblem),
}

/// More error responses of requests with a body.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "it stands for the schema")]
enum BadBody {
    /// The body is too large.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(#[to_schema] ApiProblem),
    /// The body is not JSON.
    #[response(status = 415, content_type = "application/problem+json")]
    MediaType(#[to_schema] ApiProblem),
}

/// Serves the admin API until it is stopped.
pub(super) async fn serve(
    listener: TcpListener,
    (status, api, token): (Status, Api, Option<Token>),
    stop: CancellationToken,
) {
    let clock = Arc::clone(api.engine.clock());
    let guard = Guard::new(token.as_ref(), &clock);
    listener::serve(listener, router(status, api, guard), clock, stop).await;
}

/// Serves only metrics and `/livez`.
pub(super) async fn serve_metrics(
    listener: TcpListener,
    metrics: Option<PrometheusHandle>,
    token: Option<Token>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let guard = Guard::new(token.as_ref(), &clock);
    let guarded = Router::new()
        .route("/metrics", get(async move || render(metrics)))
        .fallback(async || ApiError::no_page())
        .layer(middleware::from_fn_with_state(guard, guard::guard));
    let router = Router::new().route("/livez", get(|| async { "ok\n" })).fallback_service(guarded);
    listener::serve(listener, router, clock, stop).await;
}

fn router(status: Status, api: Api, guard: Guard) -> Router {
    let (keys, mut description) = OpenApiRouter::with_openapi(description())
        .routes(routes!(keys::list))
        .routes(routes!(keys::lookup))
        .routes(routes!(keys::get))
        .routes(routes!(keys::count))
        .routes(routes!(keys::audit))
        .routes(routes!(acts::release))
        .routes(routes!(acts::fail))
        .routes(routes!(acts::resolve))
        .routes(routes!(acts::forget))
        .split_for_parts();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = description.components.get_or_insert_with(Components::new);
    components.add_security_scheme("token", SecurityScheme::Http(bearer));
    let description = Arc::new(description);
    let guarded = keys
        .with_state(api)
        .route("/openapi.json", get(move || async move { Json((*description).clone()) }))
        .route(
            "/metrics",
            get(async |State(status): State<Status>| {
                status.gauges.update();
                render(status.metrics)
            })
            .with_state(status.clone()),
        )
        .method_not_allowed_fallback(async || ApiError::no_method())
        .fallback(async || ApiError::no_page())
        .layer(middleware::from_fn_with_state(guard, guard::guard));
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(status.clone()))
        .route("/grpc.health.v1.Health/Check", post(health::check).with_state(status.clone()))
        .route("/grpc.health.v1.Health/Watch", post(health::watch).with_state(status))
        .fallback_service(guarded)
}

fn description() -> OpenApi {
    let info = InfoBuilder::new()
        .title("onetake admin API")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Find, explain and change keys."))
        .build();
    let mut description = OpenApi::new(info, utoipa::openapi::Paths::new());
    description.security = Some(vec![SecurityRequirement::new("token", [""; 0])]);
    description
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

fn render(metrics: Option<PrometheusHandle>) -> impl IntoResponse + use<> {
    match metrics {
        Some(metrics) => {
            metrics.run_upkeep();
            let text = [("content-type", "text/plain; version=0.0.4")];
            (StatusCode::OK, text, metrics.render()).into_response()
        }
        None => (
            StatusCode::NOT_FOUND,
            "metrics are not available: the process has another metrics recorder\n",
        )
            .into_response(),
    }
}

/// Installs the metrics recorder; `None` if the process already has another one.
pub(super) fn install_recorder() -> Option<PrometheusHandle> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in [
        ("onetake_store_seconds", &SECONDS[..]),
        ("onetake_forward_auth_seconds", &ASKED_SECONDS),
        ("onetake_batch_size", &ITEMS),
    ] {
        let name = Matcher::Full(name.to_owned());
        builder = builder.set_buckets_for_metric(name, buckets).ok()?;
    }
    builder.install_recorder().ok()
}
