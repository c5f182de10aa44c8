//! Each deliberate bug is caught, and this table says by which suites.
//!
//! The bugs are outside of the code under test: a store decorator breaks a promise of the store, and a wrong
//! configuration makes all tenants one. What the model makes of the same bugs is tested in `onetake-sim`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod common;

use std::sync::Arc;

use futures_util::future::join_all;
use onetake_conformance::{BuggyStore, Capabilities, Simulated, StoreBug};
use onetake_core::{Clock, MemoryStore, Store, SystemClock};
use onetake_sim::blackbox;
use onetake_stores::EmbeddedStore;

use common::InProcess;

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A bug of the store.
    InStore(StoreBug),
    /// A bug of the store that only an engine sees: it stands before the gates of the suite.
    BeforeEngine(StoreBug),
    /// The tenant is not part of the record's id (breaks S8): every route is configured so.
    OneTenant,
}

const SUITES: [&str; 4] = ["memory store", "embedded store", "engine", "black box"];

/// The suites that always catch a bug. Others may also catch it in a lucky race; they are not
/// checked.
const CAUGHT_BY: [(Bug, &[&str]); 6] = [
    (Bug::InStore(StoreBug::SettleWithoutAttemptCheck), &["memory store", "embedded store"]),
    (Bug::BeforeEngine(StoreBug::AnswerBeforeCommit), &["engine"]),
    (Bug::InStore(StoreBug::SweepWithoutRecheck), &["memory store", "embedded store"]),
    (Bug::InStore(StoreBug::FingerprintInId), &["memory store", "embedded store", "black box"]),
    (Bug::InStore(StoreBug::FenceNotRaised), &["memory store", "embedded store", "black box"]),
    (Bug::OneTenant, &["black box"]),
];

/// The store, with the bug if it is one of a store.
fn with_bug(store: Arc<dyn Store>, clock: Arc<dyn Clock>, bug: Option<Bug>) -> Arc<dyn Store> {
    match bug {
        Some(Bug::InStore(bug)) => Arc::new(BuggyStore::new(store, bug, clock)),
        _ => store,
    }
}

async fn in_memory(bug: Option<Bug>) -> Simulated {
    let subject = Simulated::new(|clock| {
        let store = Arc::new(MemoryStore::with_clock(Arc::clone(&clock)));
        (with_bug(store, clock, bug), Box::new(()))
    });
    match bug {
        Some(Bug::BeforeEngine(bug)) => subject.with_engine_bug(bug),
        _ => subject,
    }
}

async fn embedded(bug: Option<Bug>) -> Simulated {
    Simulated::new(|clock| {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open_with(folder.path(), Arc::clone(&clock)).unwrap();
        (with_bug(Arc::new(store), clock, bug), Box::new(folder))
    })
}

async fn gateway(configuration: String, bug: Option<Bug>) -> InProcess {
    let configuration = match bug {
        Some(Bug::OneTenant) => configuration
            .replace("[defaults]\n", "[defaults]\ntenant = \"public\"\n")
            .replace("tenant = \"credential\"\n", "tenant = \"public\"\n")
            .replace("tenant = { header = \"X-Account\" }\n", "tenant = \"public\"\n"),
        _ => configuration,
    };
    InProcess::start_with(configuration, |store| with_bug(store, Arc::new(SystemClock), bug)).await
}

/// What a suite finds wrong.
async fn findings(suite: &str, bug: Option<Bug>) -> Vec<String> {
    let can = Capabilities::default();
    let report = match suite {
        "memory store" => onetake_conformance::run(|| in_memory(bug), can).await,
        "embedded store" => onetake_conformance::run(|| embedded(bug), can).await,
        "engine" => onetake_conformance::run_engine(|| in_memory(bug), can).await,
        "black box" => blackbox::run(|text| gateway(text, bug), "memory:").await,
        other => panic!("there is no suite {other}"),
    };
    report.failed().into_iter().map(str::to_owned).collect()
}

/// What each of these suites finds wrong, all of them at once.
async fn all_findings(suites: &[&str], bug: Option<Bug>) -> Vec<Vec<String>> {
    join_all(suites.iter().map(|suite| findings(suite, bug))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_deliberate_bug_is_caught() {
    // A suite that fails prints each panic; the table is what matters here.
    std::panic::set_hook(Box::new(|_| {}));
    let mut wrong = Vec::new();
    for found in all_findings(&SUITES, None).await.into_iter().flatten() {
        wrong.push(format!("there is no bug, and yet: {found}"));
    }
    for (bug, expected) in CAUGHT_BY {
        let found = all_findings(expected, Some(bug)).await;
        eprintln!("{bug:?}");
        for (suite, found) in expected.iter().zip(&found) {
            eprintln!("    {suite}: {}", found.join(", "));
            if found.is_empty() {
                wrong.push(format!("{bug:?} is not caught by the suite {suite}"));
            }
        }
    }
    let _hook = std::panic::take_hook();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let in_table = |bug: &StoreBug| {
        let names = [Bug::InStore(*bug), Bug::BeforeEngine(*bug)];
        CAUGHT_BY.iter().any(|(listed, _)| names.contains(listed))
    };
    assert!(StoreBug::ALL.iter().all(in_table), "a bug is missing from the table");
}
