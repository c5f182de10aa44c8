//! Bodies of requests and responses on HTTP/2 connections to upstreams.
//!
//! A stream has two directions, which end by themselves. If the client leaves, both must end: the
//! response is dropped, and that cancels the request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onetake_core::Clock;
use onetake_http::BoxError;

use super::http2::StreamPlace;

/// The time for which a request may go on after its response has ended. Servers reset such a
/// request at once, or read it to its end.
const AFTER_RESPONSE: Duration = Duration::from_secs(10);

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
    response: Arc<ResponseState>,
    clock: Arc<dyn Clock>,
    /// The end of [`AFTER_RESPONSE`].
    over: Option<BoxFuture<'static, ()>>,
}

impl<B> RequestStream<B> {
    pub(super) fn new(body: B, clock: Arc<dyn Clock>) -> (Self, CancelOnDrop) {
        let response = Arc::<ResponseState>::default();
        let cancel = CancelOnDrop(Arc::clone(&response));
        (Self { body, response, clock, over: None }, cancel)
    }

    pub(super) fn into_inner(self) -> B {
        self.body
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        match self.response.state.load(Ordering::Acquire) {
            OPEN => false,
            RESPONSE_ENDED => {
                let sleep = || self.clock.sleep(AFTER_RESPONSE);
                self.over.get_or_insert_with(sleep).as_mut().poll(cx).is_ready()
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
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an upstream's response.
pub(in super::super) struct UpstreamBody {
    incoming: Incoming,
    /// The stream of an HTTP/2 connection.
    stream: Option<Box<(CancelOnDrop, StreamPlace)>>,
}

impl UpstreamBody {
    pub(super) fn http1(incoming: Incoming) -> Self {
        Self { incoming, stream: None }
    }

    pub(super) fn http2(incoming: Incoming, cancel: CancelOnDrop, place: StreamPlace) -> Self {
        Self { incoming, stream: Some(Box::new((cancel, place))) }
    }

    /// Notes the end of the response. The request may go on for a while.
    fn end(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.0.set(RESPONSE_ENDED);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.incoming).poll_frame(cx));
        if this.stream.is_some() && (frame.is_none() || this.incoming.is_end_stream()) {
            this.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        if self.incoming.is_end_stream() {
            self.end();
        }
    }
}
