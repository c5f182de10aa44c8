//! Connections that are opened and stay silent do not stop others.

use onetake_sim::servers::until;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::World;
use crate::common::raw_http::RawClient;

const PLACES: usize = 16;
const EVICTED: &str = "onetake_connections_evicted_total";
const WAITS: &str = "onetake_overloaded_total{reason=\"connections\"}";

/// Holds a silent connection, and opens another one when it ends.
async fn stay_silent(address: std::net::SocketAddr) {
    while let Ok(mut stream) = TcpStream::connect(address).await {
        let _ended = stream.read(&mut [0; 1]).await;
    }
}

/// Silent connections on every place, and as many again that wait for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_stop_others() {
    let world = World::start(&format!("[limits]\nmax_connections = {PLACES}\n")).await;
    let address = world.gateway.address;
    // A request and half a head, which are in progress.
    let mut running = RawClient::connect(address).await;
    running.post("/any/gate", "a-request-in-progress-1").await;
    world.upstream.ran("a-request-in-progress-1", 1).await;
    let mut half = RawClient::connect(address).await;
    half.write("POST /any/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n").await;
    let silent: JoinSet<()> = (0..PLACES * 2).map(|_| stay_silent(address)).collect();
    until("the places are taken", async || world.gateway.metric(WAITS).await >= 1.0).await;
    // A client makes its connection for each request.
    for number in 0..3 {
        let mut honest = RawClient::connect(address).await;
        honest.post("/any/charge", &format!("an-honest-client-{number:04}")).await;
        assert_eq!(honest.response().await.unwrap().status(), 201);
    }
    assert!(world.gateway.metric(EVICTED).await >= 3.0);
    half.write("Idempotency-Key: half-a-head-00000001\r\nContent-Length: 2\r\n\r\n10").await;
    assert_eq!(half.response().await.unwrap().status(), 201);
    world.upstream.open("a-request-in-progress-1");
    assert_eq!(running.response().await.unwrap().status(), 201);
    drop(silent);
}
