//! The gateway as an external processor of Envoy: plans, and the same layer around a service that
//! lets Envoy forward.
//!
//! Envoy is trusted: headers that name tenants count, because filters of Envoy set them. Envoy has
//! checked hosts, lengths and encodings, and sets the forwarding headers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{Either, Full};
use onetake_core::Clock;
use onetake_ext_proc::{EnvoyBody, Forward, PassedOn, Processor, SourceAddress};
use onetake_http::grpc::is_grpc;
use onetake_http::routes::has_dot_segment;
use onetake_http::{
    AmbiguousRequest, ClientIp, Code, InFlight, Onetake, OnetakeLayer, OperationContext, Problem,
    ProblemFormat, RequestBody, ResponseBody,
};
use tower::Layer;
use tower_service::Service;

use super::client_body::ClientBody;
use super::client_connection::{Answer, count_problem};
use super::client_ip::client_of;
use super::edge::{BELIEVED, ConnectionPermit, Routed, log, lookalikes};
use super::in_flight::{Connection, Gates};
use super::method_override;
use super::plan::{Plan, Plans, Refused};
use super::proxy::{self, Proxy};
use crate::config::ExtProc;
use crate::traces::Parent;

/// The body of a response: that of the layer, or one of the edge itself.
type AnyBody = Either<ResponseBody<ForwardedBody>, Full<Bytes>>;

/// The body of an upstream's response: through Envoy, or to the processor itself.
type ForwardedBody = Either<EnvoyBody, proxy::Body>;

/// The whole processor as one service.
pub(super) struct EnvoyEdge(Processor<Admission>);

impl EnvoyEdge {
    pub(super) fn new(
        layer: &OnetakeLayer,
        plans: &Arc<Plans>,
        clock: &Arc<dyn Clock>,
        config: &ExtProc,
        gates: &Arc<Gates>,
        proxy: Proxy<EnvoyBody>,
    ) -> Self {
        let (envoy, gates) = (Forward::new(), Arc::clone(gates));
        let inner = layer.layer(EnvoyOrProxy { envoy, proxy, gates });
        let (plans, clock) = (Arc::clone(plans), Arc::clone(clock));
        Self(Processor::new(Admission { inner, plans, clock }, config.max_message))
    }
}

/// Maximum number of concurrent streams of one connection of Envoy, in place of the configured one.
///
/// A worker of Envoy has one connection for all of its requests. It opens at most 1,024 streams
/// before it knows this limit, unless its configuration says otherwise.
pub(super) const STREAMS_MAX: usize = 4_096;
/// Bytes that Envoy may send on one connection before they are read. It has all requests of a worker.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

impl Answer for EnvoyEdge {
    const STREAMS_MAX: Option<usize> = Some(STREAMS_MAX);
    const CONNECTION_WINDOW_BYTES: u32 = CONNECTION_WINDOW_BYTES;

    type Body = tonic::body::Body;

    fn answers(&self) -> ProblemFormat {
        ProblemFormat::default()
    }

    fn answer(
        self: &Arc<Self>,
        _: SocketAddr,
        _: ConnectionPermit,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Response<Self::Body>> {
        let edge = Arc::clone(self);
        Box::pin(async move { edge.0.answer(request).await })
    }
}

/// The service behind the layer. Envoy forwards, except operations that may be answered with 202:
/// Envoy would break them off with that answer, so the processor sends them itself.
#[derive(Clone)]
struct EnvoyOrProxy {
    envoy: Forward,
    proxy: Proxy<EnvoyBody>,
    /// The gates that the processor's own requests pass.
    gates: Arc<Gates>,
}

impl Service<Request<RequestBody<EnvoyBody>>> for EnvoyOrProxy {
    type Response = Response<ForwardedBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<RequestBody<EnvoyBody>>) -> Self::Future {
        let routed = request.extensions().get::<Routed>();
        let policy = routed.and_then(|routed| routed.plan.policy.as_ref());
        let is_async = policy.is_some_and(|policy| matches!(policy.in_flight, InFlight::Async(_)));
        let context = OperationContext::of(request.extensions());
        let is_keyed = context.and_then(OperationContext::key).is_some();
        if is_async && is_keyed && !is_grpc(request.headers()) {
            if let Some(routed) = request.extensions_mut().get_mut::<Routed>() {
                routed.connection = Some(Connection::of_one_request(&self.gates));
            }
            let forwarding = self.proxy.call(request);
            return Box::pin(async { Ok(forwarding.await?.map(Either::Right)) });
        }
        let forwarding = self.envoy.call(request);
        Box::pin(async { Ok(forwarding.await?.map(Either::Left)) })
    }
}

/// The service that finds the plan of a request.
#[derive(Clone)]
struct Admission {
    inner: Onetake<EnvoyOrProxy>,
    plans: Arc<Plans>,
    clock: Arc<dyn Clock>,
}

impl Service<Request<EnvoyBody>> for Admission {
    type Response = Response<AnyBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<EnvoyBody>) -> Self::Future {
        let Self { mut inner, plans, clock } = self.clone();
        Box::pin(async move {
            let from = clock.monotonic();
            let (mut parts, body) = request.into_parts();
            let plan = match admit(&plans, &mut parts) {
                Ok(plan) => plan,
                Err(problem) => {
                    count_problem(problem.code());
                    let response = plans.answers.tell(problem, None);
                    return Ok(response.map(|body| Either::Right(Full::new(body))));
                }
            };
            let method = parts.method.clone();
            let (connection, hinted) = (None, None);
            let routed = Routed { plan: Arc::clone(&plan), connection, is_plain: false, hinted };
            parts.extensions.insert(routed);
            parts.extensions.insert(plan.answers);
            // Envoy makes the spans of its own calls, so the headers stay as they are.
            let parent = Parent::take(&mut parts.headers.clone());
            let request = Request::from_parts(parts, body);
            let response = parent.around(|| inner.call(request)).await?;
            if let Some(code) = Code::of(&response) {
                count_problem(code);
            }
            if response.extensions().get::<PassedOn>().is_none() {
                log(&method, &plan, &response, clock.monotonic() - from);
            }
            Ok(response.map(Either::Left))
        })
    }
}

/// Checks and prepares the head of a request.
fn admit(plans: &Plans, parts: &mut Parts) -> Result<Arc<Plan>, Problem> {
    if has_dot_segment(parts.uri.path()) {
        return Err(Refused::Ambiguous(AmbiguousRequest::DotSegment).into());
    }
    let plan = Arc::clone(plans.admit(&parts.method, parts.uri.path())?);
    method_override::check(plans, &plan, parts)?;
    for name in BELIEVED {
        parts.headers.remove(name);
    }
    lookalikes(plans, &mut parts.headers);
    if plans.tells_addresses
        && let Some(SourceAddress(source)) = parts.extensions.get().copied()
        && let Some(client) = client_of(source, &parts.headers, |address| plans.trusts(address))
    {
        parts.extensions.insert(ClientIp(client));
    }
    Ok(plan)
}
