//! TLS with clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use onetake_core::Clock;
use rustls::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Identity;

use super::files::TlsFailed;
use super::reload::reloaded;
use super::{plain, provider};

const FIELD: &str = "gateway.tls";
/// How long a client may take until both sides know each other, its wait for a place included.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes at once: they are the dearest thing that a stranger can ask for.
const HANDSHAKES_MAX: usize = 1_024;

/// Opens TLS on accepted connections.
#[derive(Clone, Debug)]
pub(in super::super) struct Acceptor {
    config: watch::Receiver<Arc<ServerConfig>>,
    places: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
}

impl Acceptor {
    /// Reads the certificate and its key, and looks after them from then on.
    ///
    /// # Errors
    /// If they are not there, or of no use.
    pub(in super::super) fn new(
        identity: Identity,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TlsFailed> {
        let paths = vec![identity.certificate.clone(), identity.key.clone()];
        let time = Arc::clone(&clock);
        let config = reloaded(
            FIELD,
            paths,
            move |files| server_config(files.identity(FIELD, &identity, &*time)?),
            Arc::clone(&clock),
        )?;
        Ok(Self { config, places: Arc::new(Semaphore::new(HANDSHAKES_MAX)), clock })
    }

    /// Opens TLS with whoever is at the other end, with the certificate of this moment.
    pub(in super::super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<Box<TlsStream<TcpStream>>> {
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
        .map_err(|error| TlsFailed::new(FIELD, None, plain(&error), "Remove it to do without"))?;
    let certificate = Arc::new(SingleCertAndKey::from(identity));
    let mut config = builder.with_no_client_auth().with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
