//! HTTP/2 uploads that the client resets before their end.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use crate::common::InProcess;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, client};
use http::{Request, Response};
use onetake_sim::blackbox::Target;
use onetake_sim::upstream::Upstream;
use tokio::net::TcpStream;

struct World {
    upstream: Upstream,
    _gateway: InProcess,
    connection: SendRequest<Bytes>,
}

impl World {
    async fn start() -> Self {
        let upstream = Upstream::start().await.unwrap();
        let gateway = InProcess::start(format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
            upstream.url()
        ))
        .await;
        let stream = TcpStream::connect(gateway.address()).await.unwrap();
        let (connection, driver) = client::handshake(stream).await.unwrap();
        tokio::spawn(async move { drop(driver.await) });
        Self { upstream, _gateway: gateway, connection }
    }

    /// Sends the first part of a body, and resets the stream.
    async fn break_off(&self, key: Option<&str>, reason: Reason) {
        let mut connection = self.connection.clone().ready().await.unwrap();
        let (_response, mut body) = connection.send_request(request(key), false).unwrap();
        body.send_data(Bytes::from_static(b"1"), false).unwrap();
        // The gateway answers a request on the same connection only after it has read the part.
        assert_eq!(self.send(None, b"x").await.status(), 201);
        body.send_reset(reason);
    }

    async fn send(&self, key: Option<&str>, data: &'static [u8]) -> Response<h2::RecvStream> {
        let mut connection = self.connection.clone().ready().await.unwrap();
        let (response, mut body) = connection.send_request(request(key), false).unwrap();
        body.send_data(Bytes::from_static(data), true).unwrap();
        response.await.unwrap()
    }
}

fn request(key: Option<&str>) -> Request<()> {
    let request = Request::post("http://charges.test/any/charge");
    match key {
        Some(key) => request.header("idempotency-key", key).body(()).unwrap(),
        None => request.body(()).unwrap(),
    }
}

/// RFC 9113 lets a peer reset a stream with NO_ERROR. That is no end of its body.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_reset_is_not_whole() {
    let world = World::start().await;
    for reason in [Reason::NO_ERROR, Reason::CANCEL] {
        for number in 0..30 {
            let key = format!("broken-upload-{reason:?}-{number}");
            world.break_off(Some(&key), reason).await;
            let before = world.upstream.runs_in_all();
            let retry = world.send(Some(&key), b"10").await;
            assert_eq!(retry.status(), 201, "{key}: the retry with the whole body runs");
            assert_eq!(world.upstream.runs_in_all(), before + 1, "{key}");
        }
    }
}
