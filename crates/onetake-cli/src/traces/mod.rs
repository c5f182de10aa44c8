//! Traces: export of spans to an OpenTelemetry collector, and the trace context of requests.
//!
//! The crates always create spans (target [`SPANS`](onetake_core::engine::SPANS)). They are
//! exported if the build has the feature `otlp` and `OTEL_EXPORTER_OTLP_ENDPOINT` names a
//! collector. Otherwise no subscriber receives them, and trace headers pass through unchanged.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod export;
#[cfg(not(feature = "otlp"))]
mod nothing;
#[cfg(feature = "otlp")]
mod parent;
#[cfg(feature = "otlp")]
mod sender;

use tracing_subscriber::{Layer, Registry};

#[cfg(feature = "otlp")]
pub(crate) use export::{Export, from_environment};
#[cfg(not(feature = "otlp"))]
pub(crate) use nothing::{Export, Parent, from_environment, pass_on};
#[cfg(feature = "otlp")]
pub(crate) use parent::{Parent, pass_on};

/// Variables that name the collector: for traces only, or for all signals.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// The layer that passes spans to their exporter.
pub(crate) type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The first variable that names a collector. An empty variable counts as not set.
fn endpoint() -> Option<&'static str> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    ENDPOINTS.into_iter().find(is_set)
}
