//! Knows whether somebody is inside a store: simulated time must not run while a server answers in
//! real time, or every answer would come too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::record::Record;
use crate::scope::RecordId;
use crate::store::{
    Abandoned, Answers, Claim, Claimed, Settled, Settlement, Store, StoreError, Swept,
};

/// A store that counts who is inside.
#[derive(Debug)]
pub(super) struct Quiet {
    inner: Arc<dyn Store>,
    inside: AtomicUsize,
}

impl Quiet {
    pub(super) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, inside: AtomicUsize::new(0) })
    }

    /// Whether nobody is inside.
    pub(super) fn is_quiet(&self) -> bool {
        self.inside.load(Ordering::SeqCst) == 0
    }

    fn count<'a, T: Send + 'a>(&'a self, call: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        let inside = Inside::enter(&self.inside);
        async move {
            let answer = call.await;
            drop(inside);
            answer
        }
        .boxed()
    }
}

/// Counted for as long as it lives, also if its call is dropped.
struct Inside<'a>(&'a AtomicUsize);

impl<'a> Inside<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store for Quiet {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.count(self.inner.claim(batch))
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.count(self.inner.settle(batch))
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.count(self.inner.load(ids))
    }

    fn abandoned(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Abandoned>, StoreError>> {
        self.count(self.inner.abandoned(limit))
    }

    fn unsettled(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Abandoned>, StoreError>> {
        self.count(self.inner.unsettled(limit))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        self.count(self.inner.sweep(limit))
    }

    // Nobody runs these beside an engine.
    crate::delegate_store!(self => self.inner; inspect);

    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        self.count(self.inner.secret(name, fresh))
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.count(self.inner.ready())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.count(self.inner.close())
    }
}
