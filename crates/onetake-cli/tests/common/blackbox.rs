//! Runs of the black-box suite on a gateway in this process.

use onetake_sim::blackbox::{self, Capabilities};

use super::InProcess;

/// Recordings are encrypted in all stores.
const ENCRYPTED: &str = "
[secrets]
encryption = [{ id = \"k1\", secret = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }]
";

/// Runs the suite with more lines below `[store]`.
pub(crate) async fn run(store: &str, lines: &str) {
    run_with(store, lines, Capabilities::default()).await;
}

pub(crate) async fn run_with(store: &str, lines: &str, can: Capabilities) {
    let lines = format!("[store]\n{lines}\n");
    let start = |configuration: String| {
        InProcess::start(configuration.replace("[store]\n", &lines) + ENCRYPTED)
    };
    blackbox::run_with(start, store, can).await.assert_passed();
}
