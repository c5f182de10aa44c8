//! Requests as the upstream gets them: host, path and forwarding headers.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use onetake_sim::blackbox::Target;

use crate::common::raw_http::{Message, RawClient, RawUpstream};
use crate::common::{InProcess, configuration};

/// The request as the upstream got it, from a gateway with these lines of `[gateway]`.
async fn forwarded(path: &str, gateway: &str, headers: &str) -> (RawUpstream, Message) {
    let upstream = RawUpstream::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let url = format!("{}{path}", upstream.url());
    let gateway = InProcess::start(configuration(&url, gateway, "")).await;
    let mut client = RawClient::connect(gateway.address()).await;
    let request = format!("GET /charges?a=b HTTP/1.1\r\nHost: shop.test:8443\r\n{headers}\r\n");
    client.write(&request).await;
    assert_eq!(client.response().await.unwrap().status(), 200);
    let request = upstream.received().pop().unwrap();
    (upstream, request)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_is_the_clients_the_upstreams_or_a_name() {
    for (line, host) in [
        ("", Some("shop.test:8443")),
        ("upstream_host = \"pass\"", Some("shop.test:8443")),
        ("upstream_host = \"upstream\"", None),
        ("upstream_host = \"api.test\"", Some("api.test")),
    ] {
        let (upstream, request) = forwarded("", line, "").await;
        let own = upstream.url().replace("http://", "");
        assert_eq!(request.header("host"), Some(host.unwrap_or(&own)), "{line}");
        assert_eq!(request.header("x-forwarded-host"), Some("shop.test:8443"), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_path_of_the_upstream_is_put_in_front() {
    for (path, expected) in [
        ("", "get /charges?a=b http/1.1"),
        ("/", "get /charges?a=b http/1.1"),
        ("/api", "get /api/charges?a=b http/1.1"),
        ("/api/v2/", "get /api/v2/charges?a=b http/1.1"),
    ] {
        let (_, request) = forwarded(path, "", "").await;
        assert_eq!(request.head.lines().next(), Some(expected), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarding_headers_are_complete() {
    let claims = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: front.test\r\n\
                  X-Forwarded-Proto: https\r\nX-Forwarded-Port: 443\r\n\
                  Forwarded: for=192.0.2.1;host=front.test;proto=https\r\n";
    let (_, request) = forwarded("", "trusted_proxies = []", claims).await;
    for (name, value) in [
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "shop.test:8443"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-port", "8443"),
        ("forwarded", "for=127.0.0.1;host=\"shop.test:8443\";proto=http"),
    ] {
        assert_eq!(request.header(name), Some(value), "an unknown client claims");
    }
    let trusted = "trusted_proxies = [\"127.0.0.1\"]";
    let (_, request) = forwarded("", trusted, "X-Forwarded-Proto: https\r\n").await;
    assert_eq!(
        request.header("x-forwarded-port"),
        None,
        "8443 may be another one than the client's"
    );
    let (_, request) = forwarded("", trusted, claims).await;
    let both = "for=192.0.2.1;host=front.test;proto=https, \
                for=127.0.0.1;host=\"shop.test:8443\";proto=http";
    for (name, value) in [
        ("x-forwarded-for", "192.0.2.1, 127.0.0.1"),
        ("x-forwarded-host", "front.test"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-port", "443"),
        ("forwarded", both),
    ] {
        assert_eq!(request.header(name), Some(value), "a trusted proxy says");
    }
}
