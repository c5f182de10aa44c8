//! Connections to upstreams. Each core has its own.
//!
//! `http://` is HTTP/1.1, and `h2c://` is HTTP/2. An `https://` upstream chooses when a connection
//! is opened (ALPN). The modules `http1` and `http2` have the two protocols.
//!
//! It is known exactly which requests may have been sent: those that a connection has begun to
//! write. If the upstream has closed an idle connection, a request with a key notices it before that,
//! as soon as the operating system knows. Other requests notice it as soon as the runtime knows. The
//! request then goes to another connection.

mod after_response;
mod body;
mod census;
mod http1;
mod http2;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use hyper::body::Body;
use hyper_util::rt::TokioIo;

use onetake_core::Clock;
use onetake_http::BoxError;

use super::early_hints::HintSender;
use super::tls::{Connector, Opening, Protocols, Stream};
pub(super) use body::UpstreamBody;
pub(super) use census::Census;
use http1::{Exchange, Http1Connection, Idle};
use http2::{Failed, Http2, SendAgain};

/// Connections take no more requests after this time. The name of the upstream is then resolved
/// again.
const AGE_MAX: Duration = Duration::from_secs(300);
/// The largest head of a response, in bytes. The outcome of a response with a larger one is unknown.
const HEAD_BYTES_MAX: usize = 400 << 10;
/// The most headers of a response over HTTP/1.1. The outcome of a response with more is unknown.
const HEADERS_MAX: usize = 512;

/// The upstream of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upstream<'a> {
    /// Its number among all upstreams.
    pub(super) number: usize,
    pub(super) server: &'a Uri,
    /// True if the request has a key: its outcome must not be unknown without need.
    pub(super) is_keyed: bool,
    /// The way of its informational responses to the client.
    pub(super) hints: Option<HintSender<'a>>,
}

/// The settings of connections to upstreams.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpstreamSettings {
    /// Maximum number of idle HTTP/1.1 connections of one core.
    pub(super) idle_max: usize,
    /// How long an HTTP/1.1 connection may be idle.
    pub(super) keep_alive: Duration,
    /// The time without a sign of life after which an HTTP/2 connection is checked by a ping.
    pub(super) ping_interval: Duration,
}

#[cfg(test)]
impl UpstreamSettings {
    pub(super) const OF_TESTS: Self = Self {
        idle_max: 8,
        keep_alive: Duration::from_secs(4),
        ping_interval: Duration::from_secs(360),
    };
}

/// The connections of one core, for requests with bodies of one type.
pub(super) struct Upstreams<B: Body + 'static> {
    connector: Connector,
    idle: Arc<Idle>,
    http2: Http2<B>,
}

/// The evidence of what the upstream may have received of a request.
#[derive(Default)]
pub(super) struct Evidence {
    /// True if a connection may have taken the request.
    is_taken: bool,
    /// The upstream's first message on that connection.
    opening: Option<Opening>,
}

impl Evidence {
    /// True if the upstream may have received any part of the request.
    ///
    /// It cannot have if no connection has taken the request: that is known before the first byte
    /// is written. It also cannot have if the upstream refused the TLS handshake, or if it speaks
    /// HTTP/2 only and got a request of HTTP/1.1.
    pub(super) fn may_be_sent(&self) -> bool {
        self.is_taken && !self.opening.as_ref().is_some_and(Opening::was_refused)
    }

    fn taken_by(opening: &Option<Opening>) -> Self {
        Self { is_taken: true, opening: opening.clone() }
    }
}

/// The error of a request without a response. The evidence says whether it may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoResponse;

impl<B> Upstreams<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + SendAgain + Send + Unpin + 'static,
{
    pub(super) fn new(
        connector: Connector,
        settings: UpstreamSettings,
        clock: Arc<dyn Clock>,
        census: Arc<Census>,
    ) -> Self {
        let UpstreamSettings { idle_max, keep_alive, ping_interval } = settings;
        let http2 = Http2::new(connector.clone(), Arc::clone(&clock), ping_interval, census);
        Self { connector, idle: Arc::new(Idle::new(idle_max, keep_alive, clock)), http2 }
    }

    /// Sends a request with a relative target to an upstream. The evidence stays true if this
    /// future is dropped. The request is boxed, because each future on its way would hold it.
    pub(super) async fn send(
        &self,
        upstream: Upstream<'_>,
        request: Box<Request<B>>,
        evidence: &mut Evidence,
    ) -> Result<Response<UpstreamBody>, NoResponse> {
        let is_http2 = match Protocols::of(upstream.server) {
            Protocols::Http1 => false,
            Protocols::Http2 => true,
            Protocols::Either => self.http2.is_spoken_by(upstream.server),
        };
        if !is_http2 {
            return self.send_over_http1(upstream, request, evidence).await;
        }
        // Boxed, so that the futures of other requests do not hold it.
        match Box::pin(self.http2.send(upstream.server, *request, evidence)).await {
            Ok(response) => Ok(response),
            Err(Failed::NoResponse) => Err(NoResponse),
            Err(Failed::SpeaksHttp1(request)) => {
                self.send_over_http1(upstream, request, evidence).await
            }
        }
    }

    async fn send_over_http1(
        &self,
        upstream: Upstream<'_>,
        request: Box<Request<B>>,
        evidence: &mut Evidence,
    ) -> Result<Response<UpstreamBody>, NoResponse> {
        let Upstream { number, server, is_keyed, hints } = upstream;
        let connection = match self.idle.take(number, is_keyed) {
            Some(connection) => connection,
            None => {
                // Boxed, so that the futures of other requests do not hold it.
                let stream = Box::pin(self.open(server, Protocols::of(server))).await?;
                if stream.speaks_http2() {
                    Box::pin(self.http2.adopt(server, stream)).await?;
                    let sending = Box::pin(self.http2.send(server, *request, evidence));
                    return sending.await.map_err(|_| NoResponse);
                }
                Box::new(Http1Connection::new(stream, &*self.idle.clock()))
            }
        };
        let exchange = Exchange::new(connection, *request).map_err(|_| NoResponse)?;
        let sent = exchange.send(&self.idle, number, hints, evidence).await;
        sent.map(|response| response.map(UpstreamBody::http1)).map_err(|_| NoResponse)
    }

    /// Sends a request that asks for an upgrade, on a connection of its own. hyper hands over the
    /// connection after the response.
    pub(super) async fn upgrade(
        &self,
        upstream: &Uri,
        request: Request<B>,
        evidence: &mut Evidence,
    ) -> Result<Response<UpstreamBody>, NoResponse> {
        let stream = self.open(upstream, Protocols::Http1).await?;
        let opening = stream.opening();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, io) = handshake.await.map_err(|_| NoResponse)?;
        tokio::spawn(io.with_upgrades());
        *evidence = Evidence::taken_by(&opening);
        let response = sender.send_request(request).await.map_err(|_| NoResponse)?;
        Ok(response.map(UpstreamBody::upgrade))
    }

    async fn open(&self, upstream: &Uri, protocols: Protocols) -> Result<Stream, NoResponse> {
        self.connector.open(upstream, protocols).await.map_err(|_| NoResponse)
    }
}

#[cfg(test)]
mod address_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use onetake_core::SystemClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

    fn upstreams() -> Upstreams<Full<Bytes>> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let connector = Connector::new(None, Arc::clone(&clock)).unwrap();
        Upstreams::new(connector, UpstreamSettings::OF_TESTS, clock, Census::new())
    }

    impl SendAgain for Full<Bytes> {
        fn copied(&self) -> Option<Self> {
            Some(self.clone())
        }
    }

    fn request() -> Request<Full<Bytes>> {
        Request::post("/").header("host", "a").body(Full::from("pay")).unwrap()
    }

    async fn listener() -> (TcpListener, Uri) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        (listener, uri)
    }

    /// Reads one request, to the end of its body.
    async fn read(stream: &mut TcpStream) {
        let mut seen = Vec::new();
        while !seen.ends_with(b"pay") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
        }
    }

    async fn send(upstreams: &Upstreams<Full<Bytes>>, to: &Uri) -> (bool, bool) {
        let mut evidence = Evidence::default();
        let to = Upstream { number: 0, server: to, is_keyed: true, hints: None };
        let sent = upstreams.send(to, Box::new(request()), &mut evidence).await;
        (sent.is_ok(), evidence.may_be_sent())
    }

    #[tokio::test]
    async fn a_connection_is_used_again() {
        let (listener, uri) = listener().await;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..3 {
                read(&mut stream).await;
                stream.write_all(ANSWER).await.unwrap();
            }
        });
        let upstreams = upstreams();
        for _ in 0..3 {
            assert_eq!(send(&upstreams, &uri).await, (true, true));
        }
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn an_idle_connection_that_was_closed_is_not_used() {
        let (listener, uri) = listener().await;
        let (closed, is_closed) = tokio::sync::oneshot::channel();
        let serving = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            read(&mut first).await;
            first.write_all(ANSWER).await.unwrap();
            drop(first);
            closed.send(()).unwrap();
            let (mut second, _) = listener.accept().await.unwrap();
            read(&mut second).await;
            second.write_all(ANSWER).await.unwrap();
        });
        let upstreams = upstreams();
        assert_eq!(send(&upstreams, &uri).await, (true, true));
        is_closed.await.unwrap();
        // The runtime hears of the end of the connection.
        while upstreams.idle.has_usable() {
            tokio::task::yield_now().await;
        }
        assert_eq!(send(&upstreams, &uri).await, (true, true));
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn what_no_connection_took_was_not_sent() {
        let (listener, uri) = listener().await;
        drop(listener);
        assert_eq!(send(&upstreams(), &uri).await, (false, false));
    }

    #[tokio::test]
    async fn what_a_connection_took_may_be_sent() {
        let (listener, uri) = listener().await;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read(&mut stream).await;
        });
        assert_eq!(send(&upstreams(), &uri).await, (false, true));
        serving.await.unwrap();
    }
}
