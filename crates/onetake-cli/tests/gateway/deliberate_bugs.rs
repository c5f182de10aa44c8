//! Deliberate bugs below a gateway and in its configuration: the black-box suite finds each of
//! them.
//!
//! Bugs of stores that other suites find are tested in `onetake-core` and `onetake-stores`.

use std::sync::Arc;

use onetake_conformance::{BuggyStore, StoreBug};
use onetake_core::SystemClock;
use onetake_sim::blackbox;

use crate::common::InProcess;

/// Runs the suite on gateways whose configuration `change` changes. Returns the failed cases.
async fn failed(change: impl Fn(String) -> String, bug: Option<StoreBug>) -> Vec<&'static str> {
    let gateway = |configuration| {
        InProcess::start_with(change(configuration), move |store| match bug {
            Some(bug) => Arc::new(BuggyStore::new(store, bug, Arc::new(SystemClock))),
            None => store,
        })
    };
    blackbox::run(gateway, "memory:").await.failed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bugs_of_the_store_are_found() {
    for bug in [StoreBug::FingerprintInId, StoreBug::FenceNotRaised] {
        assert!(!failed(|text| text, Some(bug)).await.is_empty(), "{bug:?} is not found");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenant_for_all_clients_is_found() {
    // The tenant is not part of the record's id (breaks S8).
    let one_tenant = |text: String| {
        text.replace("[defaults]\n", "[defaults]\ntenant = \"public\"\n")
            .replace("tenant = \"credential\"\n", "tenant = \"public\"\n")
            .replace("tenant = { header = \"X-Account\" }\n", "tenant = \"public\"\n")
    };
    assert!(!failed(one_tenant, None).await.is_empty(), "nobody noticed");
}
