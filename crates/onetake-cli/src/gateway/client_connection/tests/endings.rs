//! Tests of the ends of requests and of connections.

use std::io;

use futures_util::FutureExt;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

/// A stream whose end is not accepted, like that of TLS if the peer does not read.
struct WithoutEnd(DuplexStream);

impl AsyncRead for WithoutEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WithoutEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

/// hyper has read the second request and ignores it. A new hyper connection would serve it.
#[tokio::test]
async fn a_request_behind_the_last_one_is_not_served_while_the_end_waits() {
    let (client, stream) = duplex(64 << 10);
    let mut world = World::over(client, WithoutEnd(stream));
    let last = request("/last", "1").replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    world.send(&(last + &request("/behind", "2"))).await;
    let response = world.response().await;
    assert!(response.ends_with("/last:1"), "{response}");
    for _ in 0..5 {
        world.advance(SECOND).await;
        assert!(!world.activity.is_parked());
    }
    let mut rest = [0; 1];
    assert!(world.client.read(&mut rest).now_or_never().is_none(), "the second one was served");
    // It is not waited for without end.
    world.advance(TIMEOUTS.send - SECOND * 6).await;
    assert!(!world.serving.is_finished());
    world.advance(SECOND).await;
    world.serving.await.unwrap();
}

/// The bytes of a body that arrive after the response are not those of a slow head.
#[tokio::test]
async fn a_body_may_arrive_slowly_after_its_response() {
    let mut world = World::new();
    let early = request("/unread", "0123456789");
    let (first, rest) = early.split_at(early.len() - 5);
    world.send(first).await;
    world.expects("/unread:").await;
    let mut body = world.echo.unread.lock().unwrap().pop().unwrap();
    for byte in rest.chars() {
        world.send(&byte.to_string()).await;
        while body.frame().now_or_never().is_some() {}
        world.advance(TIMEOUTS.head - SECOND).await;
        assert!(!world.serving.is_finished());
    }
    assert!(!world.activity.has_head());
    drop(body);
    world.asks("/next", "2").await;
    // The beginning of a head that arrives with the end of a body has its timeout.
    world.send(first).await;
    world.expects("/unread:").await;
    let mut body = world.echo.unread.lock().unwrap().pop().unwrap();
    world.send(&format!("{rest}POST ")).await;
    while body.frame().now_or_never().is_some() {}
    settle().await;
    assert!(world.activity.has_head());
    drop(body);
    world.advance(TIMEOUTS.head).await;
    world.serving.await.unwrap();
}

/// Idle connections are closed. This one is not idle: its client still sends.
#[tokio::test]
async fn a_body_after_its_response_may_take_longer_than_idle_time() {
    let mut world = World::new();
    let early = request("/unread", &"x".repeat(20));
    let (first, rest) = early.split_at(early.len() - 20);
    world.send(first).await;
    world.expects("/unread:").await;
    let mut body = world.echo.unread.lock().unwrap().pop().unwrap();
    for byte in rest.chars() {
        world.advance(TIMEOUTS.keep_alive / 10).await;
        assert!(!world.serving.is_finished() && !world.activity.lingers());
        world.send(&byte.to_string()).await;
        while let Some(Some(Ok(_))) = body.frame().now_or_never() {}
    }
    drop(body);
    // Its idle time begins now.
    world.advance(TIMEOUTS.keep_alive - SECOND).await;
    world.asks("/next", "2").await;
    world.advance(TIMEOUTS.keep_alive - Duration::from_millis(1)).await;
    assert!(!world.serving.is_finished());
    world.advance(Duration::from_millis(1)).await;
    world.expects_end().await;
}

/// The same over HTTP/2.
#[tokio::test]
async fn a_stream_after_its_response_may_take_longer_than_idle_time() {
    let world = World::new();
    let (sender, receiver) = tokio::sync::mpsc::channel::<Frame<Bytes>>(1);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        Some((Ok::<_, Infallible>(receiver.recv().await?), receiver))
    });
    let body = StreamBody::new(Box::pin(frames));
    let io = TokioIo::new(world.client);
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
    let (mut client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://a/unread").body(body).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "/unread:");
    let mut body = world.echo.unread.lock().unwrap().pop().unwrap();
    for _ in 0..30 {
        settle().await;
        world.clock.advance(TIMEOUTS.keep_alive / 10);
        settle().await;
        assert!(!world.serving.is_finished());
        sender.send(Frame::data(Bytes::from("x"))).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "x");
    }
    drop(sender);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "", "it is whole");
}

/// The rest of the request is waited for, but not for long.
#[tokio::test]
async fn a_body_after_its_response_delays_the_end_of_the_gateway_for_a_bounded_time() {
    let mut world = World::new();
    let early = request("/unread", "0123456789");
    let (first, rest) = early.split_at(early.len() - 5);
    world.send(first).await;
    world.expects("/unread:").await;
    let mut body = world.echo.unread.lock().unwrap().pop().unwrap();
    world.phase.stop();
    world.stop.cancel();
    for byte in rest.chars().take(4) {
        world.advance(SECOND * 4).await;
        assert!(!world.serving.is_finished());
        world.send(&byte.to_string()).await;
        while let Some(Some(Ok(_))) = body.frame().now_or_never() {}
    }
    world.advance(SECOND * 6).await;
    world.advance(SECOND * 6).await;
    world.serving.await.unwrap();
}

/// Some clients send empty lines behind a body. The connection ends as if they had not.
#[tokio::test]
async fn a_connection_with_empty_lines_behind_its_request_ends_in_order() {
    for lines in ["\r\n", "\n", "\r\n\r\n"] {
        for is_stopping in [false, true] {
            let mut world = World::new();
            world.send(&(request("/first", "1") + lines)).await;
            world.expects("/first:1").await;
            world.advance(SECOND).await;
            assert!(world.activity.is_parked(), "{lines:?}: {:?}", world.activity);
            match is_stopping {
                true => {
                    world.phase.stop();
                    world.stop.cancel();
                }
                false => world.advance(TIMEOUTS.keep_alive - SECOND).await,
            }
            world.expects_end().await;
        }
        let mut world = World::new();
        world.send(&(request("/first", "1") + lines)).await;
        world.expects("/first:1").await;
        world.advance(SECOND).await;
        world.asks("/second", "2").await;
        world.park().await;
    }
}

/// The empty lines arrive after the response, or before the first request.
#[tokio::test]
async fn empty_lines_are_not_a_slow_head() {
    for lines in ["\r\n", "\n", "\r\n\r\n"] {
        for is_first in [false, true] {
            let mut world = World::new();
            if !is_first {
                world.asks("/first", "1").await;
            }
            world.send(lines).await;
            assert!(!world.activity.has_head(), "{lines:?} {is_first}");
            for _ in 0..TIMEOUTS.head.as_secs() + 5 {
                world.advance(SECOND).await;
            }
            world.asks("/next", "2").await;
            world.advance(TIMEOUTS.keep_alive).await;
            world.expects_end().await;
        }
    }
}

/// A head that hyper refuses is refused with a problem, whatever it begins with.
#[tokio::test]
async fn a_malformed_head_behind_empty_lines_gets_a_problem() {
    for head in ["\r\n\rGET / HTTP/1.1\r\n\r\n", "\rX\r\n\r\n", "\n\0\r\n\r\n"] {
        let mut world = World::new();
        world.send(head).await;
        let response = world.response().await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{head:?}: {response}");
        assert!(response.contains("request_refused"), "{head:?}: {response}");
        world.expects_end().await;
    }
}

/// An upgrade that was not accepted.
const UPGRADE: &str = "GET /h2c HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";

/// The client may still send when it gets the refusal. A dropped stream would be reset.
#[tokio::test]
async fn an_upgrade_that_was_not_accepted_does_not_prevent_the_lingering_close() {
    for before in ["", UPGRADE] {
        let mut world = World::new();
        world.send(before).await;
        if !before.is_empty() {
            world.expects("/h2c:").await;
        }
        world.send("\0\r\n\r\n").await;
        let response = world.response().await;
        assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
        assert!(world.activity.lingers());
        world.client.write_all(b"more").await.unwrap();
        world.expects_end().await;
    }
}

/// The client reads late, so that the last response waits anywhere between both sides.
#[tokio::test]
async fn an_upgrade_that_was_not_accepted_does_not_cut_off_the_last_response() {
    for capacity in (16..1024).step_by(16) {
        let (client, stream) = duplex(capacity);
        let mut world = World::over(client, stream);
        world.send(UPGRADE).await;
        world.send("\0\r\n\r\n").await;
        let mut all = String::new();
        world.client.read_to_string(&mut all).await.unwrap();
        assert!(all.contains("\r\n\r\n/h2c:HTTP/1.1 400 "), "{capacity}: {all}");
        assert!(all.ends_with('}'), "{capacity}: {all}");
        world.expects_end().await;
    }
}
