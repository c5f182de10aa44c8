//! Lease renewal for running attempts: each lease is renewed at a third of its length, until the
//! maximum duration of its operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::micros;
use crate::record::{AttemptId, Terms};
use crate::scope::RecordId;
use crate::store::{Settled, Settlement, StoreError, Transition};

use super::Inner;
use super::report::RepeatedFailure;
use super::tasks::Tasks;

/// The minimum pause between two renewals of a lease.
const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// The part of a lease that its renewal needs.
#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) id: RecordId,
    pub(crate) attempt: AttemptId,
    pub(crate) terms: Terms,
    /// The time until which the lease is certainly held, by this node's monotonic clock, in
    /// microseconds.
    until: AtomicU64,
    /// The time from which the lease is no longer renewed, by the same clock.
    run_until: AtomicU64,
    lost: AtomicBool,
    over: AtomicBool,
    due: AtomicU64,
    sequence: u64,
}

impl LeaseState {
    /// Extends the renewal to this time.
    pub(crate) fn run_until(&self, monotonic: Duration) {
        self.run_until.fetch_max(micros(monotonic), Ordering::AcqRel);
    }

    pub(crate) fn remaining(&self, monotonic: Duration) -> Duration {
        if self.lost.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let until = Duration::from_micros(self.until.load(Ordering::Acquire));
        until.saturating_sub(monotonic)
    }
}

#[derive(Debug)]
pub(crate) struct LeaseRenewer {
    beats: Mutex<BTreeMap<(u64, u64), Arc<LeaseState>>>,
    sequence: AtomicU64,
    /// The time of the next wake-up. The renewal task is notified only of a renewal before it.
    armed: AtomicU64,
    wake: Notify,
    /// Renewals that failed. In an outage those of all leases do, so they are logged together.
    failed: Mutex<RepeatedFailure>,
    tasks: Tasks,
}

impl LeaseRenewer {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self {
            beats: Mutex::default(),
            sequence: AtomicU64::default(),
            armed: AtomicU64::default(),
            wake: Notify::new(),
            failed: Mutex::default(),
            tasks,
        }
    }

    /// Starts to renew a lease that was claimed at `asked_at`.
    pub(crate) fn add(
        &self,
        id: RecordId,
        attempt: AttemptId,
        terms: Terms,
        asked_at: Duration,
        run_max: Duration,
    ) -> Arc<LeaseState> {
        let lease_state = Arc::new(LeaseState {
            id,
            attempt,
            terms,
            until: AtomicU64::new(micros(asked_at.saturating_add(terms.lease))),
            run_until: AtomicU64::new(micros(asked_at.saturating_add(run_max))),
            lost: AtomicBool::new(false),
            over: AtomicBool::new(false),
            due: AtomicU64::new(0),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
        });
        self.schedule(
            &lease_state,
            asked_at.saturating_add((terms.lease / 3).max(RENEWAL_PAUSE_MIN)),
        );
        lease_state
    }

    pub(crate) fn remove(&self, lease_state: &LeaseState) {
        lease_state.over.store(true, Ordering::Release);
        let due = lease_state.due.load(Ordering::Acquire);
        self.lock().remove(&(due, lease_state.sequence));
    }

    fn schedule(&self, lease_state: &Arc<LeaseState>, at: Duration) {
        let due = micros(at);
        lease_state.due.store(due, Ordering::Release);
        self.lock().insert((due, lease_state.sequence), Arc::clone(lease_state));
        if due < self.armed.load(Ordering::Acquire) {
            self.wake.notify_one();
            self.tasks.hop();
        }
    }

    /// Logs that a renewal failed, unless such a line was logged less than a minute ago.
    fn report(&self, lease_state: &LeaseState, error: &StoreError, now: Duration) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failures) = failed.count(now) {
            tracing::warn!(
                reference = %lease_state.id.reference(), %error, failures,
                "a lease could not be renewed; this is tried again. `failures` counts the failed renewals of all leases since the last such line"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Arc<LeaseState>>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the leases that are due for renewal now, or else the time of the next renewal.
    fn due(&self, now: u64) -> Result<Vec<Arc<LeaseState>>, u64> {
        let mut beats = self.lock();
        let later = beats.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut *beats, later);
        if due.is_empty() {
            let next = beats.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            // `armed` is set under the lock, so that a renewal that is being scheduled sees it.
            self.armed.store(next, Ordering::Release);
            return Err(next);
        }
        Ok(due.into_values().collect())
    }
}

/// Renews leases until the engine stops.
pub(crate) async fn renew_leases(engine: Arc<Inner>) {
    let renewer = &engine.renewer;
    loop {
        let now = engine.clock.monotonic();
        match renewer.due(micros(now)) {
            Ok(due) => {
                for lease_state in due {
                    // All renewals start at once, so that they form one batch. Each waits for its
                    // own answer.
                    engine.tasks.spawn(renew(Arc::clone(&engine), lease_state));
                }
            }
            Err(next) => {
                let rest = Duration::from_micros(next).saturating_sub(now);
                tokio::select! {
                    biased;
                    () = engine.stopped.cancelled() => return,
                    () = renewer.wake.notified() => {}
                    () = engine.clock.sleep(rest.min(Duration::from_secs(3600))) => {}
                }
            }
        }
    }
}

async fn renew(engine: Arc<Inner>, lease_state: Arc<LeaseState>) {
    let asked_at = engine.clock.monotonic();
    let run_until = lease_state.run_until.load(Ordering::Acquire);
    if lease_state.over.load(Ordering::Acquire) || micros(asked_at) >= run_until {
        return;
    }
    let renewal = Settlement {
        id: lease_state.id,
        attempt: lease_state.attempt,
        transition: Transition::Renew,
    };
    let lease = lease_state.terms.lease;
    let again = match engine.settles.submit(renewal).await {
        Ok(Settled::Done { .. }) => {
            let until = micros(asked_at.saturating_add(lease));
            lease_state.until.fetch_max(until, Ordering::AcqRel);
            lease / 3
        }
        Ok(Settled::Stale { .. }) => {
            if !lease_state.over.load(Ordering::Acquire) {
                lease_state.lost.store(true, Ordering::Release);
                tracing::warn!(reference = %lease_state.id.reference(), "a running operation lost its lease");
            }
            return;
        }
        Err(error) => {
            engine.renewer.report(&lease_state, &error, asked_at);
            lease / 9
        }
    };
    if !lease_state.over.load(Ordering::Acquire) {
        engine
            .renewer
            .schedule(&lease_state, asked_at.saturating_add(again.max(RENEWAL_PAUSE_MIN)));
    }
}
