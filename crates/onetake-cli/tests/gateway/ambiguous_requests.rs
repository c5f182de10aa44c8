//! A request that two servers could read differently is the last one of its connection, whatever
//! else is wrong with it.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::upstream::Upstream;

use crate::common::raw_http::RawClient;
use crate::common::{InProcess, configuration};

/// An ambiguous request with these headers, and another one that hides behind it.
fn request(method: &str, headers: &str) -> String {
    format!(
        "{method} /any/charge HTTP/1.1\r\nHost: a\r\n{headers}\
         Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n\
         POST /any/charge HTTP/1.1\r\nHost: a\r\nX-Case: hidden\r\nContent-Length: 0\r\n\r\n"
    )
}

async fn is_the_last(gateway: &InProcess, request: &str) {
    let mut client = RawClient::connect(gateway.address()).await;
    client.write(request).await;
    let refused = client.response().await.unwrap();
    assert_eq!(refused.status(), 400, "{request}: {}", refused.text());
    assert!(refused.text().contains("request_refused"), "{}", refused.text());
    assert_eq!(refused.header("connection"), Some("close"), "{request}");
    assert_eq!(client.rest().await, b"", "{request}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ambiguous_request_ends_its_connection_while_the_gateway_is_full() {
    let upstream = Upstream::start().await.unwrap();
    let limits = "[limits]\nmax_requests = 1\nmax_queued_requests = 0\n";
    let gateway = InProcess::start(configuration(&upstream.url(), "", limits)).await;
    let client = Client::new(gateway.address());
    let held = tokio::spawn(client.post("/any/gate").key("the-only-request-0005").send());
    upstream.ran("the-only-request-0005", 1).await;
    let full = client.post("/any/charge").key("a-request-too-many-01").send().await.unwrap();
    assert_eq!((full.status(), &*full.code()), (503, "overloaded"));
    is_the_last(&gateway, &request("POST", "")).await;
    upstream.open("the-only-request-0005");
    assert_eq!(held.await.unwrap().unwrap().status(), 201);
    assert_eq!(upstream.runs_in_all(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ambiguous_preflight_ends_its_connection() {
    let upstream = Upstream::start().await.unwrap();
    let cors = "cors = { origins = [\"https://app.example.com\"] }";
    let gateway = InProcess::start(configuration(&upstream.url(), cors, "")).await;
    let wanted = "Origin: https://app.example.com\r\nAccess-Control-Request-Method: POST\r\n";
    is_the_last(&gateway, &request("OPTIONS", wanted)).await;
    let mut client = RawClient::connect(gateway.address()).await;
    let preflight = format!("OPTIONS /any/charge HTTP/1.1\r\nHost: a\r\n{wanted}\r\n");
    for _ in 0..2 {
        client.write(&preflight).await;
        assert_eq!(client.response().await.unwrap().status(), 204, "any other one keeps it");
    }
    assert_eq!(upstream.runs_in_all(), 0);
}
