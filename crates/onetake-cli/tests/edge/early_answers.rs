//! A refusal that is sent while a client still uploads, as the clients of Python and Node see it.

use std::path::Path;

use onetake_sim::blackbox::Target;
use onetake_sim::servers::{Interpreter, interpreter};
use onetake_sim::upstream::Upstream;

use crate::common::{InProcess, configuration};

/// Number of uploads of each client.
const UPLOADS: usize = 50;

/// Runs a script, and returns how many uploads were answered with 413.
async fn refused(language: Interpreter, script: &str, server: &str) -> usize {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/edge"));
    let mut command = tokio::process::Command::new(interpreter(language));
    command.arg(folder.join(script)).arg(server).arg(UPLOADS.to_string());
    let output = command.kill_on_drop(true).output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout);
    let count = said.trim().parse();
    count.unwrap_or_else(|_| panic!("{script} ended with {}: {said}{errors}", output.status))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_sees_its_413() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let server = gateway.address().to_string();
    for (language, script) in [
        (Interpreter::Python, "uploads_urllib.py"),
        (Interpreter::Python, "uploads_http_client.py"),
        (Interpreter::Node, "uploads_node.cjs"),
    ] {
        assert_eq!(refused(language, script, &server).await, UPLOADS, "{script}");
    }
    assert_eq!(upstream.runs_in_all(), 0);
}
