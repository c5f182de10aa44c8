//! The memory of an engine on the embedded store while the number of keys grows.
//!
//! The first argument is the number of keys in thousands, the second one the memory of the store in
//! MiB. The keys are written through the engine, so that its cache is part of the result.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may panic")]

use std::sync::Arc;

use onetake_core::{
    Clock, Engine, Fingerprint, Key, Operation, Outcome, Recording, Scope, Settling, SystemClock,
    Verdict,
};
use onetake_stores::EmbeddedStore;
use onetake_stores::embedded::EmbeddedOptions;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TASKS: usize = 64;
const BODY_BYTES: usize = 300;
/// The number of keys between two lines of the result.
const STEP: usize = 50_000;

fn main() {
    // `cargo test --benches` uses other arguments. Then the benchmark only shows that it runs.
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let keys = numbers.next().map_or(if is_bench { 500_000 } else { 2_000 }, |k| k * 1_000);
    let memory = numbers.next().map_or(EmbeddedOptions::default().memory_bytes, |mib| mib << 20);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = EmbeddedOptions { memory_bytes: memory };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        EmbeddedStore::open_as(folder.path(), options, clock).expect("the folder is ours")
    };
    println!("{keys} keys, {} MiB for the store", memory >> 20);
    println!("{:>9} keys: {:>4} MiB", 0, resident() >> 20);
    runtime.block_on(async {
        let engine = Engine::new(Arc::new(open()));
        for from in (0..keys).step_by(STEP) {
            let until = keys.min(from + STEP);
            let write = |task| write(engine.clone(), (from + task..until).step_by(TASKS));
            let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(write(task))).collect();
            for task in tasks {
                task.await.unwrap();
            }
            println!("{until:>9} keys: {:>4} MiB", resident() >> 20);
        }
        engine.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    });
}

async fn write(engine: Engine, numbers: impl Iterator<Item = usize>) {
    let scope = Scope::new("benchmark");
    for number in numbers {
        let key = Key::new(format!("key-{number}")).unwrap();
        let operation = Operation::new(&scope, &key, Fingerprint::of(b"pay"));
        let recording = Recording::new(vec![b'x'; BODY_BYTES]);
        let work = |_| async { Verdict::Complete(recording) };
        let outcome = engine.run(operation, work).await.unwrap();
        assert!(matches!(outcome, Outcome::Ran(Settling::Recorded(_))));
    }
}

/// The memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or_default() << 10
}
