//! The gRPC service that Envoy calls: one stream for each request.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Ready, ready};
use http::{Request, Response, Version};
use http_body::Body;
use http_body_util::BodyExt;
use onetake_http::{BoxError, Code, Problem, ProblemFormat};
use tonic::server::{Grpc, StreamingService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::body::EnvoyBody;
use crate::exchange::{Exchange, Replies, Sender, replies};
use crate::forward::{FromUpstream, PassedOn};
use crate::headers::{RequestHead, difference, immediate, request_head};
use crate::messages::{
    BodySendMode, HttpHeaders, HttpStatus, ImmediateResponse, Kind, Part, ProcessingRequest,
    ProcessingResponse, Value,
};

/// The only method of the service.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// The attribute of a request with the address of Envoy's client.
const SOURCE: &str = "source.address";

/// The address of Envoy's client, in the extensions of a request. Envoy tells it if the filter has
/// `request_attributes: [source.address]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddress(pub IpAddr);

/// An `envoy.service.ext_proc.v3.ExternalProcessor` around a service.
///
/// The service is an [`Onetake`](onetake_http::Onetake) layer around [`Forward`](crate::Forward),
/// or a service around that.
#[derive(Clone, Debug)]
pub struct Processor<S> {
    service: S,
    message_bytes_max: usize,
}

impl<S> Processor<S> {
    /// Creates a processor. A message of Envoy with more than `message_bytes_max` bytes ends its
    /// stream with an error. A message holds the body of a request or a response, up to the size of
    /// Envoy's buffer.
    pub fn new(service: S, message_bytes_max: usize) -> Self {
        Self { service, message_bytes_max }
    }
}

impl<S, Res> Processor<S>
where
    S: Service<Request<EnvoyBody>, Response = Response<Res>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError>,
{
    /// Answers one gRPC call. The stream is served by a task of its own.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<tonic::body::Body>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        if request.uri().path() != PROCESS {
            return Status::unimplemented("only ExternalProcessor/Process is served").into_http();
        }
        let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
        let grpc = Grpc::new(codec);
        let mut grpc = grpc.apply_max_message_size_config(Some(self.message_bytes_max), None);
        grpc.streaming(Method(self.service.clone()), request).await
    }
}

/// The method `Process`.
struct Method<S>(S);

impl<S, Res> StreamingService<ProcessingRequest> for Method<S>
where
    S: Service<Request<EnvoyBody>, Response = Response<Res>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    Res: Body<Data = Bytes> + Send + 'static,
    Res::Error: Into<BoxError>,
{
    type Response = ProcessingResponse;
    type ResponseStream = Replies;
    type Future = Ready<Result<tonic::Response<Replies>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let (sender, replies) = replies();
        tokio::spawn(process(self.0.clone(), request.into_inner(), sender));
        ready(Ok(tonic::Response::new(replies)))
    }
}

/// Handles one request, from its head to its response. If it ends early, the stream ends with an
/// error, and Envoy answers the client with an error.
async fn process<S, Res>(mut service: S, mut messages: Streaming<ProcessingRequest>, sender: Sender)
where
    S: Service<Request<EnvoyBody>, Response = Response<Res>, Error = Infallible>,
    Res: Body<Data = Bytes>,
    Res::Error: Into<BoxError>,
{
    let Ok(Some(mut first)) = messages.message().await else { return };
    let Some(Part::RequestHeaders(head)) = first.part.take() else { return };
    let read = request_head(&head);
    let headers = read.as_ref().map(|head| head.headers.clone()).unwrap_or_default();
    let exchange = Arc::new(Exchange::new(headers, messages, sender));
    let refusal = match (&read, mistake_in(&first)) {
        (_, Some(mistake)) => {
            tracing::error!("{mistake}");
            let detail = "This service is misconfigured. Nothing was forwarded. Report it to the operator of the service, whose log has the reason.";
            Some(Problem::new(Code::Misconfigured, detail))
        }
        (Err(unreadable), _) => {
            let detail = format!("{unreadable} Nothing was forwarded.");
            Some(Problem::new(Code::RequestRefused, detail))
        }
        (Ok(_), None) => None,
    };
    if let Some(problem) = refusal {
        let response = ProblemFormat::default().tell(problem, None);
        let _left = exchange.answer(immediate_response(&response, response.body().clone()));
        return;
    }
    let Ok(read) = read else { return };
    let answering = service.call(request_of(read, &head, &first, &exchange));
    let response = tokio::select! {
        biased;
        Ok(response) = answering => response,
        // The operation goes on without this task, as after any client that disconnects.
        () = exchange.left() => return,
        else => return,
    };
    finish(&exchange, response).await;
}

/// Returns the mistake of a filter whose configuration does not keep the promise of this service.
fn mistake_in(first: &ProcessingRequest) -> Option<&'static str> {
    let modes = first.protocol_config.as_ref().map(|modes| {
        (
            modes.request_body_mode(),
            modes.response_body_mode(),
            modes.send_body_without_waiting_for_header_response,
        )
    });
    let partial = BodySendMode::BufferedPartial;
    match modes {
        _ if first.observability_mode => Some(
            "the ext_proc filter has observability_mode: true, so it would not wait for replies: \
             every request is refused. Remove observability_mode",
        ),
        Some((request, response, false)) if (request, response) == (partial, partial) => None,
        _ => Some(
            "the ext_proc filter does not hold bodies until they are processed: every request is \
             refused. Write processing_mode: { request_body_mode: BUFFERED_PARTIAL, \
             response_body_mode: BUFFERED_PARTIAL, response_header_mode: SEND } in its \
             configuration",
        ),
    }
}

fn request_of(
    read: RequestHead,
    head: &HttpHeaders,
    first: &ProcessingRequest,
    exchange: &Arc<Exchange>,
) -> Request<EnvoyBody> {
    let mut request = Request::new(EnvoyBody::of_request(exchange, head.end_of_stream));
    *request.method_mut() = read.method;
    *request.uri_mut() = read.uri;
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = read.headers;
    request.extensions_mut().insert(Arc::clone(exchange));
    let source = first.attributes.values().find_map(|fields| fields.fields.get(SOURCE));
    if let Some(Value { kind: Some(Kind::Text(source)) }) = source
        && let Ok(source) = source.parse::<SocketAddr>()
    {
        request.extensions_mut().insert(SourceAddress(source.ip().to_canonical()));
    }
    request
}

/// Gives the response to Envoy: as the changes to the response that Envoy has, or whole.
async fn finish<Res>(exchange: &Exchange, response: Response<Res>)
where
    Res: Body<Data = Bytes>,
    Res::Error: Into<BoxError>,
{
    if response.extensions().get::<PassedOn>().is_some() {
        return;
    }
    // If Envoy has left, there is no client to answer.
    let _left = match exchange.response_headers() {
        Some(has) if response.extensions().get::<FromUpstream>().is_some() => {
            exchange.finish(difference(has, response.headers()))
        }
        _ => {
            let (parts, body) = response.into_parts();
            let Ok(body) = body.collect().await else { return };
            let response = Response::from_parts(parts, ());
            exchange.answer(immediate_response(&response, body.to_bytes()))
        }
    };
}

fn immediate_response<B>(response: &Response<B>, body: Bytes) -> ImmediateResponse {
    ImmediateResponse {
        status: Some(HttpStatus { code: i32::from(response.status().as_u16()) }),
        headers: Some(immediate(response.headers())),
        body,
        details: "onetake".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::ProtocolConfiguration;

    #[test]
    fn a_filter_that_does_not_hold_bodies_is_refused() {
        use BodySendMode::{Buffered, BufferedPartial, None, Streamed};
        let first = |request: BodySendMode, response: BodySendMode, eager, observes| {
            let config = ProtocolConfiguration {
                request_body_mode: request.into(),
                response_body_mode: response.into(),
                send_body_without_waiting_for_header_response: eager,
            };
            let protocol_config = Some(config);
            ProcessingRequest {
                protocol_config,
                observability_mode: observes,
                ..Default::default()
            }
        };
        assert!(mistake_in(&first(BufferedPartial, BufferedPartial, false, false)).is_none());
        for bad in [
            first(BufferedPartial, BufferedPartial, true, false),
            first(BufferedPartial, BufferedPartial, false, true),
            first(None, BufferedPartial, false, false),
            first(BufferedPartial, None, false, false),
            first(Streamed, BufferedPartial, false, false),
            first(Buffered, Buffered, false, false),
            ProcessingRequest::default(),
        ] {
            assert!(mistake_in(&bad).is_some(), "{bad:?}");
        }
    }
}
