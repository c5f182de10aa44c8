//! An upstream that acts as its path says, and counts its actions.
//!
//! The last segment of a path is the behaviour: `/any/route/slow?ms=600` takes 600 ms. The segments
//! before it are for the gateway's routes. With `gate`, the first operation of a case runs until
//! its test opens the gate. A second operation, which should not exist, is not held up, so that a
//! test notices it soon.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use onetake_core::{Clock, SystemClock};

type Body = BoxBody<Bytes, io::Error>;

/// The maximum time to wait for an operation.
const RUNS_WITHIN: Duration = Duration::from_secs(60);

/// A running upstream. It ends when its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Upstream {
    address: SocketAddr,
    state: Arc<UpstreamState>,
    _stop: Arc<watch::Sender<()>>,
}

#[derive(Debug)]
struct UpstreamState {
    runs: Mutex<HashMap<String, usize>>,
    /// The cases whose gate is open.
    open: watch::Sender<HashSet<String>>,
    idle: Option<Duration>,
}

impl Upstream {
    /// Starts an upstream on a free port.
    ///
    /// # Errors
    /// If there is no free port.
    pub async fn start() -> io::Result<Self> {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), None).await
    }

    /// Starts an upstream that closes connections that were idle for `idle`.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start_on(address: SocketAddr, idle: Option<Duration>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(());
        let open = watch::Sender::default();
        let state = Arc::new(UpstreamState { runs: Mutex::default(), open, idle });
        tokio::spawn(accept(listener, Arc::clone(&state), stopped));
        Ok(Self { address, state, _stop: Arc::new(stop) })
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its address as `http://…`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns how often an operation ran, by the value of its `X-Case` header.
    #[must_use]
    pub fn runs(&self, case: &str) -> usize {
        let runs = self.state.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.get(case).copied().unwrap_or_default()
    }

    /// Returns the number of runs of all operations.
    #[must_use]
    pub fn runs_in_all(&self) -> usize {
        self.state.runs.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    /// Waits until an operation ran `count` times. Panics if that takes longer than a minute.
    pub async fn ran(&self, case: &str, count: usize) {
        let abort = SystemClock.monotonic() + RUNS_WITHIN;
        while self.runs(case) < count {
            assert!(SystemClock.monotonic() < abort, "`{case}` does not run");
            SystemClock.sleep(Duration::from_millis(2)).await;
        }
    }

    /// Lets the first operation of a case through its `gate`, even if it has not arrived yet.
    pub fn open(&self, case: &str) {
        self.state.open.send_modify(|open| {
            open.insert(case.to_owned());
        });
    }
}

async fn accept(
    listener: TcpListener,
    state: Arc<UpstreamState>,
    mut stopped: watch::Receiver<()>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
        };
        if let Ok((stream, _)) = accepted {
            let (state, mut stopped) = (Arc::clone(&state), stopped.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = serve(stream, state) => {}
                    _ = stopped.changed() => {}
                }
            });
        }
    }
}

async fn serve(stream: TcpStream, state: Arc<UpstreamState>) {
    let _best_effort = stream.set_nodelay(true);
    let idle = state.idle;
    let service = service_fn(move |request| act(request, Arc::clone(&state)));
    let mut builder = hyper::server::conn::http1::Builder::new();
    if let Some(idle) = idle {
        builder.timer(TokioTimer::new()).header_read_timeout(idle);
    }
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let _ended = connection.await;
}

/// The error that closes a connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
struct Closed;

async fn act(
    request: Request<Incoming>,
    state: Arc<UpstreamState>,
) -> Result<Response<Body>, Closed> {
    let path = request.uri().path().to_owned();
    let word = path.rsplit('/').next().unwrap_or_default().to_owned();
    let number = |name: &str| number(request.uri().query(), name);
    let (ms, bytes) = (number("ms"), number("bytes"));
    let case = header(&request, "x-case");
    let run = {
        let mut runs = state.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let run = runs.entry(case.clone()).or_default();
        *run += 1;
        *run
    };
    if word == "ws" {
        return Ok(upgrade(request));
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
    match word.as_str() {
        "slow" => SystemClock.sleep(Duration::from_millis(ms as u64)).await,
        "gate" if run == 1 => {
            let mut open = state.open.subscribe();
            let _open = open.wait_for(|open| open.contains(&case)).await;
        }
        "close" => return Err(Closed),
        _ => {}
    }
    Ok(match word.as_str() {
        "large" => answer(StatusCode::OK, noise(bytes)),
        "broken" => broken(),
        "events" => {
            let mut response = answer(StatusCode::OK, "data: 1\n\n");
            let events = HeaderValue::from_static("text/event-stream");
            response.headers_mut().insert("content-type", events);
            response
        }
        "head" => answer(StatusCode::OK, format!("{:#?}", parts.headers)),
        "derived" => {
            let derived = parts.headers.get("idempotency-derived-key");
            answer(
                StatusCode::SERVICE_UNAVAILABLE,
                derived.map_or("", |v| v.to_str().unwrap_or("")).to_owned(),
            )
        }
        code if code.len() == 3 && code.parse::<u16>().is_ok() => {
            let status = code.parse().ok().and_then(|code| StatusCode::from_u16(code).ok());
            answer(status.unwrap_or_default(), body)
        }
        _ => charged(&body, &parts),
    })
}

/// Returns the response of a successful operation, with headers that should and should not be
/// replayed.
fn charged(body: &Bytes, parts: &http::request::Parts) -> Response<Body> {
    let fence = parts.headers.get("idempotency-fence").and_then(|v| v.to_str().ok()).unwrap_or("-");
    let text = [b"charged ", &body[..], b" fence ", fence.as_bytes()].concat();
    let mut response = answer(StatusCode::CREATED, text);
    let headers = response.headers_mut();
    headers.append("link", HeaderValue::from_static("<a>"));
    headers.append("link", HeaderValue::from_static("<b>"));
    headers.append("set-cookie", HeaderValue::from_static("session=secret"));
    headers.append("location", HeaderValue::from_static("/charges/1"));
    headers.append("connection", HeaderValue::from_static("x-hop"));
    headers.append("x-hop", HeaderValue::from_static("1"));
    response
}

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never: Infallible| match never {});
    let mut response = Response::new(BoxBody::new(body));
    *response.status_mut() = status;
    response
}

/// Returns bytes that are always the same and cannot be compressed.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(count).collect()
}

/// Returns a response that announces a hundred bytes, and breaks off after four.
fn broken() -> Response<Body> {
    let frames = [
        Ok(Frame::data(Bytes::from_static(b"four"))),
        Err(io::Error::other("broke off on purpose")),
    ];
    let mut response =
        Response::new(BoxBody::new(StreamBody::new(futures_util::stream::iter(frames))));
    response.headers_mut().insert("content-length", HeaderValue::from_static("100"));
    response
}

/// Switches to a protocol that echoes.
fn upgrade(mut request: Request<Incoming>) -> Response<Body> {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let mut io = TokioIo::new(upgraded);
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = io.read(&mut buffer).await {
            let Some(read) = buffer.get(..count) else {
                return;
            };
            if io.write_all(read).await.is_err() {
                return;
            }
        }
    });
    let mut response = answer(StatusCode::SWITCHING_PROTOCOLS, "");
    response.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
    response.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
    response
}

fn header(request: &Request<Incoming>, name: &str) -> String {
    let value = request.headers().get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

fn number(query: Option<&str>, name: &str) -> usize {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}
