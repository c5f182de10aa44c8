//! An engine whose reads are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use onetake_cli::stores;
use onetake_core::store::{Abandoned, Answers, Swept};
use onetake_core::{
    Claim, Claimed, Engine, Record, RecordId, Settled, Settlement, Store, StoreError, SystemClock,
    SystemRng,
};

use super::common::store;
use super::places::Shared;

/// An engine on the store, as a gateway would have it, whose reads are counted.
pub(super) struct Node {
    pub(super) engine: Engine,
    store: Arc<Counting>,
}

impl Node {
    pub(super) async fn open(server: &impl Shared) -> Self {
        let opened = stores::open(&store(&server.url())).await.unwrap();
        let store = Arc::new(Counting { inner: opened.store, reads: AtomicUsize::new(0) });
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let (clock, rng) = (Arc::new(SystemClock), Arc::new(SystemRng));
        Self { engine: Engine::with(shared, clock, rng, opened.limits), store }
    }

    pub(super) fn reads(&self) -> usize {
        self.store.reads.load(Ordering::SeqCst)
    }
}

/// A store that counts how often it is read.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Store>,
    reads: AtomicUsize,
}

impl Store for Counting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.inner.claim(batch)
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.inner.settle(batch)
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(ids)
    }

    fn abandoned(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Abandoned>, StoreError>> {
        self.inner.abandoned(limit)
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        self.inner.sweep(limit)
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.ready()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.close()
    }
}
