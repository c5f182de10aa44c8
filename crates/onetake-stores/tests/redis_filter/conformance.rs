//! The suite that every store passes, with a filter in any condition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onetake_conformance::{Capabilities, Shifted, run, run_engine};
use onetake_core::{Clock, MemoryStore, Store, SystemClock};
use onetake_sim::fault_proxy::{FaultProxy, Weather};
use onetake_sim::servers::free_port;
use onetake_stores::{EmbeddedStore, FilterOptions, FilteredStore};

use crate::redis;

/// A new authority behind a filter. Each has its own secret: entries of others under the same keys
/// in the same Redis must be refused.
async fn fresh(url: &str, command_timeout: Duration) -> Shifted {
    Shifted::new(|clock, _| async move {
        let authority = Arc::new(MemoryStore::with_clock(Arc::clone(&clock)));
        (over(url, clock, authority, command_timeout).await, Box::new(()) as _)
    })
    .await
}

pub(crate) async fn over(
    url: &str,
    clock: Arc<dyn Clock>,
    authority: Arc<dyn Store>,
    command_timeout: Duration,
) -> FilteredStore {
    static SECRETS: AtomicU64 = AtomicU64::new(0);
    let secret = format!("a secret of its own {}", SECRETS.fetch_add(1, Ordering::Relaxed));
    let options = FilterOptions { clock, command_timeout, check_every: 1, ..Default::default() };
    FilteredStore::open(url, secret.as_bytes(), authority, options).await.unwrap()
}

/// A timeout that is longer than the minutes by which the suite advances the clock.
pub(crate) const PATIENT: Duration = Duration::from_secs(1_000_000);
pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// While Redis is unreachable, nothing is forgotten.
pub(crate) fn away() -> Capabilities {
    Capabilities { forgets: false, ..Capabilities::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filtered_memory_store() {
    let redis = redis().await;
    let url = redis.url();
    run(|| fresh(&url, PATIENT), Capabilities::default()).await.assert_passed();
    let kept: usize = redis.cli(&["DBSIZE"]).parse().unwrap();
    assert!(kept > 20, "the filter took part: {kept} entries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_filtered_memory_store() {
    let redis = redis().await;
    let url = redis.url();
    run_engine(|| fresh(&url, PATIENT), Capabilities::default()).await.assert_passed();
    run_engine(|| fresh(&url, SHORT), Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filtered_embedded_store() {
    let redis = redis().await;
    let url = redis.url();
    let fresh = async || {
        let folder = tempfile::tempdir().unwrap();
        let (url, path) = (url.clone(), folder.path().to_owned());
        let open = move |clock: Arc<dyn Clock>, _| {
            let (url, path) = (url.clone(), path.clone());
            async move {
                let store = EmbeddedStore::open_with(path, Arc::clone(&clock)).unwrap();
                over(&url, clock, Arc::new(store), PATIENT).await
            }
        };
        let made = async |clock, shift| (open(clock, shift).await, Box::new(folder) as _);
        Shifted::new(made).await.reopened_by(open)
    };
    run(fresh, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_redis() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    run(|| fresh(&url, SHORT), away()).await.assert_passed();
    run_engine(|| fresh(&url, SHORT), Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_redis_that_comes_goes_and_forgets() {
    let redis = Arc::new(redis().await);
    let proxy = Arc::new(FaultProxy::start(redis.address()).await.unwrap());
    let url = format!("redis://{}", proxy.address());
    let done = Arc::new(AtomicBool::new(false));
    let (weather, over) = (Arc::clone(&proxy), Arc::clone(&done));
    let chaos = tokio::spawn(async move {
        while !over.load(Ordering::SeqCst) {
            for now in [Weather::Fair, Weather::Dead, Weather::Fair, Weather::Slow(SHORT / 25)] {
                weather.set(now);
                SystemClock.sleep(Duration::from_millis(7)).await;
            }
            let redis = Arc::clone(&redis);
            tokio::task::spawn_blocking(move || redis.cli(&["FLUSHALL"])).await.unwrap();
        }
    });
    // The clock of the command timeout advances with the suite's clock.
    run(|| fresh(&url, SHORT), away()).await.assert_passed();
    run_engine(|| fresh(&url, SHORT), Capabilities::default()).await.assert_passed();
    done.store(true, Ordering::SeqCst);
    chaos.await.unwrap();
}
