//! A gRPC service that acts as the name of its method says, and counts its runs.
//!
//! | method | behaviour |
//! | --- | --- |
//! | `Charge` | one message, the number of the run and the request's message |
//! | `Status` | the code `x-status`, without a message |
//! | `LateStatus` | a message, and then the code `x-status` |
//! | `NoStatus` | a message, and the end of the stream without a status |
//! | `Break` | a message, and then the stream is reset |
//! | `Hold` | as `Charge`, after the case was opened |
//! | `Source` | `x-count` messages of `x-size` bytes |
//! | `Sink` | reads all messages, and returns their number |
//! | `Echo` | returns each message as it arrives |
//! | `Hang` | no response; counts calls that were cancelled |

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use onetake_http::BoxError;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{framed, messages};

/// The body of a response.
pub type ReplyBody = UnsyncBoxBody<Bytes, io::Error>;

/// The body of a request.
type AnyRequest = UnsyncBoxBody<Bytes, BoxError>;

/// A running service. It ends when its last clone is dropped.
#[derive(Clone, Debug)]
pub struct GrpcService {
    address: SocketAddr,
    state: Arc<ServiceState>,
    _stop: Arc<watch::Sender<()>>,
}

#[derive(Debug, Default)]
struct ServiceState {
    runs: Mutex<HashMap<String, usize>>,
    headers: Mutex<HashMap<String, HeaderMap>>,
    open: watch::Sender<HashSet<String>>,
    cancelled: AtomicUsize,
    produced: AtomicUsize,
    connections: AtomicUsize,
    streams_max: Option<u32>,
}

impl GrpcService {
    /// Starts a service on a free port.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start() -> io::Result<Self> {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts a service on an address.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start_on(address: SocketAddr) -> io::Result<Self> {
        Self::start_as(address, None).await
    }

    /// Starts a service on a free port that allows this number of calls at once on a connection.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start_with_streams_max(streams_max: u32) -> io::Result<Self> {
        Self::start_as(SocketAddr::from(([127, 0, 0, 1], 0)), Some(streams_max)).await
    }

    async fn start_as(address: SocketAddr, streams_max: Option<u32>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(());
        let state = Arc::new(ServiceState { streams_max, ..ServiceState::default() });
        tokio::spawn(accept(listener, Arc::clone(&state), stopped));
        Ok(Self { address, state, _stop: Arc::new(stop) })
    }

    /// Creates a service without a listener: calls come through [`answer`](Self::answer).
    #[must_use]
    pub fn without_listener() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { address, state: Arc::default(), _stop: Arc::new(watch::channel(()).0) }
    }

    /// Answers a call that came through another server.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<ReplyBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Arc::clone(&self.state).serve(request).await
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its address as `h2c://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    /// Returns how often a call ran, by its `x-case`.
    #[must_use]
    pub fn runs(&self, case: &str) -> usize {
        lock(&self.state.runs).get(case).copied().unwrap_or_default()
    }

    /// Returns the number of runs of all calls.
    #[must_use]
    pub fn runs_in_all(&self) -> usize {
        lock(&self.state.runs).values().sum()
    }

    /// Returns the headers of the last run of a case.
    #[must_use]
    pub fn headers(&self, case: &str) -> HeaderMap {
        lock(&self.state.headers).get(case).cloned().unwrap_or_default()
    }

    /// Lets the calls of a case end.
    pub fn open(&self, case: &str) {
        self.state.open.send_modify(|open| {
            open.insert(case.to_owned());
        });
    }

    /// Returns the number of `Hang` calls that were cancelled.
    #[must_use]
    pub fn cancelled(&self) -> usize {
        self.state.cancelled.load(Ordering::Acquire)
    }

    /// Returns the number of messages that `Source` has given to its connection.
    #[must_use]
    pub fn produced(&self) -> usize {
        self.state.produced.load(Ordering::Acquire)
    }

    /// Returns the number of connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Acquire)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: Arc<ServiceState>, mut stopped: watch::Receiver<()>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
        };
        let Ok((stream, _)) = accepted else { return };
        let _best_effort = stream.set_nodelay(true);
        state.connections.fetch_add(1, Ordering::AcqRel);
        let (state, mut stopped) = (Arc::clone(&state), stopped.clone());
        tokio::spawn(async move {
            let streams_max = state.streams_max;
            let service = service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(state.serve(request).await) }
            });
            let mut builder = http2::Builder::new(TokioExecutor::new());
            if let Some(streams_max) = streams_max {
                builder.max_concurrent_streams(streams_max);
            }
            let serving = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ended = serving => {}
                _ = stopped.changed() => {}
            }
        });
    }
}

/// Counts a call that is dropped before its end.
struct Cancelled(Arc<ServiceState>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.cancelled.fetch_add(1, Ordering::AcqRel);
    }
}

impl ServiceState {
    async fn serve<B>(self: Arc<Self>, request: Request<B>) -> Response<ReplyBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let body: AnyRequest = body.map_err(Into::into).boxed_unsync();
        let text = |name: &str| {
            let value = parts.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let number = |name: &str| text(name).parse::<usize>().unwrap_or_default();
        let case = text("x-case");
        let run = {
            let mut runs = lock(&self.runs);
            let run = runs.entry(case.clone()).or_default();
            *run += 1;
            *run
        };
        lock(&self.headers).insert(case.clone(), parts.headers.clone());
        let method = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        match method.as_str() {
            "Echo" => return reply(echo(body, Arc::clone(&self))),
            "Source" => {
                let (count, size) = (number("x-count"), number("x-size"));
                return reply(source(count, size, Arc::clone(&self)));
            }
            "Hang" => {
                let _guard = Cancelled(Arc::clone(&self));
                let _kept = body;
                return std::future::pending().await;
            }
            _ => {}
        }
        let Ok(sent) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
            return reply(whole(Bytes::new(), Some("1")));
        };
        if method == "Hold" {
            let mut open = self.open.subscribe();
            let _open = open.wait_for(|open| open.contains(&case)).await;
        }
        let sent = messages(&sent);
        let first = sent.first().cloned().unwrap_or_default();
        let mut message = format!("{run}:").into_bytes();
        message.extend_from_slice(&first);
        let message = framed(&message);
        match method.as_str() {
            "Sink" => reply(whole(framed(sent.len().to_string().as_bytes()), Some("0"))),
            "Status" => {
                let mut response =
                    reply(Full::default().map_err(|never| match never {}).boxed_unsync());
                for (name, value) in trailers(&text("x-status")) {
                    name.map(|name| response.headers_mut().insert(name, value));
                }
                response
            }
            "LateStatus" => reply(whole(message, Some(&text("x-status")))),
            "NoStatus" => reply(whole(message, None)),
            "Break" => {
                let frames = [Ok(Frame::data(message)), Err(io::Error::other("broken off"))];
                reply(BodyExt::boxed_unsync(StreamBody::new(stream::iter(frames))))
            }
            _ => reply(whole(message, Some("0"))),
        }
    }
}

fn reply(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("x-served-by", HeaderValue::from_static("the service"));
    response
}

fn trailers(status: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if let Ok(status) = HeaderValue::from_str(status) {
        trailers.insert("grpc-status", status);
    }
    trailers.insert("grpc-message", HeaderValue::from_static("as asked"));
    trailers.insert("grpc-status-details-bin", HeaderValue::from_static("CAUSBGFzaw"));
    trailers.insert("x-cost", HeaderValue::from_static("7"));
    trailers
}

fn whole(message: Bytes, status: Option<&str>) -> ReplyBody {
    let mut frames = Vec::new();
    if !message.is_empty() {
        frames.push(Ok(Frame::data(message)));
    }
    frames.extend(status.map(|status| Ok(Frame::trailers(trailers(status)))));
    BodyExt::boxed_unsync(StreamBody::new(stream::iter(frames)))
}

/// A conversation. It counts as cancelled if it is dropped before the request has ended.
struct Conversation {
    body: AnyRequest,
    state: Arc<ServiceState>,
    has_ended: bool,
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if !self.has_ended {
            self.state.cancelled.fetch_add(1, Ordering::AcqRel);
        }
    }
}

fn echo(body: AnyRequest, state: Arc<ServiceState>) -> ReplyBody {
    let conversation = Conversation { body, state, has_ended: false };
    let frames = stream::unfold(Some(conversation), |open| async {
        let mut open = open?;
        match open.body.frame().await {
            Some(Ok(frame)) if frame.is_data() => Some((Ok(frame), Some(open))),
            Some(Err(error)) => Some((Err(io::Error::other(error)), None)),
            _ended => {
                open.has_ended = true;
                Some((Ok(Frame::trailers(trailers("0"))), None))
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn source(count: usize, size: usize, state: Arc<ServiceState>) -> ReplyBody {
    let message = framed(&vec![7; size]);
    let frames = stream::unfold(0, move |sent| {
        let (message, state) = (message.clone(), Arc::clone(&state));
        async move {
            match sent.cmp(&count) {
                std::cmp::Ordering::Less => {
                    state.produced.fetch_add(1, Ordering::AcqRel);
                    Some((Ok(Frame::data(message)), sent + 1))
                }
                std::cmp::Ordering::Equal => Some((Ok(Frame::trailers(trailers("0"))), sent + 1)),
                std::cmp::Ordering::Greater => None,
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}
