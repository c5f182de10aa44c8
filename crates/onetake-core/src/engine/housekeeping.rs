//! The reaper and the sweeper. Neither stops at an error: both log it and continue later.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use crate::audit::{AuditAction, AuditEntry, AuditPosition, AuditResult};
use crate::clock::Clock;
use crate::record::{Record, State};
use crate::store::{Due, Settled, Settlement, Swept, Transition};

use super::{Engine, Inner};

/// The number of audit entries that are written at once.
const AUDIT_WRITES_MAX: usize = 16;

/// The intervals and batch sizes of the reaper and the sweeper.
#[derive(Clone, Copy, Debug)]
pub struct Housekeeping {
    /// The pause between two searches for attempts whose lease and grace are over.
    pub reap_interval: Duration,
    /// The number of such attempts taken at a time.
    pub reap_batch: usize,
    /// The pause between two searches for expired records.
    pub sweep_interval: Duration,
    /// The number of records deleted at a time.
    pub sweep_batch: usize,
    /// The pause between two batches of one sweep.
    pub sweep_pause: Duration,
}

impl Default for Housekeeping {
    fn default() -> Self {
        Self {
            // Leases and graces are many seconds long. No other timer of the engine is as frequent.
            reap_interval: Duration::from_secs(3),
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
        inner.tasks.spawn(reaper(Arc::clone(inner), plan));
        inner.tasks.spawn(sweeper(Arc::clone(inner), plan));
    }

    /// Ends up to `limit` abandoned attempts: they become unknown, or are released if they roll
    /// back by themselves. Returns the number of ended attempts.
    pub async fn reap(&self, limit: usize) -> usize {
        reap(&self.inner, limit).await
    }

    /// Deletes up to `limit` expired records. Returns the number of deleted records, and whether
    /// more are due. An error of the store is logged, and counts as a sweep that found nothing.
    pub async fn sweep(&self, limit: usize) -> Swept {
        sweep(&self.inner, limit).await
    }
}

async fn reaper(engine: Arc<Inner>, plan: Housekeeping) {
    loop {
        while reap(&engine, plan.reap_batch).await >= plan.reap_batch {}
        if !pause_unless_stopped(&engine, plan.reap_interval).await {
            return;
        }
    }
}

async fn reap(engine: &Inner, limit: usize) -> usize {
    let found = match engine.store.due(Due::LeaseEnd, limit).await {
        Ok(found) => found,
        Err(error) => {
            engine.failed(&error);
            tracing::warn!(%error, "searching for abandoned attempts failed; the next reaper run tries again");
            return 0;
        }
    };
    let settlements = found.into_iter().map(|lost| {
        let transition = Transition::ExpireLease;
        engine.settles.submit(Settlement { id: lost.id, attempt: lost.attempt, transition })
    });
    let settled = futures_util::future::join_all(settlements).await;
    let passed_over: Vec<Arc<Record>> = settled
        .into_iter()
        .filter_map(|answer| match answer {
            Ok(Settled::Done { record, .. }) => Some(record),
            _ => None,
        })
        .collect();
    futures_util::stream::iter(&passed_over)
        .for_each_concurrent(AUDIT_WRITES_MAX, |record| audit(engine, record))
        .await;
    passed_over.len()
}

/// Reports an attempt that lost its lease, in the log and in the audit log.
pub(super) async fn audit(engine: &Inner, record: &Record) {
    let reference = record.id.reference();
    if matches!(record.state, State::Unknown { .. }) {
        engine.metrics.unknown.increment(1);
        tracing::warn!(
            %reference,
            "the lease and grace of an attempt ended without a report: its outcome is unknown"
        );
    } else {
        engine.metrics.released.increment(1);
        tracing::info!(%reference, "the lease and grace of a transactional attempt ended: it is released, and its transaction can no longer commit");
    }
    let entry = AuditEntry {
        place: AuditPosition::new(engine.clock.now(), &*engine.rng),
        id: record.id,
        attempt: record.attempt,
        action: AuditAction::ExpireLease,
        ended: AuditResult::Done,
        before: "running".to_owned(),
        by: "reaper".to_owned(),
        reason: "the lease and grace ended without a report from the attempt".to_owned(),
    };
    // A failure here is only logged: the change is done, and the record itself holds the cause.
    if let Err(error) = engine.within_timeout(engine.store.audit(entry)).await {
        tracing::warn!(%reference, %error, "the audit entry of an expired lease could not be written");
    }
}

async fn sweeper(engine: Arc<Inner>, plan: Housekeeping) {
    loop {
        if !pause_unless_stopped(&engine, plan.sweep_interval).await {
            return;
        }
        while sweep(&engine, plan.sweep_batch).await.more
            && pause_unless_stopped(&engine, plan.sweep_pause).await
        {}
    }
}

async fn sweep(engine: &Inner, limit: usize) -> Swept {
    let swept = match engine.store.sweep(limit).await {
        Ok(swept) => swept,
        Err(error) => {
            engine.failed(&error);
            tracing::warn!(%error, "the sweep of expired keys failed; it is tried again");
            return Swept::default();
        }
    };
    engine.metrics.swept.increment(swept.removed as u64);
    engine.metrics.unknown_expired.increment(swept.unknown as u64);
    if swept.unknown > 0 {
        tracing::warn!(
            count = swept.unknown,
            "keys expired with an unknown outcome: a retry of them runs the operation again"
        );
    }
    swept
}

/// Waits. Returns false if the engine stops meanwhile.
pub(super) async fn pause_unless_stopped(engine: &Inner, duration: Duration) -> bool {
    let clock: &dyn Clock = &*engine.clock;
    tokio::select! {
        biased;
        () = engine.stopped.cancelled() => false,
        () = clock.sleep(duration) => true,
    }
}
