//! Tests of whole exchanges, with an upstream of raw bytes.

mod closed;
mod early;

use super::super::after_response::AFTER_RESPONSE;
use super::*;
use http::StatusCode;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use onetake_core::{ManualClock, SystemClock, Timestamp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::gateway::tls::{Connector, Protocols};

/// How long idle connections are kept.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

type Sent = Result<Response<Http1Body>, BoxError>;

struct Pair {
    connection: Option<Box<Http1Connection>>,
    upstream: TcpStream,
    idle: Arc<Idle>,
}

impl Pair {
    async fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock)).await
    }

    async fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let connector = Connector::new(None, Arc::clone(&clock)).unwrap();
        let stream = connector.open(&uri, Protocols::Http1).await.unwrap();
        let connection = Some(Box::new(Http1Connection::new(stream, &*clock)));
        let (upstream, _) = listener.accept().await.unwrap();
        Self { connection, upstream, idle: Arc::new(Idle::new(8, KEEP_ALIVE, clock)) }
    }

    async fn send<B>(&mut self, request: Request<B>) -> Sent
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let exchange = Exchange::new(self.connection(), request)?;
        exchange.send(&self.idle, 0, None, &mut Evidence::default()).await
    }

    /// The connection, which was not used yet or is idle.
    fn connection(&mut self) -> Box<Http1Connection> {
        self.connection.take().or_else(|| self.idle.take(0, true)).unwrap()
    }

    /// Sends a GET to an upstream that answers with these bytes.
    async fn get(&mut self, answer: &[u8]) -> Sent {
        // With bytes that nobody asked for, an idle connection is not usable.
        self.connection = Some(self.connection());
        self.upstream.write_all(answer).await.unwrap();
        self.send(Request::get("/").body(Full::<Bytes>::default()).unwrap()).await
    }

    /// Sends a request that the upstream answers with 200. Returns what the upstream got.
    async fn post<B>(&mut self, request: Request<B>, end: &str) -> String
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let connection = self.connection();
        let (exchange, idle) = (Exchange::new(connection, request).unwrap(), self.idle.clone());
        let upstream = async {
            let got = self.got(end).await;
            self.upstream.write_all(OK).await.unwrap();
            got
        };
        let mut evidence = Evidence::default();
        let sending = exchange.send(&idle, 0, None, &mut evidence);
        let (sent, got) = tokio::join!(sending, upstream);
        assert_eq!(sent.unwrap().status(), 200);
        got
    }

    /// Reads what the upstream got, up to this end.
    async fn got(&mut self, end: &str) -> String {
        let mut seen = Vec::new();
        while !seen.ends_with(end.as_bytes()) {
            assert_ne!(self.upstream.read_buf(&mut seen).await.unwrap(), 0, "{seen:?}");
        }
        String::from_utf8(seen).unwrap()
    }
}

async fn text(response: Response<Http1Body>) -> Result<String, BoxError> {
    let data = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(data.to_vec())?)
}

#[tokio::test]
async fn a_response_is_read_as_its_head_says() {
    for (answer, status, body, is_kept) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", 200, "hi", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nhi", 200, "hi", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nhi", 200, "hi", true),
        ("HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi", 200, "hi", true),
        ("HTTP/1.1 200 OK\ncontent-length: 2\n\nhi", 200, "hi", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi and more", 200, "hi", false),
        ("HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n", 201, "", true),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", 204, "", true),
        // A body may follow nevertheless.
        ("HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n", 204, "", false),
        ("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n", 204, "", false),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, "", true),
        ("HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n", 304, "", false),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            200,
            "hi",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            200,
            "",
            false,
        ),
        ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", 200, "hi", false),
        (
            "HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 2\r\n\r\nhi",
            200,
            "hi",
            false,
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", 200, "hi", false),
        (
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi",
            200,
            "hi",
            true,
        ),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n\
             HTTP/1.1 402 No Money\r\ncontent-length: 2\r\n\r\nhi",
            402,
            "hi",
            true,
        ),
    ] {
        let mut pair = Pair::new().await;
        let response = pair.get(answer.as_bytes()).await.expect(answer);
        assert_eq!(response.status(), status, "{answer}");
        assert!(!response.headers().contains_key("link"), "{answer}");
        assert_eq!(text(response).await.expect(answer), body, "{answer}");
        assert_eq!(pair.idle.take(0, true).is_some(), is_kept, "{answer}");
    }
}

/// Clients and proxies refuse a list of lengths, or a repeated length.
#[tokio::test]
async fn a_repeated_length_becomes_one() {
    for lines in ["content-length: 2, 2", "content-length: 2\r\ncontent-length: 2"] {
        let mut pair = Pair::new().await;
        let answer = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\nhi");
        let response = pair.get(answer.as_bytes()).await.unwrap();
        let lengths = response.headers().get_all("content-length").iter();
        assert_eq!(lengths.collect::<Vec<_>>(), ["2"], "{lines}");
        let mut pair = Pair::new().await;
        let answer = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n");
        pair.upstream.write_all(answer.as_bytes()).await.unwrap();
        let head = Request::head("/").body(Full::<Bytes>::default()).unwrap();
        let response = pair.send(head).await.unwrap();
        let lengths = response.headers().get_all("content-length").iter();
        assert_eq!(lengths.collect::<Vec<_>>(), ["2"], "{lines}");
    }
}

#[tokio::test]
async fn a_body_without_a_length_ends_with_its_connection() {
    let mut pair = Pair::new().await;
    let response = pair.get(b"HTTP/1.1 200 OK\r\n\r\nsome ").await.unwrap();
    pair.upstream.write_all(b"text").await.unwrap();
    pair.upstream.shutdown().await.unwrap();
    assert_eq!(text(response).await.unwrap(), "some text");
    assert!(pair.idle.take(0, true).is_none());
}

#[tokio::test]
async fn a_response_that_is_no_http_is_an_error() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(513));
    let large = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(500 << 10));
    for answer in [
        "nonsense\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nspace : x\r\n\r\n",
        "HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\nhi",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        &many,
        &large,
    ] {
        let Pair { connection, upstream, idle } = Pair::new().await;
        // A large answer does not fit the buffers of the operating system.
        let (_reading, mut writing) = upstream.into_split();
        let answer = answer.to_owned();
        let answering = tokio::spawn(async move {
            let _reset = writing.write_all(answer.as_bytes()).await;
            answer
        });
        let request = Request::get("/").body(Full::<Bytes>::default()).unwrap();
        let sent = Exchange::new(connection.unwrap(), request)
            .unwrap()
            .send(&idle, 0, None, &mut Evidence::default())
            .await;
        let answer = answering.await.unwrap();
        assert!(sent.is_err(), "{}", answer.get(..60).unwrap_or(&answer));
        assert!(idle.take(0, true).is_none());
    }
}

#[tokio::test]
async fn a_response_may_have_many_headers() {
    for count in [1, 64, 65, 512] {
        let mut pair = Pair::new().await;
        let lines = "x-line: y\r\n".repeat(count - 1);
        let answer = format!("HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n");
        let response = pair.get(answer.as_bytes()).await.unwrap();
        assert_eq!(response.headers().get_all("x-line").iter().count(), count - 1);
        assert_eq!(response.headers().len(), count);
    }
}

#[tokio::test]
async fn a_reason_of_the_upstream_is_kept() {
    let mut pair = Pair::new().await;
    let answer = b"HTTP/1.1 402 No Money\r\ncontent-length: 0\r\n\r\n";
    let response = pair.get(answer).await.unwrap();
    let reason = response.extensions().get::<hyper::ext::ReasonPhrase>();
    assert_eq!(reason.unwrap().as_bytes(), b"No Money");
    let answer = b"HTTP/1.1 402 Payment Required\r\ncontent-length: 0\r\n\r\n";
    let response = pair.get(answer).await.unwrap();
    assert!(response.extensions().is_empty(), "this one is made from the status");
}

#[tokio::test]
async fn a_response_that_breaks_off_is_an_error() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
    ] {
        let mut pair = Pair::new().await;
        let response = pair.get(answer.as_bytes()).await.unwrap();
        pair.upstream.shutdown().await.unwrap();
        assert!(text(response).await.is_err(), "{answer}");
        assert!(pair.idle.take(0, true).is_none());
    }
    let mut pair = Pair::new().await;
    pair.upstream.write_all(b"HTTP/1.1 200 OK\r\ncont").await.unwrap();
    pair.upstream.shutdown().await.unwrap();
    assert!(pair.get(b"").await.is_err());
}

#[tokio::test]
async fn a_body_that_is_not_read_closes_its_connection() {
    let mut pair = Pair::new().await;
    let response = pair.get(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi").await.unwrap();
    drop(response);
    assert!(pair.idle.take(0, true).is_none());
    let mut rest = Vec::new();
    let _end_or_reset = pair.upstream.read_to_end(&mut rest).await;
    assert!(rest.starts_with(b"GET / HTTP/1.1\r\n"));
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn a_request_is_framed_by_its_body() {
    let stream = |frames: Vec<Frame<Bytes>>| {
        let frames = frames.into_iter().map(Ok::<_, std::io::Error>);
        StreamBody::new(futures_util::stream::iter(frames))
    };
    let data = |text: &'static str| Frame::data(Bytes::from_static(text.as_bytes()));
    let trailers = || {
        let names = ["x-sum", "x-other", "content-length"];
        let map = names.map(|name| (name.parse().unwrap(), "7".parse().unwrap()));
        Frame::trailers(map.into_iter().collect())
    };
    let mut pair = Pair::new().await;
    let post = || Request::post("/a?b").header("host", "h");
    let expected = "POST /a?b HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n\r\nfour";
    assert_eq!(pair.post(post().body(Full::from("four")).unwrap(), "four").await, expected);
    // A client of HTTP/2 may repeat an equal length.
    for lines in [&["4", "4"][..], &["4, 4"], &["04", "4"]] {
        let repeated =
            lines.iter().fold(post(), |request, line| request.header("content-length", *line));
        assert_eq!(pair.post(repeated.body(Full::from("four")).unwrap(), "four").await, expected);
    }
    let empty = post().body(Full::<Bytes>::default()).unwrap();
    let expected = "POST /a?b HTTP/1.1\r\nhost: h\r\n\r\n";
    assert_eq!(pair.post(empty, "\r\n\r\n").await, expected);
    let body = stream(vec![data("a"), data(""), data("bcdefghijk"), trailers()]);
    let request = post().header("trailer", "X-Sum, content-length").body(body).unwrap();
    let got = pair.post(request, "x-sum: 7\r\n\r\n").await;
    assert!(got.contains("\r\ntransfer-encoding: chunked\r\n"), "{got}");
    let end = "\r\n\r\n1\r\na\r\na\r\nbcdefghijk\r\n0\r\nx-sum: 7\r\n\r\n";
    assert!(got.ends_with(end), "{got}");
}

#[tokio::test]
async fn large_data_is_written_whole() {
    let large = "x".repeat(300_000);
    for is_chunked in [false, true] {
        let mut pair = Pair::new().await;
        let connection = pair.connection.take().unwrap();
        let idle = Arc::clone(&pair.idle);
        let mut request = Request::post("/").body(Full::from(large.clone())).unwrap();
        if is_chunked {
            request.headers_mut().insert("transfer-encoding", "chunked".parse().unwrap());
        }
        let exchange = Exchange::new(connection, request).unwrap();
        let sending = tokio::spawn(async move {
            exchange.send(&idle, 0, None, &mut Evidence::default()).await.map(drop)
        });
        let end = if is_chunked { "\r\n0\r\n\r\n" } else { "x" };
        let mut got = String::new();
        while !(got.len() > large.len() && got.ends_with(end)) {
            let mut more = vec![0; 9_000];
            let count = pair.upstream.read(&mut more).await.unwrap();
            got.push_str(std::str::from_utf8(&more[..count]).unwrap());
        }
        let body = if is_chunked { format!("493e0\r\n{large}{end}") } else { large.clone() };
        assert!(got.ends_with(&format!("\r\n\r\n{body}")));
        pair.upstream.write_all(OK).await.unwrap();
        sending.await.unwrap().unwrap();
        assert!(pair.idle.take(0, true).is_some(), "{is_chunked}");
    }
}

#[tokio::test]
async fn a_body_with_another_length_than_it_said_is_not_sent() {
    for length in ["3", "5", "four", "4, 5"] {
        let Pair { connection, .. } = Pair::new().await;
        let request = Request::post("/").header("content-length", length);
        let request = request.body(Full::<Bytes>::from("four")).unwrap();
        assert!(Exchange::new(connection.unwrap(), request).is_err(), "{length}");
    }
    let Pair { connection, .. } = Pair::new().await;
    let request = Request::post("/").header("content-length", "4");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    assert!(Exchange::new(connection.unwrap(), request).is_err());
}

/// A body whose frames come from a channel, and whose length is announced.
fn channel()
-> (tokio::sync::mpsc::Sender<&'static str>, impl Body<Data = Bytes, Error = BoxError> + Unpin) {
    let (sender, receiver) = tokio::sync::mpsc::channel::<&'static str>(8);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let text = receiver.recv().await?;
        let frame = match text {
            "broken" => Err(BoxError::from("broken")),
            text => Ok(Frame::data(Bytes::from_static(text.as_bytes()))),
        };
        Some((frame, receiver))
    });
    (sender, StreamBody::new(Box::pin(frames)))
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_an_error() {
    for (frames, length) in
        [(&["ab", "broken"][..], None), (&["ab"], Some("3")), (&["ab", "cd"], Some("3"))]
    {
        let mut pair = Pair::new().await;
        let (sender, body) = channel();
        let mut request = Request::post("/").body(body).unwrap();
        if let Some(length) = length {
            request.headers_mut().insert("content-length", length.parse().unwrap());
        }
        for frame in frames {
            sender.send(frame).await.unwrap();
        }
        drop(sender);
        assert!(pair.send(request).await.is_err(), "{frames:?}");
        assert!(pair.idle.take(0, true).is_none());
    }
}

#[tokio::test]
async fn an_upload_goes_on_after_an_early_response() {
    let mut pair = Pair::new().await;
    let (sender, body) = channel();
    let request = Request::post("/").header("content-length", "6").body(body).unwrap();
    pair.upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nea").await.unwrap();
    let response = pair.send(request).await.unwrap();
    // The client does not read the response, and the upload goes on.
    for frame in ["ab", "cd"] {
        sender.send(frame).await.unwrap();
        pair.got(frame).await;
    }
    pair.upstream.write_all(b"rl").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "earl");
    assert!(pair.idle.take(0, true).is_none(), "the request is not complete");
    sender.send("ef").await.unwrap();
    pair.got("ef").await;
    while !pair.idle.has_usable() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_early_response_of_an_upstream_that_closes_is_read() {
    let mut pair = Pair::new().await;
    let (sender, body) = channel();
    let request = Request::post("/").body(body).unwrap();
    let answer = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno";
    pair.upstream.write_all(answer).await.unwrap();
    pair.upstream.shutdown().await.unwrap();
    let response = pair.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    sender.send("more").await.unwrap();
    assert_eq!(text(response).await.unwrap(), "no");
}

/// The permits of a request are held until its connection is free.
#[tokio::test]
async fn an_upload_after_its_response_holds_its_permits_for_a_limited_time() {
    for ends_itself in [true, false] {
        let clock = ManualClock::default();
        let mut pair = Pair::with_clock(Arc::new(clock.clone())).await;
        let (sender, body) = channel();
        let request = Request::post("/").header("content-length", "6").body(body).unwrap();
        pair.upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
        let mut response = pair.send(request).await.unwrap();
        let permits = Arc::new(());
        let held = Arc::downgrade(&permits);
        assert!(response.body_mut().hold(permits).is_none());
        assert_eq!(text(response).await.unwrap(), "hi");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(held.upgrade().is_some());
        if ends_itself {
            sender.send("abcdef").await.unwrap();
        }
        while held.upgrade().is_some() {
            clock.advance(if ends_itself { Duration::ZERO } else { AFTER_RESPONSE / 10 });
            tokio::task::yield_now().await;
        }
        assert_eq!(pair.idle.has_usable(), ends_itself);
    }
    let mut pair = Pair::new().await;
    let mut response = pair.get(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
    assert!(response.body_mut().hold(()).is_some(), "the connection is free when the body ends");
}

/// The end of an empty body is its head. The end of the connection behind it is no error.
#[tokio::test]
async fn an_early_response_without_a_body_is_complete() {
    for answer in [
        "HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ] {
        for is_closed in [false, true] {
            let mut pair = Pair::new().await;
            let (_sender, body) = channel();
            let request = Request::post("/").body(body).unwrap();
            pair.upstream.write_all(answer.as_bytes()).await.unwrap();
            if is_closed {
                pair.upstream.shutdown().await.unwrap();
            }
            let response = pair.send(request).await.unwrap();
            assert_eq!(text(response).await.expect(answer), "", "{answer} {is_closed}");
        }
    }
}

#[tokio::test]
async fn an_idle_connection_is_kept_for_the_configured_time() {
    let clock = ManualClock::new(Timestamp::from_micros(1));
    let mut pair = Pair::with_clock(Arc::new(clock.clone())).await;
    for idle in [KEEP_ALIVE - Duration::from_millis(1), Duration::ZERO] {
        let response = pair.get(OK).await.unwrap();
        let _body = text(response).await.unwrap();
        clock.advance(idle);
    }
    clock.advance(KEEP_ALIVE);
    assert!(pair.idle.take(0, true).is_none());
    // The connection is closed, although no request asks for it.
    let mut pair = Pair::with_clock(Arc::new(clock.clone())).await;
    let response = pair.get(OK).await.unwrap();
    let _body = text(response).await.unwrap();
    let time = async {
        for _ in 0..2 * KEEP_ALIVE.as_secs() {
            clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
        std::future::pending::<()>().await;
    };
    let mut got = Vec::new();
    tokio::select! {
        read = pair.upstream.read_to_end(&mut got) => assert!(read.unwrap() > 0),
        () = time => {}
    }
    assert!(got.starts_with(b"GET / "));
}

/// A task that has used up its budget of the runtime is told that nothing can be read.
#[tokio::test]
async fn a_busy_task_does_not_take_a_closed_connection() {
    for sent in ["", "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"] {
        let mut pair = Pair::new().await;
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
        let response = pair.get(ok.as_bytes()).await.unwrap();
        assert_eq!(text(response).await.unwrap(), "hi");
        pair.upstream.write_all(sent.as_bytes()).await.unwrap();
        pair.upstream.shutdown().await.unwrap();
        while pair.idle.has_usable() {
            tokio::task::yield_now().await;
        }
        let taken = poll_fn(|cx| {
            while let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) {
                budget.made_progress();
            }
            Poll::Ready(pair.idle.take(0, true).is_some())
        });
        assert!(!taken.await, "{sent}");
    }
}

/// A small generator of test data: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, max: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % max
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A response that is often valid, and often nearly so.
    fn response(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.below(8) == 0 {
            bytes.extend_from_slice(
                self.pick(&[
                    b"HTTP/1.1 100 Continue\r\n\r\n",
                    b"HTTP/1.1 103 Hint\r\na: b\r\n\r\n",
                ]),
            );
        }
        let version =
            self.pick(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1"]);
        let status = self.pick(&[
            "200 OK",
            "200 OK",
            "201",
            "204 No Content",
            "304 X",
            "500 Bad",
            "99",
            "1000 X",
        ]);
        bytes.extend_from_slice(format!("{version} {status}\r\n").as_bytes());
        for _ in 0..self.below(4) {
            let line = self.pick(&[
                "content-length: 5",
                "Content-Length: 5",
                "content-length: 3",
                "content-length: 5, 5",
                "content-length: +5",
                "content-length: 5 ",
                "content-length:",
                "content-length: 18446744073709551616",
                "transfer-encoding: chunked",
                "Transfer-Encoding:  Chunked ",
                "transfer-encoding: gzip, chunked",
                "transfer-encoding: identity",
                "connection: close",
                "connection: keep-alive",
                "x-some: value",
                "x-some : value",
                "x-some: \tvalue\t",
                " folded",
                "x-empty:",
            ]);
            let end = self.pick(&["\r\n", "\r\n", "\r\n", "\n"]);
            bytes.extend_from_slice(format!("{line}{end}").as_bytes());
        }
        bytes.extend_from_slice(self.pick(&[b"\r\n".as_slice(), b"\r\n", b"\r\n", b"\n", b""]));
        bytes.extend_from_slice(self.pick(&[
            b"hello".as_slice(),
            b"hello",
            b"",
            b"5\r\nhello\r\n0\r\n\r\n",
            b"5;a=b\r\nhello\r\n0\r\n\r\n",
            b"2\r\nhe\r\n3\r\nllo\r\n0\r\nx-sum: 1\r\n\r\n",
            b"5\r\nhello\r\n",
            b"5\nhello\n0\n\n",
            b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            b"hello HTTP/1.1 200 OK\r\n\r\n",
        ]));
        for _ in 0..self.below(10).saturating_sub(7) {
            let at = self.below(bytes.len());
            match self.below(3) {
                0 => bytes[at] = self.pick(&[0, b'\r', b'\n', b' ', b':', b';', b'0', b'9', 0xff]),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, self.pick(b"\r\n :;,0aA\t")),
            }
        }
        bytes
    }
}

/// What a client reads of a response. `None` if it refuses a part of it.
type Seen = Option<(u16, Vec<(String, Vec<u8>)>, Vec<u8>)>;

async fn seen<B>(response: Response<B>) -> Seen
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = response.into_parts();
    let headers = parts.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    // The order of different headers has no meaning.
    let mut headers: Vec<_> = headers.collect();
    headers.sort();
    let body = body.collect().await.ok()?.to_bytes().to_vec();
    Some((parts.status.as_u16(), headers, body))
}

/// Reads a response with hyper's client.
async fn hyper_reads(answer: &[u8]) -> Seen {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let io = hyper_util::rt::TokioIo::new(near);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    let driving = tokio::spawn(connection);
    let request = Request::get("/").header("host", "a").body(Full::<Bytes>::default()).unwrap();
    let sending = sender.send_request(request);
    let answering = async {
        let mut request = [0; 64];
        let _some = far.read(&mut request).await.unwrap();
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        far
    };
    let (sent, _far) = tokio::join!(sending, answering);
    let seen = match sent {
        Ok(response) => seen(response).await,
        Err(_) => None,
    };
    driving.abort();
    seen
}

/// Reads a response with the client of this module, in pieces.
async fn we_read(answer: &[u8], step: usize) -> Seen {
    let Pair { connection, upstream, idle } = Pair::new().await;
    let (mut reading, mut writing) = upstream.into_split();
    let request = Request::get("/").header("host", "a").body(Full::<Bytes>::default()).unwrap();
    let exchange = Exchange::new(connection.unwrap(), request).unwrap();
    let answering = async {
        let mut request = [0; 64];
        let _some = reading.read(&mut request).await;
        for piece in answer.chunks(step) {
            let _refused = writing.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        drop(writing);
    };
    let reading = async {
        match exchange.send(&idle, 0, None, &mut Evidence::default()).await {
            Ok(response) => seen(response).await,
            Err(_) => None,
        }
    };
    tokio::join!(reading, answering).0
}

/// Of thousands of responses, each is read as hyper reads it, or is refused.
#[tokio::test]
async fn a_response_is_read_as_hyper_reads_it_or_refused() {
    let mut numbers = Numbers(7);
    let (mut alike, mut refused, mut stricter) = (0, 0, 0);
    for _ in 0..3_000 {
        let answer = numbers.response();
        let step = numbers.pick(&[1, 7, 4_096]);
        let text = answer.escape_ascii().to_string();
        match (hyper_reads(&answer).await, we_read(&answer, step).await) {
            (None, None) => refused += 1,
            (Some(_), None) => stricter += 1,
            (Some((status, mut headers, body)), Some(ours)) => {
                // A repeated length becomes one.
                for (_, value) in headers.iter_mut().filter(|(_, value)| value == b"5, 5") {
                    *value = b"5".to_vec();
                }
                headers.dedup_by(|one, other| one == other && one.0 == "content-length");
                // A length beside a transfer coding is removed.
                if headers.iter().any(|(name, _)| name == "transfer-encoding") {
                    headers.retain(|(name, _)| {
                        name != "content-length" || status == 204 || status == 304
                    });
                }
                assert_eq!((status, headers, body), ours, "{text}");
                alike += 1;
            }
            (None, Some(ours)) => panic!("hyper refuses {text}, and we read {ours:?}"),
        }
    }
    println!("{alike} alike, {refused} refused by both, {stricter} refused by us alone");
    assert!(alike > 500 && refused > 500 && stricter > 10);
}
