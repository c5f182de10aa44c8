//! The connections of one core of the load generator.

use std::io;

use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::http2::{Http2, STREAMS};
use super::request::{Head, Request};
use super::{Http1, Load};
use crate::case::Wire;

/// A way to send one request at a time.
#[derive(Debug)]
pub(super) enum Channel {
    Http1(Http1<TcpStream>),
    Tls(Box<Http1<TlsStream<TcpStream>>>),
    Http2(Http2),
}

impl Channel {
    pub(super) async fn exchange(
        &mut self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
    ) -> io::Result<Head> {
        match self {
            Self::Http1(channel) => channel.exchange(request, body).await,
            Self::Tls(channel) => channel.exchange(request, body).await,
            Self::Http2(channel) => channel.exchange(request, body).await,
        }
    }
}

/// Opens the connections of a core.
pub(super) struct Channels<'a> {
    load: &'a Load,
    /// The last connection with streams, and the number of streams that it can still take.
    shared: Option<(Http2, usize)>,
}

impl<'a> Channels<'a> {
    pub(super) fn new(load: &'a Load) -> Self {
        Self { load, shared: None }
    }

    pub(super) async fn open(&mut self) -> io::Result<Channel> {
        if let Some((shared, free @ 1..)) = &mut self.shared {
            *free -= 1;
            return Ok(Channel::Http2(shared.clone()));
        }
        let stream = TcpStream::connect(self.load.to).await?;
        stream.set_nodelay(true)?;
        let shared = match self.load.wire {
            Wire::Http1 => return Ok(Channel::Http1(Http1::new(stream))),
            Wire::Tls => {
                return Ok(Channel::Tls(Box::new(Http1::new(self.with_tls(stream).await?))));
            }
            Wire::TlsHttp2 => Http2::connect(self.with_tls(stream).await?).await?,
            Wire::Http2 | Wire::Grpc => Http2::connect(stream).await?,
        };
        self.shared = Some((shared.clone(), STREAMS - 1));
        Ok(Channel::Http2(shared))
    }

    async fn with_tls(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let certificate = self.load.certificate.as_ref();
        let certificate = certificate.ok_or_else(|| io::Error::other("there is no certificate"))?;
        certificate.connect(stream, self.load.wire.has_streams()).await
    }
}
