//! Eviction: an idle connection ends if its place is needed, and no other one does.

use super::*;

/// The preface of HTTP/2, and an empty SETTINGS frame.
pub(super) const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

impl World {
    /// Expects that an eviction changes nothing.
    async fn is_not_evicted(&self) {
        self.activity.evict();
        settle().await;
        assert!(!self.activity.is_evicted(), "{:?}", self.activity);
        assert!(!self.serving.is_finished());
        assert!(!self.activity.is_ending());
    }
}

#[tokio::test]
async fn an_idle_connection_is_evicted() {
    let world = World::new();
    settle().await;
    world.activity.evict();
    world.expects_end().await;
    let world = World::parked().await;
    world.advance(SECOND * 2).await;
    world.activity.evict();
    world.expects_end().await;
    let mut world = World::new();
    world.client.write_all(HTTP2).await.unwrap();
    world.advance(SECOND).await;
    world.activity.evict();
    let mut sent = Vec::new();
    settle().await;
    world.advance(SECOND * 2).await;
    world.client.read_to_end(&mut sent).await.unwrap();
    assert!(sent.windows(5).any(|frame| frame == [0, 0, 8, 7, 0]), "GOAWAY: {sent:?}");
    world.serving.await.unwrap();
}

#[tokio::test]
async fn a_connection_with_a_request_or_a_response_is_not_evicted() {
    let mut world = World::new();
    world.send("P").await;
    world.is_not_evicted().await;
    let request = request("/held", "0123456789");
    let (head, body) = request.split_at(request.len() - 10);
    let (first, rest) = head.split_at(20);
    for part in [&first[1..], rest] {
        world.send(part).await;
        world.is_not_evicted().await;
    }
    let mut unread = world.echo.unread.lock().unwrap().pop().unwrap();
    let held = world.echo.held.lock().unwrap().pop().unwrap();
    world.is_not_evicted().await;
    world.send(body).await;
    assert_eq!(unread.frame().await.unwrap().unwrap().into_data().unwrap(), "0123456789");
    world.is_not_evicted().await;
    drop(unread);
    world.is_not_evicted().await;
    held.send("1").await.unwrap();
    settle().await;
    world.is_not_evicted().await;
    drop(held);
    settle().await;
    world.activity.evict();
    settle().await;
    let mut response = String::new();
    world.client.read_to_string(&mut response).await.unwrap();
    assert!(response.ends_with("1\r\n1\r\n0\r\n\r\n"), "{response}");
}

/// The request is there when the connection is to end, and the runtime has not heard of it yet.
#[tokio::test]
async fn a_request_that_the_runtime_has_not_heard_of_is_served() {
    for is_second in [false, true] {
        let (client, stream) = duplex(64 << 10);
        let mut world = World::over(client, EveryOther(stream, is_second));
        settle().await;
        world.activity.evict();
        world.client.write_all(request("/late", "2").as_bytes()).await.unwrap();
        world.expects("/late:2").await;
        assert!(!world.activity.is_ending());
    }
}
