//! A TCP proxy that a test can make slow, deaf or dead.

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

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// They arrive.
    Fair,
    /// They arrive after this long.
    Slow(Duration),
    /// They do not arrive, in either direction, and nobody is told; they arrive when it clears up.
    Cut,
    /// Requests arrive, answers do not, until it clears up.
    CutBack,
    /// Every connection is closed, and new ones are closed at once.
    Dead,
}

/// A proxy in front of one server.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    answers_to_lose: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl FaultProxy {
    /// Starts one in front of `server`, in fair weather.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let weather = watch::Sender::new(Weather::Fair);
        let connections = Arc::new(AtomicUsize::new(0));
        let answers_to_lose = Arc::new(AtomicUsize::new(0));
        let (seen, count) = (weather.subscribe(), Arc::clone(&connections));
        let lose = Arc::clone(&answers_to_lose);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                if *seen.borrow() != Weather::Dead {
                    tokio::spawn(carry(client, server, seen.clone(), Arc::clone(&lose)));
                }
            }
        });
        Ok(Self { address, weather, answers_to_lose, connections, accepting })
    }

    /// Where to connect instead.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the weather, for connections that are open too.
    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Loses the next answers: each request has arrived, and when the first byte of its answer comes,
    /// its connection is closed instead.
    pub fn lose_answers(&self, count: usize) {
        self.answers_to_lose.store(count, Ordering::Relaxed);
    }

    /// How many connections were ever asked for.
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
    server: SocketAddr,
    mut weather: watch::Receiver<Weather>,
    answers_to_lose: Arc<AtomicUsize>,
) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let _best_effort = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let none = AtomicUsize::new(0);
    let there =
        one_way(from_client, to_server, weather.clone(), &none, |weather| weather == Weather::Cut);
    let back = one_way(from_server, to_client, weather.clone(), &answers_to_lose, |weather| {
        matches!(weather, Weather::Cut | Weather::CutBack)
    });
    tokio::select! {
        () = there => {}
        () = back => {}
        _ = weather.wait_for(|weather| *weather == Weather::Dead) => {}
    }
}

async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    to_lose: &AtomicUsize,
    stops: impl Fn(Weather) -> bool,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let fewer = |count: usize| count.checked_sub(1);
        if to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() {
            return;
        }
        let Ok(now) = weather.wait_for(|weather| !stops(*weather)).await.map(|now| *now) else {
            return;
        };
        if let Weather::Slow(by) = now {
            SystemClock.sleep(by).await;
        }
        let Some(bytes) = buffer.get(..count) else { return };
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}
