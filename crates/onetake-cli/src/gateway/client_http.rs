//! HTTP on a client connection: hyper, while there is anything to do.
//!
//! An idle HTTP/1.1 connection is parked: hyper's state and its buffers are dropped, and the stream
//! waits for the next byte. Then hyper gets the stream again, with that byte. That loses nothing,
//! because a connection is only parked if everything that hyper had to write is written, and it has
//! nothing to read. Bytes of a next request that hyper has already read go back into the stream.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use onetake_http::BoxError;
use tokio::io::{AsyncRead, AsyncWrite};

use super::activity::Activity;
use super::client_stream::ClientStream;
use super::client_upgrade::PendingUpgrade;
use crate::config::Limits;

/// Bytes of a request's body that wait for a slow upstream, for each HTTP/2 stream. No budget counts
/// them, so they are few.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// The same for a whole HTTP/2 connection. One slow stream does not stop the others.
pub(super) const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// The default of hyper's `max_headers`.
const HYPER_HEADERS_MAX: usize = 100;
/// Interval of pings on HTTP/2 connections, and how long the answer may take.
const PING: Duration = Duration::from_secs(20);

/// The configured protocols.
#[derive(Debug)]
pub(super) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Protocols {
    /// The timeouts of HTTP/1.1 are not hyper's: its timeout for a head includes the idle time
    /// before the head.
    pub(super) fn new(limits: &Limits, streams_max: usize, connection_window: u32) -> Self {
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let mut http1 = http1::Builder::new();
        // hyper parses faster with its default, which is the same number.
        if limits.max_headers != HYPER_HEADERS_MAX {
            http1.max_headers(limits.max_headers);
        }
        http1.header_read_timeout(None).max_buf_size(limits.max_header_bytes).keep_alive(true);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_concurrent_streams(narrow(streams_max))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(connection_window)
            // The edge refuses heads above the limit with a problem. Above this one, the protocol
            // refuses them without a body.
            .max_header_list_size(narrow(limits.max_header_bytes.saturating_mul(2)));
        Self { http1, http2 }
    }
}

/// HTTP on one connection. Its future resolves when the connection has ended.
pub(super) struct ClientHttp<'a, S, V: HttpService<Incoming>> {
    protocols: &'a Protocols,
    activity: &'a Activity,
    upgrade: &'a PendingUpgrade,
    state: State<S, V>,
    /// True if hyper has left the end of the stream to this side.
    has_left_end: bool,
}

type Http2Connection<S, V> = http2::Connection<TokioIo<ClientStream<S>>, V, TokioExecutor>;

/// hyper's parts are boxed, so that the future of an idle connection is small.
enum State<S, V: HttpService<Incoming>> {
    /// Nothing has arrived yet.
    New(ClientStream<S>, V),
    Http1(Box<http1::Connection<TokioIo<ClientStream<S>>, V>>),
    Http2(Pin<Box<Http2Connection<S, V>>>),
    /// An HTTP/1.1 connection that waits for its next request.
    Parked(ClientStream<S>, V),
    /// A parked connection that is ended in order.
    Closing(ClientStream<S>),
    Ended,
}

impl<'a, S, V, B> ClientHttp<'a, S, V>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: HttpService<Incoming, ResBody = B, Error: Into<BoxError>>,
    V::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    pub(super) fn new(
        protocols: &'a Protocols,
        activity: &'a Activity,
        upgrade: &'a PendingUpgrade,
        stream: ClientStream<S>,
        service: V,
    ) -> Self {
        let state = State::New(stream, service);
        Self { protocols, activity, upgrade, state, has_left_end: false }
    }

    /// Serves requests until the connection ends.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            match &mut self.state {
                State::New(stream, _) | State::Parked(stream, _) => {
                    ready!(stream.poll_arrival(cx))?;
                    self.wake();
                }
                State::Http1(connection) => {
                    let ended = ready!(Pin::new(&mut **connection).poll(cx));
                    if !self.leaves_end(&ended) {
                        return Poll::Ready(ended.map_err(Into::into));
                    }
                    if self.activity.is_upgraded() {
                        self.hand_over();
                        return Poll::Ready(Ok(()));
                    }
                    // Polled again, hyper flushes and ends the stream.
                    self.has_left_end = true;
                }
                State::Http2(connection) => {
                    return connection.as_mut().poll(cx).map_err(Into::into);
                }
                State::Closing(stream) => {
                    return Pin::new(stream).poll_shutdown(cx).map_err(Into::into);
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// True if hyper is done with the connection in order, and has not begun to end the stream. It
    /// leaves that to others if any request had an `Upgrade` header. It does not even flush.
    fn leaves_end(&self, ended: &hyper::Result<()>) -> bool {
        let is_in_order = ended.as_ref().map_or_else(hyper::Error::is_parse, |()| true);
        is_in_order && !self.activity.is_ending() && !self.has_left_end
    }

    /// Gives the stream to the WebSocket.
    fn hand_over(&mut self) {
        if let State::Http1(connection) = mem::replace(&mut self.state, State::Ended) {
            let parts = connection.into_parts();
            let mut stream = parts.io.into_inner();
            stream.put_back(parts.read_buf);
            self.upgrade.fulfil(Box::new(stream));
        }
    }

    /// Gives the stream to hyper, because something has arrived.
    fn wake(&mut self) {
        let Self { protocols, activity, state, .. } = self;
        *state = match mem::replace(state, State::Ended) {
            State::New(stream, service) if activity.is_http2() => {
                let connection = protocols.http2.serve_connection(TokioIo::new(stream), service);
                State::Http2(Box::pin(connection))
            }
            State::New(stream, service) | State::Parked(stream, service) => {
                let connection = protocols.http1.serve_connection(TokioIo::new(stream), service);
                activity.set_parked(false);
                State::Http1(Box::new(connection))
            }
            other => other,
        };
    }

    /// Parks the connection. hyper has been polled since the activity [can be
    /// parked](Activity::can_park), so hyper has noticed that its last message is complete.
    pub(super) fn park(&mut self) {
        self.state = match mem::replace(&mut self.state, State::Ended) {
            State::Http1(connection) => {
                let parts = connection.into_parts();
                let mut stream = parts.io.into_inner();
                let rest = without_empty_lines(parts.read_buf);
                self.activity.set_parked(true);
                self.activity.set_rest(!rest.is_empty());
                stream.put_back(rest);
                State::Parked(stream, parts.service)
            }
            other => other,
        };
    }

    /// Ends the connection after its requests.
    pub(super) fn graceful_shutdown(&mut self) {
        self.state = match mem::replace(&mut self.state, State::Ended) {
            State::New(..) => State::Ended,
            State::Parked(stream, _) => State::Closing(stream),
            State::Http1(mut connection) => {
                Pin::new(&mut *connection).graceful_shutdown();
                State::Http1(connection)
            }
            State::Http2(mut connection) => {
                connection.as_mut().graceful_shutdown();
                State::Http2(connection)
            }
            other => other,
        };
    }
}

/// Drops empty lines behind the last request, which some clients send. hyper would wait for the
/// request that they begin, and would not end the connection in order meanwhile.
fn without_empty_lines(mut rest: Bytes) -> Bytes {
    loop {
        let line_end = match &*rest {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] => 1,
            _ => return rest,
        };
        rest.advance(line_end);
    }
}
