//! Tests of clients that do not read.

use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::BufWriter;

use super::*;

/// The room that a client makes for each response. The small ones fit.
const WINDOW_BYTES: u32 = 16;
const PART: &str = "sixteen bytes...";

type RequestBody = UnsyncBoxBody<Bytes, Infallible>;

/// A client of HTTP/2, which answers pings.
async fn http2_client(stream: DuplexStream) -> SendRequest<RequestBody> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(WINDOW_BYTES);
    let (client, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

fn post(path: &str, body: RequestBody) -> Request<RequestBody> {
    Request::post(format!("http://a{path}")).body(body).unwrap()
}

fn full(text: &'static str) -> RequestBody {
    UnsyncBoxBody::new(Full::from(text))
}

async fn text(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn advance(clock: &ManualClock, by: Duration) {
    settle().await;
    clock.advance(by);
    settle().await;
}

/// Responses to other requests do not count, nor do bytes that the client sends.
#[tokio::test]
async fn a_client_that_makes_no_room_for_a_response_is_cut_off() {
    let world = World::new();
    let mut client = http2_client(world.client).await;
    let (upload, body) = channel();
    let _unread = client.send_request(post("/unread", UnsyncBoxBody::new(body))).await.unwrap();
    let body = world.echo.unread.lock().unwrap().pop().unwrap();
    tokio::spawn(body.collect());
    let _stalled = client.send_request(post("/held", full(""))).await.unwrap();
    let held = world.echo.held.lock().unwrap().pop().unwrap();
    for _ in 0..2 {
        held.send(PART).await.unwrap();
        settle().await;
    }
    for _ in 0..TIMEOUTS.send.as_secs() / 10 {
        assert!(!world.serving.is_finished());
        upload.send(PART).await.unwrap();
        let response = client.send_request(post("/other", full("2"))).await.unwrap();
        assert_eq!(text(response).await, "/other:2");
        advance(&world.clock, SECOND * 10).await;
    }
    assert!(world.serving.is_finished());
}

/// The time begins anew with each part of a response.
#[tokio::test]
async fn a_client_that_makes_room_slowly_is_served() {
    let world = World::new();
    let mut client = http2_client(world.client).await;
    let mut response = client.send_request(post("/held", full(""))).await.unwrap();
    let held = world.echo.held.lock().unwrap().pop().unwrap();
    for _ in 0..5 {
        // The second part waits until the client has read the first one.
        while held.try_send(PART).is_ok() {
            settle().await;
        }
        advance(&world.clock, TIMEOUTS.send - SECOND).await;
        let part = response.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(part, PART);
    }
    drop(held);
    assert!(text(response).await.starts_with(PART.as_bytes()), "what was sent before");
}

/// The client waits for the upstream, and not the other way round.
#[tokio::test]
async fn a_client_that_waits_for_the_rest_of_a_response_is_served() {
    let world = World::new();
    let mut client = http2_client(world.client).await;
    let response = client.send_request(post("/held", full(""))).await.unwrap();
    let held = world.echo.held.lock().unwrap().pop().unwrap();
    for _ in 0..10 {
        advance(&world.clock, TIMEOUTS.send).await;
    }
    held.send("late").await.unwrap();
    drop(held);
    assert_eq!(text(response).await, "late");
}

/// Envoy gets the head of its response at once. The operation goes on, and the body follows.
#[tokio::test]
async fn a_response_that_waits_for_its_operation_is_not_cut_off_at_the_end_of_the_gateway() {
    for is_uploading in [false, true] {
        let world = World::new();
        let mut client = http2_client(world.client).await;
        let (upload, body) = channel();
        let body = if is_uploading { UnsyncBoxBody::new(body) } else { full("") };
        let response = client.send_request(post("/held", body)).await.unwrap();
        let held = world.echo.held.lock().unwrap().pop().unwrap();
        world.phase.stop();
        world.stop.cancel();
        for _ in 0..20 {
            advance(&world.clock, SECOND).await;
        }
        held.send("late").await.unwrap();
        drop((held, upload));
        assert_eq!(text(response).await, "late", "uploading: {is_uploading}");
    }
}

/// The same end, with a client that does not read.
#[tokio::test]
async fn a_client_that_makes_no_room_does_not_delay_the_end_of_the_gateway() {
    let world = World::new();
    let mut client = http2_client(world.client).await;
    let _stalled = client.send_request(post("/held", full(""))).await.unwrap();
    let held = world.echo.held.lock().unwrap().pop().unwrap();
    world.phase.stop();
    world.stop.cancel();
    advance(&world.clock, SECOND).await;
    for _ in 0..2 {
        held.send(PART).await.unwrap();
        settle().await;
    }
    advance(&world.clock, SECOND * 4).await;
    assert!(!world.serving.is_finished());
    for _ in 0..2 {
        advance(&world.clock, SECOND).await;
    }
    assert!(world.serving.is_finished());
}

/// A connection whose client reads slowly. With a buffer in between, as TLS has one, everything
/// seems to be written.
fn slow(has_buffer: bool) -> World {
    let (client, stream) = duplex(1024);
    let activity = Arc::<Activity>::default();
    let peer = PeerStream::new(stream, Arc::clone(&activity));
    match has_buffer {
        true => World::with(client, BufWriter::with_capacity(64 << 10, peer), activity),
        false => World::with(client, peer, activity),
    }
}

/// Reads a part of a response each second, to its end.
async fn read_slowly(world: &mut World, end: &str) {
    let (mut all, mut part) = (Vec::new(), [0; 400]);
    while !all.ends_with(end.as_bytes()) {
        let count = world.client.read(&mut part).await.unwrap();
        assert_ne!(count, 0, "it ended after {} bytes", all.len());
        all.extend_from_slice(&part[..count]);
        world.advance(SECOND).await;
    }
}

/// The body of a response that hyper takes whole. Its client needs 100 seconds to read it.
fn large() -> String {
    "x".repeat(40_000) + "end"
}

#[tokio::test]
async fn a_client_that_reads_the_end_of_a_response_is_not_idle() {
    for has_buffer in [false, true] {
        let mut world = slow(has_buffer);
        world.send(&request("/large", &large())).await;
        read_slowly(&mut world, "end").await;
        // Its idle time began when the last bytes were on their way, a few seconds ago.
        world.advance(TIMEOUTS.keep_alive - SECOND * 5).await;
        world.asks("/next", "2").await;
    }
}

#[tokio::test]
async fn the_next_head_may_wait_for_the_end_of_a_response() {
    for has_buffer in [false, true] {
        let mut world = slow(has_buffer);
        world.send(&request("/large", &large())).await;
        let next = request("/next", "2");
        let (part, rest) = next.split_at(9);
        world.send(part).await;
        read_slowly(&mut world, "end").await;
        world.send(rest).await;
        world.expects("/next:2").await;
    }
}

#[tokio::test]
async fn a_client_that_reads_is_waited_for_at_the_end_of_the_gateway() {
    for has_buffer in [false, true] {
        let mut world = slow(has_buffer);
        world.send(&request("/large", &large())).await;
        world.phase.stop();
        world.stop.cancel();
        read_slowly(&mut world, "end").await;
        world.expects_end().await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_the_end_of_a_response_is_cut_off() {
    for has_buffer in [false, true] {
        let mut world = slow(has_buffer);
        world.send(&request("/large", &large())).await;
        world.advance(TIMEOUTS.send - SECOND).await;
        assert!(!world.serving.is_finished());
        world.advance(SECOND).await;
        assert!(world.serving.is_finished(), "buffer: {has_buffer}");
        let mut world = slow(has_buffer);
        world.send(&request("/large", &large())).await;
        world.phase.stop();
        world.stop.cancel();
        world.advance(SECOND * 4).await;
        assert!(!world.serving.is_finished(), "buffer: {has_buffer}");
        world.advance(SECOND).await;
        assert!(world.serving.is_finished(), "buffer: {has_buffer}");
    }
}
