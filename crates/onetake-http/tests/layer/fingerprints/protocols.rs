//! Fingerprints over HTTP/1.1 and HTTP/2: a request over one protocol is recognised over the other.

use std::net::SocketAddr;

use http::HeaderName;
use http::header::{COOKIE, HOST};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use onetake_http::json::Selection;
use onetake_http::{FingerprintMode, Policy};
use onetake_sim::client::{Call, Client};
use tokio::net::TcpListener;

use super::request_model::gzip;
use super::{Node, json, pointers};

/// Serves both protocols on one port.
async fn serve(node: &Node) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = TowerToHyperService::new(node.router.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ended = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// A target, headers and a body.
type Said<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8]);

fn call(client: &Client, key: &str, (path, lines, body): Said<'_>) -> Call {
    let call = client.post(path).key(key).body(body.to_vec());
    lines.iter().fold(call, |call, (name, value)| call.header(name, value))
}

/// Checks that the two requests are one request, in either order of protocols, and that none of the
/// others is.
async fn one_request(policy: Policy, over_1: Said<'_>, over_2: Said<'_>, others: &[Said<'_>]) {
    let node = Node::new(policy);
    let address = serve(&node).await;
    let (http1, http2) = (Client::new(address), Client::http2(address));
    let (over_1, over_2) = ((&http1, over_1), (&http2, over_2));
    for (number, sent) in [[over_1, over_2, over_1], [over_2, over_1, over_2]].iter().enumerate() {
        let key = format!("over-both-protocols-{number}");
        let [first, retry, again] = sent.map(|(client, said)| call(client, &key, said));
        let first = first.send().await.unwrap();
        assert!(first.status() == 201 && !first.is_replay(), "{} {}", first.status, first.text());
        assert_eq!(first.text(), ["HTTP/1.1", "HTTP/2.0"][number]);
        for retry in [retry, again] {
            let retry = retry.send().await.unwrap();
            assert!(retry.is_replay(), "{number}: {} {}", retry.status, retry.text());
            assert_eq!(retry.text(), first.text());
        }
        for client in [&http1, &http2] {
            for other in others {
                let refused = call(client, &key, *other).send().await.unwrap();
                assert_eq!(refused.code(), "idempotency_payload_mismatch", "{other:?}");
            }
        }
    }
    assert_eq!(node.runs(), 2);
}

#[tokio::test]
async fn paths_and_queries() {
    one_request(
        Policy::new(),
        ("/a%20b/%C3%A9%2f?x=1&to=a&to=%62&y=%2B+", &[], b"10"),
        ("/a%20b/%C3%A9%2f?y=%2B+&to=a&x=1&to=%62", &[], b"10"),
        &[
            // The path is compared as it is spelled.
            ("/a%20b/%C3%A9%2F?x=1&to=a&to=%62&y=%2B+", &[], b"10"),
            ("/a%20b/%C3%A9%2f?x=1&to=a&to=b&y=%2B+", &[], b"10"),
            ("/a%20b/%C3%A9%2f?x=1&to=%62&to=a&y=%2B+", &[], b"10"),
            ("/a%20b/%C3%A9%2f", &[], b"10"),
            ("/a%20b/%C3%A9%2f?x=1&to=a&to=%62&y=%2B+", &[], b"11"),
        ],
    )
    .await;
}

#[tokio::test]
async fn chosen_headers_in_one_line_or_several() {
    let headers = [HeaderName::from_static("x-account"), HeaderName::from_static("x-tags")];
    one_request(
        Policy::new().fingerprint_headers(headers),
        ("/", &[("X-Account", "7"), ("x-tags", "a, b"), ("traceparent", "1")], b"10"),
        ("/", &[("x-tags", "a"), ("x-account", "7"), ("x-tags", "b")], b"10"),
        &[
            ("/", &[("x-account", "7"), ("x-tags", "b"), ("x-tags", "a")], b"10"),
            ("/", &[("x-account", "7")], b"10"),
            ("/", &[("x-account", "7"), ("x-tags", "")], b"10"),
            ("/", &[("x-account", "8"), ("x-tags", "a, b")], b"10"),
        ],
    )
    .await;
}

#[tokio::test]
async fn cookies_and_the_host_if_they_count() {
    // HTTP/2 can split cookies over several headers, and has the host in its target.
    one_request(
        Policy::new().fingerprint_headers([COOKIE, HOST]),
        ("/", &[("cookie", "session=1; theme=dark")], b"10"),
        ("/", &[("cookie", "session=1"), ("cookie", "theme=dark")], b"10"),
        &[("/", &[("cookie", "session=2; theme=dark")], b"10"), ("/", &[], b"10")],
    )
    .await;
}

#[tokio::test]
async fn json_with_exclusions_and_spellings_of_the_content_type() {
    let excluded = json(Selection::Exclude(pointers(&["/sent_at"])));
    let zipped = gzip(br#"{"sent_at": 3, "amount": 1e1}"#);
    let plain = [("content-type", "application/json; charset=utf-8")];
    one_request(
        Policy::new().fingerprint(excluded),
        ("/", &plain, br#"{"amount":10,"sent_at":1}"#),
        (
            "/",
            &[("content-type", "Application/JSON;charset=\"UTF-8\""), ("content-encoding", "gzip")],
            &zipped,
        ),
        &[
            ("/", &plain, br#"{"amount":10.1,"sent_at":1}"#),
            ("/", &[("content-type", "application/json")], br#"{"amount":10,"sent_at":1}"#),
            ("/", &plain, b""),
        ],
    )
    .await;
}

#[tokio::test]
async fn forms_with_other_boundaries() {
    one_request(
        Policy::new().fingerprint(FingerprintMode::Bytes),
        ("/", &[("content-type", "multipart/form-data; boundary=a")], b"--a\r\n\r\n1\r\n--a--"),
        ("/", &[("content-type", "multipart/form-data; boundary=\"b\"")], b"--b\r\n\r\n1\r\n--b--"),
        &[
            ("/", &[("content-type", "multipart/form-data; boundary=a")], b"--a\r\n\r\n2\r\n--a--"),
            ("/", &[("content-type", "multipart/mixed; boundary=a")], b"--a\r\n\r\n1\r\n--a--"),
            ("/", &[("content-type", "multipart/form-data; boundary=b")], b"--a\r\n\r\n1\r\n--a--"),
        ],
    )
    .await;
}
