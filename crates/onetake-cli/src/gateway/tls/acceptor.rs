//! TLS for client connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::Clock;
use rustls::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Identity;

use super::files::{Files, TlsFailed};
use super::reload::reloaded;
use super::{plain, provider};

const FIELD: &str = "gateway.tls";
/// Timeout of a handshake, including the wait for a permit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent handshakes: the most expensive work that an unknown client can
/// cause.
const HANDSHAKES_MAX: usize = 1_024;

/// The TLS side of the listener.
#[derive(Clone, Debug)]
pub(in super::super) struct Acceptor {
    config: watch::Receiver<Arc<ServerConfig>>,
    places: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
}

impl Acceptor {
    /// Reads the certificate and its key, and reloads them when they change.
    ///
    /// # Errors
    /// If they are missing or invalid.
    pub(in super::super) fn new(
        identity: Identity,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TlsFailed> {
        let paths = vec![identity.certificate.clone(), identity.private_key.clone()];
        let time = Arc::clone(&clock);
        let config = reloaded(
            FIELD,
            paths,
            move |files| server_config(files.identity(FIELD, &identity, &*time)?),
            Arc::clone(&clock),
        )?;
        Ok(Self { config, places: Arc::new(Semaphore::new(HANDSHAKES_MAX)), clock })
    }

    /// Checks the files like [`Self::new`], without using them.
    pub(super) fn check(identity: &Identity, clock: &dyn Clock) -> Result<(), TlsFailed> {
        server_config(Files::default().identity(FIELD, identity, clock)?).map(drop)
    }

    /// Performs the handshake with a client, with the current certificate.
    pub(in super::super) async fn accept<S>(&self, stream: S) -> io::Result<Box<TlsStream<S>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = async {
            let _place = self.places.acquire().await.map_err(io::Error::other)?;
            let config = Arc::clone(&self.config.borrow());
            TlsAcceptor::from(config).accept(stream).await
        };
        tokio::select! {
            opened = handshake => opened.map(Box::new),
            () = self.clock.sleep(HANDSHAKE_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

fn server_config(identity: Arc<CertifiedKey>) -> Result<ServerConfig, TlsFailed> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            TlsFailed::new(FIELD, None, plain(&error), "Remove this field to listen without TLS")
        })?;
    let certificate = Arc::new(SingleCertAndKey::from(identity));
    let mut config = builder.with_no_client_auth().with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use onetake_core::{ManualClock, Timestamp};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// An acceptor for one handshake at a time, its clock, and a listener.
    async fn acceptor() -> (Acceptor, ManualClock, TcpListener) {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let identity = Identity {
            certificate: folder.path().join("cert.pem"),
            private_key: folder.path().join("key.pem"),
        };
        std::fs::write(&identity.certificate, made.cert.pem()).unwrap();
        std::fs::write(&identity.private_key, made.signing_key.serialize_pem()).unwrap();
        let year_2020 = Timestamp::from_micros(1_577_836_800_000_000);
        let clock = ManualClock::new(year_2020);
        let acceptor = Acceptor::new(identity, Arc::new(clock.clone())).unwrap();
        let acceptor = Acceptor { places: Arc::new(Semaphore::new(1)), ..acceptor };
        (acceptor, clock, TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    #[tokio::test]
    async fn whoever_says_nothing_is_not_waited_for_and_holds_its_place_no_longer() {
        let (acceptor, clock, listener) = acceptor().await;
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        let mut handshakes = Vec::new();
        for waiting in [false, true] {
            clients.push(TcpStream::connect(address).await.unwrap());
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            handshakes.push(tokio::spawn(async move { acceptor.accept(stream).await.map(drop) }));
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            assert!(handshakes.iter().all(|handshake| !handshake.is_finished()), "{waiting}");
        }
        assert_eq!(acceptor.places.available_permits(), 0, "one at a time, the other waits");
        clock.advance(HANDSHAKE_TIMEOUT);
        for handshake in handshakes {
            let error = handshake.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(acceptor.places.available_permits(), 1);
    }
}
