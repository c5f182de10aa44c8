//! The end of a gateway: its delay, the announcement to clients, and peers that hold it up.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use http::Request;
use onetake_core::{Clock, SystemClock};
use onetake_sim::client::Client;
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::process::Process;
use crate::common::raw_http::RawClient;

/// Starts a gateway with a delay and a limit for its end.
async fn start(folder: &tempfile::TempDir, upstream: &str, delay: &str, limit: &str) -> Process {
    let variables =
        [("ONETAKE__GATEWAY__SHUTDOWN_DELAY", delay), ("ONETAKE__GATEWAY__SHUTDOWN_LIMIT", limit)];
    let arguments = ["--log-format", "json"];
    Process::start_as(&arguments, folder.path(), "", upstream, &variables).await
}

impl Process {
    async fn is_ready(&self) -> bool {
        let ready = Client::new(self.admin).post("/readyz").method("GET").body("").send().await;
        ready.is_ok_and(|answer| answer.status() == 200)
    }

    /// Sends SIGTERM, and waits until the gateway is not ready.
    async fn leave(&self) {
        assert!(self.is_ready().await);
        self.signal();
        until("it is not ready", async || !self.is_ready().await).await;
    }

    /// Waits for the end, and returns how long it took.
    async fn ended(&mut self) -> Duration {
        let since = SystemClock.monotonic();
        let status = tokio::select! {
            biased;
            status = self.child.wait() => status.unwrap(),
            () = SystemClock.sleep(Duration::from_secs(90)) => panic!("it does not end"),
        };
        assert!(status.success(), "{status}: {}", self.logs.lock().unwrap());
        SystemClock.monotonic() - since
    }

    fn has_logged(&self, text: &str) -> bool {
        self.logs.lock().unwrap().contains(text)
    }

    /// Waits for a line of the log. The end of the process may be known before its last lines.
    async fn wait_for_log(&self, text: &str) {
        until(text, async || self.has_logged(text)).await;
    }
}

/// A load balancer that still sends requests gets answers, and is asked to close its connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_served_and_told_to_leave_before_the_listener_closes() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let mut gateway = start(&folder, &upstream.url(), "5m", "30s").await;
    let mut kept = RawClient::connect(gateway.address).await;
    kept.post("/any/charge", "kept-connection-00001").await;
    assert_eq!(kept.response().await.unwrap().header("connection"), None);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut streams, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let get = || Request::get("http://a/any/charge").body(()).unwrap();
    streams = streams.ready().await.unwrap();
    assert_eq!(streams.send_request(get(), true).unwrap().0.await.unwrap().status(), 201);
    gateway.leave().await;
    // A new connection, one that is kept, and one of HTTP/2.
    let mut new = RawClient::connect(gateway.address).await;
    for (client, key) in [(&mut new, "new-connection-000001"), (&mut kept, "kept-connection-00002")]
    {
        client.post("/any/charge", key).await;
        let answer = client.response().await.unwrap();
        assert_eq!((answer.status(), answer.header("connection")), (201, Some("close")), "{key}");
        assert_eq!(client.rest().await, b"", "{key}");
    }
    streams = streams.ready().await.unwrap();
    assert_eq!(streams.send_request(get(), true).unwrap().0.await.unwrap().status(), 201);
    connection.await.unwrap().unwrap();
    assert!(streams.ready().await.is_err(), "GOAWAY");
    assert!(!gateway.has_logged("draining"), "all of this was before the drain");
    gateway.signal();
    gateway.ended().await;
    assert!(TcpStream::connect(gateway.address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_skips_the_delay_and_a_third_one_the_drain() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let mut gateway = start(&folder, &upstream.url(), "5m", "5m").await;
    gateway.leave().await;
    gateway.signal();
    gateway.ended().await;
    let mut gateway = start(&folder, &upstream.url(), "5m", "5m").await;
    let _running =
        tokio::spawn(gateway.client.post("/any/gate").key("never-ends-000000001").send());
    upstream.ran("never-ends-000000001", 1).await;
    gateway.leave().await;
    gateway.signal();
    gateway.wait_for_log("draining").await;
    gateway.signal();
    assert!(!gateway.child.wait().await.unwrap().success());
    gateway.wait_for_log("stopped immediately").await;
}

/// Opens an HTTP/2 connection that asks for a large response and never reads it.
async fn deaf_http2(gateway: &Process) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS with an initial window of 2^31 - 1, and the same for the connection.
    bytes.extend_from_slice(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff]);
    bytes.extend_from_slice(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0x00, 0x00, 0x00]);
    let path = b"/any/large?bytes=50000000";
    // HEADERS: GET, http, the path, and the authority.
    let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend_from_slice(path);
    block.extend_from_slice(&[0x01, 1, b'a']);
    bytes.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(&block);
    stream.write_all(&bytes).await.unwrap();
    stream
}

/// Peers that are idle, silent, or do not read: none of them decides when the gateway ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_silent_peers_do_not_delay_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let mut gateway = start(&folder, &upstream.url(), "100ms", "60s").await;
    let deaf = deaf_http2(&gateway).await;
    let silent = RawClient::connect(gateway.address).await;
    let mut idle = RawClient::connect(gateway.address).await;
    idle.post("/any/charge", "idle-at-the-end-00001").await;
    assert_eq!(idle.response().await.unwrap().status(), 201);
    let mut deaf_http1 = RawClient::connect(gateway.address).await;
    let request = "GET /any/large?bytes=50000000 HTTP/1.1\r\nHost: a\r\nX-Case: deaf\r\n\r\n";
    deaf_http1.write(request).await;
    upstream.ran("deaf", 1).await;
    until("both deaf peers are served", async || upstream.runs_in_all() >= 3).await;
    let idle_http2 = TcpStream::connect(gateway.address).await.unwrap();
    let (_streams, idle_http2) = h2::client::handshake(idle_http2).await.unwrap();
    // It answers no PING.
    gateway.signal();
    let took = gateway.ended().await;
    assert!(took < Duration::from_secs(30), "{took:?}");
    gateway.wait_for_log("\"drained\"").await;
    drop((deaf, silent, idle, deaf_http1, idle_http2));
}

/// An operation that does not end in time has an unknown outcome, and never runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_does_not_end_is_unknown_after_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start().await.unwrap();
    let mut gateway = start(&folder, &upstream.url(), "0s", "1s").await;
    let key = "runs-past-the-limit-1";
    let running = tokio::spawn(gateway.client.post("/any/gate").key(key).send());
    upstream.ran(key, 1).await;
    gateway.signal();
    gateway.ended().await;
    assert!(running.await.unwrap().is_err(), "it was cut off");
    gateway.wait_for_log("drain timeout").await;
    let gateway = start(&folder, &upstream.url(), "0s", "1s").await;
    let retry = gateway.client.post("/any/gate").key(key).send().await.unwrap();
    assert_eq!((retry.status(), &*retry.code()), (500, "previous_attempt_failed"));
    assert_eq!(upstream.runs(key), 1);
}

/// An upstream that sends one event after the other, without an end.
async fn endless_events() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 1024];
                assert_ne!(stream.read(&mut request).await.unwrap(), 0);
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                stream.write_all(head.as_bytes()).await.unwrap();
                while stream.write_all(b"data: tick\n\n").await.is_ok() {
                    SystemClock.sleep(Duration::from_millis(50)).await;
                }
            });
        }
    });
    url
}

/// A response that does not end by itself is cut off at the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_response_is_cut_off_at_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = endless_events().await;
    let mut gateway = start(&folder, &upstream, "0s", "3s").await;
    let mut reader = RawClient::connect(gateway.address).await;
    reader.write("GET /events HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let reading = tokio::spawn(async move { reader.rest().await });
    gateway.wait_for_log("onetake::access").await;
    gateway.signal();
    let took = gateway.ended().await;
    assert!(took > Duration::from_secs(2) && took < Duration::from_secs(20), "{took:?}");
    gateway.wait_for_log("connections that did not end in time are cut off").await;
    assert!(!reading.await.unwrap().is_empty());
}
