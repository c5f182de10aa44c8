//! The embedded store: the suite that every store passes.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use onetake_conformance::{Capabilities, Simulated, run, run_engine};
use onetake_stores::EmbeddedStore;

async fn fresh() -> Simulated {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let open = move |clock| EmbeddedStore::open_with(&path, clock).unwrap();
    Simulated::new(|clock| (open(clock), Box::new(folder))).reopened_by(open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_store() {
    run(fresh, Capabilities::default()).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_on_embedded_store() {
    run_engine(fresh, Capabilities::default()).await.assert_passed();
}
