//! Tests of responses that are complete before their requests.

use super::*;
use crate::gateway::upstream::after_response::PROGRESS_BYTES_MIN;

/// Longer than a machine stalls. A correct end of a body takes no time.
const STALL_MAX: Duration = Duration::from_secs(20);

/// A POST of six bytes, and the way of these bytes.
fn post() -> (
    tokio::sync::mpsc::Sender<&'static str>,
    Request<impl Body<Data = Bytes, Error = BoxError> + Unpin>,
) {
    let (sender, body) = channel();
    (sender, Request::post("/").header("content-length", "6").body(body).unwrap())
}

fn without_length<B>(mut request: Request<B>) -> Request<B> {
    request.headers_mut().remove("content-length");
    request
}

/// Waits for a result, but not for ever.
async fn in_time<T>(result: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        result = result => Some(result),
        () = SystemClock.sleep(STALL_MAX) => None,
    }
}

/// Waits until every task has done what it can.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// The clock stands still, so no timeout ends the body.
#[tokio::test]
async fn the_end_of_an_early_response_does_not_wait_for_the_upload() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for (head, rest, body) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "", ""),
        ("HTTP/1.1 204 No Content\r\n\r\n", "", ""),
        (chunked, "0\r\n\r\n", ""),
        (chunked, "2\r\nhi\r\n0\r\n\r\n", "hi"),
        (chunked, "2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n", "hi"),
        ("HTTP/1.1 200 OK\r\n\r\n", "hi", "hi"),
        ("HTTP/1.1 200 OK\r\n\r\n", "", ""),
    ] {
        for is_at_once in [true, false] {
            let mut pair = Pair::with_clock(Arc::new(ManualClock::default())).await;
            let (_sender, request) = post();
            let (first, later) = if is_at_once { (rest, "") } else { ("", rest) };
            pair.upstream.write_all(format!("{head}{first}").as_bytes()).await.unwrap();
            let response = pair.send(request).await.unwrap();
            let reading = tokio::spawn(in_time(text(response)));
            pair.upstream.write_all(later.as_bytes()).await.unwrap();
            if !head.contains("length") && !head.contains("chunked") {
                pair.upstream.shutdown().await.unwrap();
            }
            let read = reading.await.unwrap();
            let read = read.unwrap_or_else(|| panic!("no end: {head}{rest} {is_at_once}"));
            assert_eq!(read.unwrap(), body, "{head}{rest} {is_at_once}");
        }
    }
}

/// hyper drops an empty body without reading it.
#[tokio::test]
async fn an_early_response_without_a_body_does_not_end_its_upload() {
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n",
    ] {
        let mut pair = Pair::with_clock(Arc::new(ManualClock::default())).await;
        let (sender, request) = post();
        pair.upstream.write_all(head.as_bytes()).await.unwrap();
        let response = pair.send(request).await.unwrap();
        assert!(response.body().is_end_stream(), "{head}");
        assert_eq!(response.body().size_hint().exact(), Some(0), "{head}");
        drop(response);
        for frame in ["ab", "cd", "ef"] {
            sender.send(frame).await.expect(head);
            pair.got(frame).await;
        }
        while !pair.idle.has_usable() {
            tokio::task::yield_now().await;
        }
    }
}

/// The layer compares the rest of a response with the room for a recording.
#[tokio::test]
async fn an_early_response_knows_what_is_left_of_it() {
    let mut pair = Pair::with_clock(Arc::new(ManualClock::default())).await;
    let (sender, request) = post();
    pair.upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nea").await.unwrap();
    let mut response = pair.send(request).await.unwrap();
    let body = response.body_mut();
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ea");
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(2), false));
    pair.upstream.write_all(b"rl").await.unwrap();
    let body = response.body_mut();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "rl");
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
    // hyper drops such a body here, and the upload goes on.
    drop(response);
    sender.send("abcdef").await.unwrap();
    pair.got("abcdef").await;
    while !pair.idle.has_usable() {
        tokio::task::yield_now().await;
    }
}

/// A client that leaves before the end of the response ends the exchange.
#[tokio::test]
async fn an_early_response_that_is_dropped_ends_its_upload() {
    let mut pair = Pair::with_clock(Arc::new(ManualClock::default())).await;
    let (sender, request) = post();
    pair.upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nea").await.unwrap();
    drop(pair.send(request).await.unwrap());
    sender.closed().await;
    assert!(pair.idle.take(0, true).is_none());
}

/// Nothing else wakes the task: the upstream is silent, and the upload is complete, or the upstream
/// does not read it.
#[tokio::test]
async fn an_early_response_that_is_dropped_ends_a_silent_exchange() {
    for is_complete in [true, false] {
        let mut pair = Pair::with_clock(Arc::new(ManualClock::default())).await;
        let (sender, request) = post();
        let request = if is_complete { request } else { without_length(request) };
        pair.upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nea").await.unwrap();
        let mut response = pair.send(request).await.unwrap();
        let permits = Arc::new(());
        let held = Arc::downgrade(&permits);
        assert!(response.body_mut().hold(permits).is_none());
        let frame = response.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "ea");
        if is_complete {
            sender.send("abcdef").await.unwrap();
            pair.got("abcdef").await;
        } else {
            let piece: &str = "x".repeat(1 << 20).leak();
            // The buffers of the operating system are full, and then the channel is.
            while sender.try_send(piece).is_ok() {
                settle().await;
            }
        }
        settle().await;
        assert!(held.upgrade().is_some());
        drop(response);
        let ended = async {
            sender.closed().await;
            while held.upgrade().is_some() {
                tokio::task::yield_now().await;
            }
        };
        assert!(
            in_time(ended).await.is_some(),
            "the permits are held for ever; complete: {is_complete}"
        );
        assert!(pair.idle.take(0, true).is_none());
    }
}

/// The client sends the rest of its request slowly, and the upstream reads it.
#[tokio::test]
async fn an_upload_that_makes_progress_goes_on_after_its_response() {
    let clock = ManualClock::default();
    let mut pair = Pair::with_clock(Arc::new(clock.clone())).await;
    let (sender, body) = channel();
    let request = Request::post("/").body(body).unwrap();
    pair.upstream.write_all(OK).await.unwrap();
    drop(pair.send(request).await.unwrap());
    let piece: &str = "x".repeat(usize::try_from(PROGRESS_BYTES_MIN).unwrap()).leak();
    // The time begins with the first poll of the task.
    sender.send("x").await.unwrap();
    pair.got("x\r\n").await;
    for _ in 0..6 {
        sender.send(piece).await.unwrap();
        pair.got(&format!("{piece}\r\n")).await;
        clock.advance(AFTER_RESPONSE);
        settle().await;
        assert!(!sender.is_closed());
    }
    // A little is no progress.
    sender.send("x").await.unwrap();
    pair.got("x\r\n").await;
    clock.advance(AFTER_RESPONSE);
    sender.closed().await;
}
