//! The service behind the layer: it lets Envoy forward the request, and waits for the response.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use onetake_core::{Cause, Reference};
use onetake_http::recording::strip_hop_by_hop;
use onetake_http::{
    AttemptReport, Code, Disposition, OperationContext, Problem, ProblemFormat, RequestBody,
    UpstreamFailure,
};
use tower_service::Service;

use crate::body::EnvoyBody;
use crate::counters::Counters;
use crate::exchange::{Exchange, ResponseHead, StreamEnded};
use crate::headers::{difference, forbid_retries, remove_envoys_own, response_head};
use crate::messages::{HttpHeaders, ProcessingRequest};
use crate::origin::{Evidence, Origin, evidence};

/// A mark of responses that Envoy already has. Their bodies need not be sent back to it.
#[derive(Clone, Copy)]
pub(crate) struct FromUpstream;

/// A mark of requests that passed without a key. Envoy forwards them, and the response does not
/// come back here.
#[derive(Clone, Copy, Debug)]
pub struct PassedOn;

/// The service that forwards requests through Envoy. Put the layer around it, and a
/// [`Processor`](crate::Processor) around the layer.
///
/// A `ProblemFormat` in the extensions of a request is the format of its problems.
#[derive(Clone, Debug, Default)]
pub struct Forward(Arc<Counters>);

impl Forward {
    /// Creates the service.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Service<Request<RequestBody<EnvoyBody>>> for Forward {
    type Response = Response<EnvoyBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<EnvoyBody>>) -> Self::Future {
        let counters = Arc::clone(&self.0);
        Box::pin(async move { Ok(forward(&counters, request).await) })
    }
}

async fn forward(
    counters: &Counters,
    request: Request<RequestBody<EnvoyBody>>,
) -> Response<EnvoyBody> {
    let (parts, body) = request.into_parts();
    let extensions = &parts.extensions;
    let context = OperationContext::of(extensions);
    let asked = Asked {
        reference: context.and_then(|context| context.attempt()).map(|it| it.id.reference()),
        answers: extensions.get().copied().unwrap_or_default(),
    };
    let Some(exchange) = extensions.get::<Arc<Exchange>>() else {
        return asked.failed(UpstreamFailure::NotSent);
    };
    let taken = match exchange.has_taken_request() {
        true => match body.collect().await {
            Ok(body) => Some((body.trailers().is_some(), body.to_bytes())),
            Err(StreamEnded) => return asked.failed(UpstreamFailure::NotSent),
        },
        false => None,
    };
    let mut mutation = difference(&exchange.request_headers, &parts.headers);
    if context.and_then(|context| context.key()).is_none() {
        let mut response = Response::new(EnvoyBody::empty());
        response.extensions_mut().insert(PassedOn);
        // If Envoy has left, there is no client to answer.
        let _left = match taken {
            Some((trailers, body)) => exchange.give_back(mutation, &body, trailers, false),
            None => exchange.pass_on(mutation),
        };
        return response;
    }
    forbid_retries(&mut mutation);
    let forwarded = match taken {
        Some((trailers, body)) => exchange.give_back(mutation, &body, trailers, true),
        None => exchange.forward(mutation),
    };
    if forwarded.is_err() {
        return asked.failed(UpstreamFailure::NotSent);
    }
    match exchange.response().await {
        Ok((head, message)) => asked.answered(counters, exchange, &head, &message),
        Err(StreamEnded) => asked.left(),
    }
}

/// The reference of the request, and the format of the responses to it.
#[derive(Clone, Copy)]
struct Asked {
    reference: Option<Reference>,
    answers: ProblemFormat,
}

impl Asked {
    fn answered(
        self,
        counters: &Counters,
        exchange: &Arc<Exchange>,
        head: &HttpHeaders,
        message: &ProcessingRequest,
    ) -> Response<EnvoyBody> {
        let Evidence { origin, attempts } = evidence(&message.attributes);
        let reference = self.reference.map(|reference| reference.to_string());
        if attempts.is_some_and(|attempts| attempts > 1) {
            counters.retried.increment(1);
            tracing::error!(
                reference,
                attempts,
                "Envoy sent the request of one attempt more than once: the operation may have run \
                 more than once. Remove the retry and hedge policies of keyed routes, or let the \
                 filter forbid them with mutation_rules: {{ allow_envoy: true }}"
            );
        }
        match origin {
            Origin::NotSent => return self.failed(UpstreamFailure::NotSent),
            Origin::TimedOut => return self.failed(UpstreamFailure::TimedOut),
            Origin::Interrupted => return self.failed(UpstreamFailure::Interrupted),
            Origin::Upstream => {}
            Origin::Unverified => counters.unverified(),
        }
        let Ok((status, headers)) = response_head(head) else {
            return self.failed(UpstreamFailure::Interrupted);
        };
        let is_all = head.end_of_stream;
        exchange.keep_response(ResponseHead { headers: headers.clone(), is_all });
        let mut response =
            Response::new(EnvoyBody::of_response(exchange, &headers, head.end_of_stream));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        remove_envoys_own(response.headers_mut());
        strip_hop_by_hop(response.headers_mut());
        response.extensions_mut().insert(FromUpstream);
        if origin == Origin::Unverified && status.is_server_error() {
            // It may be Envoy's own answer in place of an upstream that has run the operation.
            let cause = Cause::Status(status.as_u16());
            AttemptReport::new(Disposition::Unknown).cause(cause).attach(&mut response);
        }
        response
    }

    fn failed(self, failure: UpstreamFailure) -> Response<EnvoyBody> {
        failure.respond(self.answers, self.reference).map(EnvoyBody::whole)
    }

    /// The client disconnected, or Envoy stopped. Envoy breaks off the request to the upstream.
    fn left(self) -> Response<EnvoyBody> {
        let detail = "The connection ended before the response. The outcome is unknown. If the request has an idempotency key, retry with the same key.";
        let cause = Cause::Reported("the client or Envoy ended the request early".into());
        let problem = Problem::new(Code::UpstreamInterrupted, detail);
        let mut response = self.answers.tell(problem, self.reference).map(EnvoyBody::whole);
        AttemptReport::new(Disposition::Unknown).cause(cause).attach(&mut response);
        response
    }
}
