//! Queue of spans and their delivery to the collector, in batches. The queue is bounded, and ending
//! a span never waits: a span that does not fit is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onetake_core::Clock;
use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// Maximum number of spans in the queue.
const QUEUE_MAX: usize = 4_096;
/// Maximum number of spans in one request to the collector.
const BATCH_MAX: usize = 512;
/// How long spans are collected before a batch that is not full is sent.
const GATHER: Duration = Duration::from_secs(1);
/// How long one request to the collector may take.
pub(super) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about dropped spans.
const SILENCE: Duration = Duration::from_secs(60);

pub(super) const EXPORTED: &str = "onetake_spans_exported_total";
pub(super) const DROPPED: &str = "onetake_spans_dropped_total";

/// The queue that receives spans when they end.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: mpsc::Sender<SpanData>,
    shared: Arc<SenderState>,
}

#[derive(Debug, Default)]
struct SenderState {
    is_full: Notify,
    /// Dropped spans that are not in the metrics yet: a span may end before the metrics recorder
    /// exists.
    dropped: AtomicU64,
}

/// The receiving end of a [`SpanQueue`].
pub(super) struct Sender {
    spans: mpsc::Receiver<SpanData>,
    shared: Arc<SenderState>,
}

pub(super) fn queue() -> (SpanQueue, Sender) {
    let (put, spans) = mpsc::channel(QUEUE_MAX);
    let shared = Arc::new(SenderState::default());
    (SpanQueue { spans: put, shared: Arc::clone(&shared) }, Sender { spans, shared })
}

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        if self.spans.try_send(span).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        if self.spans.capacity() <= QUEUE_MAX - BATCH_MAX {
            self.shared.is_full.notify_one();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Sender {
    /// Sends batches until it is stopped. Then sends the rest, as long as the collector accepts it.
    pub(super) async fn run(
        mut self,
        exporter: impl SpanExporter,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) {
        let mut mood = Mood::default();
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let is_stopping = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                _count = self.spans.recv_many(&mut batch, BATCH_MAX) => false,
            };
            if !is_stopping && batch.len() + self.spans.len() < BATCH_MAX {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = self.shared.is_full.notified() => {}
                    () = clock.sleep(GATHER) => {}
                }
            }
            while batch.len() < BATCH_MAX
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            let count = batch.len() as u64;
            let sent = tokio::select! {
                biased;
                sent = exporter.export(std::mem::take(&mut batch)) => sent.map_err(|error| error.to_string()),
                () = clock.sleep(EXPORT_TIMEOUT) => Err("the collector does not respond".to_owned()),
            };
            let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
            let has_failed = sent.is_err();
            mood.tell(sent, count, dropped, clock.monotonic());
            if has_failed && stop.is_cancelled() {
                return;
            }
        }
    }
}

/// The state of the log messages, so that the same message is not repeated.
#[derive(Default)]
struct Mood {
    is_failing: bool,
    silent_until: Duration,
}

impl Mood {
    fn tell(&mut self, sent: Result<(), String>, count: u64, dropped: u64, now: Duration) {
        let lost = if sent.is_ok() { dropped } else { dropped + count };
        metrics::counter!(DROPPED).increment(lost);
        match sent {
            Ok(()) => {
                metrics::counter!(EXPORTED).increment(count);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("traces are sent again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        error,
                        "traces cannot be sent, and are dropped until the collector accepts them (it must support OTLP over HTTP, usually on port 4318)"
                    );
                }
            }
        }
        if dropped > 0 && !self.is_failing && now >= self.silent_until {
            self.silent_until = now.saturating_add(SILENCE);
            tracing::warn!(dropped, "spans are dropped: the collector is too slow");
        }
    }
}
