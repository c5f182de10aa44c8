//! A server that records requests, a clock whose delays take no time, and the two clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use onetake_client::reqwest::SendWith as _;
use onetake_client::{
    CallDeadline, Clock, Error, Intent, Onetake, OnetakeBuilder, OnetakeLayer, Rng, Sleep,
    SystemClock, SystemRng,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer as _, ServiceExt as _};

/// A request that the server has received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The answer to a request: a text, or a closed connection.
pub(crate) type Reply = Option<String>;

/// Makes a response with headers, one to a line, and a body.
pub(crate) fn reply(status: u16, headers: &str, body: &str) -> Reply {
    let headers: String = headers.lines().map(|line| format!("{}\r\n", line.trim())).collect();
    let length = body.len();
    Some(format!(
        "HTTP/1.1 {status} x\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
}

/// A server on a free port.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Server {
    /// Starts a server. The function gets the number of the request, from 1.
    pub(crate) async fn start(
        answer: impl Fn(usize, &Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let (all, answer) = (Arc::clone(&received), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let Some(request) = read(&mut stream).await else { return };
                    let number = {
                        let mut all = all.lock().unwrap();
                        all.push(request.clone());
                        all.len()
                    };
                    if let Some(text) = answer(number, &request) {
                        let _closed = stream.get_mut().write_all(text.as_bytes()).await;
                        let _closed = stream.get_mut().shutdown().await;
                    }
                });
            }
        });
        Self { address, received }
    }

    /// Starts a server that answers with statuses in turn. The last one is repeated.
    pub(crate) async fn with_statuses(list: &'static [u16]) -> Self {
        Self::start(|number, _| reply(list[number.min(list.len()) - 1], "", "{}")).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Returns the values of a header, one for each request.
    pub(crate) fn headers(&self, name: &str) -> Vec<Option<String>> {
        self.received().iter().map(|one| one.header(name).map(str::to_owned)).collect()
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let mut headers = HeaderMap::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let length = headers.get("content-length").map(|text| text.to_str().unwrap().parse().unwrap());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some(Received {
        line: line.trim_end().to_owned(),
        headers,
        body: String::from_utf8(body).unwrap(),
    })
}

/// A clock whose delays take no time. Its time of day is what a function returns.
#[derive(Clone)]
pub(crate) struct FastClock {
    wall: Arc<Mutex<Box<dyn FnMut() -> SystemTime + Send>>>,
    slept: Arc<Mutex<Vec<Duration>>>,
}

impl FastClock {
    pub(crate) fn new() -> Self {
        Self::with_wall(|| SystemClock.now())
    }

    pub(crate) fn with_wall(wall: impl FnMut() -> SystemTime + Send + 'static) -> Self {
        Self { wall: Arc::new(Mutex::new(Box::new(wall))), slept: Arc::default() }
    }

    pub(crate) fn slept_ms(&self) -> Vec<u128> {
        self.slept.lock().unwrap().iter().map(Duration::as_millis).collect()
    }
}

impl Clock for FastClock {
    fn monotonic(&self) -> Duration {
        self.slept.lock().unwrap().iter().sum()
    }

    fn now(&self) -> SystemTime {
        (self.wall.lock().unwrap())()
    }

    fn sleep(&self, delay: Duration) -> Sleep {
        self.slept.lock().unwrap().push(delay);
        Box::pin(std::future::ready(()))
    }

    fn attempt_timeout(&self, time: Duration) -> Sleep {
        SystemClock.sleep(time)
    }
}

/// Half of every backoff.
pub(crate) struct Half;

impl Rng for Half {
    fn fill(&self, into: &mut [u8]) {
        SystemRng.fill(into);
    }

    fn fraction(&self) -> f64 {
        0.5
    }
}

/// Starts a client with a fast clock.
pub(crate) fn fast() -> OnetakeBuilder {
    Onetake::builder().clock(FastClock::new()).rng(Half)
}

/// The inner clients.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Library {
    Tower,
    Reqwest,
}

pub(crate) const LIBRARIES: [Library; 2] = [Library::Tower, Library::Reqwest];

impl Library {
    /// Sends a request. The body of the response is there as a whole.
    pub(crate) async fn send(
        self,
        onetake: &Onetake,
        request: Request<&'static str>,
    ) -> Result<Response<Bytes>, Error> {
        match self {
            Self::Tower => {
                let client = legacy::Client::builder(TokioExecutor::new()).build_http();
                let service = OnetakeLayer::new(onetake.clone()).layer(client);
                let request = request.map(|body| Full::new(Bytes::from_static(body.as_bytes())));
                let (parts, body) = service.oneshot(request).await?.into_parts();
                Ok(Response::from_parts(parts, body.collect().await.unwrap().to_bytes()))
            }
            Self::Reqwest => {
                let (parts, body) = request.into_parts();
                let url = parts.uri.to_string();
                let mut builder = reqwest::Client::new().request(parts.method, url).body(body);
                builder = builder.headers(parts.headers);
                if let Some(intent) = parts.extensions.get::<Intent>() {
                    builder = builder.header(onetake_client::KEY_HEADER, intent.key());
                }
                if let Some(CallDeadline(time)) = parts.extensions.get() {
                    builder = builder.timeout(*time);
                }
                let response = builder.send_with(onetake).await?;
                let (parts, body) = Response::<reqwest::Body>::from(response).into_parts();
                Ok(Response::from_parts(parts, body.collect().await.unwrap().to_bytes()))
            }
        }
    }

    /// Sends an operation.
    pub(crate) async fn post(
        self,
        onetake: &Onetake,
        server: &Server,
    ) -> Result<Response<Bytes>, Error> {
        let request = Request::post(format!("{}/charges", server.url()));
        self.send(onetake, request.body("{\"amount\":10}").unwrap()).await
    }
}
