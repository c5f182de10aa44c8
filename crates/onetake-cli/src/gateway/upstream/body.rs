//! Bodies of responses of upstreams.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onetake_http::BoxError;

use super::http1::Http1Body;
use super::http2::ResponseHalf;

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
    stream: Option<ResponseHalf>,
}

impl UpstreamBody {
    pub(super) fn http1(body: Http1Body) -> Self {
        Self(Kind::Http1(body))
    }

    /// Holds permits until the connection, or the stream of HTTP/2, is free. Returns them if that is
    /// so when the body ends.
    pub(in super::super) fn hold<P: Send + 'static>(&mut self, permits: P) -> Option<P> {
        match &mut self.0 {
            Kind::Http1(body) => body.hold(permits),
            Kind::Upgrade(_) => Some(permits),
            Kind::Http2(body) => match &mut body.stream {
                Some(stream) => stream.hold(permits),
                None => Some(permits),
            },
        }
    }

    pub(super) fn upgrade(incoming: Incoming) -> Self {
        Self(Kind::Upgrade(incoming))
    }

    pub(super) fn http2(incoming: Incoming, stream: ResponseHalf) -> Self {
        Self(Kind::Http2(Http2Body { incoming, stream: Some(stream) }))
    }
}

impl Http2Body {
    /// Notes the end of the response. The request may go on for a while.
    fn end(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.end();
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
