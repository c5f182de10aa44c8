//! A TCP proxy that a test can make slow, silent or dead.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onetake_core::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The state of the connection between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Bytes arrive.
    Fair,
    /// Bytes arrive after this delay.
    Slow(Duration),
    /// Bytes do not arrive in either direction, and there is no error. They arrive when the state
    /// changes.
    Cut,
    /// Requests arrive. Answers do not arrive until the state changes.
    CutBack,
    /// Requests do not arrive until the state changes. Answers to earlier requests do.
    CutThere,
    /// Bytes arrive in pieces of at most this many, each after a pause of a millisecond.
    Pieces(usize),
    /// Every connection is closed, and new ones are closed at once.
    Dead,
}

/// A proxy in front of one server.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    server: watch::Sender<SocketAddr>,
    next: Arc<Next>,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

/// Faults of the next requests or answers, on any connection.
#[derive(Debug, Default)]
struct Next {
    /// The number of answers to lose.
    answers_to_lose: AtomicUsize,
    /// The number of requests to tear.
    requests_to_tear: AtomicUsize,
}

impl FaultProxy {
    /// Starts a proxy in front of `server`, without faults.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let weather = watch::Sender::new(Weather::Fair);
        let connections = Arc::new(AtomicUsize::new(0));
        let (server, next) = (watch::Sender::new(server), Arc::new(Next::default()));
        let (seen, count) = (weather.subscribe(), Arc::clone(&connections));
        let (target, faults) = (server.subscribe(), Arc::clone(&next));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                if *seen.borrow() != Weather::Dead {
                    tokio::spawn(carry(client, target.clone(), seen.clone(), Arc::clone(&faults)));
                }
            }
        });
        Ok(Self { address, weather, server, next, connections, accepting })
    }

    /// Sends new connections to another server, and closes those to the earlier one.
    pub fn point_to(&self, server: SocketAddr) {
        self.server.send_replace(server);
    }

    /// Returns the address to connect to instead of the server's.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the state, for open connections too.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Loses the next answers. Each request arrives, and its connection is closed at the first byte
    /// of its answer.
    pub fn lose_answers(&self, count: usize) {
        self.next.answers_to_lose.store(count, Ordering::Relaxed);
    }

    /// Tears the next requests: half of the bytes arrive, then the connection is closed.
    pub fn tear_requests(&self, count: usize) {
        self.next.requests_to_tear.store(count, Ordering::Relaxed);
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.weather.send_replace(Weather::Dead);
    }
}

async fn carry(
    client: TcpStream,
    mut server: watch::Receiver<SocketAddr>,
    mut weather: watch::Receiver<Weather>,
    next: Arc<Next>,
) {
    let address = *server.borrow_and_update();
    let Ok(connected) = TcpStream::connect(address).await else { return };
    let _best_effort = (client.set_nodelay(true), connected.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = connected.into_split();
    let none = AtomicUsize::new(0);
    let there = Way { weather: weather.clone(), lose: &none, tear: &next.requests_to_tear };
    let there = there.carry(from_client, to_server, |weather| {
        matches!(weather, Weather::Cut | Weather::CutThere)
    });
    let back = Way { weather: weather.clone(), lose: &next.answers_to_lose, tear: &none };
    let back = back.carry(from_server, to_client, |weather| {
        matches!(weather, Weather::Cut | Weather::CutBack)
    });
    tokio::select! {
        () = there => {}
        () = back => {}
        _ = weather.wait_for(|weather| *weather == Weather::Dead) => {}
        _ = server.changed() => {}
    }
}

/// One direction of a connection.
struct Way<'a> {
    weather: watch::Receiver<Weather>,
    lose: &'a AtomicUsize,
    tear: &'a AtomicUsize,
}

impl Way<'_> {
    async fn carry(
        mut self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        stops: impl Fn(Weather) -> bool,
    ) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if takes_one(self.lose) {
                return;
            }
            let fair = self.weather.wait_for(|weather| !stops(*weather)).await;
            let Ok(now) = fair.map(|now| *now) else { return };
            let Some(bytes) = buffer.get(..count) else { return };
            if takes_one(self.tear) {
                let _torn = to.write_all(bytes.get(..count / 2).unwrap_or_default()).await;
                return;
            }
            let piece = if let Weather::Pieces(most) = now { most.max(1) } else { count };
            for piece in bytes.chunks(piece) {
                match now {
                    Weather::Slow(by) => SystemClock.sleep(by).await,
                    Weather::Pieces(_) => SystemClock.sleep(Duration::from_millis(1)).await,
                    _ => {}
                }
                if to.write_all(piece).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Decrements a counter. Returns false if it is zero.
fn takes_one(counter: &AtomicUsize) -> bool {
    let fewer = |count: usize| count.checked_sub(1);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers with one byte, its name, for every chunk it reads.
    async fn server(name: u8) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 64];
                    while let Ok(1..) = stream.read(&mut buffer).await {
                        stream.write_all(&[name]).await.unwrap();
                    }
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn new_connections_go_to_the_server_that_it_points_to() {
        let (first, second) = (server(b'1').await, server(b'2').await);
        let proxy = FaultProxy::start(first).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"a").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'1');
        proxy.point_to(second);
        // The old connection is closed.
        assert!(stream.read_u8().await.is_err());
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"a").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'2');
    }

    #[tokio::test]
    async fn a_torn_request_arrives_by_half() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = FaultProxy::start(listener.local_addr().unwrap()).await.unwrap();
        proxy.tear_requests(1);
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"abcdefgh").await.unwrap();
        let (mut arrived, mut text) = (listener.accept().await.unwrap().0, Vec::new());
        arrived.read_to_end(&mut text).await.unwrap();
        assert_eq!(text, b"abcd");
    }

    #[tokio::test]
    async fn pieces_arrive_whole_in_the_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = FaultProxy::start(listener.local_addr().unwrap()).await.unwrap();
        proxy.set(Weather::Pieces(3));
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"abcdefgh").await.unwrap();
        let (mut arrived, mut text) = (listener.accept().await.unwrap().0, [0; 8]);
        arrived.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"abcdefgh");
    }

    #[tokio::test]
    async fn requests_that_are_cut_wait_and_answers_arrive() {
        let proxy = FaultProxy::start(server(b'1').await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.set(Weather::CutThere);
        stream.write_all(b"a").await.unwrap();
        let waits = tokio::select! {
            _ = stream.read_u8() => false,
            () = SystemClock.sleep(Duration::from_millis(100)) => true,
        };
        assert!(waits);
        proxy.set(Weather::Fair);
        assert_eq!(stream.read_u8().await.unwrap(), b'1');
    }
}
