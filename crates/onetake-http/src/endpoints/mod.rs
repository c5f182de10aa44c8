//! The three endpoints that the layer answers itself.
//!
//! They are routed before the middleware, so no policy applies to them.

mod operations;
mod tokens;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::Empty;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::issued::TOKENS;
use crate::layer::LayerState;
use crate::problem::DOCUMENTATION;
use crate::trace::Trace;

/// Path prefix of the endpoint that returns outcomes by their handles.
pub const OPERATIONS: &str = "/.onetake/operations/";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `GET /.onetake/problems`: the page that explains problems.
    Problems,
    /// `POST /idempotency-tokens`: issues a key. Only if the layer has a secret for issued keys.
    Tokens,
    /// `GET /.onetake/operations/{handle}`: the outcome of an operation that was answered with 202.
    Operations,
}

impl Endpoint {
    /// Returns the endpoint that a request is for, if any.
    pub(crate) fn of<B>(shared: &LayerState, request: &Request<B>) -> Option<Self> {
        let path = request.uri().path();
        match *request.method() {
            Method::GET if path == DOCUMENTATION => Some(Self::Problems),
            Method::GET if path.starts_with(OPERATIONS) => Some(Self::Operations),
            Method::POST if path == TOKENS && shared.issues_keys() => Some(Self::Tokens),
            _ => None,
        }
    }

    pub(crate) async fn answer<Req, Res>(
        self,
        shared: &LayerState,
        parts: &Parts,
        body: Req,
        trace: &Trace,
    ) -> Response<ResponseBody<Res>>
    where
        Req: Body<Data = Bytes>,
    {
        match self {
            Self::Problems => {
                trace.set_outcome("documentation");
                documentation()
            }
            Self::Tokens => {
                trace.route("POST /idempotency-tokens");
                trace.set_outcome("issued");
                let response = tokens::issue(shared, parts, body).await;
                response.map(|body| ResponseBody::whole(body, None))
            }
            Self::Operations => {
                trace.route("GET /.onetake/operations/{handle}");
                trace.set_outcome("looked_up");
                operations::fetch_outcome(shared, parts).await
            }
        }
    }
}

fn documentation<Res>() -> Response<ResponseBody<Res>> {
    let page = Bytes::from_static(include_bytes!("../problems.md"));
    let mut response = Response::new(ResponseBody::whole(page, None));
    let markdown = HeaderValue::from_static("text/markdown; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, markdown);
    response
}

/// The endpoints of a layer as a separate service: the page that explains problems, outcomes by
/// their handles, and issued keys. Any other request gets 404.
///
/// A layer around the outermost router answers these paths itself. Any other layer never sees them:
/// in that case mount this service at the root. See
/// [`OnetakeLayer::endpoints`](crate::OnetakeLayer::endpoints).
#[derive(Clone)]
pub struct Endpoints {
    pub(crate) shared: Arc<LayerState>,
}

impl<Req> Service<Request<Req>> for Endpoints
where
    Req: Body<Data = Bytes> + Send + 'static,
    Req::Error: Send,
{
    type Response = Response<ResponseBody<Empty<Bytes>>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        let trace = Trace::begin(request.method());
        Box::pin(async move {
            let Some(endpoint) = Endpoint::of(&shared, &request) else {
                let mut response = Response::new(ResponseBody::whole(Bytes::new(), None));
                *response.status_mut() = StatusCode::NOT_FOUND;
                return Ok(response);
            };
            let (parts, body) = request.into_parts();
            let answer = Ok(endpoint.answer(&shared, &parts, body, &trace).await);
            trace.answered(&answer);
            answer
        })
    }
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoints").finish_non_exhaustive()
    }
}
