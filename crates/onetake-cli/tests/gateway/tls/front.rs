//! TLS in front of an upstream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::{ALL_VERSIONS, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

use super::certificates::{Authority, Pair, provider};

/// A proxy that terminates TLS.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    task: AbortHandle,
}

/// The clients and protocol versions that a front accepts.
pub(crate) struct Rules<'a> {
    pub(crate) clients: Option<&'a Authority>,
    pub(crate) versions: &'a [&'static SupportedProtocolVersion],
    /// The protocols that it offers (ALPN).
    pub(crate) protocols: &'a [&'a str],
}

impl Default for Rules<'_> {
    fn default() -> Self {
        Self { clients: None, versions: ALL_VERSIONS, protocols: &[] }
    }
}

/// The TLS configuration of a front.
pub(crate) fn server_config(pair: &Pair, rules: &Rules<'_>) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(rules.versions).unwrap();
    let builder = match rules.clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = authority.roots();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut config = builder.with_single_cert(pair.chain(), pair.private_key()).unwrap();
    config.alpn_protocols = rules.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

impl Front {
    pub(crate) async fn start(behind: SocketAddr, pair: &Pair, rules: Rules<'_>) -> Self {
        let acceptor = TlsAcceptor::from(server_config(pair, &rules));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut behind = TcpStream::connect(behind).await.unwrap();
                    let _ended = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
                });
            }
        });
        Self { address, connections, task: task.abort_handle() }
    }

    /// Number of connections that were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The line `upstream = …` with this host name.
    pub(crate) fn upstream(&self, host: &str) -> String {
        format!("upstream = \"https://{host}:{}\"", self.address.port())
    }
}

/// Passes the client's first message on, and then holds back until there are many bytes.
pub(crate) async fn hold_back(behind: SocketAddr, bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut answers) = client.into_split();
                let (mut server, mut to) = TcpStream::connect(behind).await.unwrap().into_split();
                let back = tokio::spawn(async move {
                    let _ended = tokio::io::copy(&mut server, &mut answers).await;
                });
                let mut said = vec![0; 1 << 16];
                let hello = from.read(&mut said).await.unwrap_or(0);
                let _gone = to.write_all(&said[..hello]).await;
                let mut held = Vec::new();
                while held.len() < bytes {
                    match from.read(&mut said).await {
                        Ok(count @ 1..) => held.extend_from_slice(&said[..count]),
                        _ => break,
                    }
                }
                let _gone = to.write_all(&held).await;
                let _ended = back.await;
            });
        }
    });
    address
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}
