mod open_requests;

use super::*;
use crate::gateway::upstream::{Upstream, UpstreamSettings, Upstreams};
use http_body_util::{BodyExt, Full};
use hyper::body::Frame;
use hyper_util::rt::TokioIo as Io;
use onetake_core::SystemClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A body that cannot be sent again.
struct Once(Full<Bytes>);

impl SendAgain for Once {
    fn copied(&self) -> Option<Self> {
        None
    }
}

impl Body for Once {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

fn upstreams<B>() -> Upstreams<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + SendAgain + Send + Unpin + 'static,
{
    upstreams_with(Arc::new(SystemClock))
}

fn upstreams_with<B>(clock: Arc<dyn Clock>) -> Upstreams<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + SendAgain + Send + Unpin + 'static,
{
    let connector = Connector::new(None, Arc::clone(&clock)).unwrap();
    Upstreams::new(connector, UpstreamSettings::OF_TESTS, clock, Census::new())
}

async fn listener() -> (TcpListener, Uri) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("h2c://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, uri)
}

/// Sends a request. Returns whether there was a response, and whether it may have been sent.
async fn send<B>(upstreams: &Upstreams<B>, to: &Uri, body: B) -> (bool, bool)
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + SendAgain + Send + Unpin + 'static,
{
    let mut evidence = Evidence::default();
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let to = Upstream { number: 0, server: to, is_keyed: true, hints: None };
    let sent = upstreams.send(to, Box::new(request), &mut evidence).await;
    let is_answered = match sent {
        Ok(response) => response.into_body().collect().await.is_ok(),
        Err(NoResponse) => false,
    };
    (is_answered, evidence.may_be_sent())
}

/// Reads frames of a new connection until a request has begun. Returns the number of its stream.
async fn read_request(stream: &mut TcpStream) -> u32 {
    read_preface(stream).await;
    read_head(stream).await
}

async fn read_preface(stream: &mut TcpStream) {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
}

/// Reads frames until a request has begun. Returns the number of its stream.
async fn read_head(stream: &mut TcpStream) -> u32 {
    loop {
        let mut prefix = [0; 9];
        stream.read_exact(&mut prefix).await.unwrap();
        let [a, b, c, kind, _, number @ ..] = prefix;
        let mut frame = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut frame).await.unwrap();
        if kind == 1 {
            return u32::from_be_bytes(number);
        }
    }
}

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, payload.len() as u8, kind, 0];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn go_away(last: u32) -> Vec<u8> {
    let mut payload = last.to_be_bytes().to_vec();
    payload.extend_from_slice(&[0; 4]);
    frame(7, 0, &payload)
}

/// Serves every request of one connection.
async fn serve(stream: TcpStream) {
    let service = hyper::service::service_fn(|_| async {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("hi")))
    });
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ended = builder.serve_connection(Io::new(stream), service).await;
}

/// Gets a request, acts on it, and serves the next connection.
async fn at_first(
    act: impl FnOnce(u32) -> (Vec<u8>, bool) + Send + 'static,
) -> (Uri, tokio::task::JoinHandle<()>) {
    let (listener, uri) = listener().await;
    let serving = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        first.write_all(SETTINGS).await.unwrap();
        let number = read_request(&mut first).await;
        let (frames, closes) = act(number);
        first.write_all(&frames).await.unwrap();
        if closes {
            first.shutdown().await.unwrap();
            drop(first);
            serve(listener.accept().await.unwrap().0).await;
            return;
        }
        let mut rest = Vec::new();
        tokio::select! {
            _read = first.read_to_end(&mut rest) => {}
            accepted = listener.accept() => serve(accepted.unwrap().0).await,
        }
    });
    (uri, serving)
}

#[tokio::test]
async fn requests_share_a_connection() {
    let (listener, uri) = listener().await;
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::select! {
            () = serve(stream) => {}
            _second = listener.accept() => panic!("a second connection was opened"),
        }
    });
    let upstreams = upstreams::<Full<Bytes>>();
    let sending = (0..STREAMS_MAX).map(|_| send(&upstreams, &uri, Full::from("pay")));
    for sent in futures_util::future::join_all(sending).await {
        assert_eq!(sent, (true, true));
    }
    assert_eq!(upstreams.http2.pool(&uri).lock().len(), 1);
    let load = Arc::clone(&upstreams.http2.pool(&uri).lock()[0].load);
    assert_eq!(load.streams.load(Ordering::Acquire), 0, "every stream gave its place back");
    serving.abort();
}

/// An upstream with a limit of one stream for each connection. No request is refused, because no
/// connection gets a second one, not even before the gateway knows the limit. Above the limit of
/// connections a request is not sent.
#[tokio::test]
async fn connections_are_limited_and_never_get_more_than_the_upstream_allows() {
    let (listener, uri) = listener().await;
    let (release, released) = tokio::sync::watch::channel(false);
    let running = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&running);
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (released, running) = (released.clone(), Arc::clone(&counted));
            let service = hyper::service::service_fn(move |_| {
                let mut released = released.clone();
                running.fetch_add(1, Ordering::AcqRel);
                async move {
                    let _released = released.wait_for(|released| *released).await;
                    Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("hi")))
                }
            });
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(1);
            tokio::spawn(builder.serve_connection(Io::new(stream), service));
        }
    });
    let upstreams = Arc::new(upstreams::<Once>());
    let start = || {
        let (upstreams, uri) = (Arc::clone(&upstreams), uri.clone());
        tokio::spawn(async move { send(&upstreams, &uri, Once(Full::from("pay"))).await })
    };
    let held: Vec<_> = (0..CONNECTIONS_MAX).map(|_| start()).collect();
    while running.load(Ordering::Acquire) < CONNECTIONS_MAX {
        assert!(!held.iter().any(tokio::task::JoinHandle::is_finished), "a request was refused");
        SystemClock.sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(upstreams.http2.pool(&uri).lock().len(), CONNECTIONS_MAX);
    assert_eq!(soon(start()).await.unwrap(), (false, false), "it was not sent");
    release.send(true).unwrap();
    for held in held {
        assert_eq!(held.await.unwrap(), (true, true));
    }
    assert_eq!(start().await.unwrap(), (true, true), "there is a place again");
    assert_eq!(upstreams.http2.pool(&uri).lock().len(), CONNECTIONS_MAX);
    serving.abort();
}

/// Waits for a result that takes no longer than a machine that stalls.
async fn soon<T>(result: impl Future<Output = T>) -> T {
    tokio::select! {
        result = result => result,
        () = SystemClock.sleep(Duration::from_secs(30)) => panic!("nothing happens"),
    }
}

/// The number of requests that have arrived on a connection which nobody has read.
async fn arrived(stream: &TcpStream) -> usize {
    let mut bytes = vec![0; 1 << 16];
    let count = stream.peek(&mut bytes).await.unwrap();
    let mut rest = bytes.get(24..count).unwrap_or_default();
    let mut requests = 0;
    while let [a, b, c, kind, _, _, _, _, _, behind @ ..] = rest {
        requests += usize::from(*kind == 1);
        rest = behind.get(u32::from_be_bytes([0, *a, *b, *c]) as usize..).unwrap_or_default();
    }
    requests
}

/// Requests wait for the settings of a new connection, and then share it: those that wait for the
/// connection, and those that come when it is open.
#[tokio::test]
async fn one_request_is_sent_before_the_settings_arrive() {
    let (listener, uri) = listener().await;
    let (accepted, is_open) = tokio::sync::oneshot::channel();
    let (counted, early) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        SystemClock.sleep(Duration::from_millis(100)).await;
        accepted.send(()).unwrap();
        SystemClock.sleep(Duration::from_millis(200)).await;
        counted.send(arrived(&stream).await).unwrap();
        tokio::select! {
            () = serve(stream) => {}
            _second = listener.accept() => panic!("a second connection was opened"),
        }
    });
    let upstreams = upstreams::<Full<Bytes>>();
    let many = || {
        let sending = (0..STREAMS_MAX / 2).map(|_| send(&upstreams, &uri, Full::from("pay")));
        futures_util::future::join_all(sending)
    };
    let late = async {
        is_open.await.unwrap();
        many().await
    };
    let (first, late) = soon(futures_util::future::join(many(), late)).await;
    for sent in first.into_iter().chain(late) {
        assert_eq!(sent, (true, true));
    }
    assert_eq!(early.await.unwrap(), 1);
    assert_eq!(upstreams.http2.pool(&uri).lock().len(), 1);
    serving.abort();
}

/// An upstream that does not send its settings delays requests, but does not stop them.
#[tokio::test]
async fn a_connection_without_settings_does_not_stop_others() {
    let (listener, uri) = listener().await;
    let serving = tokio::spawn(async move {
        let (_silent, _) = listener.accept().await.unwrap();
        serve(listener.accept().await.unwrap().0).await;
    });
    let upstreams = upstreams();
    let silent = send(&upstreams, &uri, Full::from("pay"));
    let other = send(&upstreams, &uri, Full::from("pay"));
    tokio::select! {
        biased;
        _answered = silent => panic!("nobody answers it"),
        other = soon(other) => assert_eq!(other, (true, true)),
    }
    serving.abort();
}

#[tokio::test]
async fn a_refused_stream_was_not_sent_and_is_sent_again() {
    let refuse = |number| (frame(3, number, &7_u32.to_be_bytes()), true);
    let (uri, serving) = at_first(refuse).await;
    assert_eq!(send(&upstreams(), &uri, Full::from("pay")).await, (true, true));
    serving.abort();
    let (uri, serving) = at_first(refuse).await;
    assert_eq!(send(&upstreams(), &uri, Once(Full::from("pay"))).await, (false, false));
    serving.abort();
}

#[tokio::test]
async fn a_stream_above_the_last_of_a_goaway_was_not_sent() {
    let (uri, serving) = at_first(|_| (go_away(0), true)).await;
    assert_eq!(send(&upstreams(), &uri, Full::from("pay")).await, (true, true));
    serving.abort();
    let (uri, serving) = at_first(|_| (go_away(0), true)).await;
    assert_eq!(send(&upstreams(), &uri, Once(Full::from("pay"))).await, (false, false));
    serving.abort();
}

#[tokio::test]
async fn a_stream_up_to_the_last_of_a_goaway_may_be_sent() {
    let (uri, serving) = at_first(|number| (go_away(number), true)).await;
    assert_eq!(send(&upstreams(), &uri, Full::from("pay")).await, (false, true));
    serving.abort();
}

#[tokio::test]
async fn any_other_end_may_be_after_it_was_sent() {
    // CANCEL, INTERNAL_ERROR, HTTP_1_1_REQUIRED.
    for reason in [8_u32, 2, 13] {
        let (uri, serving) =
            at_first(move |number| (frame(3, number, &reason.to_be_bytes()), false)).await;
        assert_eq!(send(&upstreams(), &uri, Full::from("pay")).await, (false, true), "{reason}");
        serving.abort();
    }
    let (uri, serving) = at_first(|_| (Vec::new(), true)).await;
    assert_eq!(send(&upstreams(), &uri, Full::from("pay")).await, (false, true));
    serving.abort();
}

#[tokio::test]
async fn what_no_connection_took_was_not_sent() {
    let (listener, uri) = listener().await;
    drop(listener);
    assert_eq!(send(&upstreams(), &uri, Full::from("pay")).await, (false, false));
}

/// A server that speaks HTTP/2 only does not understand HTTP/1.1, so nothing ran.
#[tokio::test]
async fn http1_to_an_upstream_of_http2_was_not_handled() {
    let (listener, uri) = listener().await;
    let serving = tokio::spawn(async move {
        loop {
            tokio::spawn(serve(listener.accept().await.unwrap().0));
        }
    });
    let uri = uri.to_string().replace("h2c", "http").parse().unwrap();
    assert_eq!(send(&upstreams(), &uri, Full::from("pay")).await, (false, false));
    serving.abort();
}

#[tokio::test]
async fn a_connection_without_a_sign_of_life_gets_no_more_requests() {
    let (listener, uri) = listener().await;
    let serving = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        first.write_all(SETTINGS).await.unwrap();
        read_request(&mut first).await;
        // Silent from now on, and not closed.
        serve(listener.accept().await.unwrap().0).await;
        drop(first);
    });
    let upstreams = upstreams();
    let impatient = tokio::select! {
        _sent = send(&upstreams, &uri, Full::from("pay")) => false,
        () = SystemClock.sleep(SILENCE_MAX + Duration::from_millis(300)) => true,
    };
    assert!(impatient);
    assert_eq!(send(&upstreams, &uri, Full::from("pay")).await, (true, true));
    serving.abort();
}

#[test]
fn a_repeated_length_is_sent_once() {
    let request = Request::post("/").header("content-length", "4").header("content-length", "4");
    let request = addressed(&Uri::from_static("h2c://a"), request.body(()).unwrap());
    let lengths: Vec<_> = request.headers().get_all("content-length").iter().collect();
    assert_eq!(lengths, ["4"]);
}
