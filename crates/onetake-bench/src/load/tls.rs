//! The certificate of all programs that speak TLS, and the load generator's side of it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The name in the certificate.
const NAME: &str = "onetake.test";

/// A certificate that signs itself, and its key, in files.
#[derive(Debug)]
pub(crate) struct Certificate {
    folder: TempDir,
    client: Arc<ClientConfig>,
    client_http2: Arc<ClientConfig>,
}

impl Certificate {
    pub(crate) fn create() -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]);
        let made = made.map_err(io::Error::other)?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem())?;
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).map_err(io::Error::other)?;
        let client = |protocol: &[u8]| {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?;
            let mut client = builder.with_root_certificates(roots.clone()).with_no_client_auth();
            client.alpn_protocols = vec![protocol.to_vec()];
            io::Result::Ok(Arc::new(client))
        };
        Ok(Self { folder, client: client(b"http/1.1")?, client_http2: client(b"h2")? })
    }

    /// Returns the paths of the certificate and of its key.
    pub(crate) fn files(&self) -> (PathBuf, PathBuf) {
        (self.folder.path().join("cert.pem"), self.folder.path().join("key.pem"))
    }

    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        with_http2: bool,
    ) -> io::Result<TlsStream<TcpStream>> {
        let client = if with_http2 { &self.client_http2 } else { &self.client };
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(client)).connect(name, stream).await
    }
}
