//! A store decorator that holds writes back until a test lets them through.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, Semaphore};

use onetake_core::store::{Answers, Claim, Claimed, Settled, Settlement, Store};

/// A store whose writes can be held back.
#[derive(Debug)]
pub(super) struct Gate {
    inner: Arc<dyn Store>,
    pub(super) hold_claims: AtomicUsize,
    pub(super) hold_settlements: AtomicUsize,
    pub(super) claim_came: Notify,
    pub(super) settlement_came: Notify,
    pub(super) open: Semaphore,
    /// The number of claims that the store has answered.
    pub(super) claimed: AtomicUsize,
}

impl Gate {
    pub(super) fn around(inner: &Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            hold_claims: AtomicUsize::new(0),
            hold_settlements: AtomicUsize::new(0),
            claim_came: Notify::new(),
            settlement_came: Notify::new(),
            open: Semaphore::new(0),
            claimed: AtomicUsize::new(0),
        })
    }
}

impl Store for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            if self.hold_claims.load(Ordering::SeqCst) > 0 {
                self.claim_came.notify_one();
                self.open.acquire().await.unwrap().forget();
            }
            let answers = self.inner.claim(batch).await;
            self.claimed.fetch_add(answers.len(), Ordering::SeqCst);
            answers
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            if self.hold_settlements.load(Ordering::SeqCst) > 0 {
                self.settlement_came.notify_one();
                self.open.acquire().await.unwrap().forget();
            }
            self.inner.settle(batch).await
        }
        .boxed()
    }

    onetake_core::delegate_store!(self => self.inner; load, due, sweep, ready, close);
}

onetake_core::delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Gate, self => self.inner);
