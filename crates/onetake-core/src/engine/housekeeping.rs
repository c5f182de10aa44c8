//! The reaper and the sweeper. Neither stops at an error: both log it and come back.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::store::{Settled, Settlement, Verb};

use super::{Engine, Inner};

/// How often, and how much at a time.
#[derive(Clone, Copy, Debug)]
pub struct Housekeeping {
    /// How often to look for attempts whose lease and grace are over.
    pub reap_interval: Duration,
    /// How many of them to take at a time.
    pub reap_batch: usize,
    /// How often to look for expired records.
    pub sweep_interval: Duration,
    /// How many of them to delete at a time.
    pub sweep_batch: usize,
    /// How long to leave the store alone between two batches of one sweep.
    pub sweep_pause: Duration,
}

impl Default for Housekeeping {
    fn default() -> Self {
        Self {
            reap_interval: Duration::from_secs(1),
            reap_batch: 500,
            sweep_interval: Duration::from_secs(15 * 60),
            sweep_batch: 5_000,
            sweep_pause: Duration::from_millis(50),
        }
    }
}

impl Engine {
    /// Starts the reaper and the sweeper. They end with the engine.
    pub fn keep_house(&self, plan: Housekeeping) {
        let inner = &self.inner;
        inner.runtime.spawn(reaper(Arc::clone(inner), plan));
        inner.runtime.spawn(sweeper(Arc::clone(inner), plan));
    }

    /// Makes up to `limit` abandoned attempts unknown; how many it were.
    pub async fn reap(&self, limit: usize) -> usize {
        reap(&self.inner, limit).await
    }
}

async fn reaper(engine: Arc<Inner>, plan: Housekeeping) {
    loop {
        while reap(&engine, plan.reap_batch).await >= plan.reap_batch {}
        if !rest(&engine, plan.reap_interval).await {
            return;
        }
    }
}

async fn reap(engine: &Inner, limit: usize) -> usize {
    let found = match engine.store.abandoned(limit).await {
        Ok(found) => found,
        Err(error) => {
            engine.failed(&error);
            tracing::warn!(%error, "abandoned operations could not be looked for");
            return 0;
        }
    };
    let settlements = found.into_iter().map(|lost| {
        let verb = Verb::Abandon;
        engine.settles.submit(Settlement { id: lost.id, attempt: lost.attempt, verb })
    });
    let settled = futures_util::future::join_all(settlements).await;
    let mut reaped = 0;
    for answer in settled {
        if let Ok(Settled::Done { record, .. }) = answer {
            reaped += 1;
            engine.metrics.unknown.increment(1);
            tracing::warn!(
                reference = %record.id.reference(),
                "an operation's lease and grace ended without a word from it: its outcome is unknown"
            );
        }
    }
    reaped
}

async fn sweeper(engine: Arc<Inner>, plan: Housekeeping) {
    loop {
        if !rest(&engine, plan.sweep_interval).await {
            return;
        }
        loop {
            match engine.store.sweep(plan.sweep_batch).await {
                Ok(swept) => {
                    engine.metrics.swept.increment(swept.removed as u64);
                    engine.metrics.unknown_expired.increment(swept.unknown as u64);
                    if swept.unknown > 0 {
                        tracing::warn!(
                            count = swept.unknown,
                            "keys expired whose outcome nobody ever knew"
                        );
                    }
                    if !swept.more || !rest(&engine, plan.sweep_pause).await {
                        break;
                    }
                }
                Err(error) => {
                    engine.failed(&error);
                    tracing::warn!(%error, "expired keys could not be swept; it is tried again");
                    break;
                }
            }
        }
    }
}

/// Waits, unless the engine stops.
async fn rest(engine: &Inner, duration: Duration) -> bool {
    let clock: &dyn Clock = &*engine.clock;
    tokio::select! {
        () = clock.sleep(duration) => true,
        () = engine.stopped.cancelled() => false,
    }
}
