//! A store decorator that counts the calls under way, and retries items that are busy.
//!
//! Simulated time must not pass while a server answers in real time, or every answer would be late.
//! An item is busy if another commit holds its key, which can take long on a disk that stalls. That
//! is not an error of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::bench::REAL_TIME_MAX;
use onetake_core::clock::{Clock, SystemClock};
use onetake_core::record::Record;
use onetake_core::scope::RecordId;
use onetake_core::store::{
    Answers, Claim, Claimed, Due, DueAttempt, Settled, Settlement, SharedSecrets, Store,
    StoreError, StoreErrorKind, Swept,
};

/// The pause before busy items are tried again, in real time.
const PAUSE: Duration = Duration::from_millis(5);

/// A store that counts the calls under way.
#[derive(Debug)]
pub(super) struct Quiet {
    inner: Arc<dyn Store>,
    inside: AtomicUsize,
}

impl Quiet {
    pub(super) fn around(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, inside: AtomicUsize::new(0) })
    }

    /// True if no call is under way.
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

/// A counted call. The count ends with it, even if the call is dropped.
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

/// Makes the call, and repeats it for items that were busy. If no other call was under way, busy is
/// returned as an error of the store.
async fn until_free<'a, I: Clone, T>(
    inside: &AtomicUsize,
    items: Vec<I>,
    ask: impl Fn(Vec<I>) -> BoxFuture<'a, Answers<T>>,
) -> Answers<T> {
    let until = SystemClock.monotonic() + REAL_TIME_MAX;
    let mut is_alone = inside.load(Ordering::SeqCst) <= 1;
    let mut answers = ask(items.clone()).await;
    is_alone &= inside.load(Ordering::SeqCst) <= 1;
    loop {
        let is_busy = |answer: &Result<T, StoreError>| {
            answer.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Busy)
        };
        let busy: Vec<usize> = (0..answers.len()).filter(|at| is_busy(&answers[*at])).collect();
        if busy.is_empty() || is_alone || SystemClock.monotonic() > until {
            return answers;
        }
        SystemClock.sleep(PAUSE).await;
        let again = ask(busy.iter().map(|at| items[*at].clone()).collect()).await;
        for (at, answer) in busy.into_iter().zip(again) {
            answers[at] = answer;
        }
    }
}

impl Store for Quiet {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        self.count(until_free(&self.inside, batch, |batch| self.inner.claim(batch)).boxed())
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        self.count(until_free(&self.inside, batch, |batch| self.inner.settle(batch)).boxed())
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Answers<Option<Arc<Record>>>> {
        self.count(self.inner.load(ids))
    }

    fn due(&self, which: Due, limit: usize) -> BoxFuture<'_, Result<Vec<DueAttempt>, StoreError>> {
        self.count(self.inner.due(which, limit))
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, StoreError>> {
        self.count(self.inner.sweep(limit))
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.count(self.inner.ready())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.count(self.inner.close())
    }
}

impl SharedSecrets for Quiet {
    fn secret(
        &self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> BoxFuture<'_, Result<[u8; 32], StoreError>> {
        self.count(self.inner.secret(name, fresh))
    }
}

onetake_core::delegate_store!(impl RecordIndex, AuditLog, Sealing for Quiet, self => self.inner);
