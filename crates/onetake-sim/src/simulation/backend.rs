//! The store's server: the reference store on its own clock. The history records each change.

use std::sync::Arc;

use futures_util::FutureExt;
use onetake_core::audit::{AuditEntry, AuditPage};
use onetake_core::store::{
    AuditLog, Claimed, Cursor, Due, DueAttempt, Page, RecordIndex, Settled, SharedSecrets, Store,
    StoreError, StoreErrorKind, Swept,
};
use onetake_core::{
    Cause, Claim, Clock, MemoryStore, Record, RecordId, Reference, Settlement, State, Transition,
};

use super::history::{Actor, History};
use super::timeline::{Micros, SimulatedClock, Timeline};

/// The maximum number of records in a simulation.
const ALL: usize = 10_000;

/// The server. Its answers are durable.
#[derive(Debug)]
pub struct Backend {
    memory: MemoryStore,
    clock: Arc<SimulatedClock>,
}

impl Backend {
    /// Creates an empty store.
    #[must_use]
    pub fn new(timeline: &Arc<Timeline>) -> Self {
        let clock = SimulatedClock::new(timeline, 0, 0);
        let memory = MemoryStore::with_clock(Arc::<SimulatedClock>::clone(&clock));
        Self { memory, clock }
    }

    /// Returns the server's clock.
    #[must_use]
    pub fn clock(&self) -> &SimulatedClock {
        &self.clock
    }

    /// Decides a claim.
    pub fn claim(
        &self,
        history: &History,
        at: Micros,
        by: Actor,
        claim: Claim,
    ) -> Result<Claimed, StoreError> {
        let answer = now(self.memory.claim(vec![claim.clone()])).pop().unwrap_or_else(no_answer)?;
        let after = self.stored(claim.id);
        history.claimed(at, by, &claim, &answer, after.as_deref(), self.clock.now());
        Ok(answer)
    }

    /// Decides a settlement.
    pub fn settle(
        &self,
        history: &History,
        at: Micros,
        by: Actor,
        settlement: Settlement,
    ) -> Result<Settled, StoreError> {
        let batch = vec![settlement.clone()];
        let answer = now(self.memory.settle(batch)).pop().unwrap_or_else(no_answer)?;
        let after = match &answer {
            // The record is returned even if it is expired from now on.
            Settled::Done { record, .. } => Some(Arc::clone(record)),
            Settled::Stale { current } => current.clone(),
        };
        history.settled(at, by, &settlement, &answer, after.as_deref(), self.clock.now());
        Ok(answer)
    }

    /// Deletes expired records.
    pub fn sweep(&self, history: &History, at: Micros, by: Actor, limit: usize) -> Swept {
        let swept = now(self.memory.sweep(limit)).unwrap_or_default();
        let left = self.ids();
        history.swept(at, by, |id| left.contains(&id), self.clock.now());
        swept
    }

    /// Opens the store for its only process. Attempts of an earlier process no longer run.
    pub fn open(&self, history: &History, at: Micros) {
        for id in self.ids() {
            let Some(record) = self.load(id) else { continue };
            if matches!(record.state, State::Running { .. }) {
                let (attempt, transition) = (record.attempt, Transition::Unknown(Cause::Restarted));
                let _done = self.settle(
                    history,
                    at,
                    Actor::Opening,
                    Settlement { id, attempt, transition },
                );
            }
        }
    }

    /// Reads a record that has not expired.
    #[must_use]
    pub fn load(&self, id: RecordId) -> Option<Arc<Record>> {
        now(self.memory.load(vec![id])).pop().and_then(Result::ok).flatten()
    }

    /// Returns the ids of all records, expired ones included.
    #[must_use]
    pub fn ids(&self) -> Vec<RecordId> {
        now(self.memory.page(None, ALL)).map(|page| page.ids).unwrap_or_default()
    }

    /// Returns attempts whose lease and grace are over.
    pub fn abandoned(&self, limit: usize) -> Result<Vec<DueAttempt>, StoreError> {
        now(self.memory.due(Due::LeaseEnd, limit))
    }

    /// Returns unknown attempts that are due for reconciliation.
    pub fn unsettled(&self, limit: usize) -> Result<Vec<DueAttempt>, StoreError> {
        now(self.memory.due(Due::Reconcile, limit))
    }

    /// Lists all records, page by page.
    pub fn page(&self, from: Option<Cursor>, limit: usize) -> Result<Page, StoreError> {
        now(self.memory.page(from, limit))
    }

    /// Finds records by their reference.
    pub fn find(&self, reference: Reference) -> Result<Vec<RecordId>, StoreError> {
        now(self.memory.find(reference))
    }

    /// Writes an entry of the audit log.
    pub fn audit(&self, entry: AuditEntry) -> Result<(), StoreError> {
        now(self.memory.audit(entry))
    }

    /// Reads the audit log.
    pub fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<AuditPage, StoreError> {
        now(self.memory.audit_entries(of, from, limit))
    }

    /// Returns a secret that all nodes share.
    pub fn secret(&self, name: &'static str, fresh: [u8; 32]) -> Result<[u8; 32], StoreError> {
        now(self.memory.secret(name, fresh))
    }

    /// Returns the record of a claim that has just been decided, and so cannot have expired since.
    fn stored(&self, id: RecordId) -> Option<Arc<Record>> {
        self.load(id)
    }
}

/// Returns the answer of the reference store, which never waits.
#[expect(clippy::expect_used, reason = "the reference store never waits")]
fn now<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("the reference store answers at once")
}

fn no_answer<T>() -> Result<T, StoreError> {
    Err(StoreError::new(StoreErrorKind::Invalid, "the reference store gave no answer"))
}
