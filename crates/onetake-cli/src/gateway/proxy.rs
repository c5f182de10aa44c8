//! The proxy: forwards requests to the upstream.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, TE, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tower_service::Service;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use onetake_core::engine::SPANS;
use onetake_core::{Cause, Clock, Reference, SystemClock};
use onetake_http::grpc::{self, is_grpc};
use onetake_http::recording::strip_hop_by_hop;
use onetake_http::{
    AttemptReport, Code, Disposition, OperationContext, Problem, ProblemFormat, RequestBody,
};

use super::edge::ConnectionPermit;
use super::plan::Plan;
use super::tls::Connector;
use super::upstream::{Evidence, NoResponse, UpstreamBody, Upstreams};
use crate::traces::pass_on;

/// How long before the client's deadline the proxy gives up on the upstream, or a quarter of the
/// remaining time if that is less.
const BEFORE_DEADLINE: Duration = Duration::from_millis(50);

/// The body of a response: the upstream's, or one of the gateway itself.
pub(super) type Body = Either<UpstreamBody, Full<Bytes>>;

/// The service that forwards requests. Clones share their connections.
#[derive(Clone)]
pub(super) struct Proxy(Arc<Forwarder>);

struct Forwarder {
    upstreams: Upstreams<RequestBody<Incoming>>,
    clock: Arc<dyn Clock>,
}

impl Proxy {
    /// `ping_interval` is that of HTTP/2 connections to upstreams.
    pub(super) fn new(connector: Connector, ping_interval: Duration) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let upstreams = Upstreams::new(connector, Arc::clone(&clock), ping_interval);
        Self(Arc::new(Forwarder { upstreams, clock }))
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
        let forwarder = Arc::clone(&self.0);
        Box::pin(async move { Ok(forwarder.forward(request).await) })
    }
}

impl Forwarder {
    async fn forward(&self, mut request: Request<RequestBody<Incoming>>) -> Response<Body> {
        let plan = request.extensions().get::<Arc<Plan>>().cloned();
        let context = OperationContext::of(request.extensions());
        let attempt = context.and_then(OperationContext::attempt);
        let left = context.and_then(OperationContext::time_left);
        let asked = Asked {
            reference: attempt.map(|attempt| attempt.id.reference()),
            answers: plan.as_ref().map(|plan| plan.answers).unwrap_or_default(),
        };
        let Some((plan, upstream)) =
            plan.and_then(|plan| Some((Arc::clone(&plan), plan.upstream.clone()?)))
        else {
            let detail = "This request cannot be forwarded, because the gateway has no upstream for it. Report it to the operator of the service.";
            let problem = Problem::new(Code::UpstreamUnreachable, detail);
            return asked.told(problem, Disposition::Release, Cause::Interrupted);
        };
        // A keyed request is never upgraded, because its outcome must be a response.
        let upgrade = if asked.reference.is_some() { None } else { websocket(&mut request) };
        let place = request.extensions().get::<ConnectionPermit>().cloned();
        address(&mut request, upgrade.is_some());
        let span = span_to(&upstream);
        pass_on(&span, request.headers_mut());
        let timeout = match asked.reference.is_none() && is_grpc(request.headers()) {
            // A call without a key is not touched, and may be a stream. It has the time that its
            // client gives it.
            true => grpc::timeout(request.headers()).unwrap_or(Duration::MAX),
            false => patience(plan.timeout, left),
        };
        let sent =
            self.send(&upstream, request, upgrade.is_some(), timeout).instrument(span.clone());
        match sent.await {
            Ok(response) => {
                let status = i64::from(response.status().as_u16());
                span.record("http.response.status_code", status);
                if response.status().is_server_error() {
                    span.record("otel.status_code", "ERROR");
                }
                received(response, upgrade, place, asked)
            }
            Err(code) => {
                span.record("onetake.problem", code.as_str());
                span.record("otel.status_code", "ERROR");
                match code {
                    Code::UpstreamTimeout => asked.timed_out(),
                    Code::UpstreamInterrupted => asked.interrupted(),
                    _ => asked.unreachable(),
                }
            }
        }
    }

    /// Returns the upstream's response, or the code of the problem if there is none.
    async fn send(
        &self,
        upstream: &Uri,
        request: Request<RequestBody<Incoming>>,
        upgrade: bool,
        timeout: Duration,
    ) -> Result<Response<UpstreamBody>, Code> {
        let mut evidence = Evidence::default();
        let sending = async {
            match upgrade {
                false => self.upstreams.send(upstream, request, &mut evidence).await,
                true => self.upstreams.upgrade(upstream, request, &mut evidence).await,
            }
        };
        let (answered, if_sent) = tokio::select! {
            biased;
            answered = sending => (answered, Code::UpstreamInterrupted),
            () = self.clock.sleep(timeout) => (Err(NoResponse), Code::UpstreamTimeout),
        };
        answered.map_err(|NoResponse| match evidence.may_be_sent() {
            true => if_sent,
            false => Code::UpstreamUnreachable,
        })
    }
}

/// The trace span of a call to the upstream.
fn span_to(upstream: &Uri) -> Span {
    tracing::debug_span!(
        target: SPANS,
        "upstream",
        otel.kind = "client",
        otel.status_code = Empty,
        server.address = upstream.host(),
        server.port = upstream.port_u16().map(i64::from),
        http.response.status_code = Empty,
        onetake.problem = Empty,
    )
}

/// The timeout for the upstream. The layer has the same deadline. The proxy gives up a little
/// earlier, because it knows whether anything was sent.
fn patience(timeout: Duration, left: Option<Duration>) -> Duration {
    left.map_or(timeout, |left| timeout.min(left - BEFORE_DEADLINE.min(left / 4)))
}

/// Returns the client's side of a connection that asks for a WebSocket. No other upgrade is
/// allowed: after one to `h2c`, requests would pass through unchecked.
fn websocket(request: &mut Request<RequestBody<Incoming>>) -> Option<OnUpgrade> {
    let headers = request.headers();
    let is = |name: HeaderName, word: &str| {
        let mut words = headers
            .get_all(name)
            .iter()
            .flat_map(|value| value.to_str().unwrap_or_default().split(','));
        words.any(|found| found.trim().eq_ignore_ascii_case(word))
    };
    let wanted = is(UPGRADE, "websocket")
        && is(CONNECTION, "upgrade")
        && headers.contains_key(SEC_WEBSOCKET_KEY)
        && request.method() == Method::GET
        && request.version() == Version::HTTP_11;
    wanted.then(|| hyper::upgrade::on(request))
}

/// Rewrites the request for the upstream.
fn address(request: &mut Request<RequestBody<Incoming>>, upgrade: bool) {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    let trailers = headers.get(TE).is_some_and(|value| value == "trailers");
    strip_hop_by_hop(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
}

fn received(
    mut response: Response<UpstreamBody>,
    client: Option<OnUpgrade>,
    place: Option<ConnectionPermit>,
    asked: Asked,
) -> Response<Body> {
    *response.version_mut() = Version::HTTP_11;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            return asked.interrupted();
        };
        let upstream = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            tunnel(client, upstream).await;
            drop(place);
        });
        return response.map(Either::Left);
    }
    strip_hop_by_hop(response.headers_mut());
    response.map(Either::Left)
}

/// Copies bytes in both directions until both sides are done.
async fn tunnel(client: OnUpgrade, upstream: OnUpgrade) {
    if let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) {
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        let _ended = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
    }
}

/// The reference of the request, and the format of the gateway's responses to it.
#[derive(Clone, Copy)]
struct Asked {
    reference: Option<Reference>,
    answers: ProblemFormat,
}

impl Asked {
    /// Nothing was sent: the attempt is released.
    fn unreachable(self) -> Response<Body> {
        let retry = if self.reference.is_some() { ". Retry with the same key" } else { "" };
        let detail = format!("The upstream cannot be reached. The request was not sent{retry}.");
        let problem = Problem::new(Code::UpstreamUnreachable, detail).retry_after(1);
        self.told(problem, Disposition::Release, Cause::Interrupted)
    }

    /// Sent without a response: the outcome is unknown.
    fn interrupted(self) -> Response<Body> {
        let detail = "The upstream accepted the request and closed the connection without a response. The outcome is unknown. If the request has an idempotency key, retry with the same key.";
        let cause = Cause::Reported("the upstream closed the connection without a response".into());
        self.told(Problem::new(Code::UpstreamInterrupted, detail), Disposition::Unknown, cause)
    }

    fn timed_out(self) -> Response<Body> {
        let detail = "The upstream did not respond in time. The outcome is unknown. If the request has an idempotency key, retry with the same key.";
        let problem = Problem::new(Code::UpstreamTimeout, detail);
        self.told(problem, Disposition::Unknown, Cause::TimedOut)
    }

    fn told(self, problem: Problem, disposition: Disposition, cause: Cause) -> Response<Body> {
        let response = self.answers.tell(problem, self.reference);
        let mut response = response.map(|body| Either::Right(Full::new(body)));
        AttemptReport::new(disposition).cause(cause).attach(&mut response);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_speaks_before_the_layer() {
        let millis = Duration::from_millis;
        assert_eq!(patience(millis(30_000), None), millis(30_000));
        assert_eq!(patience(millis(1000), Some(millis(30_000))), millis(1000));
        for left in [1, 10, 200, 2000] {
            assert!(patience(millis(30_000), Some(millis(left))) < millis(left));
        }
        assert_eq!(patience(millis(5), Some(Duration::ZERO)), Duration::ZERO);
    }
}
