//! The way to the upstream.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, HeaderValue, TE, UPGRADE};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tower_service::Service;

use onetake_core::{Attempt, Clock, SystemClock};
use onetake_http::recording::strip_hop_by_hop;
use onetake_http::{BoxError, Code, Disposition, Problem, RequestBody};

use super::plan::Plan;

/// Many servers close idle connections after five seconds; one that is closed while a request is
/// on its way makes an unknown outcome, so ours are closed before.
const UPSTREAM_IDLE: Duration = Duration::from_secs(4);
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections that are kept to one upstream.
const IDLE_MAX: usize = 1_024;

type Body = BoxBody<Bytes, BoxError>;

/// Forwards requests.
#[derive(Clone)]
pub(super) struct Proxy {
    client: Client<HttpConnector, RequestBody<Incoming>>,
    clock: Arc<dyn Clock>,
}

impl Proxy {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(UPSTREAM_IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .set_host(false)
            .build(connector);
        Self {
            client,
            clock: Arc::new(SystemClock),
        }
    }
}

impl Service<Request<RequestBody<Incoming>>> for Proxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<Incoming>>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.forward(request).await) })
    }
}

impl Proxy {
    async fn forward(self, mut request: Request<RequestBody<Incoming>>) -> Response<Body> {
        let plan = request.extensions().get::<Arc<Plan>>().cloned();
        let keyed = request.extensions().get::<Attempt>().is_some();
        let Some((plan, upstream)) =
            plan.and_then(|plan| Some((Arc::clone(&plan), plan.upstream.clone()?)))
        else {
            return told(
                Problem::new(
                    Code::UpstreamUnreachable,
                    "No upstream is configured for this request ([gateway] upstream, or --upstream).",
                ),
                Disposition::Release,
            );
        };
        // A keyed request is never upgraded: its outcome is a response.
        let upgrade = if keyed {
            None
        } else {
            wanted_upgrade(&mut request)
        };
        if let Err(problem) = address(
            &mut request,
            &upstream,
            upgrade.as_ref().map(|(name, _)| name),
        ) {
            return told(problem, Disposition::Release);
        }
        let sent = self.client.request(request);
        let answered = if keyed {
            // The layer has its own deadline, and knows what it means.
            sent.await
        } else {
            tokio::select! {
                biased;
                answered = sent => answered,
                () = self.clock.sleep(plan.timeout) => {
                    let detail = "The upstream did not answer in time (upstream_timeout).";
                    return told(Problem::new(Code::UpstreamTimeout, detail), Disposition::Unknown);
                }
            }
        };
        match answered {
            Ok(response) => received(response, upgrade.map(|(_, client)| client)),
            Err(error) => failed(&error),
        }
    }
}

/// What the client wants to switch to, and its side of the connection.
fn wanted_upgrade(
    request: &mut Request<RequestBody<Incoming>>,
) -> Option<(HeaderValue, OnUpgrade)> {
    let protocol = request.headers().get(UPGRADE)?.clone();
    let mut named = request.headers().get_all(CONNECTION).iter();
    let says_so = named.any(|value| {
        let words = value.to_str().unwrap_or_default().split(',');
        words
            .map(str::trim)
            .any(|word| word.eq_ignore_ascii_case("upgrade"))
    });
    (says_so && request.version() == Version::HTTP_11)
        .then(|| (protocol, hyper::upgrade::on(request)))
}

/// Turns the request to the upstream.
fn address(
    request: &mut Request<RequestBody<Incoming>>,
    upstream: &Uri,
    upgrade: Option<&HeaderValue>,
) -> Result<(), Problem> {
    let path = request.uri().path_and_query().cloned();
    let mut target = upstream.clone().into_parts();
    target.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    let target = Uri::from_parts(target).map_err(|_| {
        Problem::new(
            Code::RequestRefused,
            "The request's target cannot be forwarded.",
        )
    })?;
    *request.uri_mut() = target;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    let trailers = headers.get(TE).is_some_and(|value| value == "trailers");
    strip_hop_by_hop(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
    Ok(())
}

fn received(mut response: Response<Incoming>, client: Option<OnUpgrade>) -> Response<Body> {
    *response.version_mut() = Version::HTTP_11;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            let detail = "The upstream switched protocols, which nobody asked for.";
            return told(
                Problem::new(Code::UpstreamInterrupted, detail),
                Disposition::Unknown,
            );
        };
        let upstream = hyper::upgrade::on(&mut response);
        tokio::spawn(tunnel(client, upstream));
        return response.map(any);
    }
    strip_hop_by_hop(response.headers_mut());
    response.map(any)
}

/// Carries bytes both ways until one side is done.
async fn tunnel(client: OnUpgrade, upstream: OnUpgrade) {
    if let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) {
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        let _ended = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
    }
}

fn any(body: Incoming) -> Body {
    BoxBody::new(body.map_err(Into::into))
}

/// Never sent is released; sent and not answered is unknown.
fn failed(error: &Error) -> Response<Body> {
    if error.is_connect() {
        let detail =
            "The upstream cannot be reached. Nothing was sent; a retry with the same key runs.";
        return told(
            Problem::new(Code::UpstreamUnreachable, detail).retry_after(1),
            Disposition::Release,
        );
    }
    let detail = "The upstream took the request and closed the connection without an answer. The outcome is not known.";
    told(
        Problem::new(Code::UpstreamInterrupted, detail),
        Disposition::Unknown,
    )
}

fn told(problem: Problem, disposition: Disposition) -> Response<Body> {
    let mut response = problem
        .into_response(None)
        .map(|body| BoxBody::new(Full::new(body).map_err(|never: Infallible| match never {})));
    response.extensions_mut().insert(disposition);
    response
}
