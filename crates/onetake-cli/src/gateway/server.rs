//! Client connections: accept, limits, timeouts, drain.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use onetake_core::Clock;
use onetake_core::clock::micros;
use onetake_http::BoxError;

use super::cores::Cores;
use super::edge::ConnectionPermit;
use super::tls::Acceptor;

/// Maximum number of connections. More wait in the operating system's queue.
const CONNECTIONS_MAX: usize = 16_384;
/// Timeout for the head of a request; over HTTP/1 this includes the idle time before it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Idle timeout of an HTTP/2 connection, or of one that has sent nothing yet.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum number of headers in a request.
const HEADERS_MAX: usize = 100;
/// Maximum size of a request's head, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A service that answers the requests of connections.
pub(super) trait Answer: Send + Sync + 'static {
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    const STREAMS_MAX: u32 = 256;

    /// The body of a response.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;

    /// Handles one request of a peer.
    fn answer(
        self: &Arc<Self>,
        peer: SocketAddr,
        place: ConnectionPermit,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<Self::Body>>;
}

/// The listener and its connections.
#[derive(Debug)]
pub(super) struct Server {
    stop: CancellationToken,
    /// True before `stop` is cancelled. It is cheaper to read.
    stopping: Arc<AtomicBool>,
    connections: TaskTracker,
    clock: Arc<dyn Clock>,
}

/// The parts of the server that accept connections.
struct Accepting<E> {
    listener: TcpListener,
    tls: Option<Acceptor>,
    /// The cores, and the gateway of each.
    cores: Arc<Cores>,
    edges: Vec<Arc<E>>,
    stop: CancellationToken,
    stopping: Arc<AtomicBool>,
    connections: TaskTracker,
    clock: Arc<dyn Clock>,
}

impl Server {
    /// Serves client connections on the cores, over TLS if there is an acceptor. There is one edge
    /// for each core.
    pub(super) fn start<E: Answer>(
        listener: TcpListener,
        tls: Option<Acceptor>,
        (cores, edges): (Arc<Cores>, Vec<Arc<E>>),
        clock: Arc<dyn Clock>,
    ) -> Self {
        let server = Self {
            stop: CancellationToken::new(),
            stopping: Arc::default(),
            connections: TaskTracker::new(),
            clock: Arc::clone(&clock),
        };
        let accepting = Accepting {
            listener,
            tls,
            cores,
            edges,
            stop: server.stop.clone(),
            stopping: Arc::clone(&server.stopping),
            connections: server.connections.clone(),
            clock,
        };
        tokio::spawn(accepting.run());
        server
    }

    /// Stops accepting, and waits until connections have finished their requests. Returns true if
    /// all finished in time.
    pub(super) async fn shutdown(self, patience: Duration) -> bool {
        self.stopping.store(true, Ordering::Release);
        self.stop.cancel();
        self.connections.close();
        tokio::select! {
            () = self.connections.wait() => true,
            () = self.clock.sleep(patience) => false,
        }
    }
}

impl<E: Answer> Accepting<E> {
    async fn run(self) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let place = Arc::clone(&places).acquire_owned();
            let (place, accepted) = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = async { (place.await, self.listener.accept().await) } => accepted,
            };
            let Ok(place) = place else { return };
            let assigned = accepted.and_then(|(stream, peer)| self.assign(stream, peer, place));
            if let Err(error) = assigned {
                // Out of file descriptors, or the peer has gone already: neither ends the gateway.
                tracing::warn!(%error, "a connection could not be accepted");
                self.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Gives a connection to the core with the fewest.
    fn assign(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: OwnedSemaphorePermit,
    ) -> io::Result<()> {
        let Some((number, runtime, on_core)) = self.cores.least_busy() else { return Ok(()) };
        let Some(edge) = self.edges.get(number).cloned() else { return Ok(()) };
        let (stop, clock) = (self.stop.clone(), Arc::clone(&self.clock));
        let stopping = Arc::clone(&self.stopping);
        let place = Arc::new(place);
        let connection = ClientConnection { edge, peer, stop, stopping, clock, place };
        // The core's runtime waits for the socket from now on.
        let stream = stream.into_std()?;
        let tls = self.tls.clone();
        let serving = async move {
            let _on_core = on_core;
            match TcpStream::from_std(stream) {
                Ok(stream) => connection.open(stream, tls).await,
                Err(error) => tracing::warn!(%error, "a connection could not be served"),
            }
        };
        self.connections.spawn_on(serving, runtime);
        Ok(())
    }
}

/// One client's connection.
struct ClientConnection<E> {
    edge: Arc<E>,
    peer: SocketAddr,
    stop: CancellationToken,
    /// True before `stop` is cancelled.
    stopping: Arc<AtomicBool>,
    clock: Arc<dyn Clock>,
    place: ConnectionPermit,
}

/// Number of requests in progress on a connection, and the time of the last one.
#[derive(Default)]
struct Activity {
    requests: AtomicUsize,
    last: AtomicU64,
}

impl<E: Answer> ClientConnection<E> {
    async fn open(self, stream: TcpStream, tls: Option<Acceptor>) {
        let _best_effort = stream.set_nodelay(true);
        let Some(tls) = tls else {
            return self.serve(stream).await;
        };
        let opened = tokio::select! {
            opened = tls.accept(stream) => opened,
            () = self.stop.cancelled() => return,
        };
        match opened {
            Ok(stream) => self.serve(stream).await,
            // Scanners, probes, and clients that do not trust our certificate: not errors of the
            // gateway.
            Err(error) => tracing::debug!(%error, "a TLS handshake with a client failed"),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let activity = Arc::new(Activity::default());
        activity.last.store(micros(self.clock.monotonic()), Ordering::Relaxed);
        let service = service_fn(|request: Request<Incoming>| {
            let (activity, clock) = (Arc::clone(&activity), Arc::clone(&self.clock));
            let answer = self.edge.answer(self.peer, Arc::clone(&self.place), request);
            async move {
                let busy = Busy::new(activity, clock);
                let response = answer.await;
                drop(busy);
                Ok::<_, Infallible>(response)
            }
        });
        let builder = builder(E::STREAMS_MAX);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut stopped = pin!(self.stop.cancelled());
        // The connection is polled at every event. The stop signal is shared by all connections, so
        // it is asked only if it was never asked, or is set.
        let mut is_listening = false;
        let mut check = self.clock.sleep(IDLE_TIMEOUT / 3);
        let ended = poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(Some(ended));
            }
            if !is_listening || self.stopping.load(Ordering::Acquire) {
                is_listening = true;
                if stopped.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
            }
            while check.as_mut().poll(cx).is_ready() {
                if activity.is_idle(self.clock.monotonic()) {
                    return Poll::Ready(None);
                }
                check = self.clock.sleep(IDLE_TIMEOUT / 3);
            }
            Poll::Pending
        });
        if let Some(ended) = ended.await {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
            }
            return;
        }
        connection.as_mut().graceful_shutdown();
        let _ended = connection.await;
    }
}

impl Activity {
    fn is_idle(&self, monotonic: Duration) -> bool {
        let last = Duration::from_micros(self.last.load(Ordering::Relaxed));
        self.requests.load(Ordering::Relaxed) == 0 && monotonic.saturating_sub(last) >= IDLE_TIMEOUT
    }
}

/// Counts a request while it is in progress.
struct Busy {
    activity: Arc<Activity>,
    clock: Arc<dyn Clock>,
}

impl Busy {
    fn new(activity: Arc<Activity>, clock: Arc<dyn Clock>) -> Self {
        activity.requests.fetch_add(1, Ordering::Relaxed);
        Self { activity, clock }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.activity.last.store(micros(self.clock.monotonic()), Ordering::Relaxed);
        self.activity.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

fn builder(streams_max: u32) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_concurrent_streams(streams_max)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX));
    builder
}
