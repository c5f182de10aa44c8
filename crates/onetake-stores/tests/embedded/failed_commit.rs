//! Tests of a write that reaches the embedded store's disk and then fails, and of the next start.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use onetake_core::store::Answers;
use onetake_core::{
    Begin, Claim, Claimed, Engine, EngineError, Fingerprint, Key, Operation, Scope, Settled,
    Settlement, Store, StoreError, StoreErrorKind, delegate_store,
};
use onetake_sim::servers::until;
use onetake_stores::{EmbeddedStore, FileJournal};

/// The embedded store on a failing disk: the next group of claims is written, and its sync reports
/// a failure. From then on the store returns only that error.
#[derive(Debug)]
struct FailingSync {
    inner: Arc<EmbeddedStore>,
    fails_next: AtomicBool,
    is_poisoned: AtomicBool,
}

impl FailingSync {
    fn poison() -> StoreError {
        StoreError::new(
            StoreErrorKind::Corrupt,
            "reading or writing the data folder failed: fsync: EIO",
        )
    }
}

impl Store for FailingSync {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn claim(&self, batch: Vec<Claim>) -> BoxFuture<'_, Answers<Claimed>> {
        async move {
            let count = batch.len();
            if self.fails_next.swap(false, Ordering::SeqCst) {
                self.inner.claim(batch).await;
                self.is_poisoned.store(true, Ordering::SeqCst);
            } else if !self.is_poisoned.load(Ordering::SeqCst) {
                return self.inner.claim(batch).await;
            }
            (0..count).map(|_| Err(Self::poison())).collect()
        }
        .boxed()
    }

    fn settle(&self, batch: Vec<Settlement>) -> BoxFuture<'_, Answers<Settled>> {
        async move {
            if self.is_poisoned.load(Ordering::SeqCst) {
                return batch.iter().map(|_| Err(Self::poison())).collect();
            }
            self.inner.settle(batch).await
        }
        .boxed()
    }

    delegate_store!(self => self.inner; load, due, sweep, ready, close);
}

delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for FailingSync, self => self.inner);

fn engine(store: Arc<dyn Store>, journal: Arc<FileJournal>) -> Engine {
    Engine::builder(store).housekeeping(None).journal(journal).build()
}

fn operation(key: &str) -> Operation {
    Operation::new(&Scope::new("t"), &Key::new(key).unwrap(), Fingerprint::of(b"pay"))
}

async fn journal(store: &dyn Store, folder: &Path) -> Arc<FileJournal> {
    Arc::new(FileJournal::of(store, folder.join("journal")).await.unwrap())
}

/// Nothing ran, so after the next start each key can run, and none is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_commit_failed_is_released_at_the_next_start() {
    const KEYS: [&str; 3] = ["a", "b", "c"];
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let inner = Arc::new(EmbeddedStore::open(&data).unwrap());
    let failing = Arc::new(FailingSync {
        inner: Arc::clone(&inner),
        fails_next: AtomicBool::new(true),
        is_poisoned: AtomicBool::new(false),
    });
    let first = engine(failing, journal(&*inner, folder.path()).await);
    // The process ends as soon as it gets the error, with claims that are not answered yet.
    let (fatal, asked) = tokio::join!(
        async {
            let fatal = first.fatal().await;
            first.abort().await;
            fatal
        },
        join_all(KEYS.map(|key| {
            let (first, operation) = (first.clone(), operation(key));
            async move { first.begin(&operation).await }
        }))
    );
    assert_eq!(fatal.kind(), StoreErrorKind::Corrupt);
    for answer in asked {
        let error = answer.unwrap_err();
        assert!(matches!(error, EngineError::Store(_) | EngineError::Closing), "{error:?}");
    }
    inner.close().await.unwrap();

    let store = Arc::new(EmbeddedStore::open(&data).unwrap());
    assert!(store.interrupted() > 0, "claims were on disk");
    let journal = journal(&*store, folder.path()).await;
    let next = engine(Arc::clone(&store) as Arc<dyn Store>, journal);
    until("nothing is unknown", async || {
        let records = store.load(KEYS.map(|key| operation(key).id).into()).await;
        let is_free = |record: Option<Arc<onetake_core::Record>>| {
            record.is_none_or(|record| record.state.name() == "released")
        };
        records.into_iter().all(|record| is_free(record.unwrap()))
    })
    .await;
    for key in KEYS {
        let begun = next.begin(&operation(key)).await.unwrap();
        let Begin::Run(lease) = begun else { panic!("{key} does not run: {begun:?}") };
        drop(lease.release().await);
    }
}

/// Claims after the failure are refused, and leave nothing for the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_after_the_failure_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let inner = Arc::new(EmbeddedStore::open(folder.path().join("data")).unwrap());
    let failing = Arc::new(FailingSync {
        inner: Arc::clone(&inner),
        fails_next: AtomicBool::new(true),
        is_poisoned: AtomicBool::new(false),
    });
    let journal = journal(&*inner, folder.path()).await;
    let engine = engine(failing, Arc::clone(&journal));
    for number in 0..100 {
        let error = engine.begin(&operation(&format!("key {number}"))).await.unwrap_err();
        assert!(
            matches!(&error, EngineError::Store(error) if error.kind() == StoreErrorKind::Corrupt)
        );
    }
    engine.abort().await;
    let names = onetake_core::Journal::names(&*journal).await.unwrap();
    assert_eq!(names.len(), 1);
    let kept = onetake_core::Journal::read(&*journal, names[0].clone()).await.unwrap().unwrap();
    assert_eq!(kept.settlements.len(), 1, "the one claim that may have landed");
    inner.close().await.unwrap();
}
