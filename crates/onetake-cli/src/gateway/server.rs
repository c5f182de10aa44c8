//! Client connections: accept, limits, timeouts, drain.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use onetake_core::Clock;
use onetake_core::clock::micros;

use super::edge::{ConnectionPermit, Edge};
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
/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The listener and its connections.
#[derive(Debug)]
pub(super) struct Server {
    stop: CancellationToken,
    connections: TaskTracker,
    clock: Arc<dyn Clock>,
}

impl Server {
    /// Serves client connections, over TLS if there is an acceptor.
    pub(super) fn start(
        listener: TcpListener,
        tls: Option<Acceptor>,
        edge: Edge,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let stop = CancellationToken::new();
        let connections = TaskTracker::new();
        let server = Self { stop, connections, clock };
        let (stop, connections, clock) =
            (server.stop.clone(), server.connections.clone(), Arc::clone(&server.clock));
        tokio::spawn(accept(listener, tls, edge, stop, connections, clock));
        server
    }

    /// Stops accepting, and waits until connections have finished their requests. Returns true if
    /// all finished in time.
    pub(super) async fn shutdown(self, patience: Duration) -> bool {
        self.stop.cancel();
        self.connections.close();
        tokio::select! {
            () = self.connections.wait() => true,
            () = self.clock.sleep(patience) => false,
        }
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Acceptor>,
    edge: Edge,
    stop: CancellationToken,
    connections: TaskTracker,
    clock: Arc<dyn Clock>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned();
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = async { (place.await, listener.accept().await) } => accepted,
        };
        match (place, accepted) {
            (Ok(place), Ok((stream, peer))) => {
                let connection = ClientConnection {
                    edge: edge.clone(),
                    peer,
                    stop: stop.clone(),
                    clock: Arc::clone(&clock),
                    place: Arc::new(place),
                };
                connections.spawn(connection.open(stream, tls.clone()));
            }
            (_, Err(error)) => {
                // Out of file descriptors, or the peer has gone already: neither ends the gateway.
                tracing::warn!(%error, "a connection could not be accepted");
                clock.sleep(ACCEPT_PAUSE).await;
            }
            (Err(_closed), _) => return,
        }
    }
}

/// One client's connection.
struct ClientConnection {
    edge: Edge,
    peer: SocketAddr,
    stop: CancellationToken,
    clock: Arc<dyn Clock>,
    place: ConnectionPermit,
}

/// Number of requests in progress on a connection, and the time of the last one.
#[derive(Default)]
struct Activity {
    requests: AtomicUsize,
    last: AtomicU64,
}

impl ClientConnection {
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
        let builder = builder();
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        loop {
            tokio::select! {
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended with an error");
                    }
                    return;
                }
                () = self.stop.cancelled() => break,
                () = self.clock.sleep(IDLE_TIMEOUT / 3) => {
                    if activity.is_idle(self.clock.monotonic()) {
                        break;
                    }
                }
            }
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

fn builder() -> Builder<TokioExecutor> {
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
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX));
    builder
}
