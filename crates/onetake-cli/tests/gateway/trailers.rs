//! Trailers of requests and responses over HTTP/1.1.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use onetake_sim::blackbox::Target;

use crate::common::raw_http::{Message, RawClient, RawUpstream};
use crate::common::{InProcess, configuration};

const ANSWER: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: X-Checksum\r\n\r\n\
                      2\r\nok\r\n0\r\nX-Checksum: 9e37\r\nX-Undeclared: 1\r\n\r\n";

/// Sends a request with a body and trailers.
async fn exchange(gateway: &InProcess, headers: &str, trailers: &str) -> Message {
    let mut client = RawClient::connect(gateway.address()).await;
    let request = format!(
        "POST /any/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n{headers}\
         Transfer-Encoding: chunked\r\n\r\n2\r\n10\r\n0\r\n{trailers}\r\n"
    );
    client.write(&request).await;
    client.response().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_accepts_trailers_gets_those_of_the_response() {
    let upstream = RawUpstream::start(ANSWER).await;
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    for key in ["", "Idempotency-Key: trailers-are-wanted\r\n"] {
        for te in ["TE: trailers\r\n", "TE: deflate;q=0.5, trailers\r\n"] {
            let key = key.replace("wanted", &format!("wanted-{}", te.len()));
            let wants = format!("{te}Connection: TE\r\n{key}");
            let answer = exchange(&gateway, &wants, "").await;
            assert_eq!(answer.header("trailer"), Some("x-checksum"), "{wants}: {answer:?}");
            assert_eq!(answer.text(), "2\r\nok\r\n0\r\nx-checksum: 9e37\r\n\r\n", "{wants}");
        }
        let answer = exchange(&gateway, &key.replace("are", "not"), "").await;
        assert!(!answer.text().contains("checksum"), "not wanted: {answer:?}");
        assert_eq!(answer.header("trailer"), None, "{answer:?}");
    }
    for request in upstream.received() {
        let is_wanted = request.header("te");
        assert!(matches!(is_wanted, None | Some("trailers")), "{request:?}");
        let connection = request.header("connection").unwrap_or_default();
        assert_eq!(connection.contains("te"), is_wanted.is_some(), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_of_a_request_reach_the_upstream() {
    let upstream = RawUpstream::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let trailers = "X-Checksum: 9e37\r\nX-Undeclared: 1\r\n";
    for key in ["", "Idempotency-Key: trailers-of-a-request\r\n"] {
        let answer = exchange(&gateway, &format!("Trailer: X-Checksum\r\n{key}"), trailers).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let request = upstream.received().pop().unwrap();
        assert_eq!(request.header("trailer"), Some("x-checksum"), "{key}");
        assert_eq!(request.text(), "2\r\n10\r\n0\r\nx-checksum: 9e37\r\n\r\n", "{key}");
    }
}

/// A server may merge trailers into the headers. So a trailer must not say what only the gateway
/// may say, and a key counts only in the head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trailer_cannot_forge_what_the_upstream_believes() {
    let upstream = RawUpstream::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let route = "[[route]]\nmatch = \"POST /any/{*rest}\"\ntenant = { header = \"X-Account\" }\n";
    let gateway = InProcess::start(configuration(&upstream.url(), "", route)).await;
    let names = [
        "Idempotency-Key",
        "Idempotency-Fence",
        "Idempotency_Derived-Key",
        "X-Idempotency-Key",
        "X-Account",
        "X-Forwarded-For",
        "X_Forwarded_Host",
        "X-Real-IP",
        "Forwarded",
        "Cookie",
        "Connection",
        "Expect",
        "Authorization",
        "Host",
        "Content-Length",
    ];
    let trailers: String = names.iter().map(|name| format!("{name}: forged\r\n")).collect();
    let declared = format!("Trailer: {}, X-Checksum\r\n", names.join(", "));
    let answer = exchange(&gateway, &declared, &format!("{trailers}X-Checksum: 1\r\n")).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    let request = upstream.received().pop().unwrap();
    assert_eq!(request.header("trailer"), Some("x-checksum"));
    assert_eq!(request.text(), "2\r\n10\r\n0\r\nx-checksum: 1\r\n\r\n");
}
