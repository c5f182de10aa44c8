//! The two halves of an HTTP/2 stream: the body of its request, and the part that its response
//! holds.
//!
//! Normally each half ends by itself. If the client disconnects, the gateway drops the response's
//! half, and that cancels the request's half. The stream counts on its connection until both halves
//! are gone, because it counts for the upstream as well.
//!
//! hyper resets a cancelled stream when it asks for the next part of the request. It does not ask
//! while it has a part that waits for the upstream's window. Such a stream is stuck: its connection
//! takes no more requests, and breaks off when all of its streams are stuck.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::header::{HeaderMap, HeaderName, TRAILER};
use http_body::{Body, Frame, SizeHint};
use onetake_core::Clock;
use onetake_http::BoxError;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::super::after_response::AfterResponse;
use super::{Load, StreamPlace};

/// The time after its cancellation in which hyper must reset a stream. After that it is stuck.
pub(super) const RESET_MAX: Duration = Duration::from_secs(5);

/// The permits of a request, until its stream is free.
type Permits = Option<Box<dyn Send>>;

/// The state of a stream, which its two halves share.
struct StreamState {
    is_cancelled: AtomicBool,
    /// Wakes the request.
    request: AtomicWaker,
    /// Number of bytes of the request's body that hyper has taken.
    moved: AtomicU64,
    place: StreamPlace,
    permits: Mutex<Permits>,
    /// Ends the [watch] of the request when both halves are gone.
    alive: OnceLock<oneshot::Sender<Infallible>>,
}

impl StreamState {
    fn permits(&self) -> MutexGuard<'_, Permits> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.request.wake();
    }
}

/// The response's half of a stream. The request is cancelled if this is dropped before the response
/// has ended.
pub(in super::super) struct ResponseHalf {
    stream: Arc<StreamState>,
    has_ended: bool,
}

impl ResponseHalf {
    /// Holds permits until both halves are gone. Returns them if the request is gone already.
    pub(in super::super) fn hold<P: Send + 'static>(&mut self, permits: P) -> Option<P> {
        if !self.has_request() {
            return Some(permits);
        }
        *self.stream.permits() = Some(Box::new(permits));
        None
    }

    /// Notes the end of the response. The request may go on for a while.
    pub(in super::super) fn end(mut self) {
        self.has_ended = true;
    }

    pub(super) fn load(&self) -> &Load {
        &self.stream.place.load
    }

    fn has_request(&self) -> bool {
        Arc::strong_count(&self.stream) > 1
    }
}

impl Drop for ResponseHalf {
    fn drop(&mut self) {
        if !self.has_ended {
            self.stream.cancel();
        }
        if self.has_request()
            && let Ok(runtime) = Handle::try_current()
        {
            let (alive, gone) = oneshot::channel();
            let _first = self.stream.alive.set(alive);
            let clock = Arc::clone(&self.load().clock);
            runtime.spawn(watch(Arc::downgrade(&self.stream), gone, clock));
        }
    }
}

/// Watches a request whose response has ended or was dropped, until the request is gone.
async fn watch(
    stream: Weak<StreamState>,
    gone: oneshot::Receiver<Infallible>,
    clock: Arc<dyn Clock>,
) {
    tokio::select! {
        biased;
        _gone = gone => {}
        () = end_request(stream, clock) => {}
    }
}

/// Cancels a request that goes on for too long after its response, and notes if it is stuck.
async fn end_request(stream: Weak<StreamState>, clock: Arc<dyn Clock>) {
    let mut after_response = None;
    let over = poll_fn(|cx| {
        let Some(stream) = stream.upgrade().filter(|stream| !stream.is_cancelled()) else {
            return Poll::Ready(());
        };
        let moved = stream.moved.load(Ordering::Relaxed);
        let limits = after_response.get_or_insert_with(|| AfterResponse::begin(&clock, moved));
        limits.poll_over(cx, moved)
    });
    over.await;
    if let Some(stream) = stream.upgrade() {
        stream.cancel();
    }
    clock.sleep(RESET_MAX).await;
    if let Some(stream) = stream.upgrade() {
        stream.place.set_stuck();
        // The number of stuck streams is bounded, because their connections take no more requests.
        let permits = stream.permits().take();
        drop(permits);
    }
}

/// The request's half of a stream: its body. It ends with an error if it is cancelled, and hyper
/// then resets the stream.
pub(in super::super) struct RequestStream<B> {
    body: B,
    /// The trailers that may be sent.
    trailer_names: Vec<HeaderName>,
    stream: Arc<StreamState>,
}

impl<B> RequestStream<B> {
    /// Creates the halves of a stream for a request with these headers. Only trailers that
    /// `Trailer` names are sent, as over HTTP/1.1: the edge has checked the names.
    pub(super) fn new(headers: &HeaderMap, body: B, place: StreamPlace) -> (Self, ResponseHalf) {
        let values = headers.get_all(TRAILER).into_iter();
        let names = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
        let trailer_names = names.filter_map(|name| name.trim().parse().ok()).collect();
        let stream = Arc::new(StreamState {
            is_cancelled: AtomicBool::new(false),
            request: AtomicWaker::new(),
            moved: AtomicU64::new(0),
            place,
            permits: Mutex::default(),
            alive: OnceLock::new(),
        });
        let response = ResponseHalf { stream: Arc::clone(&stream), has_ended: false };
        (Self { body, trailer_names, stream }, response)
    }

    pub(super) fn into_inner(self) -> B {
        self.body
    }
}

impl<B> Body for RequestStream<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        this.stream.request.register(cx.waker());
        if this.stream.is_cancelled() {
            return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
        }
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        let frame = match frame.map_err(Into::into).map(Frame::into_trailers) {
            Err(error) => Err(error),
            Ok(Err(data)) => {
                let bytes = data.data_ref().map_or(0, |data| data.len() as u64);
                this.stream.moved.fetch_add(bytes, Ordering::Relaxed);
                Ok(data)
            }
            Ok(Ok(mut trailers)) => {
                let names: Vec<_> = trailers.keys().cloned().collect();
                for name in names.iter().filter(|name| !this.trailer_names.contains(name)) {
                    trailers.remove(name);
                }
                Ok(Frame::trailers(trailers))
            }
        };
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
