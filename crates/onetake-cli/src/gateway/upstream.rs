//! Connections to upstreams. Each core has its own.
//!
//! `http://` is HTTP/1.1, and `h2c://` is HTTP/2. An `https://` upstream chooses when a connection
//! is opened (ALPN). The file `http2.rs` has HTTP/2, and this one HTTP/1.1.
//!
//! An HTTP/1.1 connection has no task of its own. The request that uses it drives it: it writes the request
//! and reads the response in the request's own task. If a body is still under way when the head of
//! the response is there, a task drives the rest of it. Nothing drives an idle connection.
//!
//! It is known exactly which requests may have been sent: those that a connection has taken. hyper
//! gives a request back if the connection ended before it took the request. Only such a request is
//! sent again, on another connection.

mod body;
mod census;
mod http2;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use onetake_core::Clock;
use onetake_http::BoxError;

use super::tls::{Connector, Opening, Protocols, Stream};
pub(super) use body::UpstreamBody;
pub(super) use census::Census;
use http2::{Failed, Http2, SendAgain};

/// Idle connections to upstreams are closed after four seconds. Many servers close theirs after
/// five, and a request that is on its way at that moment would have an unknown outcome.
const UPSTREAM_IDLE: Duration = Duration::from_secs(4);
/// Maximum number of headers in a response. A response with more has an unknown outcome. hyper
/// fills a table of this size for each response, so it is not larger.
const HEADERS_MAX: usize = 512;

/// An upstream, as requests name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upstream<'a> {
    /// Its number among all upstreams.
    pub(super) number: usize,
    pub(super) server: &'a Uri,
}

/// The connections of one core, for requests with bodies of one type.
pub(super) struct Upstreams<B: Body + 'static> {
    connector: Connector,
    idle: Arc<Idle<B>>,
    http2: Http2<B>,
}

/// The evidence of what the upstream may have received of a request.
#[derive(Default)]
pub(super) struct Evidence {
    /// True if a connection may have taken the request.
    is_taken: bool,
    /// The upstream's first message on that connection.
    opening: Option<Opening>,
}

impl Evidence {
    /// True if the upstream may have received any part of the request.
    ///
    /// It cannot have if no connection has taken the request: that is known before the first byte
    /// is written. It also cannot have if the upstream refused the TLS handshake, or if it speaks
    /// HTTP/2 only and got a request of HTTP/1.1.
    pub(super) fn may_be_sent(&self) -> bool {
        self.is_taken && !self.opening.as_ref().is_some_and(Opening::was_refused)
    }

    fn taken_by(opening: &Option<Opening>) -> Self {
        Self { is_taken: true, opening: opening.clone() }
    }
}

/// The error of a request without a response. The evidence says whether it may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoResponse;

/// A new connection, by the protocol that the upstream has chosen.
enum Opened<B: Body + 'static> {
    Http1(Box<Connection<B>>),
    Http2(Box<Stream>),
}

impl<B> Upstreams<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + SendAgain + Send + Unpin + 'static,
{
    /// Keeps up to `idle_max` idle connections of HTTP/1.1.
    pub(super) fn new(
        connector: Connector,
        idle_max: usize,
        clock: Arc<dyn Clock>,
        ping_interval: Duration,
        census: Arc<Census>,
    ) -> Self {
        let http2 = Http2::new(connector.clone(), Arc::clone(&clock), ping_interval, census);
        let connections =
            Mutex::new(Connections { of_upstream: Vec::new(), count: 0, is_watched: false });
        let idle = Idle { connections, max: idle_max, clock };
        Self { connector, idle: Arc::new(idle), http2 }
    }

    /// Sends a request with a relative target to an upstream. The evidence stays true if this
    /// future is dropped. The request is boxed, because each future on its way would hold it.
    pub(super) async fn send(
        &self,
        upstream: Upstream<'_>,
        request: Box<Request<B>>,
        evidence: &mut Evidence,
    ) -> Result<Response<UpstreamBody>, NoResponse> {
        let is_http2 = match Protocols::of(upstream.server) {
            Protocols::Http1 => false,
            Protocols::Http2 => true,
            Protocols::Either => self.http2.is_spoken_by(upstream.server),
        };
        if !is_http2 {
            return self.send_over_http1(upstream, request, evidence).await;
        }
        // Boxed, so that the futures of other requests do not hold it.
        match Box::pin(self.http2.send(upstream.server, *request, evidence)).await {
            Ok(response) => Ok(response),
            Err(Failed::NoResponse) => Err(NoResponse),
            Err(Failed::SpeaksHttp1(request)) => {
                self.send_over_http1(upstream, request, evidence).await
            }
        }
    }

    async fn send_over_http1(
        &self,
        upstream: Upstream<'_>,
        mut request: Box<Request<B>>,
        evidence: &mut Evidence,
    ) -> Result<Response<UpstreamBody>, NoResponse> {
        loop {
            let Upstream { number, server } = upstream;
            let reused = self.idle.take(number);
            let is_new = reused.is_none();
            let mut connection = match reused {
                Some(connection) => connection,
                // Boxed, so that the futures of other requests do not hold it.
                None => match Box::pin(self.connect(server, Protocols::of(server))).await? {
                    Opened::Http1(connection) => *connection,
                    Opened::Http2(stream) => {
                        Box::pin(self.http2.adopt(server, *stream)).await?;
                        let sending = Box::pin(self.http2.send(server, *request, evidence));
                        return sending.await.map_err(|_| NoResponse);
                    }
                },
            };
            *evidence = Evidence::taken_by(&connection.opening);
            match connection.exchange(*request).await {
                Ok(response) => {
                    self.idle.put_when_done(number, connection);
                    return Ok(response.map(UpstreamBody::http1));
                }
                // The connection ended before it took the request: nothing was written.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => {
                        *evidence = Evidence::default();
                        *request = unsent;
                    }
                    None => return Err(NoResponse),
                },
            }
            if is_new {
                return Err(NoResponse);
            }
        }
    }

    /// Sends a request that asks for an upgrade, on a connection of its own.
    pub(super) async fn upgrade(
        &self,
        upstream: &Uri,
        request: Request<B>,
        evidence: &mut Evidence,
    ) -> Result<Response<UpstreamBody>, NoResponse> {
        let opened = self.connect(upstream, Protocols::Http1).await?;
        let Opened::Http1(connection) = opened else { return Err(NoResponse) };
        let Connection { mut sender, io, opening, .. } = *connection;
        tokio::spawn(io.with_upgrades());
        *evidence = Evidence::taken_by(&opening);
        let response = sender.send_request(request).await.map_err(|_| NoResponse)?;
        Ok(response.map(UpstreamBody::http1))
    }

    async fn connect(&self, upstream: &Uri, protocols: Protocols) -> Result<Opened<B>, NoResponse> {
        let stream = self.connector.open(upstream, protocols).await.map_err(|_| NoResponse)?;
        if stream.speaks_http2() {
            return Ok(Opened::Http2(Box::new(stream)));
        }
        let opening = stream.opening();
        let handshake =
            http1::Builder::new().max_headers(HEADERS_MAX).handshake(TokioIo::new(stream));
        let (sender, io) = handshake.await.map_err(|_| NoResponse)?;
        let (io, since) = (Box::new(io), Duration::ZERO);
        let connection = Connection { sender, io, opening, is_closed: false, since };
        Ok(Opened::Http1(Box::new(connection)))
    }
}

/// One connection.
struct Connection<B: Body + 'static> {
    sender: SendRequest<B>,
    io: Box<http1::Connection<TokioIo<Stream>, B>>,
    /// The upstream's first message.
    opening: Option<Opening>,
    is_closed: bool,
    /// When it became idle, by the monotonic clock.
    since: Duration,
}

impl<B> Connection<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    /// Sends a request and drives the connection until the head of the response is there.
    async fn exchange(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, TrySendError<Request<B>>> {
        let mut responding = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            self.is_closed = self.is_closed || Pin::new(&mut *self.io).poll(cx).is_ready();
            responding.as_mut().poll(cx)
        })
        .await
    }

    /// Drives the connection until it can take another request. Ends with false if it was closed.
    async fn finish(&mut self) -> bool {
        poll_fn(|cx| {
            if self.is_closed || Pin::new(&mut *self.io).poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            self.sender.poll_ready(cx).map(|ready| ready.is_ok())
        })
        .await
    }

    /// True if an idle connection can take a request: the upstream has neither closed it nor sent
    /// anything.
    fn is_usable(&mut self) -> bool {
        let polled = Pin::new(&mut *self.io).poll(&mut Context::from_waker(Waker::noop()));
        polled.is_pending() && self.sender.is_ready()
    }
}

/// The idle connections of one core. The one that was used last is used next.
struct Idle<B: Body + 'static> {
    connections: Mutex<Connections<B>>,
    /// Maximum number of connections, to all upstreams.
    max: usize,
    clock: Arc<dyn Clock>,
}

struct Connections<B: Body + 'static> {
    /// The connections to each upstream, by its number.
    of_upstream: Vec<Vec<Connection<B>>>,
    /// The number of all connections.
    count: usize,
    /// True if a task closes old connections.
    is_watched: bool,
}

impl<B> Idle<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    fn lock(&self) -> MutexGuard<'_, Connections<B>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection that can be used.
    fn take(&self, upstream: usize) -> Option<Connection<B>> {
        let mut all = self.lock();
        while let Some(mut connection) = all.of_upstream.get_mut(upstream)?.pop() {
            all.count -= 1;
            let idle = self.clock.monotonic().saturating_sub(connection.since);
            if idle < UPSTREAM_IDLE && connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps the connection once request and response are complete.
    fn put_when_done(self: &Arc<Self>, upstream: usize, mut connection: Connection<B>) {
        if connection.is_closed {
            return;
        }
        if connection.sender.is_ready() {
            self.put(upstream, connection);
            return;
        }
        let idle = Arc::clone(self);
        tokio::spawn(async move {
            if connection.finish().await {
                idle.put(upstream, connection);
            }
        });
    }

    fn put(self: &Arc<Self>, upstream: usize, mut connection: Connection<B>) {
        connection.since = self.clock.monotonic();
        let mut all = self.lock();
        if all.count >= self.max {
            return;
        }
        if all.of_upstream.len() <= upstream {
            all.of_upstream.resize_with(upstream + 1, Vec::new);
        }
        if let Some(connections) = all.of_upstream.get_mut(upstream) {
            connections.push(connection);
            all.count += 1;
        }
        let was_watched = std::mem::replace(&mut all.is_watched, true);
        drop(all);
        if !was_watched {
            tokio::spawn(close_old(Arc::clone(self)));
        }
    }

    /// Removes connections that have been idle for too long. Returns true if none are left.
    fn remove_old(&self) -> bool {
        let now = self.clock.monotonic();
        let mut all = self.lock();
        for connections in &mut all.of_upstream {
            connections.retain(|one| now.saturating_sub(one.since) < UPSTREAM_IDLE);
        }
        all.count = all.of_upstream.iter().map(Vec::len).sum();
        all.is_watched = all.count > 0;
        !all.is_watched
    }
}

/// Closes old connections until none are left.
async fn close_old<B>(idle: Arc<Idle<B>>)
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    loop {
        idle.clock.sleep(UPSTREAM_IDLE / 4).await;
        if idle.remove_old() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use onetake_core::SystemClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

    fn upstreams() -> Upstreams<Full<Bytes>> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let connector = Connector::new(None, Arc::clone(&clock)).unwrap();
        Upstreams::new(connector, 8, clock, Duration::from_secs(360), Census::new())
    }

    impl SendAgain for Full<Bytes> {
        fn copied(&self) -> Option<Self> {
            Some(self.clone())
        }
    }

    fn request() -> Request<Full<Bytes>> {
        Request::post("/").header("host", "a").body(Full::from("pay")).unwrap()
    }

    async fn listener() -> (TcpListener, Uri) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        (listener, uri)
    }

    /// Reads one request, to the end of its body.
    async fn read(stream: &mut TcpStream) {
        let mut seen = Vec::new();
        while !seen.ends_with(b"pay") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
        }
    }

    async fn send(upstreams: &Upstreams<Full<Bytes>>, to: &Uri) -> (bool, bool) {
        let mut evidence = Evidence::default();
        let to = Upstream { number: 0, server: to };
        let sent = upstreams.send(to, Box::new(request()), &mut evidence).await;
        (sent.is_ok(), evidence.may_be_sent())
    }

    #[tokio::test]
    async fn a_connection_is_used_again() {
        let (listener, uri) = listener().await;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..3 {
                read(&mut stream).await;
                stream.write_all(ANSWER).await.unwrap();
            }
        });
        let upstreams = upstreams();
        for _ in 0..3 {
            assert_eq!(send(&upstreams, &uri).await, (true, true));
        }
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn an_idle_connection_that_was_closed_is_not_used() {
        let (listener, uri) = listener().await;
        let (closed, is_closed) = tokio::sync::oneshot::channel();
        let serving = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            read(&mut first).await;
            first.write_all(ANSWER).await.unwrap();
            drop(first);
            closed.send(()).unwrap();
            let (mut second, _) = listener.accept().await.unwrap();
            read(&mut second).await;
            second.write_all(ANSWER).await.unwrap();
        });
        let upstreams = upstreams();
        assert_eq!(send(&upstreams, &uri).await, (true, true));
        is_closed.await.unwrap();
        // The runtime hears of the end of the connection.
        let usable = || {
            let mut all = upstreams.idle.lock();
            all.of_upstream.iter_mut().flatten().any(Connection::is_usable)
        };
        while usable() {
            tokio::task::yield_now().await;
        }
        assert_eq!(send(&upstreams, &uri).await, (true, true));
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn what_no_connection_took_was_not_sent() {
        let (listener, uri) = listener().await;
        drop(listener);
        assert_eq!(send(&upstreams(), &uri).await, (false, false));
    }

    #[tokio::test]
    async fn what_a_connection_took_may_be_sent() {
        let (listener, uri) = listener().await;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream).await;
        });
        assert_eq!(send(&upstreams(), &uri).await, (false, true));
        serving.await.unwrap();
    }
}
