//! Reading of records, and the promise that a running operation will have an outcome.

use std::sync::Arc;

use crate::record::Record;
use crate::scope::RecordId;

use super::flight::Phase;
use super::operation::{EngineError, Operation};
use super::{Engine, Inner};

/// The answer to a request for a promise of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// There will be an outcome: the attempt can no longer be released.
    Given,
    /// There is no promise: the attempt is being released or has not started, or its key has
    /// another payload.
    Refused,
    /// No attempt of this process runs. An attempt of another node may run.
    Elsewhere,
}

impl Engine {
    /// Promises an outcome to a caller that returns for it. From then on, the running attempt is
    /// not released. A promise and a release exclude each other: the first one counts.
    #[must_use]
    pub fn promise(&self, operation: &Operation) -> Promise {
        let Some(flight) = self.inner.flights.get(&operation.id) else {
            return Promise::Elsewhere;
        };
        let is_ours = match flight.phase() {
            Phase::Running(found) => operation.recognises(&found),
            Phase::Claiming | Phase::Landed(_) => false,
        };
        if is_ours && flight.promise() { Promise::Given } else { Promise::Refused }
    }

    /// Returns a secret that all nodes of this store share. It is created at its first use, and
    /// kept in the store.
    ///
    /// # Errors
    /// If the store does not answer in time.
    pub async fn secret(&self, name: &'static str) -> Result<[u8; 32], EngineError> {
        let inner: &Inner = &self.inner;
        let mut fresh = [0; 32];
        self.rng().fill(&mut fresh);
        let kept = tokio::select! {
            biased;
            kept = inner.store.secret(name, fresh) => kept,
            () = inner.clock.sleep(inner.limits.claim_patience) => {
                return Err(EngineError::no_answer());
            }
        };
        kept.map_err(|error| {
            inner.failed(&error);
            error.into()
        })
    }

    /// Reads a record, and changes nothing. Returns `None` if there is none, or it has expired.
    ///
    /// # Errors
    /// If the store does not answer in time, or too many callers wait.
    pub async fn look(&self, id: RecordId) -> Result<Option<Arc<Record>>, EngineError> {
        let inner: &Inner = &self.inner;
        if let Some(record) = inner.cache.get(&id, inner.clock.monotonic()) {
            return Ok(Some(record));
        }
        let _place = inner.waiting.try_acquire().map_err(|_| EngineError::Overloaded)?;
        inner.read(id).await
    }
}

impl Inner {
    /// Reads a record from the store, within `claim_patience`.
    pub(super) async fn read(&self, id: RecordId) -> Result<Option<Arc<Record>>, EngineError> {
        let mut found = tokio::select! {
            biased;
            found = self.store.load(vec![id]) => found,
            () = self.clock.sleep(self.limits.claim_patience) => {
                return Err(EngineError::no_answer());
            }
        };
        match found.pop() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => {
                self.failed(&error);
                Err(error.into())
            }
            None => Err(EngineError::no_answer()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Begin, Fingerprint, Key, MemoryStore, Scope, Settling, State};

    fn operation(key: &str, asked: &[u8]) -> Operation {
        Operation::new(&Scope::new("later"), &Key::new(key).unwrap(), Fingerprint::of(asked))
    }

    fn engine() -> Engine {
        Engine::new(Arc::new(MemoryStore::new()))
    }

    #[tokio::test]
    async fn what_is_promised_is_not_released() {
        let engine = engine();
        for is_dropped in [false, true] {
            let operation = operation(&format!("promised {is_dropped}"), b"pay");
            assert_eq!(engine.promise(&operation), Promise::Elsewhere);
            let Begin::Run(lease) = engine.begin(&operation).await.unwrap() else { panic!() };
            assert_eq!(engine.promise(&operation), Promise::Given);
            assert_eq!(engine.promise(&operation), Promise::Given, "to everybody");
            assert!(!lease.may_release());
            if is_dropped {
                drop(lease);
            } else {
                assert!(matches!(lease.release().await, Settling::Recorded(_)));
            }
            let mut operation = operation;
            operation.in_flight = crate::WhileRunning::Wait(std::time::Duration::from_secs(10));
            let again = engine.begin(&operation).await.unwrap();
            assert!(matches!(again, Begin::Answer(Answer::Failed(_))), "{again:?}");
        }
    }

    #[tokio::test]
    async fn what_is_released_is_not_promised() {
        let engine = engine();
        let (operation, other) = (operation("released", b"pay"), operation("released", b"other"));
        let Begin::Run(lease) = engine.begin(&operation).await.unwrap() else { panic!() };
        assert_eq!(engine.promise(&other), Promise::Refused, "another payload (S9)");
        assert!(lease.may_release() && lease.may_release());
        assert_eq!(engine.promise(&operation), Promise::Refused);
        let Settling::Recorded(record) = lease.release().await else { panic!() };
        assert!(matches!(record.state, State::Released { .. }));
        assert!(matches!(engine.begin(&operation).await.unwrap(), Begin::Run(_)));
    }

    #[tokio::test]
    async fn a_look_changes_nothing() {
        let engine = engine();
        let operation = operation("looked at", b"pay");
        assert!(engine.look(operation.id).await.unwrap().is_none());
        let Begin::Run(lease) = engine.begin(&operation).await.unwrap() else { panic!() };
        let running = engine.look(operation.id).await.unwrap().unwrap();
        assert!(matches!(running.state, State::Running { .. }));
        lease.start().unwrap();
        let _recorded = lease.complete(crate::Recording::new("paid")).await;
        let completed = engine.look(operation.id).await.unwrap().unwrap();
        assert!(matches!(completed.state, State::Completed { .. }));
    }
}
