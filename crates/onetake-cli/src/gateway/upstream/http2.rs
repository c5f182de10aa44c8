//! Connections to upstreams over HTTP/2. Each core has its own.
//!
//! A connection carries many requests at once. It is known which of them may have been sent: those
//! that a connection has taken. There are two exceptions, both by the upstream's own word. A stream
//! above the last one that a GOAWAY names was not handled, and neither was a stream that was reset
//! with REFUSED_STREAM (RFC 9113, section 8.7). Such a request counts as never sent. If its body is
//! in memory, another connection gets it.

mod stream;

use std::collections::HashMap;
use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::header::{CONNECTION, HOST, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use hyper::body::Body;
use hyper::client::conn::http2::{self, Builder, SendRequest};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::OwnedMutexGuard;

use onetake_core::Clock;
use onetake_core::clock::micros;
use onetake_http::{BoxError, RequestBody};

use super::body::UpstreamBody;
use super::census::{Census, Refusal};
use super::http1::one_length;
use super::{AGE_MAX, Evidence, HEAD_BYTES_MAX, HEADERS_MAX, NoResponse};
use crate::gateway::tls::{Connector, Opening, Protocols, Stream};
use stream::RequestStream;
pub(super) use stream::ResponseHalf;

/// Maximum number of requests at once on one connection, or fewer if the upstream says so.
const STREAMS_MAX: usize = 100;
/// The same until the settings of the upstream have arrived. A stream above its limit could be
/// reset with an error that does not say whether the request was handled.
const STREAMS_BEFORE_SETTINGS_MAX: usize = 1;
/// How long requests wait for the settings of a new connection. Then they open another one.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of connections to one upstream, for each core.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of a response that wait for a slow client, for each stream. The upstream stops there.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// The same for a whole connection. Slow clients of all its streams do not stop it.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * STREAMS_MAX as u32;
/// Connections without requests are closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The largest head of a response. HTTP/2 counts 32 bytes more for each header than HTTP/1.1.
const HEADER_LIST_BYTES_MAX: u32 = (HEAD_BYTES_MAX + 32 * HEADERS_MAX) as u32;
/// Timeout of the answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection on which nothing arrived while a request waited for this long gets no more.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of connections that one request is given to. All but the last did not take it.
const TRIES_MAX: usize = 3;

/// A body that can be sent again.
pub(in super::super) trait SendAgain: Sized {
    /// Returns a copy of a body that is in memory, and `None` for a stream.
    fn copied(&self) -> Option<Self>;
}

impl<B> SendAgain for RequestBody<B> {
    fn copied(&self) -> Option<Self> {
        self.in_memory()
    }
}

/// The reason why there is no response.
pub(super) enum Failed<B> {
    NoResponse,
    /// The upstream has stopped to speak HTTP/2. The request was not sent.
    SpeaksHttp1(Box<Request<B>>),
}

impl<B> From<NoResponse> for Failed<B> {
    fn from(_: NoResponse) -> Self {
        Self::NoResponse
    }
}

/// The HTTP/2 connections of one core.
pub(super) struct Http2<B> {
    connector: Connector,
    pools: Mutex<HashMap<Uri, Arc<Pool<B>>>>,
    clock: Arc<dyn Clock>,
    ping_interval: Duration,
    census: Arc<Census>,
}

/// The connections to one upstream.
struct Pool<B> {
    connections: Mutex<Vec<Connection<B>>>,
    /// Held from the opening of a connection until its settings have arrived, so that others wait
    /// for it instead of opening their own.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// False if the upstream was last seen to speak HTTP/1.1.
    speaks_http2: AtomicBool,
}

/// One connection.
struct Connection<B> {
    sender: SendRequest<RequestStream<B>>,
    load: Arc<Load>,
    /// The upstream's first message, if the connection is encrypted.
    first_message: Option<Opening>,
}

/// The use of a connection.
pub(super) struct Load {
    streams: AtomicUsize,
    /// The number of streams that the upstream allows.
    streams_max: AtomicUsize,
    /// When it was opened and when its last stream ended, in microseconds of the monotonic clock.
    opened: u64,
    idle_since: AtomicU64,
    /// When something arrived last, in microseconds of the monotonic clock. 0 if nothing has.
    last_read: AtomicU64,
    /// Waits for the first read.
    first_read: AtomicWaker,
    /// Waits for the next read.
    next_read: AtomicWaker,
    /// True if the connection takes no more requests.
    is_retired: AtomicBool,
    /// The number of streams that cannot be reset.
    stuck: AtomicUsize,
    clock: Arc<dyn Clock>,
}

impl Load {
    /// The number of requests in progress.
    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// The number of requests that may be in progress.
    pub(super) fn streams_max(&self) -> usize {
        self.streams_max.load(Ordering::Relaxed)
    }

    /// True if no stream is left but those that cannot be reset.
    fn is_stuck(&self) -> bool {
        let stuck = self.stuck.load(Ordering::Acquire);
        stuck > 0 && stuck >= self.streams.load(Ordering::Acquire)
    }

    /// Ends the connection if it is stuck.
    fn end_if_stuck(&self) {
        if self.is_stuck() {
            self.next_read.wake();
        }
    }
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load").field("streams", &self.streams).finish_non_exhaustive()
    }
}

/// A stream's place on its connection, until it is dropped.
struct StreamPlace {
    load: Arc<Load>,
    is_stuck: AtomicBool,
}

impl StreamPlace {
    /// Holds a place that was counted.
    fn new(load: &Arc<Load>) -> Self {
        Self { load: Arc::clone(load), is_stuck: AtomicBool::new(false) }
    }

    /// Notes that the stream cannot be reset. The connection takes no more requests.
    fn set_stuck(&self) {
        self.load.is_retired.store(true, Ordering::Relaxed);
        if !self.is_stuck.swap(true, Ordering::AcqRel) {
            self.load.stuck.fetch_add(1, Ordering::AcqRel);
            self.load.end_if_stuck();
        }
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let load = &self.load;
        if *self.is_stuck.get_mut() {
            load.stuck.fetch_sub(1, Ordering::AcqRel);
        }
        load.idle_since.store(micros(load.clock.monotonic()), Ordering::Relaxed);
        load.streams.fetch_sub(1, Ordering::AcqRel);
        load.end_if_stuck();
    }
}

/// Watches a request that waits for its response.
struct Waiting<'a> {
    load: &'a Load,
    since: Duration,
    is_answered: bool,
}

impl<'a> Waiting<'a> {
    fn new(load: &'a Load) -> Self {
        Self { load, since: load.clock.monotonic(), is_answered: false }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // The request timed out, or its client left. A connection without any sign of life may be
        // dead, and each further request on it would have an unknown outcome.
        let last_read = Duration::from_micros(self.load.last_read.load(Ordering::Relaxed));
        let since = self.since.max(last_read);
        let silence = self.load.clock.monotonic().saturating_sub(since);
        if !self.is_answered && silence >= SILENCE_MAX {
            self.load.is_retired.store(true, Ordering::Relaxed);
        }
    }
}

impl<B> Http2<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + SendAgain + Send + Unpin + 'static,
{
    pub(super) fn new(
        connector: Connector,
        clock: Arc<dyn Clock>,
        ping_interval: Duration,
        census: Arc<Census>,
    ) -> Self {
        Self { connector, pools: Mutex::default(), clock, ping_interval, census }
    }

    /// True if the upstream was last seen to speak HTTP/2.
    pub(super) fn is_spoken_by(&self, upstream: &Uri) -> bool {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.get(upstream).is_some_and(|pool| pool.speaks_http2.load(Ordering::Relaxed))
    }

    /// Sends a request with a relative target to an upstream. The evidence stays true if this
    /// future is dropped.
    pub(super) async fn send(
        &self,
        upstream: &Uri,
        request: Request<B>,
        evidence: &mut Evidence,
    ) -> Result<Response<UpstreamBody>, Failed<B>> {
        let pool = self.pool(upstream);
        let mut request = addressed(upstream, request);
        for _ in 0..TRIES_MAX {
            let (mut sender, first_message, place) = match pool.take(&*self.clock) {
                Some(taken) => taken,
                None => match self.open(&pool, upstream).await? {
                    Some(taken) => taken,
                    None => return Err(Failed::SpeaksHttp1(Box::new(readdressed(request)))),
                },
            };
            let again = copied(&request);
            let (parts, body) = request.into_parts();
            let (body, response_half) = RequestStream::new(&parts.headers, body, place);
            *evidence = Evidence::taken_by(&first_message);
            let sending = sender.try_send_request(Request::from_parts(parts, body));
            let mut waiting = Waiting::new(response_half.load());
            let sent = sending.await;
            waiting.is_answered = true;
            drop(waiting);
            let mut error = match sent {
                Ok(response) => {
                    return Ok(response.map(|body| UpstreamBody::http2(body, response_half)));
                }
                Err(error) => error,
            };
            if let Some(unsent) = error.take_message() {
                *evidence = Evidence::default();
                request = unsent.map(RequestStream::into_inner);
            } else if was_not_handled(error.error()) {
                self.census.refused(upstream, Refusal::Upstream);
                *evidence = Evidence::default();
                request = again.ok_or(NoResponse)?;
            } else {
                return Err(Failed::NoResponse);
            }
        }
        Err(Failed::NoResponse)
    }

    fn pool(&self, upstream: &Uri) -> Arc<Pool<B>> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(upstream) {
            return Arc::clone(pool);
        }
        let pool = Arc::new(Pool {
            connections: Mutex::default(),
            opening: Arc::default(),
            speaks_http2: AtomicBool::new(true),
        });
        pools.insert(upstream.clone(), Arc::clone(&pool));
        pool
    }

    /// Opens a connection, unless another request has opened one meanwhile. Returns `None` if the
    /// upstream speaks HTTP/1.1.
    async fn open(
        &self,
        pool: &Arc<Pool<B>>,
        upstream: &Uri,
    ) -> Result<Option<Taken<B>>, NoResponse> {
        let turn = Arc::clone(&pool.opening).lock_owned().await;
        if let Some(taken) = pool.take(&*self.clock) {
            return Ok(Some(taken));
        }
        if pool.lock().len() >= CONNECTIONS_MAX {
            self.census.refused(upstream, Refusal::Connections);
            tracing::warn!(
                upstream = %upstream,
                "an upstream has too many HTTP/2 connections with requests in progress: a request was not sent"
            );
            return Err(NoResponse);
        }
        let protocols = Protocols::of(upstream);
        let stream = self.connector.open(upstream, protocols).await.map_err(|_| NoResponse)?;
        if protocols == Protocols::Either && !stream.speaks_http2() {
            pool.speaks_http2.store(false, Ordering::Relaxed);
            return Ok(None);
        }
        self.add(pool, upstream, stream, Some(turn)).await.map(Some)
    }

    /// Adds a connection that was opened for HTTP/1.1 or HTTP/2, and turned out to speak HTTP/2.
    pub(super) async fn adopt(&self, upstream: &Uri, stream: Stream) -> Result<(), NoResponse> {
        let pool = self.pool(upstream);
        pool.speaks_http2.store(true, Ordering::Relaxed);
        if pool.lock().len() < CONNECTIONS_MAX {
            let turn = Arc::clone(&pool.opening).try_lock_owned().ok();
            self.add(&pool, upstream, stream, turn).await?;
        }
        Ok(())
    }

    /// Adds a connection, and takes a place on it. The turn ends when the upstream's settings have
    /// arrived.
    async fn add(
        &self,
        pool: &Arc<Pool<B>>,
        upstream: &Uri,
        stream: Stream,
        turn: Option<OwnedMutexGuard<()>>,
    ) -> Result<Taken<B>, NoResponse> {
        let first_message = stream.opening();
        let now = micros(self.clock.monotonic());
        let load = Arc::new(Load {
            streams: AtomicUsize::new(1),
            streams_max: AtomicUsize::new(STREAMS_BEFORE_SETTINGS_MAX),
            opened: now,
            idle_since: AtomicU64::new(now),
            last_read: AtomicU64::new(0),
            first_read: AtomicWaker::new(),
            next_read: AtomicWaker::new(),
            is_retired: AtomicBool::new(false),
            stuck: AtomicUsize::new(0),
            clock: Arc::clone(&self.clock),
        });
        let io = TimedReads { io: TokioIo::new(stream), load: Arc::clone(&load) };
        let handshake = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .initial_max_send_streams(STREAMS_BEFORE_SETTINGS_MAX)
            .keep_alive_interval(self.ping_interval)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(io)
            .await;
        let (sender, connection) = handshake.map_err(|_| NoResponse)?;
        tokio::spawn(drive(connection, Arc::clone(&load), turn));
        self.census.add(upstream, &load);
        let place = StreamPlace::new(&load);
        let taken = (sender.clone(), first_message.clone(), place);
        let mut connections = pool.lock();
        connections.push(Connection { sender, load, first_message });
        if connections.len() == 1 {
            tokio::spawn(close_old(Arc::clone(pool), Arc::clone(&self.clock)));
        }
        Ok(taken)
    }
}

/// Runs a connection to its end. Notes how many streams the upstream allows, and ends the turn of
/// its opening when that is known or takes too long.
async fn drive<B>(
    connection: http2::Connection<TimedReads, RequestStream<B>, TokioExecutor>,
    load: Arc<Load>,
    mut turn: Option<OwnedMutexGuard<()>>,
) where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let mut connection = pin!(connection);
    let mut settings_timeout = pin!(load.clock.sleep(SETTINGS_TIMEOUT));
    let ended = poll_fn(|cx| {
        // Settings are the first frame of an upstream. Another task reads them.
        load.first_read.register(cx.waker());
        let polled = connection.as_mut().poll(cx);
        let allowed = connection.current_max_send_streams();
        load.streams_max.store(allowed.min(STREAMS_MAX), Ordering::Relaxed);
        let has_settings = load.last_read.load(Ordering::Acquire) > 0;
        if turn.is_some() && (has_settings || settings_timeout.as_mut().poll(cx).is_ready()) {
            turn = None;
        }
        polled
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "a connection to an upstream ended with an error");
    }
}

type Taken<B> = (SendRequest<RequestStream<B>>, Option<Opening>, StreamPlace);

impl<B> Pool<B> {
    fn lock(&self) -> MutexGuard<'_, Vec<Connection<B>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place on the connection with the fewest streams, if one has a place left.
    fn take(&self, clock: &dyn Clock) -> Option<Taken<B>> {
        let mut connections = self.lock();
        remove_old(&mut connections, clock.monotonic());
        let load = |connection: &&Connection<B>| connection.load.streams.load(Ordering::Acquire);
        let has_place =
            |connection: &&Connection<B>| load(connection) < connection.load.streams_max();
        let connection = connections.iter().filter(has_place).min_by_key(load)?;
        connection.load.streams.fetch_add(1, Ordering::AcqRel);
        let place = StreamPlace::new(&connection.load);
        Some((connection.sender.clone(), connection.first_message.clone(), place))
    }
}

/// Removes connections that take no more requests. Their streams go on.
fn remove_old<B>(connections: &mut Vec<Connection<B>>, now: Duration) {
    connections.retain(|Connection { sender, load, .. }| {
        let since = |then: u64| now.saturating_sub(Duration::from_micros(then));
        let is_idle = load.streams.load(Ordering::Acquire) == 0
            && since(load.idle_since.load(Ordering::Relaxed)) >= IDLE_MAX;
        let is_old = since(load.opened) >= AGE_MAX;
        !sender.is_closed() && !is_idle && !is_old && !load.is_retired.load(Ordering::Relaxed)
    });
}

/// Closes idle connections until none are left.
async fn close_old<B>(pool: Arc<Pool<B>>, clock: Arc<dyn Clock>)
where
    B: Send + 'static,
{
    loop {
        clock.sleep(IDLE_MAX / 4).await;
        let mut connections = pool.lock();
        remove_old(&mut connections, clock.monotonic());
        if connections.is_empty() {
            return;
        }
    }
}

/// True if the upstream says that it has not handled the request.
fn was_not_handled(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|error| error.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (error.is_go_away() || is_refused)
}

/// Moves the host of a request into its target, and removes `Connection: te` and repeated lengths.
///
/// HTTP/2 has no `Connection`, and hyper drops the headers that it names. gRPC servers in C++,
/// Python and other languages refuse calls without `TE: trailers`.
fn addressed<B>(upstream: &Uri, mut request: Request<B>) -> Request<B> {
    request.headers_mut().remove(CONNECTION);
    one_length(request.headers_mut());
    let host = request.headers_mut().remove(HOST);
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut target = std::mem::take(request.uri_mut()).into_parts();
    target.scheme = Some(match upstream.scheme() == Some(&Scheme::HTTPS) {
        true => Scheme::HTTPS,
        false => Scheme::HTTP,
    });
    target.authority = host.or_else(|| upstream.authority().cloned());
    target.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(target).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    request
}

/// Undoes [`addressed`].
fn readdressed<B>(mut request: Request<B>) -> Request<B> {
    let target = std::mem::take(request.uri_mut()).into_parts();
    if let Some(host) = target.authority
        && let Ok(host) = host.as_str().parse()
    {
        request.headers_mut().insert(HOST, host);
    }
    if request.headers().contains_key(TE) {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("te"));
    }
    *request.uri_mut() = target.path_and_query.map(Uri::from).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
    request
}

/// Returns a copy of a request whose body is in memory.
fn copied<B: SendAgain>(request: &Request<B>) -> Option<Request<B>> {
    let mut copy = Request::new(request.body().copied()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// A connection that notes the time of its reads, and breaks off if it is stuck.
struct TimedReads {
    io: TokioIo<Stream>,
    load: Arc<Load>,
}

impl Read for TimedReads {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.load.next_read.register(cx.waker());
        if self.load.is_stuck() {
            return Poll::Ready(Err(std::io::ErrorKind::ConnectionAborted.into()));
        }
        let read = Pin::new(&mut self.io).poll_read(cx, into);
        if read.is_ready() {
            let now = micros(self.load.clock.monotonic()).max(1);
            if self.load.last_read.swap(now, Ordering::AcqRel) == 0 {
                self.load.first_read.wake();
            }
        }
        read
    }
}

impl Write for TimedReads {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }
}

#[cfg(test)]
mod tests;
