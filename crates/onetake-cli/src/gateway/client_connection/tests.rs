//! Tests of idle connections: they are parked, and their clients see no difference.

mod endings;
mod eviction;
mod silence;

use std::pin::Pin;
use std::sync::Mutex;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use onetake_core::ManualClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, yield_now};

use super::super::in_flight::tests::connection_of_tests;
use super::*;
use crate::config::{Limits, Overrides, load};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUTS: Timeouts = Timeouts {
    keep_alive: Duration::from_secs(75),
    head: Duration::from_secs(15),
    send: Duration::from_secs(60),
};
/// Turns of other tasks until everything has happened.
const TURNS: usize = 100;

/// Answers with the path and the body of the request.
#[derive(Default)]
struct Echo {
    /// Bodies of requests for `/unread` and `/held`, which are answered first.
    unread: Mutex<Vec<ClientBody>>,
    /// Bodies of responses to requests for `/held`, which the test writes.
    held: Mutex<Vec<mpsc::Sender<&'static str>>>,
}

impl Answer for Echo {
    type Body = UnsyncBoxBody<Bytes, Infallible>;

    fn answers(&self) -> ProblemFormat {
        ProblemFormat::default()
    }

    fn answer(
        self: &Arc<Self>,
        _: SocketAddr,
        _: ConnectionPermit,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Response<Self::Body>> {
        let echo = Arc::clone(self);
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            if path == "/held" {
                let (sender, body) = channel();
                echo.held.lock().unwrap().push(sender);
                echo.unread.lock().unwrap().push(request.into_body());
                return Response::new(UnsyncBoxBody::new(body));
            }
            let body = match path.as_str() {
                "/unread" => {
                    echo.unread.lock().unwrap().push(request.into_body());
                    Bytes::new()
                }
                _ => request.into_body().collect().await.unwrap().to_bytes(),
            };
            let text = format!("{path}:{}", String::from_utf8_lossy(&body));
            Response::new(UnsyncBoxBody::new(Full::new(text.into())))
        })
    }
}

/// A body, and the way of its parts.
fn channel() -> (mpsc::Sender<&'static str>, impl Body<Data = Bytes, Error = Infallible> + Unpin) {
    let (sender, receiver) = mpsc::channel(1);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let text: &str = receiver.recv().await?;
        Some((Ok(Frame::data(Bytes::from_static(text.as_bytes()))), receiver))
    });
    (sender, StreamBody::new(Box::pin(frames)))
}

/// A connection, and its client.
struct World {
    client: DuplexStream,
    clock: ManualClock,
    activity: Arc<Activity>,
    echo: Arc<Echo>,
    phase: Arc<Phase>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        let (client, stream) = duplex(64 << 10);
        Self::over(client, stream)
    }

    fn over(
        client: DuplexStream,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let activity = Arc::<Activity>::default();
        Self::with(client, PeerStream::new(stream, Arc::clone(&activity)), activity)
    }

    /// A connection over a stream that notes what moves.
    fn with(
        client: DuplexStream,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        activity: Arc<Activity>,
    ) -> Self {
        let (clock, stop) = (ManualClock::default(), CancellationToken::new());
        let (echo, phase) = (Arc::<Echo>::default(), Arc::<Phase>::default());
        let connection = ClientConnection {
            edge: Arc::clone(&echo),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            stop: stop.clone(),
            phase: Arc::clone(&phase),
            clock: Arc::new(clock.clone()),
            place: connection_of_tests(),
            timeouts: TIMEOUTS,
        };
        let shared = Arc::clone(&activity);
        let serving = tokio::spawn(async move {
            let protocols = Protocols::new(&limits(), 100, CONNECTION_WINDOW_BYTES);
            connection.serve(stream, &protocols, shared).await;
        });
        Self { client, clock, activity, echo, phase, stop, serving }
    }

    /// A connection that is parked after its first request.
    async fn parked() -> Self {
        let mut world = Self::new();
        world.asks("/first", "1").await;
        world.park().await;
        world
    }

    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
        settle().await;
    }

    async fn advance(&self, by: Duration) {
        settle().await;
        self.clock.advance(by);
        settle().await;
    }

    async fn park(&self) {
        assert!(!self.activity.is_parked());
        self.advance(SECOND - Duration::from_millis(1)).await;
        assert!(!self.activity.is_parked(), "too early");
        self.advance(Duration::from_millis(1)).await;
        assert!(self.activity.is_parked(), "{:?}", self.activity);
    }

    /// Sends a request, and expects its response.
    async fn asks(&mut self, path: &str, body: &str) {
        self.send(&request(path, body)).await;
        self.expects(&format!("{path}:{body}")).await;
    }

    /// Expects a response with this body.
    async fn expects(&mut self, body: &str) {
        let response = self.response().await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(response.ends_with(&format!("\r\n\r\n{body}")), "{response}");
        assert!(!response.contains("connection:"), "{response}");
    }

    async fn response(&mut self) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(self.client.read_u8().await.unwrap());
        }
        let head = String::from_utf8(bytes).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.unwrap().parse().unwrap()];
        self.client.read_exact(&mut body).await.unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    /// Expects that the gateway ends its direction now, and then the connection.
    async fn expects_end(mut self) {
        settle().await;
        let mut rest = [0; 1];
        let read = futures_util::FutureExt::now_or_never(self.client.read(&mut rest));
        assert!(matches!(read, Some(Ok(0))), "{read:?}");
        drop(self.client);
        self.serving.await.unwrap();
    }
}

/// The limits of a configuration without any.
fn limits() -> Limits {
    let file = "[gateway]
upstream = \"http://a\"
";
    load(Some(file), "test", std::iter::empty(), Overrides::default()).unwrap().limits
}

fn request(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

async fn settle() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_parked_connection_goes_on_with_the_next_byte() {
    let mut world = World::parked().await;
    for byte in request("/byte-by-byte", "2").chars() {
        world.send(&byte.to_string()).await;
        assert!(!world.activity.is_parked());
    }
    world.expects("/byte-by-byte:2").await;
    world.park().await;
    let large = "x".repeat(40_000);
    world.asks("/large", &large).await;
    world.park().await;
    world.send(&(request("/one", "1") + &request("/two", "2") + &request("/three", "3"))).await;
    for body in ["/one:1", "/two:2", "/three:3"] {
        world.expects(body).await;
    }
    world.park().await;
}

/// A byte that arrives in the moment of parking is served, whatever comes first.
#[tokio::test]
async fn a_byte_in_the_moment_of_parking_is_served() {
    for turns in 0..20 {
        for is_byte_first in [true, false] {
            let mut world = World::new();
            world.asks("/first", "1").await;
            settle().await;
            let request = request("/second", "2");
            let (first, rest) = request.split_at(1);
            if is_byte_first {
                world.client.write_all(first.as_bytes()).await.unwrap();
            }
            world.clock.advance(SECOND);
            for _ in 0..turns {
                yield_now().await;
            }
            if !is_byte_first {
                world.client.write_all(first.as_bytes()).await.unwrap();
            }
            world.client.write_all(rest.as_bytes()).await.unwrap();
            world.expects("/second:2").await;
            world.park().await;
        }
    }
}

/// A stream of which every other read finds nothing at first.
struct EveryOther(DuplexStream, bool);

impl AsyncRead for EveryOther {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.1 = !self.1;
        if self.1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for EveryOther {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// hyper is polled once more between the decision to park and the parking.
#[tokio::test]
async fn a_connection_is_not_parked_right_after_a_request() {
    for turns in 0..20 {
        let (client, stream) = duplex(64 << 10);
        let mut world = World::over(client, EveryOther(stream, false));
        world.asks("/first", "1").await;
        for _ in 0..turns {
            yield_now().await;
        }
        world.clock.advance(SECOND);
        world.client.write_all(request("/second", "2").as_bytes()).await.unwrap();
        world.expects("/second:2").await;
        settle().await;
        assert!(!world.activity.is_parked(), "{turns}");
    }
}

/// hyper has read the beginning of a request together with the request before.
#[tokio::test]
async fn a_part_of_a_request_is_kept() {
    let mut world = World::new();
    let next = request("/next", "2");
    let (part, rest) = next.split_at(20);
    world.send(&(request("/first", "1") + part)).await;
    world.expects("/first:1").await;
    for _ in 0..5 {
        world.advance(SECOND).await;
        assert!(!world.activity.is_parked());
    }
    world.send(rest).await;
    world.expects("/next:2").await;
    world.park().await;
    // Some clients send an empty line behind a body.
    world.send(&(request("/third", "3") + "\r\n")).await;
    world.expects("/third:3").await;
    world.advance(TIMEOUTS.keep_alive - SECOND).await;
    world.asks("/fourth", "4").await;
}

/// A response can be complete before the request is.
#[tokio::test]
async fn a_connection_with_an_unread_body_is_not_parked() {
    let mut world = World::new();
    let request = request("/unread", "0123456789");
    let (first, rest) = request.split_at(request.len() - 5);
    world.send(first).await;
    world.expects("/unread:").await;
    world.advance(SECOND * 3).await;
    assert!(!world.activity.is_parked());
    world.send(rest).await;
    let mut body = world.echo.unread.lock().unwrap().pop().unwrap();
    let mut read = Vec::new();
    // hyper tells the end of such a body with the next request.
    while !body.is_end_stream() {
        read.extend_from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert_eq!(read, b"0123456789");
    drop(body);
    world.asks("/next", "2").await;
    world.park().await;
    // The body is not wanted: the connection ends, because hyper does not read the rest.
    world.send(first).await;
    world.expects("/unread:").await;
    world.echo.unread.lock().unwrap().clear();
    world.send("").await;
    assert!(!world.activity.is_parked());
    world.expects_end().await;
}

#[tokio::test]
async fn idle_time_is_counted_from_the_last_response() {
    let world = World::parked().await;
    world.advance(TIMEOUTS.keep_alive - SECOND - Duration::from_millis(1)).await;
    assert!(!world.activity.lingers());
    world.advance(Duration::from_millis(1)).await;
    world.expects_end().await;
    let world = World::new();
    world.advance(TIMEOUTS.keep_alive - Duration::from_millis(1)).await;
    assert!(!world.serving.is_finished());
    world.advance(Duration::from_millis(1)).await;
    world.expects_end().await;
}

#[tokio::test]
async fn the_end_of_the_gateway_is_told_to_parked_connections() {
    let world = World::parked().await;
    world.phase.stop();
    world.stop.cancel();
    world.expects_end().await;
    let mut world = World::parked().await;
    world.phase.leave();
    world.send(&request("/last", "2")).await;
    let response = world.response().await;
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    world.expects_end().await;
}

#[tokio::test]
async fn the_end_of_the_client_is_noticed() {
    let mut world = World::parked().await;
    world.client.shutdown().await.unwrap();
    world.expects_end().await;
    let world = World::parked().await;
    drop(world.client);
    world.serving.await.unwrap();
}

#[tokio::test]
async fn heads_are_refused_as_before() {
    let mut world = World::parked().await;
    world.send("POST /half HTTP/1.1\r\nhost: ").await;
    world.advance(TIMEOUTS.head).await;
    world.expects_end().await;
    let mut world = World::parked().await;
    world.send("\0\r\n\r\n").await;
    let response = world.response().await;
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    assert!(response.contains("request_refused"), "{response}");
    world.expects_end().await;
    let mut world = World::parked().await;
    world.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    world.expects_end().await;
}

/// hyper keeps the state of an upgrade until the connection ends.
#[tokio::test]
async fn an_upgrade_that_was_not_accepted_changes_nothing() {
    let mut world = World::new();
    let request = "GET /h2c HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
    world.send(request).await;
    world.expects("/h2c:").await;
    world.park().await;
    world.asks("/next", "2").await;
}

/// The bytes that a client of HTTP/2 may send before its requests are read stay in memory.
#[tokio::test]
async fn a_client_of_http2_may_send_little_ahead() {
    let mut world = World::new();
    world.client.write_all(eviction::HTTP2).await.unwrap();
    let (mut of_stream, mut of_connection) = (0, 0);
    while of_stream == 0 || of_connection == 0 {
        let mut head = [0; 9];
        world.client.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[2])];
        world.client.read_exact(&mut payload).await.unwrap();
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        match head[3] {
            // SETTINGS_INITIAL_WINDOW_SIZE.
            4 => {
                let setting = payload.chunks(6).find(|setting| setting.starts_with(&[0, 4]));
                of_stream = setting.map_or(of_stream, |setting| number(&setting[2..]));
            }
            // WINDOW_UPDATE adds to the 65,535 bytes of every connection.
            8 => of_connection = 65_535 + number(&payload),
            _ => {}
        }
    }
    assert_eq!((of_stream, of_connection), (128 << 10, 1 << 20));
}

#[tokio::test]
async fn http2_is_recognised_byte_by_byte() {
    let mut world = World::new();
    for byte in "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".chars() {
        world.send(&byte.to_string()).await;
    }
    assert!(world.activity.is_http2());
    let mut head = [0; 9];
    world.client.read_exact(&mut head).await.unwrap();
    assert_eq!(head.get(3), Some(&4), "a SETTINGS frame: {head:?}");
    // A method that begins in the same way.
    let mut world = World::new();
    for byte in "PRI * HTTP/1.1\r\nhost: a\r\n\r\n".chars() {
        world.send(&byte.to_string()).await;
    }
    assert!(!world.activity.is_http2());
    world.expects("*:").await;
}
