//! Trailers of requests and responses.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use onetake_sim::blackbox::Target;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

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

/// Names that only the gateway may send, or that count only in the head.
const FORGED: [&str; 18] = [
    "Idempotency-Key",
    "Idempotency-Fence",
    "Idempotency_Derived-Key",
    "X-Idempotency-Key",
    "X-Account",
    "X-Delivery",
    "X-Forwarded-For",
    "X_Forwarded_Host",
    "X-Real-IP",
    "X-HTTP-Method-Override",
    "X-HTTP-Method",
    "Forwarded",
    "Cookie",
    "Connection",
    "Expect",
    "Authorization",
    "Host",
    "Content-Length",
];

const ROUTES: &str = "[[route]]\nmatch = \"POST /any/{*rest}\"\ntenant = { header = \"X-Account\" }\n\
     [[route]]\nmatch = \"POST /hooks/{*rest}\"\ntenant = \"public\"\n\
     key = { from = \"header\", name = \"X-Delivery\" }\n";

/// Sends a request with forged trailers and an honest one.
async fn forge(gateway: &InProcess) {
    let trailers: String = FORGED.iter().map(|name| format!("{name}: forged\r\n")).collect();
    let declared = format!("Trailer: {}, X-Checksum\r\n", FORGED.join(", "));
    let answer = exchange(gateway, &declared, &format!("{trailers}X-Checksum: 1\r\n")).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
}

/// A server may merge trailers into the headers. So a trailer must not say what only the gateway
/// may say, and a key counts only in the head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trailer_cannot_forge_what_the_upstream_believes() {
    let upstream = RawUpstream::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let gateway = InProcess::start(configuration(&upstream.url(), "", ROUTES)).await;
    forge(&gateway).await;
    let request = upstream.received().pop().unwrap();
    assert_eq!(request.header("trailer"), Some("x-checksum"));
    assert_eq!(request.text(), "2\r\n10\r\n0\r\nx-checksum: 1\r\n\r\n");
}

/// An upstream of HTTP/2, and the trailers that it gets.
async fn http2_upstream() -> (String, mpsc::Receiver<Option<HeaderMap>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel(9);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let sender = sender.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let sender = sender.clone();
                async move {
                    let body = request.into_body().collect().await.unwrap();
                    sender.send(body.trailers().cloned()).await.unwrap();
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
                }
            });
            let http = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, receiver)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trailer_cannot_forge_what_an_upstream_of_http2_believes() {
    let (upstream, mut received) = http2_upstream().await;
    let gateway = InProcess::start(configuration(&upstream, "", ROUTES)).await;
    forge(&gateway).await;
    let trailers = received.recv().await.unwrap().unwrap();
    assert_eq!(trailers.len(), 1, "{trailers:?}");
    assert_eq!(trailers["x-checksum"], "1");
    // HTTP/2 needs no Trailer header to send them.
    let undeclared = "Idempotency-Fence: 9\r\nX-Account: victim\r\n";
    assert_eq!(exchange(&gateway, "", undeclared).await.status(), 200);
    let trailers = received.recv().await.unwrap().unwrap_or_default();
    assert!(trailers.is_empty(), "{trailers:?}");
}
