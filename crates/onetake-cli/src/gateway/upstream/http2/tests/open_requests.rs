//! Tests of requests that are not complete when their response is.

use onetake_core::ManualClock;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::*;
use crate::gateway::upstream::after_response::AFTER_RESPONSE;
use crate::gateway::upstream::http2::stream::RESET_MAX;

/// A flag of HEADERS and DATA.
const END_STREAM: u8 = 1;

/// A body whose frames come from a channel.
struct Frames(mpsc::Receiver<&'static str>);

impl Frames {
    fn new() -> (mpsc::Sender<&'static str>, Self) {
        let (sender, receiver) = mpsc::channel(8);
        (sender, Self(receiver))
    }

    /// A body without frames.
    fn empty() -> Self {
        Self::new().1
    }
}

impl SendAgain for Frames {
    fn copied(&self) -> Option<Self> {
        None
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|data| data.map(|data| Ok(Frame::data(Bytes::from(data)))))
    }
}

/// The settings of an upstream that allows this number of streams, and this number of bytes of a
/// request until it asks for more.
fn settings(streams_max: u32, window: u32) -> Vec<u8> {
    let mut payload = vec![0, 3];
    payload.extend_from_slice(&streams_max.to_be_bytes());
    payload.extend_from_slice(&[0, 4]);
    payload.extend_from_slice(&window.to_be_bytes());
    frame(4, 0, &payload)
}

/// The head of a response with status 200.
fn head(stream: u32, is_end: bool) -> Vec<u8> {
    const END_HEADERS: u8 = 4;
    let mut head = frame(1, stream, &[0x88]);
    head[4] = END_HEADERS | if is_end { END_STREAM } else { 0 };
    head
}

/// Sends a request, and returns its response without the body.
async fn begin(upstreams: &Upstreams<Frames>, to: &Uri, body: Frames) -> Response<UpstreamBody> {
    let request = Request::post("/").header("host", "a").body(body).unwrap();
    let to = Upstream { number: 0, server: to, is_keyed: true, hints: None };
    let mut evidence = Evidence::default();
    soon(upstreams.send(to, Box::new(request), &mut evidence)).await.unwrap()
}

/// Sends a frame of a request. hyper has taken it when this returns.
async fn upload(sender: &mpsc::Sender<&'static str>, frame: &'static str) {
    sender.send(frame).await.unwrap();
    let taken = async {
        while sender.capacity() < sender.max_capacity() {
            yield_now().await;
        }
    };
    soon(taken).await;
}

fn first_load(upstreams: &Upstreams<Frames>, uri: &Uri) -> Arc<Load> {
    Arc::clone(&upstreams.http2.pool(uri).lock()[0].load)
}

async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// The upstream allows one stream, and does not reset the one whose response has ended. Another
/// request on this connection would wait for it.
#[tokio::test]
async fn a_stream_counts_until_its_request_has_ended() {
    let (listener, uri) = listener().await;
    let serving = tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        first.write_all(&settings(1, 65_535)).await.unwrap();
        let number = read_request(&mut first).await;
        first.write_all(&head(number, true)).await.unwrap();
        let other = serve(listener.accept().await.unwrap().0);
        let next = async {
            let number = read_head(&mut first).await;
            first.write_all(&head(number, true)).await.unwrap();
            // It stays open.
            first.read_to_end(&mut Vec::new()).await
        };
        let (_ended, ()) = tokio::join!(next, other);
    });
    // The clock stands still, so that the request does not end for lack of progress.
    let upstreams = upstreams_with::<Frames>(Arc::new(ManualClock::default()));
    let (sender, body) = Frames::new();
    let mut response = begin(&upstreams, &uri, body).await;
    let permits = Arc::new(());
    let held = Arc::downgrade(&permits);
    let returned = response.body_mut().hold(permits);
    assert_eq!(soon(response.into_body().collect()).await.unwrap().to_bytes(), "");
    let load = first_load(&upstreams, &uri);
    let other = send(&upstreams, &uri, Frames::empty());
    assert_eq!(soon(other).await, (true, true), "it waits for the first stream");
    assert!(returned.is_none() && held.upgrade().is_some());
    assert_eq!(load.streams(), 1);
    drop(sender);
    let free = async {
        while load.streams() > 0 || held.upgrade().is_some() {
            yield_now().await;
        }
    };
    soon(free).await;
    let mut complete = begin(&upstreams, &uri, Frames::empty()).await;
    assert!(complete.body_mut().hold(()).is_some(), "the stream is free when the response ends");
    serving.abort();
}

/// Serves a connection whose streams take no bytes of a request. Each request gets a head, which is
/// the end of the response if the item says so. Then come these frames.
async fn serve_blocked(
    listener: Arc<TcpListener>,
    heads: &[bool],
    mut frames: mpsc::Receiver<Vec<u8>>,
) {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(&settings(100, 0)).await.unwrap();
    read_preface(&mut stream).await;
    for is_end in heads {
        let number = read_head(&mut stream).await;
        stream.write_all(&head(number, *is_end)).await.unwrap();
    }
    let mut rest = Vec::new();
    loop {
        tokio::select! {
            Some(frames) = frames.recv() => stream.write_all(&frames).await.unwrap(),
            read = stream.read_buf(&mut rest) => if !read.is_ok_and(|count| count > 0) { return },
        }
    }
}

/// hyper does not ask for the next part of a request while one part waits for the upstream. So it
/// neither notices that the time is over, nor that the client has left.
#[tokio::test]
async fn a_request_that_the_upstream_does_not_read_ends_with_its_connection() {
    for (has_ended, limits) in [(true, &[AFTER_RESPONSE, RESET_MAX][..]), (false, &[RESET_MAX])] {
        let (listener, uri) = listener().await;
        let (_frames, frames) = mpsc::channel(1);
        let listener = Arc::new(listener);
        let serving =
            tokio::spawn(async move { serve_blocked(listener, &[has_ended], frames).await });
        let clock = ManualClock::default();
        let upstreams = upstreams_with::<Frames>(Arc::new(clock.clone()));
        let (sender, body) = Frames::new();
        let mut response = begin(&upstreams, &uri, body).await;
        upload(&sender, "pay").await;
        let permits = Arc::new(());
        let held = Arc::downgrade(&permits);
        assert!(response.body_mut().hold(permits).is_none());
        let load = first_load(&upstreams, &uri);
        match has_ended {
            true => drop(soon(response.into_body().collect()).await.unwrap()),
            false => drop(response),
        }
        for limit in limits {
            settle().await;
            clock.advance(*limit - Duration::from_millis(1));
            settle().await;
            assert!(!serving.is_finished() && held.upgrade().is_some() && load.streams() == 1);
            clock.advance(Duration::from_millis(1));
        }
        soon(serving).await.unwrap();
        let free = async {
            while load.streams() > 0 || held.upgrade().is_some() || !sender.is_closed() {
                yield_now().await;
            }
        };
        soon(free).await;
    }
}

/// The connection takes no more requests, and ends after those that it has.
#[tokio::test]
async fn a_request_that_the_upstream_does_not_read_ends_no_others() {
    let (listener, uri) = listener().await;
    let (frames, to_send) = mpsc::channel(1);
    let listener = Arc::new(listener);
    let accepting = Arc::clone(&listener);
    let serving =
        tokio::spawn(async move { serve_blocked(accepting, &[false, false], to_send).await });
    let clock = ManualClock::default();
    let upstreams = upstreams_with::<Frames>(Arc::new(clock.clone()));
    let (sender, body) = Frames::new();
    let stuck = begin(&upstreams, &uri, body).await;
    upload(&sender, "pay").await;
    let mut other = begin(&upstreams, &uri, Frames::empty()).await;
    let mut stuck_body = stuck.into_body();
    let permits = Arc::new(());
    let held = Arc::downgrade(&permits);
    assert!(stuck_body.hold(permits).is_none());
    drop(stuck_body);
    settle().await;
    clock.advance(RESET_MAX);
    settle().await;
    assert!(held.upgrade().is_none(), "the permits do not wait for the other request");
    assert_eq!(first_load(&upstreams, &uri).streams(), 2);
    frames.send(frame(0, 3, b"hi")).await.unwrap();
    let read = soon(other.body_mut().frame()).await.unwrap().unwrap();
    assert_eq!(read.into_data().unwrap(), "hi");
    let beside = tokio::spawn(async move { serve(listener.accept().await.unwrap().0).await });
    assert_eq!(soon(send(&upstreams, &uri, Frames::empty())).await, (true, true));
    assert!(!serving.is_finished());
    let mut end = frame(0, 3, b"");
    end[4] = END_STREAM;
    frames.send(end).await.unwrap();
    assert!(soon(other.body_mut().frame()).await.is_none_or(|frame| frame.is_ok()));
    drop(other);
    soon(serving).await.unwrap();
    beside.abort();
}
