//! Traces: spans to an OpenTelemetry collector, and the trace that a request comes with.
//!
//! The crates make spans (target [`SPANS`](onetake_core::engine::SPANS)) whether anybody wants them or not. With
//! the feature `otlp`, and where `OTEL_EXPORTER_OTLP_ENDPOINT` names a collector, they are sent there. Otherwise
//! nobody subscribes to them, and trace headers pass through as they came.

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

/// The variables that say where the collector is: for all signals, or for traces alone.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// What hands spans to their exporter.
pub(crate) type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The variable that names a collector, if one does. An empty one is as good as none.
fn endpoint() -> Option<&'static str> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    ENDPOINTS.into_iter().find(is_set)
}
