//! HTTP client of the probe. Each request has a connection of its own, so that requests can be sent
//! at the same moment, and so that the client can hang up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use onetake_core::{Clock, ErrorChain};
use tokio::task::AbortHandle;
use tower::ServiceExt;

use crate::config::UpstreamTls;
use crate::gateway::Connector;

/// Maximum number of requests of one run, the reads of the counter included.
const REQUESTS_MAX: usize = 500;
/// Maximum size of a response body.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// A response, and the time that it took.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) took: Duration,
}

/// The reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoResponse {
    /// No connection: nothing was sent.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// The connection broke, or the response is not HTTP.
    #[error("no response: {0}")]
    Broken(String),
    /// The timeout of one request passed.
    #[error("no response within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The probe reached one of its own limits.
    #[error("{0}")]
    Limit(&'static str),
}

impl NoResponse {
    fn broken(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Broken(ErrorChain(error).to_string())
    }
}

/// A client with a limit for the number of requests and one for the time of the whole run.
pub(super) struct ProbeClient {
    connector: Connector,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    /// The end of the run, by the monotonic clock.
    deadline: Duration,
    requests: AtomicUsize,
}

/// A connection that has not been used yet. Dropping it closes the connection.
pub(super) struct OpenConnection<'a> {
    client: &'a ProbeClient,
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl ProbeClient {
    /// A client whose run may take `limit` from now on.
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        timeout: Duration,
        limit: Duration,
        is_encrypted: bool,
    ) -> Result<Self, String> {
        let tls = is_encrypted.then(UpstreamTls::default);
        let connector =
            Connector::new(tls, Arc::clone(&clock)).map_err(|error| error.to_string())?;
        let deadline = clock.monotonic().saturating_add(limit);
        Ok(Self { connector, clock, timeout, deadline, requests: AtomicUsize::new(0) })
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The number of requests so far.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed).min(REQUESTS_MAX)
    }

    /// Opens a connection to the host of a URL.
    pub(super) async fn open(&self, uri: &Uri) -> Result<OpenConnection<'_>, NoResponse> {
        if self.requests.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
            return Err(NoResponse::Limit("the probe has sent its maximum of 500 requests"));
        }
        let opened = async {
            let stream = self.connector.clone().oneshot(uri.clone()).await;
            let stream = stream.map_err(|error| ErrorChain(&*error).to_string())?;
            let opened = http1::handshake(stream).await;
            opened.map_err(|error| ErrorChain(&error).to_string())
        };
        let opened = self.in_time(opened).await?;
        let (sender, connection) = opened.map_err(NoResponse::Unreachable)?;
        let driver = tokio::spawn(async move {
            // The request itself reports the error.
            let _broken = connection.await;
        });
        Ok(OpenConnection { client: self, sender, driver: driver.abort_handle() })
    }

    /// Sends a request on a new connection.
    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Exchange, NoResponse> {
        self.open(request.uri()).await?.exchange(request).await
    }

    /// Waits for a future until the timeout of a request or the end of the run.
    async fn in_time<T>(&self, future: impl Future<Output = T>) -> Result<T, NoResponse> {
        let left = self.deadline.saturating_sub(self.clock.monotonic());
        if left.is_zero() {
            return Err(NoResponse::Limit("the time limit of the run (--limit) was reached"));
        }
        tokio::select! {
            biased;
            value = future => Ok(value),
            () = self.clock.sleep(self.timeout.min(left)) => Err(NoResponse::TimedOut(self.timeout)),
        }
    }
}

impl OpenConnection<'_> {
    /// Sends a request and reads the whole response.
    pub(super) async fn exchange(
        mut self,
        request: Request<Bytes>,
    ) -> Result<Exchange, NoResponse> {
        let client = self.client;
        let start = client.clock.monotonic();
        let request = relative(request);
        let exchanged = async {
            let response = self.sender.send_request(request).await;
            let (head, body) = response.map_err(|error| NoResponse::broken(&error))?.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| NoResponse::broken(&*error))?.to_bytes();
            let took = client.clock.monotonic().saturating_sub(start);
            Ok(Exchange { status: head.status, headers: head.headers, body, took })
        };
        client.in_time(exchanged).await?
    }

    /// Sends a request, and hangs up after a time. An earlier response is dropped, as if it had been
    /// lost.
    pub(super) async fn hang_up_after(self, time: Duration, request: Request<Bytes>) {
        let clock = Arc::clone(&self.client.clock);
        tokio::select! {
            biased;
            _lost = self.exchange(request) => {}
            () = clock.sleep(time) => {}
        }
    }
}

/// Rewrites a request for a server: a target without scheme and host, and the header `Host`.
fn relative(request: Request<Bytes>) -> Request<Full<Bytes>> {
    let mut request = request.map(Full::new);
    let host = request.uri().authority().map(|host| host.as_str().to_owned());
    if let Some(Ok(host)) = host.map(HeaderValue::try_from) {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    if let Ok(target) = target.parse() {
        *request.uri_mut() = target;
    }
    request
}
