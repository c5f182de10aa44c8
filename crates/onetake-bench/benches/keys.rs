//! The time of a page of `GET /v1/keys`, and of one key by its reference, among a thousand keys and
//! among a million. The times should be the same, so that operators do not wait longer if there
//! are more keys.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark may panic"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::Gateway;
use onetake_core::{
    AttemptId, Claim, Clock, Fingerprint, Key, Origin, RecordId, Recording, Scope, Settlement,
    Store, SystemClock, SystemRng, Terms, Transition,
};
use onetake_sim::client::Client;
use onetake_stores::embedded::EmbeddedStore;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of keys that are written at once.
const BATCH: usize = 1_000;
/// The pause between requests: a little below the rate that the guard permits.
const PAUSE: Duration = Duration::from_millis(25);

fn main() {
    // `cargo test --benches` uses other arguments. Then the benchmark only shows that it runs.
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let (few, many, pages) = if is_bench { (1_000, 1_000_000, 200) } else { (100, 2_000, 5) };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (small, small_one) = measure(few, pages).await;
        let (large, large_one) = measure(many, pages).await;
        let ratio = |large: Duration, small: Duration| large.as_secs_f64() / small.as_secs_f64();
        println!("  a page takes {:.2} times as long", ratio(large, small));
        println!("  one key takes {:.2} times as long", ratio(large_one, small_one));
    });
}

/// Returns the medians of a page and of one key among this many keys.
async fn measure(keys: usize, pages: usize) -> (Duration, Duration) {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), keys).await;
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        admin_listen: Some("127.0.0.1:0".parse().unwrap()),
        upstream: Some("http://127.0.0.1:1".to_owned()),
        store: Some(format!("embedded:{}", folder.path().display())),
        ..Overrides::default()
    };
    let config = config::load(None, "flags", std::iter::empty(), overrides);
    let gateway = Gateway::start(config.unwrap_or_else(|error| panic!("{error}"))).await.unwrap();
    let admin = Client::new(gateway.admin_address());
    let (mut times, mut ones) = (Vec::new(), Vec::new());
    let mut path = "/v1/keys?limit=50".to_owned();
    for number in 0..pages {
        let (answer, took) = get(&admin, &path).await;
        times.push(took);
        // Pages at random positions, because pages in a row would be read ahead.
        path = match answer.split("\"cursor\":\"").nth(1) {
            Some(next) => {
                format!("/v1/keys?limit=50&cursor={}", next.split('"').next().unwrap())
            }
            None => "/v1/keys?limit=50".to_owned(),
        };
        let reference = id(number * (keys / pages).max(1)).reference();
        ones.push(get(&admin, &format!("/v1/keys/{reference}")).await.1);
    }
    gateway.shutdown(Duration::from_secs(10)).await.unwrap();
    let [page, one] = [times, ones].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    println!("{keys} keys: a page of 50 {page:?}, one by its reference {one:?} (medians)");
    (page, one)
}

async fn get(admin: &Client, path: &str) -> (String, Duration) {
    SystemClock.sleep(PAUSE).await;
    let from = SystemClock.monotonic();
    let answer = admin.post(path).method("GET").body("").send().await.unwrap();
    let took = SystemClock.monotonic() - from;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    (answer.text(), took)
}

fn id(number: usize) -> RecordId {
    RecordId::derive(&Scope::new("bench"), &Key::new(format!("key {number}")).unwrap())
}

async fn fill(folder: &Path, keys: usize) {
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(folder).unwrap());
    for first in (0..keys).step_by(BATCH) {
        let claims: Vec<Claim> = (first..keys.min(first + BATCH))
            .map(|number| Claim {
                id: id(number),
                attempt: AttemptId::random(&SystemRng),
                fingerprint: Fingerprint::of(b"pay"),
                terms: Terms::default(),
                origin: Origin::default(),
            })
            .collect();
        let settle = |claim: &Claim| Settlement {
            id: claim.id,
            attempt: claim.attempt,
            transition: Transition::Complete(Recording::new(vec![b'x'; 300])),
        };
        let settlements = claims.iter().map(settle).collect();
        assert!(store.claim(claims).await.iter().all(Result::is_ok));
        assert!(store.settle(settlements).await.iter().all(Result::is_ok));
    }
    store.close().await.unwrap();
}
