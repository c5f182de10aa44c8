//! Requests and the heads of responses, for all protocols.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use crate::case::{Body, Wire};

/// The body of a small request.
const SMALL: &[u8] = b"{\"amount\":100,\"currency\":\"eur\"}";
/// The length of the response to a small request.
const SMALL_RESPONSE_BYTES: usize = 58;
/// The length of the prefix of a gRPC message: compression, and the length of the message.
const GRPC_PREFIX_BYTES: usize = 5;
/// The credential of all requests. It names the tenant.
pub(crate) const CREDENTIAL: &str = "Bearer benchmark";

/// The parts that are the same in all requests of a run.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) to: SocketAddr,
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    is_grpc: bool,
    response_bytes: usize,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) template: &'a Template,
    pub(crate) key: Option<&'a str>,
}

/// The head of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The HTTP status. For gRPC, it is 0 if the call failed.
    pub(crate) status: u16,
    /// True if the response is marked as a replay.
    pub(crate) is_replay: bool,
}

impl Template {
    pub(crate) fn new(to: SocketAddr, wire: Wire, body: Body) -> Self {
        let (path, content, response_bytes) = match body {
            Body::Small => (String::new(), Bytes::from_static(SMALL), SMALL_RESPONSE_BYTES),
            Body::Bytes(bytes) => (format!("?bytes={bytes}"), padded(bytes), bytes),
        };
        if wire != Wire::Grpc {
            let path = format!("/v1/charges{path}");
            let content_type = "application/json";
            return Self { to, path, content_type, body: content, is_grpc: false, response_bytes };
        }
        Self {
            to,
            path: "/billing.v1.Payments/Charge".to_owned(),
            content_type: "application/grpc",
            body: grpc_message(&content),
            is_grpc: true,
            response_bytes: response_bytes + GRPC_PREFIX_BYTES,
        }
    }

    /// Returns the template with another path, if there is one.
    pub(crate) fn at(self, path: Option<&str>) -> Self {
        let path = path.map_or_else(|| self.path.clone(), str::to_owned);
        Self { path, ..self }
    }

    /// Returns a request that the upstream answers after this many milliseconds.
    pub(crate) fn slow(to: SocketAddr, millis: u128) -> Self {
        Self {
            path: format!("/v1/slow?millis={millis}"),
            ..Self::new(to, Wire::Http1, Body::Small)
        }
    }

    /// Returns the status of a right response.
    pub(crate) fn status(&self) -> u16 {
        if self.is_grpc { 200 } else { 201 }
    }

    pub(crate) fn response_bytes(&self) -> usize {
        self.response_bytes
    }
}

/// Returns a JSON document of this size.
fn padded(bytes: usize) -> Bytes {
    const OPEN: &[u8] = b"{\"note\":\"";
    const CLOSE: &[u8] = b"\"}";
    let padding = bytes.saturating_sub(OPEN.len() + CLOSE.len());
    [OPEN, &vec![b'x'; padding], CLOSE].concat().into()
}

/// Returns a message with its prefix.
pub(crate) fn grpc_message(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = BytesMut::with_capacity(GRPC_PREFIX_BYTES + message.len());
    framed.extend_from_slice(&[0]);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    framed.freeze()
}
