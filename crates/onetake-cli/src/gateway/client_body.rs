//! The body of a client's request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use onetake_core::Clock;

use super::activity::{Activity, Unread};

/// The body of a request. It counts as unread until it is dropped: the client may still send, and
/// an HTTP/1.1 connection still belongs to hyper.
#[derive(Debug)]
pub(super) struct ClientBody {
    incoming: Incoming,
    _unread: Option<Unread>,
}

impl ClientBody {
    /// Takes the body of a request of this connection.
    pub(super) fn of(
        request: Request<Incoming>,
        activity: &Arc<Activity>,
        clock: &Arc<dyn Clock>,
    ) -> Request<Self> {
        let has_body = !request.body().is_end_stream();
        let unread = has_body.then(|| Unread::new(activity, clock));
        request.map(|incoming| Self { incoming, _unread: unread })
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.incoming).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
