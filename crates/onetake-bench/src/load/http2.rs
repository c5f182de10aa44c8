//! HTTP/2 connections of the load generator. Several clients share one connection.

use std::io;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::io::{AsyncRead, AsyncWrite};

use super::request::{CREDENTIAL, Head, Request};

/// The number of clients on one connection.
pub(super) const STREAMS: usize = 16;
/// The window for responses: more than the largest of all streams together.
const WINDOW_BYTES: u32 = 32 << 20;

/// One stream at a time on a shared connection.
#[derive(Clone, Debug)]
pub(super) struct Http2(SendRequest<Bytes>);

impl Http2 {
    pub(super) async fn connect<S>(stream: S) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
        tokio::task::spawn_local(connection);
        Ok(Self(sender))
    }

    /// Sends a request, and reads its response. The body replaces the contents of `body`.
    pub(super) async fn exchange(
        &mut self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
    ) -> io::Result<Head> {
        self.try_exchange(request, body).await.map_err(io::Error::other)
    }

    async fn try_exchange(
        &mut self,
        request: &Request<'_>,
        body: &mut Vec<u8>,
    ) -> Result<Head, Box<dyn std::error::Error + Send + Sync>> {
        let template = request.template;
        let mut head = http::Request::post(format!("http://{}{}", template.to, template.path))
            .header("authorization", CREDENTIAL)
            .header("content-type", template.content_type)
            .header("te", "trailers");
        if let Some(key) = request.key {
            head = head.header("idempotency-key", key);
        }
        let mut sender = self.0.clone().ready().await?;
        let (response, mut stream) = sender.send_request(head.body(())?, false)?;
        stream.send_data(template.body.clone(), true)?;
        let (head, mut incoming) = response.await?.into_parts();
        body.clear();
        while let Some(data) = incoming.data().await {
            let data = data?;
            incoming.flow_control().release_capacity(data.len())?;
            body.extend_from_slice(&data);
        }
        let trailers = incoming.trailers().await?;
        let of = |name: &str| {
            let in_trailers = trailers.as_ref().and_then(|trailers| trailers.get(name));
            head.headers.get(name).or(in_trailers).map(http::HeaderValue::as_bytes)
        };
        let failed = of("grpc-status").is_some_and(|status| status != b"0");
        let status = if failed { 0 } else { head.status.as_u16() };
        Ok(Head { status, is_replay: of("idempotent-replayed") == Some(b"true") })
    }
}
