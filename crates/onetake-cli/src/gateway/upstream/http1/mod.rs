//! HTTP/1.1 connections to upstreams.
//!
//! This is a client of our own and not hyper's, for three reasons. A connection needs no task and
//! no channel: the request that uses it writes and reads in its own task. A response may have many
//! headers, and only such a response pays for a large table of them. And the evidence is exact:
//! a request counts as sent from its first write on, unless that write fails.
//!
//! It is strict where two readers could differ: a response with several lengths, with an unknown
//! transfer coding or with bytes behind its end is an error, or the connection is not used again.
//!
//! | file | subject |
//! | --- | --- |
//! | `request.rs` | writing of a request, and the framing of its body |
//! | `response.rs` | the head of a response, and the framing of its body |
//! | `chunked.rs` | the chunked transfer coding of a response |
//! | `body.rs` | the body of a response, which owns its connection until its end |
//! | `idle.rs` | connections that wait for a request |

mod body;
mod chunked;
mod idle;
mod request;
mod response;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use hyper::body::Body;
use onetake_core::Clock;
use onetake_http::BoxError;
use tokio_util::io::poll_read_buf;

use super::Evidence;
use crate::gateway::early_hints::HintSender;
use crate::gateway::tls::{Opening, Stream};
pub(super) use body::Http1Body;
pub(super) use idle::Idle;
use request::{Upload, UploadError};
pub(super) use response::one_length;
use response::{Framing, Head, Heads};

/// The usual size of a read.
const READ_BYTES: usize = 8 << 10;

/// One connection.
pub(super) struct Http1Connection {
    stream: Stream,
    /// Bytes of the upstream that are not used yet.
    read: BytesMut,
    /// Memory for the writes of the next request.
    write: Vec<u8>,
    /// The upstream's first message.
    opening: Option<Opening>,
    /// When it was opened, by the monotonic clock.
    opened: Duration,
    /// When it became idle, by the monotonic clock.
    since: Duration,
}

impl Http1Connection {
    pub(super) fn new(stream: Stream, clock: &dyn Clock) -> Self {
        let opening = stream.opening();
        let (read, write) = (BytesMut::new(), Vec::new());
        let opened = clock.monotonic();
        Self { stream, read, write, opening, opened, since: opened }
    }

    /// True if an idle connection can take a request: the upstream has neither closed it nor sent
    /// anything. For a request with a key the operating system is asked: if the connection has ended,
    /// the outcome of that request would be unknown, although the upstream never ran it.
    fn is_usable(&mut self, is_keyed: bool) -> bool {
        let stream = &mut self.stream;
        self.read.is_empty() && if is_keyed { stream.is_quiet() } else { stream.seems_quiet() }
    }

    /// Reads more bytes. Returns 0 at the end of the connection.
    fn poll_more(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < wanted.min(READ_BYTES / 4) {
            self.read.reserve(wanted);
        }
        poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.read)
    }

    /// Reads the head of the final response. Informational ones go to the client.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        heads: &mut Heads,
        hints: Option<HintSender<'_>>,
    ) -> Poll<io::Result<Head>> {
        let hint = |hint| {
            if let Some(hints) = hints {
                hints.send(hint);
            }
        };
        loop {
            if let Some(head) = heads.next(&mut self.read, hint)? {
                return Poll::Ready(Ok(head));
            }
            if ready!(self.poll_more(cx, READ_BYTES))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// A request that is ready to be sent on a connection.
pub(super) struct Exchange<B> {
    connection: Box<Http1Connection>,
    upload: Upload<B>,
    heads: Heads,
}

impl<B> Exchange<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Prepares a request with a relative target. Nothing is sent yet.
    ///
    /// # Errors
    /// If the headers of the request contradict its body.
    pub(super) fn new(
        mut connection: Box<Http1Connection>,
        request: Request<B>,
    ) -> Result<Self, BoxError> {
        let heads = Heads::new(request.method() == Method::HEAD);
        let upload = Upload::new(request, std::mem::take(&mut connection.write))?;
        Ok(Self { connection, upload, heads })
    }

    /// Sends the request, and returns the response once its head is there. The connection returns
    /// to the idle ones when request and response are complete.
    ///
    /// # Errors
    /// If the upload breaks off, or the upstream sends no valid head. The evidence says whether a
    /// part of the request may have been sent.
    pub(super) async fn send(
        self,
        idle: &Arc<Idle>,
        upstream: usize,
        hints: Option<HintSender<'_>>,
        evidence: &mut Evidence,
    ) -> Result<Response<Http1Body>, BoxError> {
        let Self { mut connection, mut upload, mut heads } = self;
        *evidence = Evidence::taken_by(&connection.opening);
        let mut is_broken = false;
        let head = poll_fn(|cx| {
            if !is_broken && let Poll::Ready(Err(error)) = upload.poll(&mut connection.stream, cx) {
                match error {
                    // The first write has failed, so nothing has left. Over TLS, a part of it may
                    // have.
                    UploadError::Write if upload.moved() == 0 && connection.stream.is_plain() => {
                        *evidence = Evidence::default();
                        return Poll::Ready(Err("the connection was closed before".into()));
                    }
                    // The upstream may have answered before it stopped to read.
                    UploadError::Write => is_broken = true,
                    UploadError::Body(error) => return Poll::Ready(Err(error)),
                }
            }
            connection.poll_head(cx, &mut heads, hints).map_err(BoxError::from)
        });
        let Head { response, framing, is_kept_alive } = head.await?;
        let may_be_kept = is_kept_alive && !is_broken && framing != Framing::UntilClose;
        let home = may_be_kept.then(|| (Arc::clone(idle), upstream));
        let body = if is_broken || upload.is_done() {
            connection.write = upload.into_memory();
            Http1Body::begin(connection, framing, home)
        } else {
            Http1Body::beside_upload(connection, framing, home, upload, idle.clock())
        };
        Ok(response.map(|()| body))
    }
}

#[cfg(test)]
mod tests;
