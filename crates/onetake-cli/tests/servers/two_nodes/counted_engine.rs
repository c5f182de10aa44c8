//! An engine whose reads are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use onetake_cli::stores;
use onetake_core::store::Answers;
use onetake_core::{Engine, Record, RecordId, Store, SystemClock, SystemRng, delegate_store};

use super::shared_servers::Shared;
use crate::common::store;

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
    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(ids)
    }

    delegate_store!(self => self.inner; name, claim, settle, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Counting, self => self.inner);
