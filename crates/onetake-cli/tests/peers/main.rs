//! `onetake probe` against idempotency middleware from package registries.
//!
//! Each package has known failures. The probe must find all of them, and no others.
#![expect(clippy::indexing_slicing, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use common::probe::Probed;
use onetake_sim::servers::{Peer, PeerServer};

/// Failures of both packages: a failed operation blocks its key, every client gets everybody's
/// responses, and keys are compared as they are written.
const BOTH: [&str; 9] = [
    "retry-of-error",
    "other-credential",
    "quoted-and-bare",
    "joined-same",
    "joined-other",
    "missing-key",
    "malformed-key",
    "draft-missing",
    "draft-other-body",
];

async fn probe(peer: Peer) -> Probed {
    let server = PeerServer::start(peer).await;
    let url = |path: &str| format!("http://{}{path}", server.address());
    Probed::run(&[
        &url("/charges"),
        "--credential",
        "Authorization: Bearer alice",
        "--other-credential",
        "Authorization: Bearer bob",
        "--count",
        &url("/charges"),
        "--count-pointer",
        "/charges",
        "--other-url",
        &url("/refunds"),
        "--error-body",
        "{\"fail\":true}",
    ])
    .await
}

fn check_failures(probed: &Probed, expected: &[&str]) {
    let mut failed = probed.with("fail");
    let mut expected: Vec<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    failed.sort();
    expected.sort();
    assert_eq!(failed, expected, "{:#}", probed.report);
    assert_eq!(probed.with("not_shown"), [""; 0], "{:#}", probed.report);
    assert_eq!((probed.code, &probed.report["passed"]), (1, &(21 - expected.len()).into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn express_idempotency_1_0_6() {
    check_failures(&probe(Peer::ExpressIdempotency).await, &BOTH);
}

/// It also ignores the payload: another body and another operation get the first response.
#[tokio::test(flavor = "multi_thread")]
async fn asgi_idempotency_header_0_2_0() {
    let expected = [BOTH.as_slice(), &["other-body", "other-url"]].concat();
    check_failures(&probe(Peer::AsgiIdempotencyHeader).await, &expected);
}
