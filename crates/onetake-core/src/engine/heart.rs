//! Keeps the leases of running attempts alive: each is renewed at a third of its length, until its
//! operation may not run any longer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::micros;
use crate::record::{AttemptId, Terms};
use crate::scope::RecordId;
use crate::store::{Settled, Settlement, Verb};

use super::Inner;
use super::tasks::Tasks;

/// No lease is renewed more often than this.
const BEAT_MIN: Duration = Duration::from_millis(1);

/// The part of a lease that its heartbeat needs.
#[derive(Debug)]
pub(crate) struct Pulse {
    pub(crate) id: RecordId,
    pub(crate) attempt: AttemptId,
    pub(crate) terms: Terms,
    /// On our own clock: until when the lease is surely ours, in microseconds.
    until: AtomicU64,
    /// On our own clock: from when on it is not renewed any more.
    run_until: AtomicU64,
    lost: AtomicBool,
    over: AtomicBool,
    due: AtomicU64,
    sequence: u64,
}

impl Pulse {
    /// What may take until then begins anew: it is renewed for as long.
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
pub(crate) struct Heart {
    beats: Mutex<BTreeMap<(u64, u64), Arc<Pulse>>>,
    sequence: AtomicU64,
    /// When the heart wakes by itself, so that a beat is only announced if it comes before that.
    armed: AtomicU64,
    wake: Notify,
    tasks: Tasks,
}

impl Heart {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self {
            beats: Mutex::default(),
            sequence: AtomicU64::default(),
            armed: AtomicU64::default(),
            wake: Notify::new(),
            tasks,
        }
    }

    /// Takes a lease that was asked for at `asked_at` under its care.
    pub(crate) fn add(
        &self,
        id: RecordId,
        attempt: AttemptId,
        terms: Terms,
        asked_at: Duration,
        run_max: Duration,
    ) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse {
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
        self.schedule(&pulse, asked_at.saturating_add((terms.lease / 3).max(BEAT_MIN)));
        pulse
    }

    pub(crate) fn remove(&self, pulse: &Pulse) {
        pulse.over.store(true, Ordering::Release);
        let due = pulse.due.load(Ordering::Acquire);
        self.lock().remove(&(due, pulse.sequence));
    }

    fn schedule(&self, pulse: &Arc<Pulse>, at: Duration) {
        let due = micros(at);
        pulse.due.store(due, Ordering::Release);
        self.lock().insert((due, pulse.sequence), Arc::clone(pulse));
        if due < self.armed.load(Ordering::Acquire) {
            self.wake.notify_one();
            self.tasks.hop();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Arc<Pulse>>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those whose beat is due now, and otherwise when the next one is.
    fn due(&self, now: u64) -> Result<Vec<Arc<Pulse>>, u64> {
        let mut beats = self.lock();
        let later = beats.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut *beats, later);
        if due.is_empty() {
            let next = beats.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            // Under the lock, so that a beat that is scheduled right now sees it.
            self.armed.store(next, Ordering::Release);
            return Err(next);
        }
        Ok(due.into_values().collect())
    }
}

/// Beats until the engine stops.
pub(crate) async fn beat(engine: Arc<Inner>) {
    let heart = &engine.heart;
    loop {
        let now = engine.clock.monotonic();
        match heart.due(micros(now)) {
            Ok(due) => {
                for pulse in due {
                    // At once, so that they gather in one batch; each waits for its own answer.
                    engine.tasks.spawn(renew(Arc::clone(&engine), pulse));
                }
            }
            Err(next) => {
                let rest = Duration::from_micros(next).saturating_sub(now);
                tokio::select! {
                    biased;
                    () = engine.stopped.cancelled() => return,
                    () = heart.wake.notified() => {}
                    () = engine.clock.sleep(rest.min(Duration::from_secs(3600))) => {}
                }
            }
        }
    }
}

async fn renew(engine: Arc<Inner>, pulse: Arc<Pulse>) {
    let asked_at = engine.clock.monotonic();
    let run_until = pulse.run_until.load(Ordering::Acquire);
    if pulse.over.load(Ordering::Acquire) || micros(asked_at) >= run_until {
        return;
    }
    let renewal = Settlement { id: pulse.id, attempt: pulse.attempt, verb: Verb::Renew };
    let lease = pulse.terms.lease;
    let again = match engine.settles.submit(renewal).await {
        Ok(Settled::Done { .. }) => {
            let until = micros(asked_at.saturating_add(lease));
            pulse.until.fetch_max(until, Ordering::AcqRel);
            lease / 3
        }
        Ok(Settled::Stale { .. }) => {
            if !pulse.over.load(Ordering::Acquire) {
                pulse.lost.store(true, Ordering::Release);
                tracing::warn!(reference = %pulse.id.reference(), "a running operation lost its lease");
            }
            return;
        }
        Err(error) => {
            tracing::warn!(reference = %pulse.id.reference(), %error, "a lease could not be renewed");
            lease / 9
        }
    };
    if !pulse.over.load(Ordering::Acquire) {
        engine.heart.schedule(&pulse, asked_at.saturating_add(again.max(BEAT_MIN)));
    }
}
