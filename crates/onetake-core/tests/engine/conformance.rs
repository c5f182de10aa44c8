//! The reference store passes the suite that it is the reference for.

use std::sync::Arc;

use onetake_conformance::{Capabilities, Simulated, run, run_engine};
use onetake_core::{MemoryStore, Store};

async fn fresh() -> Simulated {
    Simulated::new(|clock| (MemoryStore::with_clock(clock), Box::new(())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_store() {
    run(fresh, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_memory_store() {
    run_engine(fresh, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_store_is_a_store() {
    let shared = |clock| Arc::new(MemoryStore::with_clock(clock)) as Arc<dyn Store>;
    let fresh = || async { Simulated::new(|clock| (shared(clock), Box::new(()))) };
    run(fresh, Capabilities::default()).await.assert_passed();
}
