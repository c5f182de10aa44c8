//! Readiness of this node. All probes share one check of the store at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use onetake_core::Engine;
use onetake_http::JwtKeySet;

use super::jwks;

/// Timeout of a check: probes do not wait long.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How long the result of a check is reused.
const FRESH: Duration = Duration::from_millis(250);

/// The result of a check, with the reason if this node cannot serve.
type CheckResult = Result<(), String>;

/// Shared readiness checks of the store.
#[derive(Clone, Debug)]
pub(super) struct Readiness {
    engine: Engine,
    key_sets: Vec<JwtKeySet>,
    latest: Arc<Mutex<Option<Check>>>,
}

/// A check that is running or finished.
#[derive(Clone)]
struct Check {
    began: Duration,
    found: Shared<BoxFuture<'static, CheckResult>>,
}

impl Readiness {
    pub(super) fn new(engine: Engine, key_sets: Vec<JwtKeySet>) -> Self {
        Self { engine, key_sets, latest: Arc::default() }
    }

    /// Whether every key set was fetched once and the store answers, by a look that is no older
    /// than [`FRESH`] or still under way.
    ///
    /// # Errors
    /// With the reason if the store does not respond.
    pub(super) async fn check(&self) -> CheckResult {
        if let Some(set) = self.key_sets.iter().find(|set| !set.is_loaded()) {
            return Err(format!("the key set {} has not been fetched yet", jwks::shown(set)));
        }
        let now = self.engine.clock().monotonic();
        let found = {
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            let current = latest.take().filter(|look| {
                // A check is polled only by its waiters. Without any, it looks unfinished for ever,
                // so its age decides.
                let max = if look.found.peek().is_none() { LOOK_MAX + FRESH } else { FRESH };
                now.saturating_sub(look.began) < max
            });
            let look = current.unwrap_or_else(|| self.begin(now));
            latest.insert(look).found.clone()
        };
        found.await
    }

    /// Starts a check in its own task, so that a probe that gives up does not stop it for others.
    fn begin(&self, began: Duration) -> Check {
        let engine = self.engine.clone();
        let looking = tokio::spawn(async move {
            tokio::select! {
                biased;
                ready = engine.ready() => ready.map_err(|error| error.to_string()),
                () = engine.clock().sleep(LOOK_MAX) => {
                    Err("the store did not respond within a second".to_owned())
                }
            }
        });
        let found = looking.map(|looked| {
            looked
                .unwrap_or_else(|_| Err("the check of the store ended without a result".to_owned()))
        });
        Check { began, found: found.boxed().shared() }
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look").field("began", &self.began).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use onetake_core::{
        Limits, ManualClock, MemoryStore, Store, StoreError, StoreErrorKind, SystemRng,
        delegate_store,
    };
    use tokio::sync::Semaphore;

    use super::*;

    /// A store that can be unreachable or hang, and that counts readiness checks.
    #[derive(Debug)]
    struct Probed {
        inner: MemoryStore,
        looks: AtomicUsize,
        /// A check waits for one of these permits.
        answers: Semaphore,
        is_away: std::sync::atomic::AtomicBool,
    }

    impl Store for Probed {
        delegate_store!(self => self.inner; name, claim, settle, load, due, sweep, close);

        fn ready(&self) -> BoxFuture<'_, Result<(), StoreError>> {
            async {
                self.looks.fetch_add(1, Ordering::SeqCst);
                self.answers.acquire().await.unwrap().forget();
                match self.is_away.load(Ordering::SeqCst) {
                    true => Err(StoreError::new(StoreErrorKind::Unavailable, "it is away")),
                    false => Ok(()),
                }
            }
            .boxed()
        }
    }

    delegate_store!(impl RecordIndex, AuditLog, SharedSecrets, Sealing for Probed, self => self.inner);

    fn probed() -> (Arc<Probed>, ManualClock, Readiness) {
        let store = Arc::new(Probed {
            inner: MemoryStore::new(),
            looks: AtomicUsize::new(0),
            answers: Semaphore::new(0),
            is_away: std::sync::atomic::AtomicBool::new(false),
        });
        let clock = ManualClock::default();
        let shared: Arc<dyn Store> = Arc::<Probed>::clone(&store);
        let time = Arc::new(clock.clone());
        let engine = Engine::with(shared, time, Arc::new(SystemRng), Limits::default());
        (store, clock, Readiness::new(engine, Vec::new()))
    }

    #[tokio::test]
    async fn many_probes_share_one_look_which_serves_for_a_moment() {
        let (store, clock, readiness) = probed();
        store.answers.add_permits(1);
        let all = join_all((0..100).map(|_| readiness.check())).await;
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        clock.advance(FRESH / 2);
        assert_eq!(readiness.check().await, Ok(()));
        assert_eq!(store.looks.load(Ordering::SeqCst), 1);
        store.is_away.store(true, Ordering::SeqCst);
        store.answers.add_permits(1);
        clock.advance(FRESH);
        let why = readiness.check().await.unwrap_err();
        assert!(why.contains("it is away"), "{why}");
        store.is_away.store(false, Ordering::SeqCst);
        store.answers.add_permits(1);
        clock.advance(FRESH);
        assert_eq!(readiness.check().await, Ok(()), "it recovers by itself");
        assert_eq!(store.looks.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn a_deaf_store_is_not_waited_for_and_not_asked_twice() {
        let (store, clock, readiness) = probed();
        // A probe that gives up does not stop the check for others.
        let mut impatient = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.check().await }
        });
        while store.looks.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert!((&mut impatient).now_or_never().is_none());
        impatient.abort();
        let probes = (0..10).map(|_| {
            tokio::spawn({
                let readiness = readiness.clone();
                async move { readiness.check().await }
            })
        });
        let probes: Vec<_> = probes.collect();
        tokio::task::yield_now().await;
        clock.advance(LOOK_MAX);
        for probe in probes {
            let why = probe.await.unwrap().unwrap_err();
            assert!(why.contains("within a second"), "{why}");
        }
        assert_eq!(store.looks.load(Ordering::SeqCst), 1);
    }
    #[tokio::test]
    async fn a_look_that_nobody_waited_for_is_not_believed_later() {
        let (store, clock, readiness) = probed();
        let impatient = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.check().await }
        });
        while store.looks.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // The probe hangs up, then the store responds that it is ready.
        impatient.abort();
        let _gone = impatient.await;
        store.answers.add_permits(1);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        // An hour later the store is unreachable.
        store.is_away.store(true, Ordering::SeqCst);
        clock.advance(Duration::from_secs(3600));
        store.answers.add_permits(1);
        let found = readiness.check().await;
        assert!(found.is_err(), "the look is an hour old: {found:?}");
    }
}
