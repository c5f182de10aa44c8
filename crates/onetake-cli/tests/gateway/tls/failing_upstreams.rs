//! Upstreams that die during TLS. Before anything was sent, nothing ran; afterwards the outcome is
//! unknown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onetake_sim::blackbox::Target;
use onetake_sim::client::Client;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::certificates::{Authority, replace};
use super::front::{Rules, server_config};
use super::gateway;

/// The moment when an upstream ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    AtOnce,
    InTheHandshake,
    /// It never responds, and keeps the connection open.
    NeverSpeaks,
    AfterTheRequest,
    /// The response has no length, so it ends with the connection; TLS shows whether it is
    /// complete.
    InTheAnswer,
    AfterTheAnswer,
}

/// An upstream that dies at this moment; it counts the requests that it read.
async fn dying(config: Arc<ServerConfig>, dies: Dies, read: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(config);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            match dies {
                Dies::AtOnce => continue,
                Dies::InTheHandshake => {
                    let _hello = stream.read_u8().await;
                    continue;
                }
                Dies::NeverSpeaks => {
                    kept.push(stream);
                    continue;
                }
                _ => {}
            }
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n10") {
                request.push(stream.read_u8().await.unwrap());
            }
            read.fetch_add(1, Ordering::SeqCst);
            if dies != Dies::AfterTheRequest {
                let answer = b"HTTP/1.1 201 Created\r\nconnection: close\r\n\r\nhalf of it";
                stream.write_all(answer).await.unwrap();
                stream.flush().await.unwrap();
            }
            if dies == Dies::AfterTheAnswer {
                stream.shutdown().await.unwrap();
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_sent_is_released_and_what_was_is_unknown() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let roots = format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.path().display());
    let config = server_config(&authority.issue("localhost"), &Rules::default());
    for (dies, first, again, requests) in [
        (Dies::AtOnce, (502, "upstream_unreachable"), (502, "upstream_unreachable"), 0),
        (Dies::InTheHandshake, (502, "upstream_unreachable"), (502, "upstream_unreachable"), 0),
        (Dies::NeverSpeaks, (502, "upstream_unreachable"), (502, "upstream_unreachable"), 0),
        (Dies::AfterTheRequest, (502, "upstream_interrupted"), (500, "previous_attempt_failed"), 1),
        (Dies::AfterTheAnswer, (201, ""), (201, ""), 1),
    ] {
        let read = Arc::new(AtomicUsize::new(0));
        let address = dying(Arc::clone(&config), dies, Arc::clone(&read)).await;
        let lines = format!("upstream = \"https://localhost:{}\"\n{roots}", address.port());
        let timeout = if dies == Dies::NeverSpeaks { "400ms" } else { "30s" };
        let defaults = format!("[defaults]\nupstream_timeout = \"{timeout}\"");
        let gateway = gateway(&format!("{lines}\n{defaults}")).await;
        let client = Client::new(gateway.address());
        for (number, expected) in [first, again, again].into_iter().enumerate() {
            let answer =
                client.post("/any/charge").key("dying-upstream-0001").send().await.unwrap();
            let seen = (answer.status(), answer.code());
            assert_eq!(seen, (expected.0, expected.1.to_owned()), "{dies:?}, attempt {number}");
        }
        assert_eq!(read.load(Ordering::SeqCst), requests, "{dies:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_an_answer_is_never_taken_for_a_whole_one() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    replace(folder.path(), "ca.pem", &authority.certificate);
    let roots = format!("upstream_tls = {{ roots = \"{}/ca.pem\" }}", folder.path().display());
    let config = server_config(&authority.issue("localhost"), &Rules::default());
    let read = Arc::new(AtomicUsize::new(0));
    let address = dying(config, Dies::InTheAnswer, Arc::clone(&read)).await;
    let lines = format!("upstream = \"https://localhost:{}\"\n{roots}", address.port());
    let gateway = gateway(&lines).await;
    let client = Client::new(gateway.address());
    let first = client.post("/any/charge").key("half-of-an-answer-01").send().await;
    assert!(
        !first.is_ok_and(|answer| answer.status() == 201),
        "half an answer was passed as whole"
    );
    let retry = client.post("/any/charge").key("half-of-an-answer-01").send().await.unwrap();
    assert!(!retry.is_replay() && retry.status() != 201, "{}", retry.text());
    assert_eq!(read.load(Ordering::SeqCst), 1);
}
