//! An authority that counts its requests, and that can be set back in time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use onetake_core::store::Answers;
use onetake_core::{
    Claim, Claimed, Clock, MemoryStore, Record, RecordId, Settled, Settlement, Store,
    delegate_store,
};

#[derive(Debug)]
pub(crate) struct Watched {
    inner: Mutex<Arc<dyn Store>>,
    pub(crate) claims: AtomicUsize,
    pub(crate) loads: AtomicUsize,
    pub(crate) settlements: AtomicUsize,
}

impl Watched {
    /// On the real clock.
    pub(crate) fn new() -> Arc<Self> {
        Self::around(MemoryStore::new())
    }

    pub(crate) fn with_clock(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::around(MemoryStore::with_clock(clock))
    }

    fn around(inner: MemoryStore) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Arc::new(inner)),
            claims: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            settlements: AtomicUsize::new(0),
        })
    }

    /// Replaces the content, as after a restore from a backup.
    pub(crate) fn replace(&self, by: MemoryStore) {
        *self.inner.lock().unwrap() = Arc::new(by);
    }

    /// The number of items that were claimed or read.
    pub(crate) fn asked(&self) -> usize {
        self.claims.load(Ordering::SeqCst) + self.loads.load(Ordering::SeqCst)
    }

    pub(crate) fn inner(&self) -> Arc<dyn Store> {
        Arc::clone(&self.inner.lock().unwrap())
    }
}

impl Store for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.claims.fetch_add(batch.len(), Ordering::SeqCst);
        async move { self.inner().claim(batch).await }.boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.settlements.fetch_add(batch.len(), Ordering::SeqCst);
        async move { self.inner().settle(batch).await }.boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.loads.fetch_add(ids.len(), Ordering::SeqCst);
        async move { self.inner().load(ids).await }.boxed()
    }

    delegate_store!(self => self.inner(); due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Watched, self => self.inner());
