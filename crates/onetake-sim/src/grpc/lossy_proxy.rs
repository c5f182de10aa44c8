//! A proxy for HTTP/2 that forwards requests and loses responses.
//!
//! The TCP proxy of this crate cannot do that: the first bytes of an HTTP/2 server are its settings,
//! not a response.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The bytes in front of a frame.
const PREFIX: usize = 9;
/// The type of a frame that begins a response, or ends it with trailers.
const HEADERS: u8 = 1;
/// The flag of a frame that ends its stream.
const END_STREAM: u8 = 1;

/// A proxy in front of one server. Every other response is lost: its connection is closed in place
/// of its first frame.
#[derive(Debug)]
pub struct LossyProxy {
    address: SocketAddr,
    lost: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Responses {
    /// The number of responses that have begun.
    begun: AtomicUsize,
}

impl LossyProxy {
    /// Starts a proxy in front of `server`.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (responses, lost) = (Arc::<Responses>::default(), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&lost);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, Arc::clone(&responses), Arc::clone(&count)));
            }
        });
        Ok(Self { address, lost, accepting })
    }

    /// Returns the address to connect to instead of the server's.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of responses that were lost.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Acquire)
    }
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(
    client: TcpStream,
    server: SocketAddr,
    responses: Arc<Responses>,
    lost: Arc<AtomicUsize>,
) {
    let Ok(connected) = TcpStream::connect(server).await else { return };
    let _best_effort = (client.set_nodelay(true), connected.set_nodelay(true));
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = connected.into_split();
    tokio::select! {
        _ended = copy(&mut from_client, &mut to_server) => {}
        is_lost = frames(from_server, to_client, &responses) => {
            if is_lost.unwrap_or_default() {
                lost.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// Carries the frames of a server. Returns true if a response was lost.
async fn frames(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    responses: &Responses,
) -> io::Result<bool> {
    let mut begun = std::collections::HashSet::new();
    loop {
        let mut prefix = [0; PREFIX];
        from.read_exact(&mut prefix).await?;
        let [a, b, c, kind, flags, stream @ ..] = prefix;
        let mut frame = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        from.read_exact(&mut frame).await?;
        let stream = u32::from_be_bytes(stream);
        if kind == HEADERS && begun.insert(stream) {
            let number = responses.begun.fetch_add(1, Ordering::AcqRel);
            if number.is_multiple_of(2) {
                return Ok(true);
            }
        }
        if flags & END_STREAM != 0 {
            begun.remove(&stream);
        }
        to.write_all(&prefix).await?;
        to.write_all(&frame).await?;
    }
}
