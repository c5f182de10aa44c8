//! Limits of the heads of requests and responses.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::fmt::Write as _;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::upstream::Upstream;
use tokio::net::TcpListener;

use crate::common::raw_http::{RawClient, RawUpstream};
use crate::common::{InProcess, configuration};

/// This many headers, with values of this size.
fn headers(count: usize, bytes: usize) -> Vec<(String, String)> {
    (0..count).map(|number| (format!("x-filler-{number}"), "x".repeat(bytes))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_large_gets_a_problem_in_every_version_of_http() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    for filler in [headers(101, 1), headers(1_000, 1), headers(10, 7_000), headers(1, 200_000)] {
        let what = format!("{} of {}", filler.len(), filler[0].1.len());
        let mut client = RawClient::connect(gateway.address()).await;
        let mut head = "GET /any/charge HTTP/1.1\r\nHost: a\r\n".to_owned();
        for (name, value) in &filler {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        client.write(&(head + "\r\n")).await;
        let answer = client.response().await.expect(&what);
        assert_eq!(answer.status(), 431, "{what}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert!(
            answer.text().contains("\"code\":\"request_head_too_large\""),
            "{what}: {answer:?}"
        );
        assert_eq!(client.rest().await, b"", "{what}: nothing else, and an end");
        let mut call = Client::http2(gateway.address()).post("/any/charge").method("GET").body("");
        for (name, value) in &filler {
            call = call.header(name, value);
        }
        let answer = call.send().await.unwrap();
        // Above twice the limit, the library for HTTP/2 refuses by itself, without a problem.
        let is_refused_by_library = filler.len() * filler[0].1.len() > 128 << 10;
        let code = if is_refused_by_library { "" } else { "request_head_too_large" };
        assert_eq!((answer.status(), &*answer.code()), (431, code), "{what}");
    }
    assert_eq!(upstream.runs_in_all(), 0);
    for client in [Client::new(gateway.address()), Client::http2(gateway.address())] {
        let mut call = client.post("/any/charge").method("GET").body("");
        // The gateway adds some, and the upstream accepts a hundred.
        for (name, value) in &headers(85, 100) {
            call = call.header(name, value);
        }
        assert_eq!(call.send().await.unwrap().status(), 201, "a large head below the limits");
    }
}

/// The parser has a limit of its own for the target, above the default of `max_header_bytes`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_too_long_gets_a_problem() {
    let upstream = Upstream::start().await.unwrap();
    let limits = "[limits]\nmax_header_bytes = \"128KiB\"\n";
    let gateway = InProcess::start(configuration(&upstream.url(), "", limits)).await;
    let mut client = RawClient::connect(gateway.address()).await;
    let target = "x".repeat(70_000);
    client.write(&format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
    let answer = client.response().await.unwrap();
    assert_eq!(answer.status(), 431);
    assert!(answer.text().contains("\"code\":\"request_head_too_large\""), "{answer:?}");
    assert_eq!(client.rest().await, b"");
    assert_eq!(upstream.runs_in_all(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_head_gets_a_problem() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    for head in ["GET / HTTP/1.1\r\nHost : a\r\n\r\n", "G@T / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let mut client = RawClient::connect(gateway.address()).await;
        client.write(head).await;
        let answer = client.response().await.unwrap();
        assert_eq!(answer.status(), 400, "{head}");
        assert!(answer.text().contains("\"code\":\"request_refused\""), "{head}: {answer:?}");
        assert_eq!(client.rest().await, b"");
    }
    // After a request on the same connection, too.
    let mut client = RawClient::connect(gateway.address()).await;
    client.post("/any/charge", "before-a-bad-head-01").await;
    assert_eq!(client.response().await.unwrap().status(), 201);
    client.write("GET / HTTP/1.1\r\nHost : a\r\n\r\n").await;
    let answer = client.response().await.unwrap();
    assert!(answer.text().contains("\"code\":\"request_refused\""), "{answer:?}");
}

/// A refusal of the upstream itself stays as it is, with an empty body too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_upstream_is_not_changed() {
    for status in ["400 Bad Request", "431 Request Header Fields Too Large"] {
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let upstream = RawUpstream::start(answer).await;
        let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
        let mut client = RawClient::connect(gateway.address()).await;
        for last in ["", "Connection: close\r\n"] {
            client.write(&format!("GET / HTTP/1.1\r\nHost: a\r\n{last}\r\n")).await;
            let answer = client.response().await.unwrap();
            let code: u16 = status.split(' ').next().unwrap().parse().unwrap();
            assert_eq!((answer.status(), &*answer.text()), (code, ""), "{status} {last}");
            assert_eq!(answer.header("content-type"), None, "{status} {last}");
        }
    }
}

/// An upstream of HTTP/2 that answers with these headers, and the number of its requests.
async fn http2_upstream(headers: Vec<(String, String)>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let requests = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (counted, headers) = (Arc::clone(&counted), headers.clone());
            let service = service_fn(move |_: Request<Incoming>| {
                counted.fetch_add(1, Ordering::SeqCst);
                let response = Response::builder().status(201);
                let response = headers
                    .iter()
                    .fold(response, |response, (name, value)| response.header(name, value));
                ready(response.body(Full::<Bytes>::from("ok")))
            });
            let http = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, requests)
}

/// Sends a keyed request twice: it runs once, and its response is recorded.
async fn is_recorded(upstream: &str) {
    let gateway = InProcess::start(configuration(upstream, "", "")).await;
    for is_replay in [false, true] {
        let mut client = RawClient::connect(gateway.address()).await;
        client.post("/any/charge", "many-headers-0000001").await;
        let answer = client.response().await.unwrap();
        assert_eq!(answer.status(), 201, "{upstream}: {}", answer.text());
        assert_eq!(answer.header("idempotent-replayed").is_some(), is_replay);
        assert!(answer.header("x-filler-299").unwrap().starts_with("xxxxxxxxxx"), "{upstream}");
    }
}

/// An upstream's response with many headers is an outcome like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_with_many_headers_is_recorded() {
    for filler in [headers(300, 10), headers(480, 800)] {
        let mut answer = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n".to_owned();
        for (name, value) in &filler {
            write!(answer, "{name}: {value}\r\n").unwrap();
        }
        let upstream = RawUpstream::start(answer + "\r\nok").await;
        is_recorded(&upstream.url()).await;
        assert_eq!(upstream.received().len(), 1);
        let (url, requests) = http2_upstream(filler).await;
        is_recorded(&url).await;
        assert_eq!(requests.load(Ordering::SeqCst), 1);
    }
}
