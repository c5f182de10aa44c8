//! A client that shows everything it got.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use onetake_core::{Clock, SystemClock};

/// How long an answer may take: longer than anything that is tested for.
const PATIENCE: Duration = Duration::from_secs(90);

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// The status as a number.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The `code` of the problem that it is, or nothing.
    #[must_use]
    pub fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem.get("code").and_then(|code| code.as_str()).unwrap_or_default().to_owned()
    }

    /// Whether it was replayed.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// A header's value, or nothing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The request could not be made.
    #[error("the request could not be made: {0}")]
    Request(#[from] http::Error),
    /// The connection failed.
    #[error("the request failed: {0}")]
    Send(#[from] hyper_util::client::legacy::Error),
    /// The answer broke off.
    #[error("the answer broke off: {0}")]
    Body(#[from] hyper::Error),
    /// It took too long.
    #[error("there was no answer within {0:?}")]
    Late(Duration),
}

/// Sends requests to one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    pooled: Pooled<HttpConnector, Full<Bytes>>,
}

/// A request in the making: a POST, unless said otherwise.
#[derive(Clone, Debug)]
pub struct Call {
    client: Client,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Client {
    /// A client of the server at `address`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { address, pooled: Pooled::builder(TokioExecutor::new()).build(connector) }
    }

    /// A client that speaks HTTP/2.
    #[must_use]
    pub fn http2(address: SocketAddr) -> Self {
        let pooled = Pooled::builder(TokioExecutor::new()).http2_only(true).build_http();
        Self { address, pooled }
    }

    /// A POST with a credential.
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

    /// Sends it and reads the whole answer.
    ///
    /// # Errors
    /// If there is none.
    pub async fn send(self) -> Result<Answer, ClientError> {
        // Nobody waits for ever, not even for a connection that was lost in a way that the pool did not hear of.
        tokio::select! {
            biased;
            answer = self.sent() => answer,
            () = SystemClock.sleep(PATIENCE) => Err(ClientError::Late(PATIENCE)),
        }
    }

    async fn sent(self) -> Result<Answer, ClientError> {
        let uri = format!("http://{}{}", self.client.address, self.path);
        let mut request = Request::builder().method(self.method.as_str()).uri(uri);
        for (name, value) in &self.headers {
            request = request.header(name, value.as_bytes());
        }
        let request = request.body(Full::new(self.body))?;
        let (parts, body) = self.client.pooled.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }
}
