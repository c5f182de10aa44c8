//! The limits of HTTP/2 connections to upstreams, and their metrics.

use std::net::SocketAddr;

use onetake_sim::client::Client;
use onetake_sim::grpc::cases::until;
use onetake_sim::grpc::service::GrpcService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::GrpcWorld;

/// The most connections to one upstream, for each core.
const CONNECTIONS_MAX: usize = 64;

/// A metric of the upstream at an address.
async fn metric(world: &GrpcWorld, name: &str, upstream: SocketAddr) -> usize {
    let admin = Client::new(world.gateway.admin());
    let text = admin.post("/metrics").method("GET").body("").send().await.unwrap().text();
    let upstream = format!("upstream=\"{upstream}\"");
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(&upstream));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
}

/// The calls of one client connection are all on one core, and so are their upstream connections.
#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limit_of_connections_are_refused_and_counted() {
    let service = GrpcService::start_with_streams_max(1).await.unwrap();
    let upstream = service.address();
    let world = GrpcWorld::in_front_of(service.clone(), &service.url(), "memory:", "").await;
    // At once: no connection gets a second call before its limit is known.
    let key = |nth| format!("grpc-beyond-the-limit-{nth:03}");
    let held: Vec<_> = (0..CONNECTIONS_MAX)
        .map(|nth| tokio::spawn(world.call("Hold").key(&key(nth)).send()))
        .collect();
    until("all run", || (0..CONNECTIONS_MAX).all(|nth| service.runs(&key(nth)) == 1)).await;
    let metric = |name: &'static str| metric(&world, name, upstream);
    assert_eq!(metric("onetake_upstream_http2_refused_total").await, 0);
    let last = "grpc-beyond-the-limit-last";
    let refused = world.call("Charge").key(last).send().await.unwrap();
    assert_eq!((refused.code(), refused.tells("upstream_unreachable")), (Some(14), true));
    assert_eq!(service.runs(last), 0);
    assert_eq!(metric("onetake_upstream_http2_connections").await, CONNECTIONS_MAX);
    assert_eq!(metric("onetake_upstream_http2_streams{").await, CONNECTIONS_MAX);
    assert_eq!(metric("onetake_upstream_http2_streams_allowed").await, CONNECTIONS_MAX);
    assert_eq!(metric("onetake_upstream_http2_refused_total").await, 1);
    for (nth, call) in held.into_iter().enumerate() {
        service.open(&key(nth));
        assert_eq!(call.await.unwrap().unwrap().code(), Some(0));
    }
    // The key was released.
    assert_eq!(world.call("Charge").key(last).send().await.unwrap().code(), Some(0));
    assert_eq!(metric("onetake_upstream_http2_streams{").await, 0);
}

/// An upstream that refuses every stream.
async fn refusing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut preface = [0; 24];
                stream.read_exact(&mut preface).await?;
                stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
                loop {
                    let mut prefix = [0; 9];
                    stream.read_exact(&mut prefix).await?;
                    let [a, b, c, kind, _, number @ ..] = prefix;
                    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
                    stream.read_exact(&mut payload).await?;
                    if kind == 1 {
                        // RST_STREAM with REFUSED_STREAM.
                        let refusal = [&[0, 0, 4, 3, 0][..], &number, &[0, 0, 0, 7]].concat();
                        stream.write_all(&refusal).await?;
                    }
                }
                #[expect(unreachable_code, reason = "the type of the block")]
                Ok::<(), std::io::Error>(())
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_streams_are_counted_and_release_the_key() {
    let upstream = refusing().await;
    let unused = GrpcService::start().await.unwrap();
    let world = GrpcWorld::in_front_of(unused, &format!("h2c://{upstream}"), "memory:", "").await;
    let key = "grpc-that-is-refused-01";
    for sent in 1..=2 {
        let refused = world.call("Charge").key(key).send().await.unwrap();
        assert_eq!((refused.code(), refused.tells("upstream_unreachable")), (Some(14), true));
        // Each call is given to three connections, or three times to one.
        let counted = metric(&world, "onetake_upstream_http2_refused_total", upstream).await;
        assert_eq!(counted, 3 * sent);
    }
}
