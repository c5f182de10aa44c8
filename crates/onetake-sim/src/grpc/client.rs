//! A gRPC client that returns everything it received.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{framed, messages};

/// The body of a request.
pub type CallBody = BoxBody<Bytes, io::Error>;

/// A client with one connection.
#[derive(Clone, Debug)]
pub struct GrpcClient {
    sender: SendRequest<CallBody>,
}

/// A call to send.
#[derive(Clone, Debug)]
pub struct GrpcCall {
    client: GrpcClient,
    path: String,
    metadata: Vec<(String, String)>,
    body: Bytes,
}

/// The response to a call.
#[derive(Clone, Debug)]
pub struct GrpcReply {
    /// The status of HTTP.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, with the prefixes of messages.
    pub body: Bytes,
    /// The trailers.
    pub trailers: HeaderMap,
    /// True if the body broke off.
    pub is_broken: bool,
}

impl GrpcReply {
    /// Returns the code, or `None` if the stream ended without one.
    #[must_use]
    pub fn code(&self) -> Option<u8> {
        self.field("grpc-status").parse().ok()
    }

    /// Returns a value of the trailers or the headers; empty if it is absent.
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        let found = self.trailers.get(name).or_else(|| self.headers.get(name));
        found.and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the messages.
    #[must_use]
    pub fn messages(&self) -> Vec<Bytes> {
        messages(&self.body)
    }

    /// Returns true if it is a replay.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// Returns true if its details name the problem's code.
    #[must_use]
    pub fn tells(&self, problem: &str) -> bool {
        self.headers.contains_key("grpc-status-details-bin")
            && decode(self.field("grpc-status-details-bin"))
                .windows(problem.len())
                .any(|part| part == problem.as_bytes())
    }
}

/// Decodes base64 without padding.
fn decode(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut out) = (0_u32, 0, Vec::new());
    for letter in text.bytes() {
        let Some(value) = LETTERS.iter().position(|known| *known == letter) else { continue };
        bits = bits << 6 | u32::try_from(value).unwrap_or_default();
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count & 0xff) as u8);
        }
    }
    out
}

impl GrpcClient {
    /// Connects to a server.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub async fn connect(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = connected.map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Creates a call of a method, such as `/billing.v1.Payments/Charge`.
    #[must_use]
    pub fn call(&self, path: &str) -> GrpcCall {
        let (client, metadata) = (self.clone(), Vec::new());
        let call = GrpcCall { client, path: path.to_owned(), metadata, body: framed(b"10") };
        call.with("authorization", "Bearer alice").with("content-type", "application/grpc")
    }

    /// Starts a call with a body of its own. The response is not read.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn start(
        &self,
        path: &str,
        metadata: &[(&str, &str)],
        body: CallBody,
    ) -> io::Result<Response<Incoming>> {
        let mut request = Request::post(format!("http://grpc.test{path}"))
            .header("te", "trailers")
            .header("content-type", "application/grpc");
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let request = request.body(body).map_err(io::Error::other)?;
        self.sender.clone().send_request(request).await.map_err(io::Error::other)
    }
}

impl GrpcCall {
    /// Sets a value of the metadata.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.metadata.retain(|(known, _)| known != name);
        self.metadata.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the key, and with it the case that the service counts.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        self.with("idempotency-key", key).with("x-case", key)
    }

    /// Sets the message.
    #[must_use]
    pub fn message(self, message: &[u8]) -> Self {
        self.body(framed(message))
    }

    /// Sets the body, with the prefixes of its messages.
    #[must_use]
    pub fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// Sends the call, and reads the whole response.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn send(self) -> io::Result<GrpcReply> {
        let mut request = Request::post(format!("http://grpc.test{}", self.path));
        request = request.header("te", "trailers");
        for (name, value) in &self.metadata {
            request = request.header(name, value.as_bytes());
        }
        let body = Full::new(self.body).map_err(|never| match never {}).boxed();
        let request = request.body(body).map_err(io::Error::other)?;
        let response = self.client.sender.clone().send_request(request).await;
        let (parts, mut body) = response.map_err(io::Error::other)?.into_parts();
        let (mut data, mut trailers, mut is_broken) = (Vec::new(), HeaderMap::new(), false);
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                is_broken = true;
                break;
            };
            match frame.into_data() {
                Ok(bytes) => data.extend_from_slice(&bytes),
                Err(other) => trailers = other.into_trailers().unwrap_or_default(),
            }
        }
        let (status, headers) = (parts.status.as_u16(), parts.headers);
        Ok(GrpcReply { status, headers, body: data.into(), trailers, is_broken })
    }
}
