//! A client that exposes the server's certificate.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use onetake_sim::client::ClientResponse;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificates::{Authority, provider};

/// One connection.
pub(crate) struct Peer {
    sender: Sender,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) version: ProtocolVersion,
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

/// A connection to `localhost`.
pub(crate) async fn open(
    address: SocketAddr,
    authority: &Authority,
    alpn: &[&str],
    versions: &[&'static SupportedProtocolVersion],
) -> io::Result<TlsStream<TcpStream>> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(authority.roots())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

impl Peer {
    /// Connects to `localhost`, trusts only `authority`, and speaks the protocol that the server
    /// selects from `alpn`.
    pub(crate) async fn connect(
        address: SocketAddr,
        authority: &Authority,
        alpn: &[&str],
    ) -> io::Result<Self> {
        Self::connect_with(address, authority, alpn, rustls::ALL_VERSIONS).await
    }

    pub(crate) async fn connect_with(
        address: SocketAddr,
        authority: &Authority,
        alpn: &[&str],
        versions: &[&'static SupportedProtocolVersion],
    ) -> io::Result<Self> {
        let stream = open(address, authority, alpn, versions).await?;
        let session = stream.get_ref().1;
        let certificate = session.peer_certificates().unwrap()[0].clone().into_owned();
        let version = session.protocol_version().unwrap();
        let is_two = session.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        let sender = if is_two {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            Sender::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            Sender::One(sender)
        };
        Ok(Self { sender, certificate, version })
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Two(_))
    }

    /// A charge under a key.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        key: &str,
    ) -> Result<ClientResponse, hyper::Error> {
        let target = if self.is_http2() { format!("https://localhost{path}") } else { path.into() };
        let request = Request::post(target)
            .header("host", "localhost")
            .header("authorization", "Bearer alice")
            .header("idempotency-key", key)
            .header("x-case", key)
            .body(Full::from("10"))
            .unwrap();
        let response: Response<Incoming> = match &mut self.sender {
            Sender::One(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Two(sender) => sender.send_request(request).await?,
        };
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(ClientResponse { status: parts.status, headers: parts.headers, body })
    }
}
