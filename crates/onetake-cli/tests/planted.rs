//! Each planted bug is caught by the suites in this table.
//!
//! A bug is switched on for the whole process, so this is one test in a file of its own.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

mod common;

use futures_util::future::join_all;
use onetake_conformance::{Capabilities, Simulated};
use onetake_core::MemoryStore;
use onetake_core::planted::{Bug, plant};
use onetake_sim::blackbox;
use onetake_sim::model::{self, Model, suite};
use onetake_stores::EmbeddedStore;

use common::InProcess;

const SUITES: [&str; 5] = ["memory store", "embedded store", "engine", "model", "black box"];

/// The suites that always catch a bug. Others may also catch it in a lucky race; they are not
/// checked.
const CAUGHT_BY: [(Bug, &[&str]); 6] = [
    (Bug::SettleWithoutAttemptCheck, &["memory store", "embedded store", "model"]),
    (Bug::AnswerBeforeCommit, &["engine"]),
    (Bug::SweepWithoutRecheck, &["memory store", "embedded store", "model"]),
    (Bug::TenantLeftOut, &["black box"]),
    (Bug::FingerprintInId, &["black box"]),
    (Bug::FenceNotRaised, &["memory store", "embedded store", "model", "black box"]),
];

async fn in_memory() -> Simulated {
    Simulated::new(|clock| (MemoryStore::with_clock(clock), Box::new(())))
}

async fn embedded() -> Simulated {
    Simulated::new(|clock| {
        let folder = tempfile::tempdir().unwrap();
        (EmbeddedStore::open_with(folder.path(), clock).unwrap(), Box::new(folder))
    })
}

/// The failures that a suite finds.
async fn findings(suite: &str) -> Vec<String> {
    let names = |failed: Vec<&str>| failed.into_iter().map(str::to_owned).collect();
    let can = Capabilities::default();
    match suite {
        "memory store" => names(onetake_conformance::run(in_memory, can).await.failed()),
        "embedded store" => names(onetake_conformance::run(embedded, can).await.failed()),
        "engine" => names(onetake_conformance::run_engine(in_memory, can).await.failed()),
        "black box" => names(blackbox::run(InProcess::start, "memory:").await.failed()),
        "model" => {
            let two_keys = |model: &suite::SuiteModel| model.name == "two-keys-retry-fail";
            let modelled = suite::short().into_iter().find(two_keys).unwrap();
            let modelled = Model::new(modelled.config);
            let checked = tokio::task::spawn_blocking(move || model::check(&modelled).err());
            checked.await.unwrap().map(|violation| violation.to_string()).into_iter().collect()
        }
        other => panic!("there is no suite {other}"),
    }
}

/// The failures of each of these suites, which run at the same time.
async fn all_findings(suites: &[&str]) -> Vec<Vec<String>> {
    join_all(suites.iter().map(|suite| findings(suite))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_planted_bug_is_caught() {
    // A failing suite prints each panic. Only the table matters here.
    std::panic::set_hook(Box::new(|_| {}));
    let mut wrong = Vec::new();
    for found in all_findings(&SUITES).await.into_iter().flatten() {
        wrong.push(format!("nothing is planted, and yet: {found}"));
    }
    for (bug, expected) in CAUGHT_BY {
        plant(Some(bug));
        let found = all_findings(expected).await;
        plant(None);
        eprintln!("{bug:?}");
        for (suite, found) in expected.iter().zip(&found) {
            eprintln!("    {suite}: {}", found.join(", "));
            if found.is_empty() {
                wrong.push(format!("{bug:?} is not caught by the suite {suite}"));
            }
        }
    }
    let _hook = std::panic::take_hook();
    assert!(CAUGHT_BY.iter().map(|(bug, _)| *bug).eq(Bug::ALL), "a bug is missing from the table");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
