//! The proxy: forwards requests to the upstream.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
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
    AttemptReport, BoxError, Code, Disposition, OperationContext, OperationMemory, Problem,
    ProblemFormat, RequestBody, UpstreamFailure,
};

use super::client_upgrade::ClientUpgrade;
use super::early_hints::HintSender;
use super::edge::{ConnectionPermit, Routed};
use super::in_flight::{Full as GateFull, Held, Permit, UPSTREAM_SOCKETS};
use super::plan::Target;
use super::request_heads::too_large;
use super::tls::{Connector, Protocols};
use super::upstream::{
    Census, Evidence, NoResponse, Upstream, UpstreamBody, UpstreamSettings, Upstreams,
};
use crate::traces::pass_on;

/// How long before the client's deadline the proxy gives up on the upstream, or a quarter of the
/// remaining time if that is less.
const BEFORE_DEADLINE: Duration = Duration::from_millis(50);

/// The body of a response: the upstream's, or one of the gateway itself.
pub(super) type Body = Either<Held<UpstreamBody>, Full<Bytes>>;

/// The service that forwards requests with bodies of one type. Clones share their connections.
pub(super) struct Proxy<B: http_body::Body<Data = Bytes> + 'static>(Arc<Forwarder<B>>);

impl<B: http_body::Body<Data = Bytes> + 'static> Clone for Proxy<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Forwarder<B: http_body::Body<Data = Bytes> + 'static> {
    upstreams: Upstreams<RequestBody<B>>,
    clock: Arc<dyn Clock>,
}

impl<B> Proxy<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Creates a proxy with connections of its own.
    pub(super) fn new(
        connector: Connector,
        settings: UpstreamSettings,
        census: &Arc<Census>,
    ) -> Self {
        let (clock, census): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), Arc::clone(census));
        let now = Arc::clone(&clock);
        let upstreams = Upstreams::new(connector, settings, now, census);
        Self(Arc::new(Forwarder { upstreams, clock }))
    }
}

impl<B> Service<Request<RequestBody<B>>> for Proxy<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<B>>) -> Self::Future {
        let (forwarder, request) = (Arc::clone(&self.0), Box::new(request));
        Box::pin(async move { Ok(forwarder.forward(request).await) })
    }
}

impl<B> Forwarder<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// The request is boxed, because each future on its way would hold it.
    async fn forward(&self, mut request: Box<Request<RequestBody<B>>>) -> Response<Body> {
        let routed = request.extensions_mut().remove::<Routed>();
        let plan = routed.as_ref().map(|routed| &routed.plan);
        let context = OperationContext::of(request.extensions());
        let attempt = context.and_then(OperationContext::attempt);
        let left = context.and_then(OperationContext::time_left);
        let memory = context.and_then(OperationContext::memory);
        let asked = Asked {
            reference: attempt.map(|attempt| attempt.id.reference()),
            answers: plan.map(|plan| plan.answers).unwrap_or_default(),
        };
        let upstream = plan.and_then(|plan| plan.upstream.as_ref());
        let (Some(plan), Some(upstream)) = (plan, upstream) else {
            let detail = "This request cannot be forwarded, because the gateway has no upstream for it. Report it to the operator of the service.";
            let problem = Problem::new(Code::UpstreamUnreachable, detail);
            return asked.told(problem, Disposition::Release, Cause::Interrupted);
        };
        let is_plain = routed.as_ref().is_some_and(|routed| routed.is_plain);
        let place = routed.as_ref().and_then(|routed| routed.connection.as_ref());
        // A keyed request is never upgraded, because its outcome must be a response.
        let is_keyed = asked.reference.is_some();
        let upgrade = if is_keyed || is_plain { None } else { websocket(&mut request) };
        let Some(path) = upstream.path(request.uri().path_and_query()) else {
            return asked.told(too_large(), Disposition::Release, Cause::Interrupted);
        };
        *request.uri_mut() = path.into();
        let is_call = is_call_over_http2(&request, upstream);
        let accepts_trailers = address(&mut request, upstream, is_plain, upgrade.is_some());
        let timeout = patience(plan.timeout, left);
        let span = span_to(&upstream.server);
        pass_on(&span, request.headers_mut());
        let timeout = match asked.reference.is_none() && is_call {
            // A call without a key is not touched, and may be a stream. It has the time that its
            // client gives it.
            true => grpc::timeout(request.headers()).unwrap_or(Duration::MAX),
            false => timeout,
        };
        let hinted = routed.as_ref().and_then(|routed| routed.hinted);
        let hints = place.zip(hinted).map(|(place, hinted)| HintSender::new(&place.hints, hinted));
        let to = Upstream { number: plan.gate, server: &upstream.server, is_keyed, hints };
        let sent =
            self.send(to, request, place, upgrade.is_some(), timeout).instrument(span.clone());
        match sent.await {
            Ok((response, permits)) => {
                let status = i64::from(response.status().as_u16());
                span.record("http.response.status_code", status);
                if response.status().is_server_error() {
                    span.record("otel.status_code", "ERROR");
                }
                let held = (place.cloned(), permits, memory);
                received(response, upgrade, accepts_trailers, held, asked)
            }
            Err(code) => {
                span.record("onetake.problem", code.as_str());
                span.record("otel.status_code", "ERROR");
                match code {
                    Code::UpstreamTimeout => asked.failed(UpstreamFailure::TimedOut),
                    Code::UpstreamInterrupted => asked.failed(UpstreamFailure::Interrupted),
                    Code::Overloaded => asked.overloaded(),
                    _ => asked.failed(UpstreamFailure::NotSent),
                }
            }
        }
    }

    /// Returns the upstream's response, or the code of the problem if there is none.
    async fn send(
        &self,
        upstream: Upstream<'_>,
        request: Box<Request<RequestBody<B>>>,
        place: Option<&ConnectionPermit>,
        upgrade: bool,
        timeout: Duration,
    ) -> Result<(Response<UpstreamBody>, Permits), Code> {
        let mut evidence = Evidence::default();
        let answered = {
            // Pinned here, so that the timeout does not move it.
            let sending = pin!(async {
                let permits = enter(place, upstream.number).await.map_err(|_| Code::Overloaded)?;
                let sent = match upgrade {
                    false => self.upstreams.send(upstream, request, &mut evidence).await,
                    true => {
                        let server = upstream.server;
                        Box::pin(self.upstreams.upgrade(server, *request, &mut evidence)).await
                    }
                };
                let response = sent.map_err(|NoResponse| Code::UpstreamInterrupted)?;
                Ok((response, permits))
            });
            tokio::select! {
                biased;
                answered = sending => answered,
                () = self.clock.sleep(timeout) => Err(Code::UpstreamTimeout),
            }
        };
        answered.map_err(|code| match code {
            Code::Overloaded => code,
            code if evidence.may_be_sent() => code,
            _ => Code::UpstreamUnreachable,
        })
    }
}

/// The permits of a request to an upstream: for its socket, and of that upstream.
type Permits = [Option<Permit>; 2];

/// Waits for the permits of a request to an upstream.
async fn enter(place: Option<&ConnectionPermit>, gate: usize) -> Result<Permits, GateFull> {
    let Some(place) = place else { return Ok([None, None]) };
    let upstream = place.enter(gate).await?;
    let socket = place.enter(UPSTREAM_SOCKETS).await?;
    Ok([Some(socket), Some(upstream)])
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

/// True for a gRPC call of a client of HTTP/2 to an upstream that can speak HTTP/2. Any client can
/// name that content type, and no other request may have more time than its route gives it.
fn is_call_over_http2<B>(request: &Request<B>, upstream: &Target) -> bool {
    request.version() == Version::HTTP_2
        && Protocols::of(&upstream.server).may_be_http2()
        && is_grpc(request.headers())
}

/// Returns the client's side of a connection that asks for a WebSocket. No other upgrade is
/// allowed: after one to `h2c`, requests would pass through unchecked. A handshake has no body.
fn websocket<B: http_body::Body>(request: &mut Request<B>) -> Option<ClientUpgrade> {
    let headers = request.headers();
    let wanted = has_word(headers, UPGRADE, "websocket")
        && has_word(headers, CONNECTION, "upgrade")
        && headers.contains_key(SEC_WEBSOCKET_KEY)
        && request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && request.body().is_end_stream();
    wanted.then(|| request.extensions_mut().remove())?
}

/// True if a list header has this word.
fn has_word(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter();
    let mut words = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    words.any(|found| found.trim().eq_ignore_ascii_case(word))
}

/// Removes the headers of one connection, except the names of the trailers.
fn strip_but_trailer(headers: &mut HeaderMap) {
    let names = headers.remove(TRAILER);
    strip_hop_by_hop(headers);
    if let Some(names) = names {
        headers.insert(TRAILER, names);
    }
}

/// Rewrites the request for the upstream. Returns true if the client accepts trailers.
fn address<B>(request: &mut Request<B>, upstream: &Target, is_plain: bool, upgrade: bool) -> bool
where
    B: http_body::Body,
{
    // hyper drops the body of a GET or HEAD of unknown length, unless this header says that there is
    // one.
    let is_chunked =
        !request.body().is_end_stream() && request.body().size_hint().exact().is_none();
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    if let Some(host) = &upstream.host {
        headers.insert(HOST, host.clone());
    }
    let accepts_trailers = !is_plain && has_word(headers, TE, "trailers");
    if !is_plain {
        // The edge has checked the names.
        strip_but_trailer(headers);
    }
    if accepts_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if is_chunked {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    accepts_trailers
}

fn received(
    mut response: Response<UpstreamBody>,
    client: Option<ClientUpgrade>,
    accepts_trailers: bool,
    held: (Option<ConnectionPermit>, Permits, Option<OperationMemory>),
    asked: Asked,
) -> Response<Body> {
    *response.version_mut() = Version::HTTP_11;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            return asked.failed(UpstreamFailure::Interrupted);
        };
        let upstream = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            tunnel(client, upstream).await;
            drop(held);
        });
        return response.map(|body| Either::Left(Held::new(body, [None, None])));
    }
    match accepts_trailers {
        true => strip_but_trailer(response.headers_mut()),
        false => strip_hop_by_hop(response.headers_mut()),
    }
    let (_place, permits, memory) = held;
    response.map(|mut body| {
        // The request may go on after its response. Its body is in memory until then.
        let (permits, _memory) = body.hold((permits, memory)).unwrap_or_default();
        Either::Left(Held::new(body, permits))
    })
}

/// Copies bytes in both directions until both sides are done.
async fn tunnel(client: ClientUpgrade, upstream: OnUpgrade) {
    if let (Some(mut client), Ok(upstream)) = tokio::join!(client.stream(), upstream) {
        let mut upstream = TokioIo::new(upstream);
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
    fn failed(self, failure: UpstreamFailure) -> Response<Body> {
        let response = failure.respond(self.answers, self.reference);
        response.map(|body| Either::Right(Full::new(body)))
    }

    /// Too many requests are in flight: the attempt is released.
    fn overloaded(self) -> Response<Body> {
        self.told(GateFull.problem(), Disposition::Release, Cause::Interrupted)
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
    use super::super::client_body::ClientBody;
    use super::*;

    /// Each request copies this future to the heap, and holds it until its response is there.
    #[test]
    fn the_future_of_a_request_is_small() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let connector = Connector::new(None, clock).unwrap();
        let census = Census::new();
        let proxy = Proxy::<ClientBody>::new(connector, UpstreamSettings::OF_TESTS, &census);
        let bytes = size_of_result(&|request| proxy.0.forward(request));
        assert!(bytes <= 1_800, "{bytes} bytes");
    }

    /// The size of what a function returns.
    fn size_of_result<A, R>(_: &impl Fn(A) -> R) -> usize {
        size_of::<R>()
    }

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
