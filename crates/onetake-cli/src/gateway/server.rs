//! The listener for clients: accept, limits, drain.

use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use onetake_core::Clock;

use super::activity::Activity;
use super::client_connection::{self, Answer, ClientConnection};
use super::client_http::Protocols;
use super::cores::Cores;
use super::eviction::{self, OpenConnections};
use super::in_flight::{Connection, Gates};
use super::phase::Phase;
use super::timeouts::Timeouts;
use super::tls::Acceptor;
use crate::config::Limits;

/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The listener and its connections.
#[derive(Debug)]
pub(super) struct Server {
    stop: CancellationToken,
    /// It changes before `stop` is cancelled, and is cheaper to read.
    phase: Arc<Phase>,
    accepting: JoinHandle<()>,
    connections: TaskTracker,
    clock: Arc<dyn Clock>,
}

/// The parts of the server that accept connections.
struct Accepting<E> {
    tls: Option<Acceptor>,
    /// The cores, and the gateway of each.
    cores: Arc<Cores>,
    edges: Vec<Arc<E>>,
    protocols: Arc<Protocols>,
    stop: CancellationToken,
    phase: Arc<Phase>,
    connections: TaskTracker,
    clock: Arc<dyn Clock>,
    limits: ServerLimits,
    open: OpenConnections,
    /// Counts connections that had to wait for a place.
    waits: Counter,
}

/// The limits of client connections.
#[derive(Clone, Debug)]
pub(super) struct ServerLimits {
    pub(super) configured: Arc<Limits>,
    pub(super) gates: Arc<Gates>,
    /// Free places for connections. If none is free, one more connection waits for an idle one to
    /// be evicted, and the rest in the operating system's queue.
    pub(super) places: Arc<Semaphore>,
    /// How long an idle connection is kept.
    pub(super) keep_alive: Duration,
}

impl Server {
    /// Serves client connections on the cores, over TLS if there is an acceptor. There is one edge
    /// for each core.
    pub(super) fn start<E: Answer>(
        listener: TcpListener,
        tls: Option<Acceptor>,
        (cores, edges): (Arc<Cores>, Vec<Arc<E>>),
        limits: ServerLimits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        client_connection::describe_metrics();
        let (stop, phase) = (CancellationToken::new(), Arc::<Phase>::default());
        let connections = TaskTracker::new();
        let streams_max = E::STREAMS_MAX.unwrap_or(limits.configured.max_streams);
        let window = E::CONNECTION_WINDOW_BYTES;
        let accepting = Accepting {
            tls,
            cores,
            edges,
            protocols: Arc::new(Protocols::new(&limits.configured, streams_max, window)),
            stop: stop.clone(),
            phase: Arc::clone(&phase),
            connections: connections.clone(),
            clock: Arc::clone(&clock),
            limits,
            open: OpenConnections::default(),
            waits: eviction::waits(),
        };
        let accepting = tokio::spawn(accepting.run(listener));
        Self { stop, phase, accepting, connections, clock }
    }

    /// Announces the end to clients: HTTP/1.1 responses say `Connection: close`, and HTTP/2
    /// connections send GOAWAY with their next response. New connections are still accepted.
    pub(super) fn leave(&self) {
        self.phase.leave();
    }

    /// Stops accepting, and waits until connections have finished their requests. Returns true if
    /// all finished in time.
    pub(super) async fn shutdown(self, patience: Duration) -> bool {
        self.phase.stop();
        self.stop.cancel();
        let finished = async {
            let _panicked = self.accepting.await;
            self.connections.close();
            self.connections.wait().await;
        };
        tokio::select! {
            () = finished => true,
            () = self.clock.sleep(patience) => {
                let connections = self.connections.len();
                tracing::warn!(connections, "connections that did not end in time are cut off");
                false
            }
        }
    }
}

impl<E: Answer> Accepting<E> {
    async fn run(mut self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            // The core's runtime waits for the socket from now on.
            match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
                Ok((stream, peer)) => {
                    let Some(place) = self.place().await else { break };
                    self.assign(stream, peer, place);
                }
                // Out of file descriptors, or the peer has gone already: neither ends the gateway.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        if let Err(error) = self.accept_rest(listener) {
            tracing::debug!(%error, "connections in the queue were not accepted");
        }
    }

    /// Takes a free place. If there is none, waits for one, and evicts idle connections. Returns
    /// `None` if the gateway stops and no place is free.
    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.limits.places).try_acquire_owned() {
            return Some(place);
        }
        self.waits.increment(1);
        let mut place = pin!(Arc::clone(&self.limits.places).acquire_owned());
        loop {
            self.open.evict(self.clock.monotonic());
            tokio::select! {
                biased;
                place = &mut place => return place.ok(),
                () = self.stop.cancelled() => return None,
                () = self.clock.sleep(eviction::PAUSE) => {}
            }
        }
    }

    /// Accepts the connections that are in the operating system's queue already. It would reset
    /// them when the listener closes, and their clients could not know whether a request was read.
    fn accept_rest(&mut self, listener: TcpListener) -> io::Result<()> {
        let listener = listener.into_std()?;
        while let Ok(place) = Arc::clone(&self.limits.places).try_acquire_owned() {
            match listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true)?;
                    self.assign(stream, peer, place);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives a connection to the core with the fewest.
    fn assign(&mut self, stream: StdTcpStream, peer: SocketAddr, place: OwnedSemaphorePermit) {
        let Some((number, runtime, on_core)) = self.cores.least_busy() else { return };
        let Some(edge) = self.edges.get(number).cloned() else { return };
        let connection = ClientConnection {
            edge,
            peer,
            stop: self.stop.clone(),
            phase: Arc::clone(&self.phase),
            clock: Arc::clone(&self.clock),
            place: Connection::new(place, &self.limits.gates),
            timeouts: Timeouts {
                keep_alive: self.limits.keep_alive,
                head: self.limits.configured.header_timeout,
                send: self.limits.configured.send_timeout,
            },
        };
        let activity = Arc::<Activity>::default();
        self.open.add(&activity, self.clock.monotonic());
        let (tls, protocols) = (self.tls.clone(), Arc::clone(&self.protocols));
        let serving = async move {
            let _on_core = on_core;
            match TcpStream::from_std(stream) {
                Ok(stream) => connection.open(stream, tls, &protocols, activity).await,
                Err(error) => tracing::warn!(%error, "a connection could not be served"),
            }
        };
        self.connections.spawn_on(serving, runtime);
    }
}
