//! The tower service of the layer.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::HeaderName;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;
use tracing::Instrument;

use crate::BoxError;
use crate::body::{RequestBody, ResponseBody};
use crate::endpoints::Endpoint;
use crate::grpc;
use crate::layer::LayerState;
use crate::pipeline;
use crate::problem::IDEMPOTENCY_REFERENCE;
use crate::trace::Trace;

/// The request header with the attempt's fence, a number that rises with every attempt of a record.
pub const IDEMPOTENCY_FENCE: HeaderName = HeaderName::from_static("idempotency-fence");
/// The request header with the derived key, for the inner service's own calls. It is the same in
/// every attempt, and never taken from a client.
pub const IDEMPOTENCY_DERIVED_KEY: HeaderName = HeaderName::from_static("idempotency-derived-key");

/// The request headers that describe an attempt. The inner service trusts them, so they are removed
/// from every request of a client.
pub const ATTEMPT_HEADERS: [HeaderName; 3] =
    [IDEMPOTENCY_FENCE, IDEMPOTENCY_DERIVED_KEY, IDEMPOTENCY_REFERENCE];

/// A service that runs each operation once, and answers its retries with the recorded outcome.
#[derive(Clone)]
pub struct Onetake<S> {
    inner: S,
    shared: Arc<LayerState>,
}

impl<S> Onetake<S> {
    pub(crate) fn new(inner: S, shared: Arc<LayerState>) -> Self {
        Self { inner, shared }
    }
}

impl<S> std::fmt::Debug for Onetake<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Onetake").finish_non_exhaustive()
    }
}

impl<S, Req, Res> Service<Request<Req>> for Onetake<S>
where
    S: Service<Request<RequestBody<Req>>, Response = Response<Res>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    Req: Body<Data = Bytes> + Send + 'static,
    Req::Error: Send,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError> + Send,
{
    type Response = Response<ResponseBody<Res>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        // The instance that was polled ready must be the one that is called.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        // The span begins here and not at the first poll, because the caller's span may be current
        // during this call only.
        let trace = Trace::begin(request.method());
        let call = grpc::is_grpc(request.headers());
        let span = trace.span();
        let endpoint = Endpoint::of(&shared, &request);
        let (parts, body) = request.into_parts();
        if endpoint.is_none() && span.is_disabled() && pipeline::passes_through(&shared, &parts) {
            return Box::pin(async move {
                let response = pipeline::pass_through(inner, parts, body).await?;
                Ok(if call { grpc::error_of(response, ResponseBody::empty) } else { response })
            });
        }
        let trace = Arc::new(trace);
        // Boxed, because a future can hold a moved argument in more than one place.
        let parts = Box::new(parts);
        let answering = async move {
            let answer = match endpoint {
                Some(endpoint) => Ok(endpoint.answer(&shared, &parts, body, &trace).await),
                None => pipeline::answer(inner, &shared, (parts, body), &trace).await,
            };
            trace.answered(&answer);
            match answer {
                Ok(response) if call => Ok(grpc::error_of(response, ResponseBody::empty)),
                answer => answer,
            }
        };
        if span.is_disabled() { Box::pin(answering) } else { Box::pin(answering.instrument(span)) }
    }
}
