//! An OpenTelemetry collector that keeps all requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use onetake_sim::servers::until;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

/// The behaviour of the collector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Takes,
    Refuses,
    /// Reads, and never responds.
    Hangs,
}

/// A collector on its own port.
pub(crate) struct Collector {
    address: SocketAddr,
    got: Arc<Got>,
}

struct Got {
    manner: Mutex<Manner>,
    bodies: Mutex<Vec<Bytes>>,
    heads: Mutex<Vec<String>>,
}

impl Collector {
    pub(crate) async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let got = Arc::new(Got {
            manner: Mutex::new(manner),
            bodies: Mutex::default(),
            heads: Mutex::default(),
        });
        let taker = Arc::clone(&got);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let taker = Arc::clone(&taker);
                let service = service_fn(move |request| take(request, Arc::clone(&taker)));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self { address, got }
    }

    /// The value of `OTEL_EXPORTER_OTLP_ENDPOINT` for this collector.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn change(&self, manner: Manner) {
        *self.got.manner.lock().unwrap() = manner;
    }

    /// Method, path and content type of each request.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.got.heads.lock().unwrap().clone()
    }

    /// All received bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.got.bodies.lock().unwrap().concat()
    }

    /// An attribute of the sender's resource.
    pub(crate) fn resource(&self, name: &str) -> String {
        let exports = self.exports();
        let resource = exports[0].resource_spans[0].resource.as_ref().unwrap();
        attribute(&resource.attributes, name)
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let of_resources = self.exports().into_iter().flat_map(|export| export.resource_spans);
        let of_scopes = of_resources.flat_map(|spans| spans.scope_spans);
        of_scopes.flat_map(|spans| spans.spans).collect()
    }

    /// The spans of a trace, once there are this many.
    pub(crate) async fn trace(&self, id: &str, count: usize) -> Vec<Span> {
        let of_trace = || -> Vec<Span> {
            self.spans().into_iter().filter(|span| hex(&span.trace_id) == id).collect()
        };
        until("the spans have arrived", async || of_trace().len() >= count).await;
        of_trace()
    }

    fn exports(&self) -> Vec<ExportTraceServiceRequest> {
        let bodies = self.got.bodies.lock().unwrap();
        let decode = |body: &Bytes| ExportTraceServiceRequest::decode(body.clone()).unwrap();
        bodies.iter().map(decode).collect()
    }
}

async fn take(
    request: Request<Incoming>,
    got: Arc<Got>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let kind = request.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let head = format!("{} {} {}", request.method(), request.uri(), kind.unwrap_or_default());
    got.heads.lock().unwrap().push(head);
    let body = request.into_body().collect().await;
    let manner = *got.manner.lock().unwrap();
    let mut response = Response::new(Full::default());
    match (manner, body) {
        (Manner::Takes, Ok(body)) => got.bodies.lock().unwrap().push(body.to_bytes()),
        (Manner::Hangs, _) => std::future::pending().await,
        _ => *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
    }
    Ok(response)
}

/// An attribute of a span as text; empty if there is none. Panics if there are two.
pub(crate) fn attribute(all: &[KeyValue], name: &str) -> String {
    let mut found = all.iter().filter(|attribute| attribute.key == name);
    let first = found.next().and_then(|attribute| attribute.value.clone());
    assert!(found.next().is_none(), "{name} is there twice");
    match first {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text,
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        None => String::new(),
        other => panic!("{name}: {other:?}"),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
