//! Durable claim + complete operations a second through the engine: on the embedded store, and on a
//! raw appended log with the same bytes and the same batching.
//!
//! `cargo bench` runs it. The two alternate in one run, because machines are noisy. The ratio is
//! the result.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onetake_bench::RawLog;
use onetake_core::{
    Clock, Engine, Fingerprint, Key, Operation, Outcome, Recording, Scope, Settling, Store,
    SystemClock, Verdict,
};
use onetake_stores::EmbeddedStore;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TASKS: u64 = 256;
const ROUNDS: usize = 3;
const BODY_BYTES: usize = 300;
const ROUND: Duration = Duration::from_secs(4);

fn main() {
    // `cargo test --benches` uses other arguments. Then the benchmark only shows that it runs.
    let round = if std::env::args().any(|arg| arg == "--bench") { ROUND } else { ROUND / 40 };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut embedded, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path()).expect("the folder is new");
        embedded.push(runtime.block_on(measure(Arc::new(store), round)));
        let folder = tempfile::tempdir().unwrap();
        let store = RawLog::create(&folder.path().join("log")).unwrap();
        raw.push(runtime.block_on(measure(Arc::new(store), round)));
    }
    println!("claim + complete, both durable, {BODY_BYTES}-byte outcome, {TASKS} tasks, 2 threads");
    println!(
        "  engine on the embedded store: {:>9.0} operations/s {embedded:.0?}",
        median(&embedded)
    );
    println!("  engine on a raw log:          {:>9.0} operations/s {raw:.0?}", median(&raw));
    println!("  ratio:                        {:>9.2}", median(&embedded) / median(&raw));
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// Operations a second with all tasks busy.
async fn measure(store: Arc<dyn Store>, round: Duration) -> f64 {
    let engine = Engine::new(store);
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let body = bytes::Bytes::from(vec![b'x'; BODY_BYTES]);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (engine, done, stop) = (engine.clone(), Arc::clone(&done), Arc::clone(&stop));
            let body = body.clone();
            tokio::spawn(async move {
                let scope = Scope::new("benchmark");
                for number in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = Key::new(format!("{task}-{number}")).unwrap();
                    let operation = Operation::new(&scope, &key, Fingerprint::of(b"pay"));
                    let recording = Recording::new(body.clone());
                    let work = |_| async { Verdict::Complete(recording) };
                    let outcome = engine.run(operation, work).await.unwrap();
                    assert!(matches!(outcome, Outcome::Ran(Settling::Recorded(_))));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let clock = SystemClock;
    clock.sleep(round / 8).await;
    let (from, before) = (clock.monotonic(), done.load(Ordering::Relaxed));
    clock.sleep(round).await;
    let (to, after) = (clock.monotonic(), done.load(Ordering::Relaxed));
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    (after - before) as f64 / (to - from).as_secs_f64()
}
