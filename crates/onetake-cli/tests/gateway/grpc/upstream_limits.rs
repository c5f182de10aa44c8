//! The limits of HTTP/2 connections to upstreams, and their metrics.

use std::net::SocketAddr;

use onetake_sim::client::Client;
use onetake_sim::grpc::service::GrpcService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::GrpcWorld;

/// A metric of the upstream at an address.
async fn metric(world: &GrpcWorld, name: &str, upstream: SocketAddr) -> usize {
    let admin = Client::new(world.gateway.admin());
    let text = admin.post("/metrics").method("GET").body("").send().await.unwrap().text();
    let upstream = format!("upstream=\"{upstream}\"");
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(&upstream));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
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
