//! The client of the trace collector: OTLP over HTTP.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use onetake_core::Clock;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;

use super::sender::EXPORT_TIMEOUT;
use crate::config::UpstreamTls;
use crate::gateway::Connector;

/// Maximum size of a collector's response.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Builds an exporter of this resource's spans to the collector that the environment names.
///
/// # Errors
/// If the environment names no valid collector.
pub(super) fn exporter(
    resource: &Resource,
    variable: &str,
    clock: &Arc<dyn Clock>,
) -> Result<SpanExporter, String> {
    let is_tls = std::env::var(variable).is_ok_and(|url| url.starts_with("https://"));
    let tls = is_tls.then(UpstreamTls::default);
    let connector = Connector::new(tls, Arc::clone(clock)).map_err(|error| error.to_string())?;
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(1)
        .build(connector);
    // Failed batches are not retried: an unreachable collector must not delay later spans. Also,
    // the exporter's retry would block a thread while it sleeps.
    let never = RetryPolicy::default().with_max_retries(0);
    let built = SpanExporter::builder()
        .with_http()
        .with_http_client(Collector(client))
        .with_timeout(EXPORT_TIMEOUT)
        .with_retry_policy(never)
        .build();
    let mut exporter = built.map_err(|error| {
        format!("{variable}: {error}; write for example \"http://127.0.0.1:4318\", or unset it")
    })?;
    exporter.set_resource(resource);
    Ok(exporter)
}

/// The gateway's own HTTP client, as a client for the exporter.
#[derive(Debug)]
struct Collector(Client<Connector, Full<Bytes>>);

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = self.0.request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(parts, body))
    }
}
