//! The counter of new operations: it counts each fresh key once, and undoes counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use std::time::Duration;

use tokio::sync::OnceCell;

use onetake_core::engine::{Engine, EngineError, KeyUse, Operation};
use onetake_core::{Fingerprinter, Rate, SharedVelocity, VelocityDecision};

use super::Limit;
use super::local::Local;

/// The counter of one layer.
pub(crate) struct Counter {
    engine: Engine,
    local: Local,
    shared: OnceLock<Arc<dyn SharedVelocity>>,
    /// The operations that are being decided. Concurrent requests for the same operation share an
    /// entry. There are never more entries than requests whose bodies are in memory.
    entries: Mutex<HashMap<[u8; 32], Weak<PendingOperation>>>,
}

/// One operation that is being decided, shared by all its concurrent requests.
pub(crate) struct PendingOperation {
    counter: Arc<Counter>,
    id: [u8; 32],
    ruling: OnceCell<CountDecision>,
}

pub(super) enum CountDecision {
    /// This process or the store knows the key. Nothing is counted. `is_taken` is true if it has a
    /// record that excludes another run.
    Known { is_taken: bool },
    /// The operation was counted. Its key is fresh, or the store is unavailable (`away`) and the
    /// route runs operations without it.
    Counted { taken: TakenCounts, away: Option<EngineError> },
    /// The key is fresh, and a limit is reached.
    Refused { rate: Rate, retry_after: Duration },
    /// The store is unavailable, so it is not known whether the key is fresh.
    Away(EngineError),
}

impl Counter {
    pub(crate) fn new(engine: Engine, values_max: usize) -> Arc<Self> {
        Arc::new(Self {
            local: Local::new(Arc::clone(engine.clock()), values_max),
            shared: OnceLock::new(),
            entries: Mutex::default(),
            engine,
        })
    }

    pub(crate) fn share(&self, place: Arc<dyn SharedVelocity>) {
        let _first_stays = self.shared.set(place);
    }

    /// Returns the entry for an operation. The caller must hold it until the engine has begun. A
    /// request that arrives before that finds the entry, and a later one finds the key known.
    pub(super) fn enter(
        self: &Arc<Self>,
        operation: &Operation,
        limits: &[Limit],
    ) -> Arc<PendingOperation> {
        // The same key with another payload may count for another value, such as another card. So
        // fingerprint and limits are part of the entry's id.
        let id =
            Fingerprinter::new().part(operation.id.as_bytes()).part(operation.fingerprint.digest());
        let id = *limits.iter().fold(id, |id, limit| id.part(&limit.key)).finish().digest();
        let mut entries = self.lock();
        if let Some(entry) = entries.get(&id).and_then(Weak::upgrade) {
            return entry;
        }
        let entry =
            Arc::new(PendingOperation { counter: Arc::clone(self), id, ruling: OnceCell::new() });
        entries.insert(id, Arc::downgrade(&entry));
        entry
    }

    /// Counts under all limits, or under none.
    async fn take(self: &Arc<Self>, limits: &[Limit]) -> Result<TakenCounts, (Rate, Duration)> {
        let mut taken = TakenCounts::none(self);
        let Some(shared) = self.shared.get() else {
            self.local.take(limits)?;
            taken.here.extend_from_slice(limits);
            return Ok(taken);
        };
        for limit in limits {
            match shared.take(limit.key, limit.rate).await {
                Ok(VelocityDecision::Allowed) => taken.elsewhere.push(*limit),
                // Dropping `taken` undoes the counts so far.
                Ok(VelocityDecision::Refused { retry_after }) => {
                    return Err((limit.rate, retry_after));
                }
                Err(error) => {
                    tracing::debug!(%error, "the shared velocity counter is unavailable; this process counts alone");
                    self.local.take(std::slice::from_ref(limit))?;
                    taken.here.push(*limit);
                }
            }
        }
        Ok(taken)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 32], Weak<PendingOperation>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingOperation {
    pub(super) fn decision(&self) -> Option<&CountDecision> {
        self.ruling.get()
    }

    /// Decides once for all requests that hold the entry. If the request that decides is cancelled,
    /// another one starts the decision again.
    pub(super) async fn decide(
        &self,
        operation: &Operation,
        limits: &[Limit],
        runs_anyway: impl Fn(&EngineError) -> bool,
    ) -> &CountDecision {
        let decide = async || {
            let away = match self.counter.engine.key_use(operation).await {
                Ok(KeyUse::Unused) => None,
                Ok(found) => return CountDecision::Known { is_taken: is_taken(found) },
                Err(error) if runs_anyway(&error) => Some(error),
                Err(error) => return CountDecision::Away(error),
            };
            match self.counter.take(limits).await {
                Ok(taken) => CountDecision::Counted { taken, away },
                Err((rate, retry_after)) => CountDecision::Refused { rate, retry_after },
            }
        };
        self.ruling.get_or_init(decide).await
    }
}

/// True if the key has a record that excludes another run.
pub(super) fn is_taken(found: KeyUse) -> bool {
    found == KeyUse::Recorded { is_free: false }
}

impl Drop for PendingOperation {
    fn drop(&mut self) {
        let mut entries = self.counter.lock();
        // A new entry may have the same id by now, because this one could not be upgraded any more.
        // The new one stays.
        if entries.get(&self.id).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(&self.id);
        }
    }
}

/// The counts of one operation. They are undone on drop, unless `keep` was called.
pub(super) struct TakenCounts {
    counter: Arc<Counter>,
    here: Vec<Limit>,
    elsewhere: Vec<Limit>,
    kept: AtomicBool,
}

impl TakenCounts {
    fn none(counter: &Arc<Counter>) -> Self {
        let counter = Arc::clone(counter);
        Self { counter, here: Vec::new(), elsewhere: Vec::new(), kept: AtomicBool::new(false) }
    }

    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }
}

impl Drop for TakenCounts {
    fn drop(&mut self) {
        if self.kept.load(Ordering::Acquire) {
            return;
        }
        self.counter.local.give_back(&self.here);
        let elsewhere = std::mem::take(&mut self.elsewhere);
        if let (false, Some(shared)) = (elsewhere.is_empty(), self.counter.shared.get().cloned()) {
            self.counter.engine.spawn(async move {
                for limit in elsewhere {
                    if let Err(error) = shared.give_back(limit.key, limit.rate).await {
                        tracing::debug!(%error, "a velocity count could not be undone");
                    }
                }
            });
        }
    }
}
