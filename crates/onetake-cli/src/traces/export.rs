//! Trace export, configured by the standard `OTEL_…` variables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onetake_core::Clock;
use onetake_core::engine::SPANS;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;

use super::sender::{DROPPED, EXPORTED, Sender, queue};
use super::{SpanLayer, collector, endpoint};

/// How long the last spans may take when the process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// Global, because a process has only one span subscriber.
static IS_EXPORTING: AtomicBool = AtomicBool::new(false);

pub(super) fn is_exporting() -> bool {
    IS_EXPORTING.load(Ordering::Relaxed)
}

/// The sender of spans to the collector, if one is configured.
pub(crate) struct Export(Option<ExportState>);

enum ExportState {
    Ready { sender: Sender, resource: Resource, variable: &'static str },
    Running { task: JoinHandle<()>, stop: CancellationToken },
}

/// Reads the environment. Returns a layer that receives spans, and their sender, which is not
/// started yet.
pub(crate) fn from_environment() -> (Option<SpanLayer>, Export) {
    let Some(variable) = endpoint() else {
        return (None, Export(None));
    };
    let resource = resource();
    let (queue, sender) = queue();
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_span_processor(queue)
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("onetake"))
        .with_context_activation(false)
        .with_level(false)
        .with_location(false)
        .with_target(false)
        .with_threads(false)
        .with_tracked_inactivity(false);
    // Only spans of requests are exported. Log events stay in the log.
    let is_ours = |metadata: &Metadata<'_>| metadata.is_span() && metadata.target() == SPANS;
    let filter = FilterFn::new(is_ours).with_max_level_hint(LevelFilter::DEBUG);
    let state = ExportState::Ready { sender, resource, variable };
    (Some(layer.with_filter(filter).boxed()), Export(Some(state)))
}

impl Export {
    /// Starts to send spans, in a task of the current runtime.
    ///
    /// # Errors
    /// If the environment names no valid collector.
    pub(crate) fn start(&mut self, clock: &Arc<dyn Clock>) -> Result<(), String> {
        let Some(ExportState::Ready { sender, resource, variable }) = self.0.take() else {
            return Ok(());
        };
        sampling(|name| std::env::var(name).ok())?;
        let exporter = collector::exporter(&resource, variable, clock)?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(sender.run(exporter, Arc::clone(clock), stop.clone()));
        IS_EXPORTING.store(true, Ordering::Relaxed);
        self.0 = Some(ExportState::Running { task, stop });
        Ok(())
    }

    /// Registers the counters, so that they are visible before the first span.
    pub(crate) fn register_metrics(&self) {
        if self.0.is_some() {
            metrics::describe_counter!(EXPORTED, "Spans accepted by the collector.");
            metrics::describe_counter!(DROPPED, "Spans dropped.");
            metrics::counter!(EXPORTED).increment(0);
            metrics::counter!(DROPPED).increment(0);
        }
    }

    /// Sends the remaining spans, for at most `FLUSH`.
    pub(crate) async fn finish(self, clock: &Arc<dyn Clock>) {
        if let Some(ExportState::Running { task, stop }) = self.0 {
            stop.cancel();
            tokio::select! {
                _ended = task => {}
                () = clock.sleep(FLUSH) => {}
            }
        }
    }
}

/// The resource of the spans: as the environment says, else `onetake`.
fn resource() -> Resource {
    let said = Resource::builder().build();
    let find = |key: &'static str| said.get(&Key::from_static_str(key));
    let mut ours = Resource::builder();
    // The SDK's default name of a service.
    if find("service.name").is_none_or(|name| name.as_str().starts_with("unknown_service")) {
        ours = ours.with_service_name("onetake");
    }
    if find("service.version").is_none() {
        ours = ours.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    }
    ours.build()
}

/// Checks the sampling variables. The SDK reads them itself and samples everything if they are
/// wrong; a wrong ratio must be an error instead.
fn sampling(variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    const KNOWN: [&str; 6] = [
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ];
    let Some(sampler) = variable("OTEL_TRACES_SAMPLER").filter(|sampler| !sampler.is_empty())
    else {
        return Ok(());
    };
    if !KNOWN.contains(&sampler.as_str()) {
        return Err(format!(
            "OTEL_TRACES_SAMPLER = \"{sampler}\": not a sampler; write one of {}",
            KNOWN.join(", ")
        ));
    }
    let ratio = variable("OTEL_TRACES_SAMPLER_ARG").unwrap_or_default();
    let is_ratio = ratio.parse::<f64>().is_ok_and(|ratio| (0.0..=1.0).contains(&ratio));
    if sampler.ends_with("traceidratio") && !is_ratio {
        return Err(format!(
            "OTEL_TRACES_SAMPLER_ARG = \"{ratio}\": not a ratio; write a number from 0 to 1, such as 0.1"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_that_would_be_ignored_is_an_error() {
        let said = |sampler: &'static str, ratio: &'static str| {
            sampling(|name| {
                let value = if name.ends_with("ARG") { ratio } else { sampler };
                Some(value.to_owned())
            })
        };
        assert!(sampling(|_| None).is_ok());
        assert!(said("", "").is_ok());
        assert!(said("always_off", "").is_ok());
        assert!(said("parentbased_traceidratio", "0.1").is_ok());
        assert!(said("ratio", "0.1").unwrap_err().contains("traceidratio"));
        for bad in ["", "10%", "1.5", "-0.1", "NaN"] {
            assert!(said("traceidratio", bad).unwrap_err().contains("from 0 to 1"), "{bad}");
        }
    }
}
