//! A decorator that counts the statements of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Record, RecordId, Settled, Settlement, Store, Transition, delegate_store,
};

/// Counts statements, and the operations in them. Renewals do not count.
#[derive(Debug)]
pub(crate) struct Counting {
    inner: Arc<dyn Store>,
    claims: AtomicU64,
    items: AtomicU64,
    statements: AtomicU64,
}

impl Counting {
    pub(crate) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Self { inner, claims: zero(), items: zero(), statements: zero() })
    }

    /// Returns the mean size of a batch.
    pub(crate) fn items_per_statement(&self) -> f64 {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        of(&self.items) / of(&self.statements)
    }

    /// Returns the number of statements for each claimed operation.
    pub(crate) fn statements_per_claim(&self) -> f64 {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        of(&self.statements) / of(&self.claims)
    }

    fn count(&self, items: usize) {
        self.items.fetch_add(items as u64, Ordering::Relaxed);
        self.statements.fetch_add(1, Ordering::Relaxed);
    }
}

impl Store for Counting {
    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.claims.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.count(batch.len());
        self.inner.claim(batch)
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        if !batch.iter().all(|item| matches!(item.transition, Transition::Renew)) {
            self.count(batch.len());
        }
        self.inner.settle(batch)
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.count(ids.len());
        self.inner.load(ids)
    }

    delegate_store!(self => self.inner; name, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Counting, self => self.inner);
