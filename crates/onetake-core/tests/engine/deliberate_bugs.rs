//! Deliberate bugs of a store: the suites find each of them in the memory store.
//!
//! The bugs are in a decorator, outside of the code under test. The same bugs are put into the
//! embedded store (`onetake-stores`), below a gateway (`onetake-cli`) and into the model
//! (`onetake-sim`).

use std::sync::Arc;

use onetake_conformance::{
    BuggyStore, Capabilities, ConformanceReport, Simulated, StoreBug, run, run_engine,
};
use onetake_core::MemoryStore;

/// Runs the suite that always finds this bug. Other suites find some bugs only in a lucky race.
async fn report(bug: StoreBug) -> ConformanceReport {
    match bug {
        StoreBug::SettleWithoutAttemptCheck
        | StoreBug::SweepWithoutRecheck
        | StoreBug::FingerprintInId
        | StoreBug::FenceNotRaised => run(|| in_store(bug), Capabilities::default()).await,
        // Only an engine notices it, so it is between the gates of the suite and the engine.
        StoreBug::AnswerBeforeCommit => {
            run_engine(|| before_engine(bug), Capabilities::default()).await
        }
    }
}

async fn in_store(bug: StoreBug) -> Simulated {
    Simulated::new(|clock| {
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock)));
        (BuggyStore::new(store, bug, clock), Box::new(()))
    })
}

async fn before_engine(bug: StoreBug) -> Simulated {
    let store = |clock| (MemoryStore::with_clock(clock), Box::new(()) as _);
    Simulated::new(store).with_engine_bug(bug)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_of_a_store_is_found() {
    for bug in StoreBug::ALL {
        let failed = report(bug).await.failed();
        assert!(!failed.is_empty(), "{bug:?} is not found");
    }
}
