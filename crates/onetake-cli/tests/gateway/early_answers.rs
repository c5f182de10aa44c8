//! Responses that are sent while the client still uploads.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::common::process::Process;
use crate::common::raw_http::RawClient;
use crate::common::{InProcess, configuration};

/// More than all buffers between client and gateway hold.
const BODY_BYTES: usize = 16 << 20;
/// Longer than a machine stalls.
const STALL_MAX: Duration = Duration::from_secs(60);

/// A client that sends its whole body before it reads gets the refusal of a body that is too large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_late_gets_its_413() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let body = vec![b'x'; BODY_BYTES];
    for number in 0..50 {
        let mut client = RawClient::connect(gateway.address()).await;
        let head = format!(
            "POST /any/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
             Idempotency-Key: a-body-too-large-{number}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
        );
        client.write(&head).await;
        let sent = client.0.write_all(&body).await;
        assert!(sent.is_ok(), "{number}: {sent:?}");
        let answer = client.response().await.unwrap();
        assert_eq!(answer.status(), 413, "{number}: {answer:?}");
        assert!(answer.text().contains("request_body_too_large"), "{}", answer.text());
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(client.rest().await, b"", "{number}: an orderly end");
    }
    assert_eq!(upstream.runs_in_all(), 0);
}

/// A client that never ends its upload does not hold its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_upload_is_cut_off() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let mut client = RawClient::connect(gateway.address()).await;
    let head = "POST /any/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
                Idempotency-Key: an-endless-upload-01\r\nContent-Length: 1000000000000\r\n\r\n";
    client.write(head).await;
    assert_eq!(client.response().await.unwrap().status(), 413);
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0_usize;
    while client.0.write_all(&piece).await.is_ok() {
        sent += 1;
        assert!(sent < 1_000, "a gigabyte was read");
    }
    assert!(sent > 16, "only {sent} MiB were read");
}

/// An upstream that answers as soon as it has the head of a request. It reads a body for each
/// permit, and announces each body.
struct EarlyUpstream {
    url: String,
    permits: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
}

impl EarlyUpstream {
    async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (permits, bodies) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (taken, read) = (Arc::clone(&permits), Arc::clone(&bodies));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (permits, bodies) = (Arc::clone(&taken), Arc::clone(&read));
                tokio::spawn(async move {
                    let _ended = Self::serve(stream, answer, &permits, &bodies).await;
                });
            }
        });
        Self { url, permits, bodies }
    }

    async fn serve(
        mut stream: TcpStream,
        answer: &str,
        permits: &Semaphore,
        bodies: &Semaphore,
    ) -> std::io::Result<()> {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await?);
            }
            stream.write_all(answer.as_bytes()).await?;
            permits.acquire().await.unwrap().forget();
            let head = String::from_utf8(head).unwrap().to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            stream.read_exact(&mut body).await?;
            bodies.add_permits(1);
        }
    }

    /// Waits until a body was read.
    async fn read(&self) {
        tokio::select! {
            read = self.bodies.acquire() => read.unwrap().forget(),
            () = SystemClock.sleep(STALL_MAX) => panic!("a body was not read"),
        }
    }
}

/// The response to a keyed request does not wait for the upload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_response_is_an_outcome() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ] {
        let upstream = EarlyUpstream::start(answer).await;
        let large = "[defaults]\nmax_request_body = \"32MiB\"\n";
        let gateway = InProcess::start(configuration(&upstream.url, "", large)).await;
        let mut client = RawClient::connect(gateway.address()).await;
        let head = format!(
            "POST /any/early HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
             Idempotency-Key: an-early-outcome-01\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
        );
        client.write(&head).await;
        client.0.write_all(&vec![b'x'; BODY_BYTES]).await.unwrap();
        // The upstream reads the body after this.
        let response = client.response().await.unwrap();
        assert_eq!(response.status(), 200, "{answer} {response:?}");
        upstream.permits.add_permits(1);
        upstream.read().await;
    }
}

/// The body of such a request counts as memory until the upload has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_goes_on_after_its_outcome_counts_as_memory() {
    const MEMORY: &str = "onetake_body_memory_bytes";
    let upstream = EarlyUpstream::start("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let folder = tempfile::tempdir().unwrap();
    let large = "[defaults]\nmax_request_body = \"32MiB\"\n";
    let gateway = Process::start(folder.path(), large, &upstream.url).await;
    let mut client = RawClient::connect(gateway.address).await;
    let head = format!(
        "POST /any/early HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n\
         Idempotency-Key: an-early-outcome-01\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    );
    client.write(&head).await;
    client.0.write_all(&vec![b'x'; BODY_BYTES]).await.unwrap();
    assert_eq!(client.response().await.unwrap().status(), 200);
    let held = gateway.metric(MEMORY).await;
    assert!(held >= BODY_BYTES as f64, "{held} bytes");
    upstream.permits.add_permits(1);
    upstream.read().await;
    let given_back = async {
        while gateway.metric(MEMORY).await > 0.0 {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = given_back => {}
        () = SystemClock.sleep(STALL_MAX) => panic!("the memory was not given back"),
    }
    gateway.kill().await;
}

/// An upload goes on after a response without a body, and the connections are used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_response_without_a_body_keeps_its_connection() {
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n", 204),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304),
    ] {
        let upstream = EarlyUpstream::start(answer).await;
        let gateway = InProcess::start(configuration(&upstream.url, "", "")).await;
        let mut client = RawClient::connect(gateway.address()).await;
        for _ in 0..2 {
            let head = "POST /any/early HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n";
            client.write(head).await;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.0.read_u8().await.expect(answer));
            }
            let head = String::from_utf8(head).unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer} {head}");
            assert!(!head.contains("connection:"), "{answer} {head}");
            upstream.permits.add_permits(1);
            for piece in ["abc", "def", "ghi"] {
                client.write(piece).await;
            }
            upstream.read().await;
        }
    }
}
