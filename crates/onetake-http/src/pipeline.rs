//! The path of a request through the middleware, step by step.
//!
//! | step | result | file |
//! | --- | --- | --- |
//! | read the head | [`Head`]: policy, tenant, deadline, and the key unless it is in the body | `head.rs` |
//! | read the body | [`Received`]: a whole body, within the route's limits | `identify.rs` |
//! | identify | [`Identity`]: scope, key, id and fingerprint, each computed once | `identify.rs` |
//! | decide | [`Admitted`]: no check prevents the operation from running now | `admit.rs` |
//! | run | a verdict, and a response that must not be shown yet | `run.rs` |
//! | record | the verdict is settled, in the task that ran | `onetake-core`, `engine/run.rs` |
//! | respond | the response, from the settlement or the existing record | `respond.rs` |
//!
//! A step that ends a request returns a [`Refusal`].
//!
//! [`Received`]: crate::identify::Received
//! [`Identity`]: crate::identify::Identity

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::BoxError;
use crate::admit::Admitted;
use crate::body::{ExactEnd, RequestBody, ResponseBody};
use crate::context::OperationContext;
use crate::head::Head;
use crate::identify::Identified;
use crate::key;
use crate::layer::LayerState;
use crate::memory::BodyPermit;
use crate::policy::{InFlight, KeySource};
use crate::recording::ONETAKE_OUTCOME;
use crate::respond::Refusal;
use crate::service::ATTEMPT_HEADERS;
use crate::trace::Trace;

/// The next step of a request that is not refused.
enum NextStep<Req> {
    /// The request has no operation of this layer and goes to the inner service.
    PassOn(Box<Parts>, RequestBody<Req>, Option<BodyPermit>),
    Execute(Admitted),
}

/// Answers a request with the outcome of its operation. A request without an operation gets the
/// response of the inner service.
pub(crate) async fn answer<S, Req, Res>(
    inner: S,
    shared: &Arc<LayerState>,
    (parts, body): (Box<Parts>, Req),
    trace: &Arc<Trace>,
) -> Result<Response<ResponseBody<Res>>, S::Error>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Req: Body<Data = Bytes> + Send + 'static,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError> + Send,
{
    match decide(shared, parts, body, trace).await {
        Err(refusal) => Ok(refusal.respond(shared, trace)),
        Ok(NextStep::Execute(admitted)) => admitted.execute(shared, inner, trace).await,
        Ok(NextStep::PassOn(parts, body, _place)) => {
            trace.set_outcome("passed_on");
            pass_on(inner, *parts, body).await
        }
    }
}

/// Returns true if no policy concerns a request: it goes to the inner service as it is. That is
/// known without reading the request. A request that may have a key is read, step by step.
pub(crate) fn passes_through(shared: &LayerState, parts: &Parts) -> bool {
    if key::has_header(&parts.headers) {
        return false;
    }
    let Ok(policy) = shared.policies.try_resolve(parts) else { return false };
    policy.is_none_or(|policy| {
        let needs_no_key = matches!(policy.key.source, KeySource::Header) && !policy.key.required;
        let is_checked = matches!(policy.in_flight, InFlight::Async(_));
        let is_misconfigured = shared.check_policy(&policy, &parts.method).is_err();
        !is_misconfigured && (!policy.is_keyed(&parts.method) || (needs_no_key && !is_checked))
    })
}

/// Calls the inner service with a request that no policy concerns.
pub(crate) async fn pass_through<S, Req, Res>(
    inner: S,
    mut parts: Parts,
    body: Req,
) -> Result<Response<ResponseBody<Res>>, S::Error>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>>,
{
    let body = untouched(&mut parts, body);
    pass_on(inner, parts, body).await
}

/// Prepares a request without an operation of this layer. There is no attempt, so the inner service
/// must not take a client's headers for one.
fn untouched<Req>(parts: &mut Parts, body: Req) -> RequestBody<Req> {
    parts.extensions.get_or_insert_default::<OperationContext>();
    if !is_inside(parts) {
        for name in ATTEMPT_HEADERS {
            parts.headers.remove(name);
        }
    }
    RequestBody::untouched(body, ExactEnd::applies(parts))
}

/// Calls the inner service with a request that has no operation of this layer.
async fn pass_on<S, Req, Res>(
    mut inner: S,
    parts: Parts,
    body: RequestBody<Req>,
) -> Result<Response<ResponseBody<Res>>, S::Error>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>>,
{
    let is_inside = is_inside(&parts);
    let mut response = inner.call(Request::from_parts(parts, body)).await?;
    // Clients never get `Onetake-Outcome`. If another layer runs this operation around this one, the
    // header is kept for that layer.
    if !is_inside {
        response.headers_mut().remove(ONETAKE_OUTCOME);
    }
    Ok(response.map(ResponseBody::untouched))
}

/// Reads the request, identifies its operation, and checks that the operation may run.
async fn decide<Req>(
    shared: &LayerState,
    mut parts: Box<Parts>,
    body: Req,
    trace: &Trace,
) -> Result<NextStep<Req>, Refusal>
where
    Req: Body<Data = Bytes>,
{
    let Some(head) = Head::read(shared, &parts, trace).await? else {
        let body = untouched(&mut parts, body);
        return Ok(NextStep::PassOn(parts, body, None));
    };
    key::write_once(&mut parts.headers, &head.policy.key.source);
    let received = head.receive(shared, parts, body).await?;
    match received.identify(shared)? {
        Identified::PassOn(mut parts, body, place) => {
            parts.extensions.get_or_insert_default::<OperationContext>();
            Ok(NextStep::PassOn(parts, body, Some(place)))
        }
        Identified::Operation(identity) => Ok(NextStep::Execute(identity.admit(shared).await?)),
    }
}

/// Returns true if a layer around this one runs the request's operation.
pub(crate) fn is_inside(parts: &Parts) -> bool {
    OperationContext::of(&parts.extensions).is_some_and(|context| context.key().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::OnetakeLayer;
    use crate::policy::Policy;
    use crate::routes::Routes;
    use http_body_util::Full;
    use onetake_core::{Engine, MemoryStore};
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::task::{Context, Poll};

    #[derive(Clone)]
    struct Inner;

    impl Service<Request<RequestBody<Full<Bytes>>>> for Inner {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<RequestBody<Full<Bytes>>>) -> Self::Future {
            ready(Ok(Response::new(Full::default())))
        }
    }

    /// The short way of requests that no policy concerns must lead where the long way leads.
    #[tokio::test]
    async fn a_request_passes_through_only_if_no_step_would_stop_it() {
        let json = || Policy::new().tenant("public").key_from(KeySource::json("/id"));
        let wait = std::time::Duration::ZERO;
        let policies = [
            ("optional key", Policy::new(), true),
            ("required key", Policy::new().key_required(), false),
            ("key in the body", json(), false),
            (
                "key in a header",
                Policy::new().tenant("public").key_from(KeySource::header("x-id")),
                false,
            ),
            ("202", Policy::new().in_flight(InFlight::Async(wait)), false),
        ];
        for (name, policy, passes) in policies {
            let engine = Engine::new(Arc::new(MemoryStore::new()));
            let routes = Routes::new().route("POST /", policy);
            let layer = OnetakeLayer::builder(engine).routes(routes).around_whole_app().build();
            let shared = layer.unwrap().endpoints().shared;
            for (method, key, expected) in [
                ("POST", None, passes),
                ("POST", Some("idempotency-key"), false),
                ("POST", Some("x-idempotency-key"), false),
                ("GET", None, true),
            ] {
                let mut request = Request::builder().method(method).uri("/");
                if let Some(key) = key {
                    request = request.header(key, "a-key-that-is-long-enough");
                }
                let request = request.body(Full::<Bytes>::default()).unwrap();
                let (parts, body) = request.into_parts();
                let at_once = passes_through(&shared, &parts);
                assert_eq!(at_once, expected, "{name}: {method} {key:?}");
                let trace = Trace::begin(&parts.method);
                let next = decide(&shared, Box::new(parts), body, &trace).await;
                let passes = matches!(next, Ok(NextStep::PassOn(..)));
                assert!(passes || !at_once, "{name}: {method} {key:?}");
            }
        }
    }

    /// No builder has checked a policy from a closure.
    #[tokio::test]
    async fn a_request_whose_policy_has_mistakes_does_not_pass_through() {
        let policy = Arc::new(Policy::new().release(["6xx"]));
        let layer = OnetakeLayer::builder(MemoryStore::new()).resolve(policy).build();
        let shared = layer.unwrap().endpoints().shared;
        for (method, expected) in [("POST", false), ("PUT", false), ("GET", true)] {
            let request = Request::builder().method(method).uri("/").body(()).unwrap();
            let (parts, ()) = request.into_parts();
            assert_eq!(passes_through(&shared, &parts), expected, "{method}");
        }
    }

    /// Each request holds these futures in memory until it is answered. A client that waits for an
    /// outcome holds them for its whole wait.
    #[tokio::test]
    async fn the_futures_of_a_request_are_small() {
        let engine = Engine::new(Arc::new(MemoryStore::new()));
        let shared = OnetakeLayer::new(engine, Policy::new()).unwrap().endpoints().shared;
        let request = || {
            let request = Request::post("/").body(Full::<Bytes>::default()).unwrap();
            let (parts, body) = request.into_parts();
            (Box::new(parts), body)
        };
        let (parts, body) = request();
        let trace = Arc::new(Trace::begin(&parts.method));
        let head = size_of_val(&Head::read(&shared, &parts, &trace));
        let deciding = size_of_val(&decide(&shared, parts, body, &trace));
        let answering = size_of_val(&answer(Inner, &shared, request(), &trace));
        let is_small = head <= 320 && deciding <= 1_400 && answering <= 2_500;
        assert!(is_small, "{head}, {deciding} and {answering} bytes");
    }
}
