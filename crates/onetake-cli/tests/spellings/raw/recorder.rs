//! A server that records its requests, by the number in their targets.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// A request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn new(method: &str, target: &str, body: &'static str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), body: body.into() }
    }
}

type Log = Arc<Mutex<HashMap<u64, Vec<Seen>>>>;

/// A running server. Targets look like `/7/name`: 7 is the number of the conversation.
pub(crate) struct Recorder {
    address: SocketAddr,
    log: Log,
}

impl Recorder {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Log::default();
        let shared = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let log = Arc::clone(&shared);
                let service = service_fn(move |request| record(Arc::clone(&log), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, log }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Removes and returns the requests of a conversation.
    pub(crate) fn take(&self, case: u64) -> Vec<Seen> {
        self.log.lock().unwrap().remove(&case).unwrap_or_default()
    }
}

async fn record(log: Log, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    if let Ok(body) = body.collect().await {
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str()).to_owned();
        let case = target.split('/').nth(1).and_then(|case| case.parse().ok());
        let seen = Seen { method: parts.method.to_string(), target, body: body.to_bytes() };
        log.lock().unwrap().entry(case.unwrap_or(u64::MAX)).or_default().push(seen);
    }
    Ok(Response::new(Full::from("ok")))
}
