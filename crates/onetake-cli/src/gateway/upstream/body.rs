//! Bodies of responses of upstreams, and of requests over HTTP/2.
//!
//! An HTTP/2 stream has two directions, which end by themselves. If the client leaves, both must end: the
//! response is dropped, and that cancels the request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::header::{HeaderMap, HeaderName, TRAILER};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onetake_core::Clock;
use onetake_http::BoxError;

use super::after_response::AfterResponse;
use super::http1::Http1Body;
use super::http2::StreamPlace;

const OPEN: u8 = 0;
const RESPONSE_ENDED: u8 = 1;
const CANCELLED: u8 = 2;

/// The state of a stream's response, as its request sees it.
#[derive(Default)]
struct ResponseState {
    state: AtomicU8,
    request: AtomicWaker,
}

/// Cancels the request of a stream when it is dropped, unless the response has ended.
pub(super) struct CancelOnDrop(Arc<ResponseState>);

impl CancelOnDrop {
    fn set(&self, state: u8) {
        let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
        if self.0.state.compare_exchange(OPEN, state, set, seen).is_ok() {
            self.0.request.wake();
        }
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.set(CANCELLED);
    }
}

/// The body of a request that ends with an error if it is cancelled. The stream is then reset.
pub(super) struct RequestStream<B> {
    body: B,
    /// The trailers that may be sent.
    trailer_names: Vec<HeaderName>,
    response: Arc<ResponseState>,
    clock: Arc<dyn Clock>,
    /// Number of bytes of the body so far.
    moved: u64,
    /// `None` until the response has ended.
    after_response: Option<Box<AfterResponse>>,
}

impl<B> RequestStream<B> {
    /// Creates the body of a request with these headers. Only trailers that `Trailer` names are
    /// sent, as over HTTP/1.1: the edge has checked the names.
    pub(super) fn new(headers: &HeaderMap, body: B, clock: Arc<dyn Clock>) -> (Self, CancelOnDrop) {
        let values = headers.get_all(TRAILER).into_iter();
        let names = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
        let trailer_names = names.filter_map(|name| name.trim().parse().ok()).collect();
        let response = Arc::<ResponseState>::default();
        let cancel = CancelOnDrop(Arc::clone(&response));
        let (moved, after_response) = (0, None);
        (Self { body, trailer_names, response, clock, moved, after_response }, cancel)
    }

    pub(super) fn into_inner(self) -> B {
        self.body
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        match self.response.state.load(Ordering::Acquire) {
            OPEN => false,
            RESPONSE_ENDED => {
                let begin = || Box::new(AfterResponse::begin(&self.clock, self.moved));
                let after_response = self.after_response.get_or_insert_with(begin);
                after_response.poll_over(cx, self.moved).is_ready()
            }
            _ => true,
        }
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
        this.response.request.register(cx.waker());
        if this.is_over(cx) {
            return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
        }
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        let frame = match frame.map_err(Into::into).map(Frame::into_trailers) {
            Err(error) => Err(error),
            Ok(Err(data)) => {
                this.moved += data.data_ref().map_or(0, |data| data.len() as u64);
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

/// The body of an upstream's response.
pub(in super::super) struct UpstreamBody(Kind);

enum Kind {
    Http1(Http1Body),
    /// The response to a request that asked for an upgrade.
    Upgrade(Incoming),
    Http2(Http2Body),
}

/// The body of a response over HTTP/2.
struct Http2Body {
    incoming: Incoming,
    /// `None` after the end.
    stream: Option<Box<(CancelOnDrop, StreamPlace)>>,
}

impl UpstreamBody {
    pub(super) fn http1(body: Http1Body) -> Self {
        Self(Kind::Http1(body))
    }

    /// Holds permits until the connection is free. Returns them if that is so when the body ends.
    pub(in super::super) fn hold<P: Send + 'static>(&mut self, permits: P) -> Option<P> {
        match &mut self.0 {
            Kind::Http1(body) => body.hold(permits),
            Kind::Upgrade(_) | Kind::Http2(_) => Some(permits),
        }
    }

    pub(super) fn upgrade(incoming: Incoming) -> Self {
        Self(Kind::Upgrade(incoming))
    }

    pub(super) fn http2(incoming: Incoming, cancel: CancelOnDrop, place: StreamPlace) -> Self {
        let stream = Some(Box::new((cancel, place)));
        Self(Kind::Http2(Http2Body { incoming, stream }))
    }
}

impl Http2Body {
    /// Notes the end of the response. The request may go on for a while.
    fn end(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.0.set(RESPONSE_ENDED);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match &mut self.get_mut().0 {
            Kind::Http1(body) => return Pin::new(body).poll_frame(cx),
            Kind::Upgrade(incoming) => ready!(Pin::new(incoming).poll_frame(cx)),
            Kind::Http2(body) => {
                let frame = ready!(Pin::new(&mut body.incoming).poll_frame(cx));
                if frame.is_none() || body.incoming.is_end_stream() {
                    body.end();
                }
                frame
            }
        };
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Http1(body) => body.is_end_stream(),
            Kind::Upgrade(incoming) => incoming.is_end_stream(),
            Kind::Http2(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Http1(body) => body.size_hint(),
            Kind::Upgrade(incoming) => incoming.size_hint(),
            Kind::Http2(body) => body.incoming.size_hint(),
        }
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if self.incoming.is_end_stream() {
            self.end();
        }
    }
}
