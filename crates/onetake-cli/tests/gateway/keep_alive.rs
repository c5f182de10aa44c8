//! Idle connections of clients, and requests whose head does not end.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use onetake_sim::blackbox::Target;
use onetake_sim::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::common::raw_http::RawClient;
use crate::common::{InProcess, configuration};

/// Longer than the timeout for the head of a request, which is fifteen seconds.
const PAUSE: Duration = Duration::from_millis(16_500);

/// A connection after its first request.
async fn used(gateway: &InProcess, key: &str) -> RawClient {
    let mut client = RawClient::connect(gateway.address()).await;
    client.post("/any/charge", key).await;
    assert_eq!(client.response().await.unwrap().status(), 201);
    client
}

/// Load balancers keep idle connections for 60 seconds. A gateway that closes them before gets
/// requests that it never answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_outlive_the_timeout_for_heads() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let mut idle = used(&gateway, "idle-connection-0001").await;
    let mut half = used(&gateway, "half-a-head-00000001").await;
    let mut new = RawClient::connect(gateway.address()).await;
    half.write("POST /any/charge HTTP/1.1\r\nHost: a\r\n").await;
    let since = SystemClock.monotonic();
    assert_eq!(half.rest().await, b"", "a head that does not end is not waited for");
    let took = SystemClock.monotonic() - since;
    assert!(took > Duration::from_secs(10), "{took:?}");
    SystemClock.sleep(PAUSE.saturating_sub(took)).await;
    for (client, key) in [(&mut idle, "idle-connection-0002"), (&mut new, "new-connection-00001")] {
        client.post("/any/charge", key).await;
        let answer = client.response().await.expect(key);
        assert_eq!(answer.status(), 201, "{key}");
        assert_eq!(answer.header("connection"), None, "{key}");
    }
    assert_eq!(upstream.runs_in_all(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_end_after_the_configured_time() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "keep_alive = \"3s\"", "")).await;
    let mut new = RawClient::connect(gateway.address()).await;
    let mut idle = used(&gateway, "idle-connection-0003").await;
    let since = SystemClock.monotonic();
    assert_eq!((new.rest().await, idle.rest().await), (vec![], vec![]));
    let took = SystemClock.monotonic() - since;
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(14), "{took:?}");
    // A request that takes longer is not idle time.
    let mut client = RawClient::connect(gateway.address()).await;
    client.post("/any/slow?ms=4500", "slow-and-not-idle-01").await;
    assert_eq!(client.response().await.unwrap().status(), 201);
}

/// By default, they end after four seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_to_upstreams_end_after_the_configured_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    // The default is too short to be told from this one on a machine that stalls: the unit tests of
    // the idle connections have a clock of their own.
    let line = "upstream_keep_alive = \"100ms\"";
    let gateway = InProcess::start(configuration(&upstream, line, "")).await;
    let mut client = RawClient::connect(gateway.address()).await;
    client.write("GET /any HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    assert_eq!(client.response().await.unwrap().status(), 200);
    assert_eq!(stream.read_buf(&mut request).await.unwrap(), 0, "an end, and no other request");
}

/// After a second, the gateway keeps no more of an idle connection than its socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_the_moment_of_parking_are_served() {
    let upstream = Upstream::start().await.unwrap();
    let gateway = InProcess::start(configuration(&upstream.url(), "", "")).await;
    let clients = (0..200_u64).map(|number| {
        let address = gateway.address();
        tokio::spawn(async move {
            let mut client = RawClient::connect(address).await;
            for round in 0..3 {
                for part in ["a", "b"] {
                    let key = format!("in-the-moment-{number:04}-{round}-{part}");
                    client.post("/any/charge", &key).await;
                }
                for _ in 0..2 {
                    let answer = client.response().await.unwrap();
                    assert_eq!((answer.status(), answer.header("connection")), (201, None));
                }
                SystemClock.sleep(Duration::from_micros(990_000 + 100 * number)).await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    assert_eq!(upstream.runs_in_all(), 1_200);
}

/// A client that stops reading does not hold its request, and the upstream's connection, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_is_cut_off() {
    const BYTES: usize = 32_000_000;
    let upstream = Upstream::start().await.unwrap();
    let limits = "[limits]\nsend_timeout = \"1s\"\n";
    let gateway = InProcess::start(configuration(&upstream.url(), "", limits)).await;
    let request =
        format!("POST /any/large?bytes={BYTES} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n10");
    let mut silent = RawClient::connect(gateway.address()).await;
    silent.write(&request).await;
    let mut reading = RawClient::connect(gateway.address()).await;
    reading.write(&request).await;
    assert_eq!(reading.response().await.unwrap().body.len(), BYTES);
    SystemClock.sleep(Duration::from_secs(4)).await;
    // What the operating systems had in their buffers is still there.
    let rest = silent.rest().await.len();
    assert!(rest < BYTES / 2, "{rest} bytes");
}
