//! A store decorator that fails on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use onetake_core::record::Record;
use onetake_core::scope::RecordId;
use onetake_core::store::{
    Answers, Claim, Claimed, Settled, Settlement, SharedSecrets, Store, StoreError, StoreErrorKind,
};

/// The way in which a store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StoreFault {
    /// The store works.
    None = 0,
    /// Nothing is written, and the store reports that.
    Unavailable = 1,
    /// The write is applied, and its answer is lost.
    LostAnswer = 2,
    /// The write is not applied, and the error does not say so.
    LostWrite = 3,
}

/// A store whose claims, settlements and reads fail on request.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    claims: AtomicU8,
    /// True if only the next batch of claims fails.
    once: AtomicBool,
    settlements: AtomicU8,
    loads: AtomicU8,
    failures: AtomicUsize,
}

impl Faulty {
    /// Creates a decorator in which nothing fails yet.
    #[must_use]
    pub fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            claims: AtomicU8::new(0),
            once: AtomicBool::new(false),
            settlements: AtomicU8::new(0),
            loads: AtomicU8::new(0),
            failures: AtomicUsize::new(0),
        })
    }

    /// Sets the failure of all claims from now on.
    pub fn fail_claims(&self, fault: StoreFault) {
        self.claims.store(fault as u8, Ordering::SeqCst);
    }

    /// Sets the failure of the next batch of claims. Later batches do not fail.
    pub fn fail_one_claim(&self, fault: StoreFault) {
        self.once.store(true, Ordering::SeqCst);
        self.fail_claims(fault);
    }

    /// Sets the failure of all settlements from now on.
    pub fn fail_settlements(&self, fault: StoreFault) {
        self.settlements.store(fault as u8, Ordering::SeqCst);
    }

    /// Sets the failure of all reads from now on, those of secrets included.
    pub fn fail_loads(&self, fault: StoreFault) {
        self.loads.store(fault as u8, Ordering::SeqCst);
    }

    /// Returns the number of failed writes and reads.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.failures.load(Ordering::SeqCst)
    }

    fn failed<T>(&self, fault: u8, count: usize) -> Answers<T> {
        self.failures.fetch_add(1, Ordering::SeqCst);
        let kind = if fault == StoreFault::Unavailable as u8 {
            StoreErrorKind::Unavailable
        } else {
            StoreErrorKind::Indeterminate
        };
        (0..count).map(|_| Err(StoreError::new(kind, "a fault that was asked for"))).collect()
    }
}

impl Store for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let (fault, count) = (self.claims.load(Ordering::SeqCst), batch.len());
            if fault == 0 {
                return self.inner.claim(batch).await;
            }
            if self.once.swap(false, Ordering::SeqCst) {
                self.fail_claims(StoreFault::None);
            }
            if fault == StoreFault::LostAnswer as u8 {
                self.inner.claim(batch).await;
            }
            self.failed(fault, count)
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            let (fault, count) = (self.settlements.load(Ordering::SeqCst), batch.len());
            if fault == 0 {
                return self.inner.settle(batch).await;
            }
            if fault == StoreFault::LostAnswer as u8 {
                self.inner.settle(batch).await;
            }
            self.failed(fault, count)
        }
        .boxed()
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        async move {
            let (fault, count) = (self.loads.load(Ordering::SeqCst), ids.len());
            if fault == 0 { self.inner.load(ids).await } else { self.failed(fault, count) }
        }
        .boxed()
    }

    onetake_core::delegate_store!(self => self.inner; due, sweep, ready, close);
}

impl SharedSecrets for Faulty {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        async move {
            let fault = self.loads.load(Ordering::SeqCst);
            let failed = if fault == 0 { None } else { self.failed(fault, 1).pop() };
            match failed {
                Some(failed) => failed,
                None => self.inner.secret(name, fresh).await,
            }
        }
        .boxed()
    }
}

onetake_core::delegate_store!(impl RecordIndex, AuditLog, Sealing for Faulty, self => self.inner);
