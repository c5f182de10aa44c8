//! TLS with clients.

use std::time::Duration;

use futures_util::future::join_all;
use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use onetake_sim::upstream::Upstream;
use rustls::ProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::raw_http::RawUpstream;

use super::certificates::{Authority, certificate, replace};
use super::front::{Front, Rules};
use super::peer::{Peer, open};
use super::{gateway, tls_of};

/// The time after which an idle connection is parked, and some more.
const PARKED_AFTER: Duration = Duration::from_millis(1_200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_operation_over_http_1_and_2_and_tls_1_2_and_1_3() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let pair = authority.issue("localhost");
    pair.write(folder.path());
    let upstream = Upstream::start().await.unwrap();
    let lines = format!("upstream = \"{}\"\n{}", upstream.url(), tls_of(folder.path()));
    let gateway = gateway(&lines).await;
    let key = "over-every-version-of-it";
    let mut first = None;
    for (alpn, is_http2) in
        [(&["h2", "http/1.1"][..], true), (&["http/1.1"][..], false), (&[][..], false)]
    {
        for (version, seen) in
            [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)]
        {
            let peer = Peer::connect_with(gateway.address(), &authority, alpn, &[version]).await;
            let mut peer = peer.unwrap();
            assert_eq!((peer.is_http2(), peer.version), (is_http2, seen), "{alpn:?}");
            assert_eq!(peer.certificate, certificate(&pair.certificate));
            let answer = peer.post("/any/charge", key).await.unwrap();
            assert_eq!((answer.status(), answer.is_replay()), (201, first.is_some()), "{alpn:?}");
            let body = first.get_or_insert(answer.body.clone());
            assert_eq!(*body, answer.body);
        }
    }
    assert_eq!(upstream.runs(key), 1);
    // A client that offers no supported protocol is refused.
    assert!(Peer::connect(gateway.address(), &authority, &["h3"]).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_upstream_is_told_that_the_client_came_over_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.issue("localhost").write(folder.path());
    let upstream = Upstream::start().await.unwrap();
    let lines = format!("upstream = \"{}\"\n{}", upstream.url(), tls_of(folder.path()));
    let gateway = gateway(&lines).await;
    let mut peer = Peer::connect(gateway.address(), &authority, &["h2"]).await.unwrap();
    let seen = peer.post("/any/head", "forwarded-over-tls-1").await.unwrap().text();
    assert!(seen.contains("\"x-forwarded-proto\": \"https\""), "{seen}");
    assert!(seen.contains("proto=https"), "{seen}");
}

/// A client that sends its whole body before it reads gets its 413, and an orderly end of TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_late_gets_its_413() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.issue("localhost").write(folder.path());
    let upstream = Upstream::start().await.unwrap();
    let lines = format!("upstream = \"{}\"\n{}", upstream.url(), tls_of(folder.path()));
    let gateway = gateway(&lines).await;
    let body = vec![b'x'; 16 << 20];
    for version in [&TLS12, &TLS13, &TLS12, &TLS13] {
        let stream = open(gateway.address(), &authority, &["http/1.1"], &[version]).await;
        let mut stream = stream.unwrap();
        let head = format!(
            "POST /any/charge HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n\
             Idempotency-Key: too-large-over-tls-01\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let mut answer = String::new();
        // Without close_notify this would be an error.
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("request_body_too_large"), "{answer}");
    }
    assert_eq!(upstream.runs_in_all(), 0);
}

/// Informational responses are written beneath HTTP, and above TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_hints_arrive_over_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.issue("localhost").write(folder.path());
    let hint = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let upstream = RawUpstream::start(format!("{hint}{answer}")).await;
    let tls = tls_of(folder.path());
    let lines = format!("upstream = \"{}\"\nearly_hints = true\n{tls}", upstream.url());
    let gateway = gateway(&lines).await;
    for version in [&TLS12, &TLS13] {
        let stream = open(gateway.address(), &authority, &["http/1.1"], &[version]).await;
        let mut stream = stream.unwrap();
        let request = "GET /any HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).await.unwrap();
        let rest = got.strip_prefix(hint).unwrap_or_else(|| panic!("{got}"));
        assert!(rest.starts_with("HTTP/1.1 200 OK\r\n") && rest.ends_with("\r\n\r\nok"), "{got}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_speak_tls_does_no_harm() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.issue("localhost").write(folder.path());
    let upstream = Upstream::start().await.unwrap();
    let lines = format!("upstream = \"{}\"\n{}", upstream.url(), tls_of(folder.path()));
    let gateway = gateway(&lines).await;
    let address = gateway.address();
    let silent = join_all((0..20).map(|_| TcpStream::connect(address))).await;
    for said in [
        &b"POST /any/charge HTTP/1.1\r\nHost: a\r\nIdempotency-Key: plain-http-to-tls-1\r\nContent-Length: 0\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 4096],
        &[0x16, 0x03, 0x01, 0xff, 0xff, 0x01],
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    }
    let plain = Client::new(address).post("/any/charge").key("plain-http-to-tls-2").send().await;
    assert!(plain.is_err(), "{plain:?}");
    let stranger = Authority::new();
    for _ in 0..50 {
        assert!(Peer::connect(address, &stranger, &["h2"]).await.is_err());
    }
    assert_eq!(upstream.runs_in_all(), 0);
    let mut peer = Peer::connect(address, &authority, &["h2"]).await.unwrap();
    assert_eq!(peer.post("/any/charge", "and-it-still-serves-1").await.unwrap().status(), 201);
    assert!(silent.iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_goes_through_both_sides() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let pair = authority.issue("localhost");
    pair.write(folder.path());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let upstream = Upstream::start().await.unwrap();
    let front = Front::start(upstream.address(), &pair, Rules::default()).await;
    let roots = format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.path().display());
    let lines = format!("{}\n{roots}\n{}", front.upstream("localhost"), tls_of(folder.path()));
    let gateway = gateway(&lines).await;
    let versions = rustls::ALL_VERSIONS;
    let stream = open(gateway.address(), &authority, &["http/1.1"], versions).await;
    let mut stream = stream.unwrap();
    let request = "HEAD /any/charge HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for is_parked_before in [false, true] {
        if is_parked_before {
            SystemClock.sleep(PARKED_AFTER).await;
        }
        let answer = head(&mut stream, request).await;
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
    SystemClock.sleep(PARKED_AFTER).await;
    let upgrade = "GET /any/ws HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    // A handshake has no body. The upload would have no time limit after its response.
    let other = open(gateway.address(), &authority, &["http/1.1"], versions).await;
    let with_body = upgrade.replace("\r\n\r\n", "\r\nContent-Length: 1\r\n\r\nx");
    let answer = head(&mut other.unwrap(), &with_body).await;
    assert!(!answer.starts_with("HTTP/1.1 101"), "{answer}");
    let answer = head(&mut stream, upgrade).await;
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    stream.write_all(b"an echo, please").await.unwrap();
    let mut echo = [0; 15];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"an echo, please");
}

/// Sends a request, and reads the head of its response.
async fn head(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}
