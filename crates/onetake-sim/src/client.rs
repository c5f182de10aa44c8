//! A client that returns everything it received.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use onetake_core::{Clock, SystemClock};

/// The maximum time for an answer: longer than any time that is tested.
const PATIENCE: Duration = Duration::from_secs(90);

/// A response.
#[derive(Clone, Debug)]
pub struct ClientResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl ClientResponse {
    /// Returns the status as a number.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// Returns the `code` of the problem; empty for other responses.
    #[must_use]
    pub fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem.get("code").and_then(|code| code.as_str()).unwrap_or_default().to_owned()
    }

    /// Returns true if it is a replay.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// Returns a header's value; empty if it is absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The request could not be made.
    #[error("the request could not be made")]
    Request(#[from] http::Error),
    /// The connection failed.
    #[error("the request failed")]
    Send(#[from] hyper_util::client::legacy::Error),
    /// The answer broke off.
    #[error("the answer broke off")]
    Body(#[from] hyper::Error),
    /// It took too long.
    #[error("there was no answer within {0:?}")]
    Late(Duration),
}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    pooled: Pooled<HttpConnector, Full<Bytes>>,
}

/// A request to send: a POST, unless the method is set.
#[derive(Clone, Debug)]
pub struct Call {
    client: Client,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Client {
    /// Creates a client of the server at `address`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { address, pooled: Pooled::builder(TokioExecutor::new()).build(connector) }
    }

    /// Creates a client that speaks HTTP/2.
    #[must_use]
    pub fn http2(address: SocketAddr) -> Self {
        let pooled = Pooled::builder(TokioExecutor::new()).http2_only(true).build_http();
        Self { address, pooled }
    }

    /// Creates a POST with a credential.
    #[must_use]
    pub fn post(&self, path: &str) -> Call {
        let call = Call {
            client: self.clone(),
            method: "POST".to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::from_static(b"10"),
        };
        call.header("authorization", "Bearer alice")
    }
}

impl Call {
    /// Sets the method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.method);
        self
    }

    /// Adds a header line.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Removes all lines of a header.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// Sets the key, and with it the case that the upstream counts.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        let case = key.trim_matches('"').to_owned();
        self.header("idempotency-key", key).header("x-case", &case)
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the request and reads the whole response.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn send(self) -> Result<ClientResponse, ClientError> {
        // No request waits for ever, not even on a lost connection that the pool did not notice.
        tokio::select! {
            biased;
            answer = self.sent() => answer,
            () = SystemClock.sleep(PATIENCE) => Err(ClientError::Late(PATIENCE)),
        }
    }

    async fn sent(self) -> Result<ClientResponse, ClientError> {
        let uri = format!("http://{}{}", self.client.address, self.path);
        let mut request = Request::builder().method(self.method.as_str()).uri(uri);
        for (name, value) in &self.headers {
            request = request.header(name, value.as_bytes());
        }
        let request = request.body(Full::new(self.body))?;
        let (parts, body) = self.client.pooled.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(ClientResponse { status: parts.status, headers: parts.headers, body })
    }
}
