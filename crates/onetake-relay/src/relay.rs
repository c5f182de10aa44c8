//! The relay: it takes messages from an outbox and passes them to a sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, join3};
use onetake_core::outbox::{Delivery, Outbox, PendingMessage, Turn};
use onetake_core::{Clock, Rng, SystemClock, SystemRng};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::counters::{self, DeliveryCounters};
use crate::options::RelayOptions;
use crate::sink::{Sink, SinkError, SinkErrorKind};

/// The longest error text that is kept of a failure, in bytes.
const ERROR_BYTES_MAX: usize = 1_024;

/// Delivers an outbox.
///
/// A service can run a relay inside, beside the operations that write messages (`onetake`
/// re-exports the same stores and clocks):
///
/// ```no_run
/// # #[cfg(feature = "nats")]
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use onetake_core::{Clock, SystemClock};
/// use onetake_relay::{NatsOptions, NatsSink, Relay};
/// use onetake_stores::{PostgresOptions, PostgresStore};
/// use tokio_util::sync::CancellationToken;
///
/// let url = "postgres://me:secret@127.0.0.1/payments";
/// let outbox = Arc::new(PostgresStore::open(url, PostgresOptions::default()).await?);
/// let clock: Arc<dyn Clock> = Arc::new(SystemClock);
/// let options = NatsOptions { subject_prefix: "payments.".to_owned(), ..NatsOptions::default() };
/// let sink = NatsSink::connect(["nats://127.0.0.1:4222"], options, clock).await?;
/// let relay = Relay::new(outbox, Arc::new(sink));
///
/// let stop = CancellationToken::new();
/// let until = stop.clone();
/// let running = tokio::spawn(async move { relay.run(until).await });
/// // … and when the service stops:
/// stop.cancel();
/// running.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Relay {
    outbox: Arc<dyn Outbox>,
    sink: Arc<dyn Sink>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    options: RelayOptions,
    /// Held during a search, so that only one task asks the store while there is no work.
    looking: Mutex<()>,
    /// Notified when a lane was given back that probably has more messages, so that the next poll
    /// is not waited for.
    given_back: Notify,
    /// The number of turns since the last delivery. If it is above zero, the receiver may be
    /// unreachable.
    fruitless: AtomicU32,
    /// True if the receiver has ever accepted a message from this relay.
    has_delivered: AtomicBool,
    counters: DeliveryCounters,
}

/// The results of a turn, as numbers of messages.
#[derive(Default)]
struct TurnTally {
    delivered: u64,
    parked: u64,
    failed: u64,
    is_away: bool,
    why: Option<String>,
}

impl Relay {
    /// Creates a relay with the system's clock and the default options. It does nothing until it
    /// [`run`](Self::run)s.
    #[must_use]
    pub fn new(outbox: Arc<dyn Outbox>, sink: Arc<dyn Sink>) -> Self {
        let (clock, rng) = (Arc::new(SystemClock), Arc::new(SystemRng));
        Self::with(outbox, sink, clock, rng, RelayOptions::default())
    }

    /// Creates a relay with the given clock, randomness and options.
    #[must_use]
    pub fn with(
        outbox: Arc<dyn Outbox>,
        sink: Arc<dyn Sink>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        options: RelayOptions,
    ) -> Self {
        let options = options.patient(sink.patience());
        Self {
            outbox,
            sink,
            clock,
            rng,
            options,
            looking: Mutex::new(()),
            given_back: Notify::new(),
            fruitless: AtomicU32::new(0),
            has_delivered: AtomicBool::new(false),
            counters: DeliveryCounters::new(),
        }
    }

    /// Delivers until it is cancelled. Messages in progress are then finished or given back.
    pub async fn run(&self, cancel: CancellationToken) {
        let lanes = (0..self.options.lanes_at_once.max(1)).map(|_| self.deliver_lanes(&cancel));
        join3(join_all(lanes), self.count(&cancel), self.prune(&cancel)).await;
    }

    async fn deliver_lanes(&self, cancel: &CancellationToken) {
        while let Some((turn, since)) = self.next_turn(cancel).await {
            self.deliver(turn, since).await;
            let fruitless = self.fruitless.load(Ordering::Relaxed);
            if fruitless > 0 {
                let pause = self.options.backoff(fruitless, &*self.rng);
                self.pause(pause.min(self.options.fruitless_max), cancel).await;
            }
        }
    }

    /// Waits for a turn. Returns also the time since which it is held, by the monotonic clock.
    /// `None` once it is cancelled.
    async fn next_turn(&self, cancel: &CancellationToken) -> Option<(Turn, Duration)> {
        let _alone = tokio::select! {
            biased;
            () = cancel.cancelled() => return None,
            alone = self.looking.lock() => alone,
        };
        let options = &self.options;
        let mut failures = 0;
        while !cancel.is_cancelled() {
            // The hold begins when the store gets the request, which is not before this.
            let since = self.clock.monotonic();
            let taken =
                self.outbox.take(options.hold, options.batch_items, options.batch_bytes).await;
            match taken {
                Ok(Some(turn)) => return Some((turn, since)),
                Ok(None) => {
                    failures = 0;
                    tokio::select! {
                        () = self.given_back.notified() => {}
                        () = self.pause(options.idle_poll, cancel) => {}
                    }
                }
                Err(error) => {
                    failures += 1;
                    let pause = options.backoff(failures, &*self.rng);
                    tracing::warn!(%error, ?pause, "the outbox could not be read; this is tried again");
                    self.pause(pause, cancel).await;
                }
            }
        }
        None
    }

    async fn deliver(&self, turn: Turn, since: Duration) {
        let end = since.saturating_add(self.options.deliver_within());
        let within = end.saturating_sub(self.clock.monotonic());
        let answers = if within.is_zero() {
            Vec::new()
        } else {
            tokio::select! {
                biased;
                answers = self.sink.deliver(&turn.messages, within) => answers,
                () = self.clock.sleep(within.mul_f64(1.1)) => {
                    tracing::warn!(sink = self.sink.name(), "the sink did not respond in time");
                    self.fruitless.fetch_add(1, Ordering::Relaxed);
                    Vec::new()
                }
            }
        };
        let (deliveries, tally) = self.judge(&turn.messages, answers);
        if !self.settle(turn.lane, turn.turn, deliveries, since).await {
            return;
        }
        if tally.delivered > 0 && self.is_full(&turn.messages) {
            self.given_back.notify_one();
        }
        self.counters.delivered.increment(tally.delivered);
        self.counters.parked.increment(tally.parked);
        self.counters.failed.increment(tally.failed);
        if let Some(why) = tally.why {
            let (parked, failed) = (tally.parked, tally.failed);
            let sink = self.sink.name();
            tracing::warn!(sink, parked, failed, error = why, "messages could not be delivered");
        }
    }

    /// Returns true if the turn had about as many messages as it may have.
    fn is_full(&self, messages: &[PendingMessage]) -> bool {
        let bytes: usize = messages.iter().map(|one| one.message.payload.len()).sum();
        messages.len() >= self.options.batch_items || bytes >= self.options.batch_bytes / 2
    }

    /// Converts the sink's answers to deliveries, and counts them.
    fn judge(
        &self,
        messages: &[PendingMessage],
        answers: Vec<Result<(), SinkError>>,
    ) -> (Vec<(u64, Delivery)>, TurnTally) {
        let delivered = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
        let mut tally = TurnTally { delivered, ..TurnTally::default() };
        // If the receiver is unreachable, a message is not parked for having failed often. A
        // receiver that has not accepted anything from this relay yet may have been unreachable
        // since before the start.
        let worked = self.has_delivered.load(Ordering::Relaxed)
            && self.fruitless.load(Ordering::Relaxed) == 0;
        let works = delivered > 0 || worked;
        let mut deliveries = Vec::with_capacity(messages.len());
        for (waiting, answer) in messages.iter().zip(answers) {
            let delivery = match answer {
                Ok(()) => Delivery::Delivered,
                Err(error) if error.kind == SinkErrorKind::NotTried => continue,
                Err(error) if error.kind == SinkErrorKind::Away => {
                    // As if it had not been tried: the message holds back no other, and stays where
                    // it is.
                    tally.is_away = true;
                    tally.why.get_or_insert(error.message);
                    continue;
                }
                Err(error) => self.failed(waiting, error, works),
            };
            match &delivery {
                Delivery::Delivered => {}
                Delivery::Again { error, .. } => {
                    tally.failed += 1;
                    tally.why.get_or_insert_with(|| format!("{}: {error}", waiting.id));
                }
                Delivery::Park { error } => {
                    tally.parked += 1;
                    tally.why.get_or_insert_with(|| format!("{}: {error}", waiting.id));
                }
            }
            deliveries.push((waiting.place, delivery));
        }
        if tally.delivered > 0 {
            self.has_delivered.store(true, Ordering::Relaxed);
            self.fruitless.store(0, Ordering::Relaxed);
        } else if tally.failed > 0 || tally.is_away {
            self.fruitless.fetch_add(1, Ordering::Relaxed);
        }
        (deliveries, tally)
    }

    fn failed(&self, waiting: &PendingMessage, failure: SinkError, works: bool) -> Delivery {
        let mut error = failure.message;
        error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
        let failures = waiting.tries.saturating_add(1);
        let too_often = self.options.tries_max.is_some_and(|most| failures >= most);
        if failure.kind == SinkErrorKind::Poison || (too_often && works) {
            return Delivery::Park { error };
        }
        let own = self.options.backoff(failures, &*self.rng);
        let asked = failure.after.unwrap_or_default().min(self.options.backoff_max);
        Delivery::Again { after: own.max(asked), error }
    }

    /// Reports the results of a turn, and repeats the report if its answer was lost. The store
    /// applies it once.
    async fn settle(
        &self,
        lane: u8,
        turn: u64,
        deliveries: Vec<(u64, Delivery)>,
        since: Duration,
    ) -> bool {
        let end = since.saturating_add(self.options.hold);
        let mut failures = 0;
        loop {
            match self.outbox.settle(lane, turn, deliveries.clone()).await {
                Ok(true) => return true,
                Ok(false) => {
                    // The first report was applied, or the turn had ended before. In the second
                    // case another relay delivers the messages again.
                    tracing::warn!(
                        lane,
                        again = failures > 0,
                        "the hold on a lane ended before its deliveries were saved: some messages may be delivered twice"
                    );
                    return failures > 0;
                }
                Err(error) => {
                    failures += 1;
                    let pause = self.options.backoff(failures, &*self.rng);
                    tracing::warn!(%error, ?pause, "deliveries could not be saved: the messages may be delivered again");
                    if self.clock.monotonic().saturating_add(pause) >= end {
                        return false;
                    }
                    self.clock.sleep(pause).await;
                }
            }
        }
    }

    async fn count(&self, cancel: &CancellationToken) {
        while !cancel.is_cancelled() {
            match self.outbox.counts().await {
                Ok(counts) => counters::tell(&counts),
                Err(error) => {
                    tracing::warn!(%error, "the messages of the outbox could not be counted")
                }
            }
            self.pause(self.options.count_interval, cancel).await;
        }
    }

    /// Deletes delivered messages whose retention has ended.
    async fn prune(&self, cancel: &CancellationToken) {
        let batch = self.options.prune_batch.max(1);
        while !cancel.is_cancelled() {
            let is_done = match self.outbox.prune(self.options.kept, batch).await {
                Ok(pruned) => pruned < batch,
                Err(error) => {
                    tracing::warn!(%error, "old delivered messages could not be deleted");
                    true
                }
            };
            if is_done {
                self.pause(self.options.prune_interval, cancel).await;
            }
        }
    }

    async fn pause(&self, pause: Duration, cancel: &CancellationToken) {
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = self.clock.sleep(pause) => {}
        }
    }
}
