//! The dead spot: a relay that passes requests on and drops their responses.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use onetake_core::Clock;

/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A running relay. Dropping it stops the relay.
#[derive(Debug)]
pub(super) struct DeadSpot {
    address: SocketAddr,
    _stop: DropGuard,
}

impl DeadSpot {
    /// Listens on a free port of this machine, in front of `server`.
    pub(super) async fn start(server: SocketAddr, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                match listener.accept().await {
                    Ok((phone, _)) => drop(tokio::spawn(swallow(phone, server))),
                    // For example out of file descriptors: the phone waits or retries.
                    Err(_) => clock.sleep(ACCEPT_PAUSE).await,
                }
            }
        }));
        Ok(Self { address, _stop: stop.drop_guard() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Passes one request to the server, and cuts both connections when the response begins.
async fn swallow(mut phone: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut answer, mut request) = server.split();
    let mut first_byte = [0_u8; 1];
    tokio::select! {
        answered = answer.read(&mut first_byte) => answered.map(drop),
        // The phone hung up first.
        sent = tokio::io::copy(&mut phone, &mut request) => sent.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::SystemClock;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn the_request_arrives_and_the_answer_does_not() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let spot = DeadSpot::start(address, Arc::new(SystemClock)).await.unwrap();
        let mut phone = TcpStream::connect(spot.address()).await.unwrap();
        phone.write_all(b"ping").await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut request = [0; 4];
        accepted.read_exact(&mut request).await.unwrap();
        assert_eq!(&request, b"ping");
        accepted.write_all(b"pong").await.unwrap();
        let mut answer = Vec::new();
        // The connection is closed or reset, depending on the operating system; there is never a
        // response.
        let _ended = phone.read_to_end(&mut answer).await;
        assert!(answer.is_empty());
    }
}
