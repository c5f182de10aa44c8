//! The gRPC service that Envoy calls: one stream for each request.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Ready, ready};
use http::{HeaderMap, Request, Response, Version};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use onetake_http::grpc::{error_of, is_grpc};
use onetake_http::{BoxError, Code, Problem, ProblemFormat};
use tonic::server::{Grpc, StreamingService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::body::EnvoyBody;
use crate::exchange::{Exchange, StreamEnded, Transfer};
use crate::forward::{FromUpstream, PassedOn};
use crate::headers::{RequestHead, difference, immediate, request_head};
use crate::messages::{
    BodySendMode, HttpHeaders, HttpStatus, ImmediateResponse, Kind, Part, ProcessingRequest,
    ProcessingResponse, Value,
};
use crate::replies::{Replies, Sender, replies};

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
        let message_bytes_max = self.message_bytes_max;
        grpc.streaming(Method { service: self.service.clone(), message_bytes_max }, request).await
    }
}

/// The method `Process`.
struct Method<S> {
    service: S,
    message_bytes_max: usize,
}

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
        let service = self.service.clone();
        tokio::spawn(process(service, request.into_inner(), sender, self.message_bytes_max));
        ready(Ok(tonic::Response::new(replies)))
    }
}

/// Handles one request, from its head to its response. If it ends early, the stream ends with an
/// error, and Envoy answers the client with an error.
async fn process<S, Res>(
    mut service: S,
    mut messages: Streaming<ProcessingRequest>,
    sender: Sender,
    message_bytes_max: usize,
) where
    S: Service<Request<EnvoyBody>, Response = Response<Res>, Error = Infallible>,
    Res: Body<Data = Bytes>,
    Res::Error: Into<BoxError>,
{
    let Ok(Some(mut first)) = messages.message().await else { return };
    let Some(Part::RequestHeaders(head)) = first.part.take() else { return };
    let read = request_head(&head);
    let headers = read.as_ref().map(|head| head.headers.clone()).unwrap_or_default();
    let (transfer, mistake) = transfer_by(&first, is_grpc(&headers));
    let exchange = Arc::new(Exchange::new(headers, transfer, messages, sender));
    let refusal = match (&read, mistake) {
        (_, Some(mistake)) => {
            tracing::error!("{mistake}");
            Some(misconfigured())
        }
        (Err(unreadable), _) => {
            let detail = format!("{unreadable} Nothing was forwarded.");
            Some(Problem::new(Code::RequestRefused, detail))
        }
        (Ok(_), None) => None,
    };
    if let Some(problem) = refusal {
        let response = ProblemFormat::default().tell(problem, None);
        let _left = answer(&exchange, response, None);
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
    finish(&exchange, response, message_bytes_max).await;
}

fn misconfigured() -> Problem {
    let detail = "This service is misconfigured. Nothing was forwarded. Report it to the operator of the service, whose log has the reason.";
    Problem::new(Code::Misconfigured, detail)
}

/// Returns how bodies are read by the modes of the filter, and the mistake of a filter whose
/// configuration does not keep the promise of this service.
fn transfer_by(first: &ProcessingRequest, is_call: bool) -> (Transfer, Option<&'static str>) {
    let modes = first.protocol_config.as_ref().map(|modes| {
        (
            modes.request_body_mode(),
            modes.response_body_mode(),
            modes.send_body_without_waiting_for_header_response,
        )
    });
    let (none, partial) = (BodySendMode::None, BodySendMode::BufferedPartial);
    let transfer = match modes {
        Some((request, response, _)) if is_call && (request, response) == (none, none) => {
            Transfer::Duplex
        }
        _ if is_call => Transfer::Never,
        _ => Transfer::Buffered,
    };
    let mistake = match modes {
        _ if first.observability_mode => Some(
            "the ext_proc filter has observability_mode: true, so it would not wait for replies: \
             every request is refused. Remove observability_mode",
        ),
        Some((request, response, false)) if (request, response) == (partial, partial) => None,
        Some((_, _, false)) if transfer == Transfer::Duplex => None,
        _ => Some(
            "the ext_proc filter does not hold bodies until they are processed: every request is \
             refused. Write processing_mode: { request_body_mode: BUFFERED_PARTIAL, \
             response_body_mode: BUFFERED_PARTIAL, response_header_mode: SEND } in its \
             configuration. For routes of gRPC calls, write request_body_mode: NONE, \
             response_body_mode: NONE in its overrides",
        ),
    };
    (transfer, mistake)
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
///
/// A response that Envoy does not have is sent in one message. If it has more than `bytes_max` bytes,
/// Envoy answers with an error.
async fn finish<Res>(exchange: &Exchange, response: Response<Res>, bytes_max: usize)
where
    Res: Body<Data = Bytes>,
    Res::Error: Into<BoxError>,
{
    if response.extensions().get::<PassedOn>().is_some() {
        return;
    }
    // If Envoy has left, there is no client to answer.
    let _left = match exchange.response_head() {
        Some(has) if response.extensions().get::<FromUpstream>().is_some() => {
            let changes = difference(&has.headers, response.headers());
            exchange.finish_with(changes, response.into_body()).await
        }
        _ => {
            let (parts, body) = response.into_parts();
            let Ok(body) = Limited::new(body, bytes_max).collect().await else { return };
            let trailers = body.trailers().cloned();
            let response = Response::from_parts(parts, body.to_bytes());
            answer(exchange, response, trailers.as_ref())
        }
    };
}

/// Answers the client in place of the upstream.
fn answer(
    exchange: &Exchange,
    response: Response<Bytes>,
    trailers: Option<&HeaderMap>,
) -> Result<(), StreamEnded> {
    if !exchange.is_call() {
        return exchange.answer(immediate_response(response));
    }
    let response = match exchange.is_misconfigured() {
        true => ProblemFormat::default().tell(misconfigured(), None),
        false => response,
    };
    let response = error_of(response, Bytes::new);
    if exchange.can_answer_call() {
        return exchange.answer_call(&response, trailers);
    }
    // Once the request has gone on, Envoy can be given an error in place of the response, and
    // nothing with a message.
    let response = match response.body().is_empty() && trailers.is_none() {
        true => response,
        false => error_of(ProblemFormat::default().tell(settled_elsewhere(), None), Bytes::new),
    };
    exchange.answer(immediate_response(response))
}

/// The problem of a call whose outcome is not the upstream's response.
fn settled_elsewhere() -> Problem {
    let detail = "The outcome of the operation was recorded elsewhere while it ran. Retry with the same key to get it.";
    Problem::new(Code::OutcomePending, detail).retry_after(1)
}

/// An answer that Envoy makes itself. To a gRPC call it makes an error without a message, with the
/// status and the details that the headers have.
fn immediate_response(response: Response<Bytes>) -> ImmediateResponse {
    ImmediateResponse {
        status: Some(HttpStatus { code: i32::from(response.status().as_u16()) }),
        headers: Some(immediate(response.headers())),
        body: response.into_body(),
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
        let mistake_in = |first: &ProcessingRequest, is_call| transfer_by(first, is_call).1;
        let gathers = first(BufferedPartial, BufferedPartial, false, false);
        assert_eq!(transfer_by(&gathers, false), (Transfer::Buffered, Option::None));
        // Calls without a key pass. One with a key is refused once its body is needed.
        assert_eq!(transfer_by(&gathers, true), (Transfer::Never, Option::None));
        let for_calls = first(None, None, false, false);
        assert_eq!(transfer_by(&for_calls, true), (Transfer::Duplex, Option::None));
        assert!(mistake_in(&for_calls, false).is_some(), "other requests on a route for calls");
        assert!(mistake_in(&first(None, None, true, false), true).is_some());
        assert!(mistake_in(&first(None, None, false, true), true).is_some());
        for bad in [
            first(BufferedPartial, BufferedPartial, true, false),
            first(BufferedPartial, BufferedPartial, false, true),
            first(None, BufferedPartial, false, false),
            first(BufferedPartial, None, false, false),
            first(Streamed, BufferedPartial, false, false),
            first(Buffered, Buffered, false, false),
            ProcessingRequest::default(),
        ] {
            assert!(mistake_in(&bad, false).is_some(), "{bad:?}");
            assert!(mistake_in(&bad, true).is_some(), "{bad:?}");
        }
    }
}
