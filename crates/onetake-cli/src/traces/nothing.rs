//! Stand-in for builds without the feature `otlp`: nothing is exported, and trace headers pass
//! through.

use std::sync::Arc;

use http::HeaderMap;
use onetake_core::Clock;
use tracing::Span;

use super::{SpanLayer, endpoint};

/// An export that sends nothing. It holds the variable that asks for traces, if one is set.
pub(crate) struct Export(Option<&'static str>);

/// Checks whether the environment asks for traces.
pub(crate) fn from_environment() -> (Option<SpanLayer>, Export) {
    (None, Export(endpoint()))
}

impl Export {
    /// Warns if the environment asks for traces.
    pub(crate) fn start(&mut self, _: &Arc<dyn Clock>) -> Result<(), String> {
        if let Some(variable) = self.0 {
            tracing::warn!(
                variable,
                "traces are not exported, because this build does not support them: build onetake with `--features otlp`, or unset the variable"
            );
        }
        Ok(())
    }

    /// Does nothing.
    pub(crate) fn register_metrics(&self) {}

    /// Does nothing.
    pub(crate) async fn finish(self, _: &Arc<dyn Clock>) {}
}

/// The trace context of a request, which passes through unchanged.
pub(crate) struct Parent;

impl Parent {
    /// Leaves the headers unchanged.
    pub(crate) fn take(_: &mut HeaderMap) -> Self {
        Self
    }

    /// Calls `call`.
    pub(crate) fn around<T>(self, call: impl FnOnce() -> T) -> T {
        call()
    }
}

/// Leaves the headers unchanged.
pub(crate) fn pass_on(_: &Span, _: &mut HeaderMap) {}
