//! TLS for connections to upstreams and to other services that the gateway calls.

mod resolver;
mod stream;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use onetake_core::Clock;
use onetake_core::clock::micros;
use onetake_http::BoxError;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tower::ServiceExt;
use tower_service::Service;

use crate::config::UpstreamTls;

use super::files::{Files, TlsFailed};
use super::reload::reloaded;
use super::{plain, provider};
pub(in super::super) use resolver::Resolver;
pub(in super::super) use stream::Opening;
pub(crate) use stream::Stream;

const FIELD: &str = "gateway.upstream_tls";
const ROOTS: &str = "gateway.upstream_tls.roots";
/// Timeout of a TCP connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the handshake that follows.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about failed handshakes: with a wrong certificate every
/// request fails.
const SILENCE: Duration = Duration::from_secs(10);

/// The protocols that a connection may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocols {
    Http1,
    /// HTTP/2 from the first byte, without TLS.
    Http2,
    /// The server chooses, by ALPN.
    Either,
}

impl Protocols {
    /// The protocols of an upstream, by the scheme of its URL.
    pub(crate) fn of(upstream: &Uri) -> Self {
        match upstream.scheme_str() {
            Some("h2c") => Self::Http2,
            Some("https") => Self::Either,
            _ => Self::Http1,
        }
    }

    pub(crate) fn may_be_http2(self) -> bool {
        self != Self::Http1
    }
}

/// The connector for outgoing connections, encrypted for `https://`.
///
/// If it fails, nothing of a request was sent.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    http: HttpConnector<Resolver>,
    tls: Option<watch::Receiver<Arc<ClientConfig>>>,
    clock: Arc<dyn Clock>,
    /// When the next failed handshake may be logged, in microseconds of the monotonic clock.
    speak_from: Arc<AtomicU64>,
}

impl Connector {
    /// Reads roots and certificates, and reloads them when they change. `None` if no URL is
    /// `https://`.
    ///
    /// # Errors
    /// If they are missing or invalid.
    pub(crate) fn new(tls: Option<UpstreamTls>, clock: Arc<dyn Clock>) -> Result<Self, TlsFailed> {
        Self::with_resolver(Resolver::system(), tls, clock)
    }

    /// Like [`Self::new`], with a source of the addresses of names.
    ///
    /// # Errors
    /// If roots or certificates are missing or invalid.
    pub(crate) fn with_resolver(
        resolver: Resolver,
        tls: Option<UpstreamTls>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TlsFailed> {
        let mut http = HttpConnector::new_with_resolver(resolver);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.enforce_http(false);
        let tls = tls.map(|tls| {
            let files = [&tls.roots, &tls.certificate, &tls.private_key];
            let paths = files.into_iter().flatten().cloned().collect();
            let time = Arc::clone(&clock);
            let make = move |files: &mut Files| client_config(&tls, files, &*time);
            reloaded(FIELD, paths, make, Arc::clone(&clock))
        });
        Ok(Self { http, tls: tls.transpose()?, clock, speak_from: Arc::default() })
    }

    /// Checks the files like [`Self::new`], without using them.
    pub(crate) fn check(tls: &UpstreamTls, clock: &dyn Clock) -> Result<(), TlsFailed> {
        client_config(tls, &mut Files::default(), clock).map(drop)
    }

    /// Opens a connection, encrypted for `https://`. Of several addresses of a name, the next one
    /// is tried if one cannot be connected to. The name is resolved each time.
    pub(crate) async fn open(&self, to: &Uri, protocols: Protocols) -> Result<Stream, BoxError> {
        let stream = self.http.clone().oneshot(to.clone()).await?.into_inner();
        match to.scheme() == Some(&Scheme::HTTPS) {
            true => self.encrypted(to.host().unwrap_or_default(), stream, protocols).await,
            false => Ok(Stream::plain(stream, protocols)),
        }
    }

    async fn encrypted(
        &self,
        host: &str,
        stream: TcpStream,
        protocols: Protocols,
    ) -> Result<Stream, BoxError> {
        let tls = self.tls.as_ref().ok_or("TLS is not configured for this upstream")?;
        let mut config = Arc::clone(&tls.borrow());
        if protocols == Protocols::Either {
            Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        let name = ServerName::try_from(host.trim_matches(['[', ']']))?.to_owned();
        let opened = tokio::select! {
            opened = TlsConnector::from(config).connect(name, stream) => opened,
            () = self.clock.sleep(HANDSHAKE_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
        };
        match opened {
            Ok(stream) => Ok(Stream::encrypted(stream)),
            Err(error) => {
                self.tell(host, &error);
                Err(error.into())
            }
        }
    }

    fn tell(&self, host: &str, error: &io::Error) {
        let now = micros(self.clock.monotonic());
        let next = now.saturating_add(micros(SILENCE));
        let may_speak = |from: u64| (from <= now).then_some(next);
        let (before, after) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.speak_from.fetch_update(before, after, may_speak).is_ok() {
            tracing::warn!(host, %error, "the TLS handshake with this host failed; nothing was sent");
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(TokioIo::new(this.open(&to, Protocols::Http1).await?)) })
    }
}

fn client_config(
    tls: &UpstreamTls,
    files: &mut Files,
    clock: &dyn Clock,
) -> Result<ClientConfig, TlsFailed> {
    let roots = match &tls.roots {
        Some(file) => files.roots(ROOTS, file)?,
        None => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            TlsFailed::new(FIELD, None, plain(&error), "Use an http:// URL to connect without TLS")
        })?
        .with_root_certificates(roots);
    let mut config = match &tls.identity() {
        Some(identity) => {
            let identity = files.identity(FIELD, identity, clock)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
        }
        None => builder.with_no_client_auth(),
    };
    // Upstreams of the gateway may also choose HTTP/2: see `Protocols`.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn system_roots() -> Result<RootCertStore, TlsFailed> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (_added, _ignored) = roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        false => Ok(roots),
        true => Err(TlsFailed::new(
            ROOTS,
            None,
            "missing, and this system has no root certificates of its own",
            "Name a file with the root certificates of the upstreams, or install ca-certificates",
        )),
    }
}
