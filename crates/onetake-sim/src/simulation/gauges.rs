//! The gauges of one engine, as a metrics recorder. The simulation reads from them how many
//! operations run and how many callers wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};

/// The gauges of one process. Clones read the same gauges.
#[derive(Clone, Debug, Default)]
pub struct EngineGauges {
    running: Arc<AtomicU64>,
    waiting: Arc<AtomicU64>,
}

impl EngineGauges {
    /// Builds an engine that reports to these gauges.
    pub fn of<T>(&self, build: impl FnOnce() -> T) -> T {
        with_local_recorder(self, build)
    }

    /// Returns the number of operations that the engine counts as running.
    #[must_use]
    pub fn running(&self) -> i64 {
        read(&self.running)
    }

    /// Returns the number of callers that wait for a running attempt.
    #[must_use]
    pub fn waiting(&self) -> i64 {
        read(&self.waiting)
    }
}

/// Reads a gauge, which counts in whole numbers.
fn read(gauge: &AtomicU64) -> i64 {
    f64::from_bits(gauge.load(Ordering::Acquire)) as i64
}

impl Recorder for EngineGauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match key.name() {
            "onetake_running" => Gauge::from_arc(Arc::clone(&self.running)),
            "onetake_waiting" => Gauge::from_arc(Arc::clone(&self.waiting)),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
