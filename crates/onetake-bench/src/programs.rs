//! The programs beside the gateway: an upstream, a bare proxy, and the limit for fresh keys.
//!
//! Each has one thread per core with a runtime of its own. One thread accepts connections and hands
//! them to the cores in turn. Each core has its own pool of upstream connections.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{mpsc as channel, oneshot};

/// The size of one durable append: about that of a record of the embedded store.
const APPEND_BYTES: usize = 300;
/// The size of the log, allocated ahead like the embedded store's journal.
const LOG_BYTES: u64 = 2 << 30;

type Body = BoxBody<Bytes, hyper::Error>;

/// One of the programs.
#[derive(Clone)]
pub(crate) enum Program {
    /// Answers every POST with 58 bytes and counts them. `GET /runs` returns the count.
    Upstream(Arc<AtomicU64>),
    /// Forwards requests, and does nothing else.
    Proxy(SocketAddr),
    /// Forwards requests, with a durable append before and after each.
    Limit(SocketAddr, Log),
}

impl Program {
    /// Serves on a free port until the process ends. Prints the address first.
    pub(crate) fn serve(self) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?);
        let cores = std::thread::available_parallelism()?.get();
        let mut queues = Vec::new();
        for _ in 0..cores {
            let (queue, connections) = channel::unbounded_channel();
            let program = self.clone();
            std::thread::spawn(move || core(program, connections));
            queues.push(queue);
        }
        for queue in queues.iter().cycle() {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            queue.send(stream).map_err(io::Error::other)?;
        }
        Ok(())
    }

    async fn answer(
        &self,
        pool: &Rc<Pool>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, hyper::Error> {
        match self {
            Self::Upstream(runs) => Ok(answer_as_upstream(runs, request).await),
            Self::Proxy(_) => Ok(pool.forward(request).await?.map(BodyExt::boxed)),
            Self::Limit(_, log) => {
                log.append().await;
                let (parts, body) = pool.forward(request).await?.into_parts();
                let body = body.collect().await?.to_bytes();
                log.append().await;
                Ok(Response::from_parts(parts, whole(body)))
            }
        }
    }
}

fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed()
}

async fn answer_as_upstream(runs: &AtomicU64, request: Request<Incoming>) -> Response<Body> {
    if request.uri().path() == "/runs" {
        return Response::new(whole(runs.load(Ordering::Relaxed).to_string()));
    }
    let _read = request.into_body().collect().await;
    let run = runs.fetch_add(1, Ordering::Relaxed);
    let mut response = Response::new(whole(format!(
        "{{\"id\":\"ch_{run:016}\",\"amount\":100,\"currency\":\"eur\"}}"
    )));
    *response.status_mut() = StatusCode::CREATED;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

/// Serves the connections of one core.
fn core(program: Program, mut connections: channel::UnboundedReceiver<std::net::TcpStream>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    let upstream = match program {
        Program::Upstream(_) => None,
        Program::Proxy(upstream) | Program::Limit(upstream, _) => Some(upstream),
    };
    let pool = Rc::new(Pool { upstream, idle: RefCell::default() });
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        while let Some(stream) = connections.recv().await {
            let Ok(stream) = TcpStream::from_std(stream) else { continue };
            let _best_effort = stream.set_nodelay(true);
            let (program, pool) = (program.clone(), Rc::clone(&pool));
            let service = service_fn(move |request| {
                let (program, pool) = (program.clone(), Rc::clone(&pool));
                async move { program.answer(&pool, request).await }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::task::spawn_local(serving);
        }
    });
}

/// The upstream connections of one core. The one that was used last is used next.
struct Pool {
    upstream: Option<SocketAddr>,
    idle: RefCell<Vec<SendRequest<Incoming>>>,
}

impl Pool {
    async fn forward(
        self: &Rc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let idle = self.idle.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) if connection.is_ready() => connection,
            _ => self.connect().await?,
        };
        let response = connection.send_request(request).await?;
        let pool = Rc::clone(self);
        if connection.is_ready() {
            pool.idle.borrow_mut().push(connection);
        } else {
            tokio::task::spawn_local(async move {
                if connection.ready().await.is_ok() {
                    pool.idle.borrow_mut().push(connection);
                }
            });
        }
        Ok(response)
    }

    async fn connect(&self) -> Result<SendRequest<Incoming>, hyper::Error> {
        loop {
            let Some(upstream) = self.upstream else { return std::future::pending().await };
            let Ok(stream) = TcpStream::connect(upstream).await else { continue };
            let _best_effort = stream.set_nodelay(true);
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::task::spawn_local(connection);
            return Ok(sender);
        }
    }
}

/// A log with group commit: one thread does one write and one `fdatasync` for all appends that
/// arrived during the last ones.
#[derive(Clone)]
pub(crate) struct Log(mpsc::Sender<oneshot::Sender<()>>);

impl Log {
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        let mut file = File::create(folder.join("limit.log"))?;
        file.set_len(LOG_BYTES)?;
        file.sync_all()?;
        let (appends, queue) = mpsc::channel::<oneshot::Sender<()>>();
        std::thread::spawn(move || {
            while let Ok(first) = queue.recv() {
                let group: Vec<_> = std::iter::once(first).chain(queue.try_iter()).collect();
                let bytes = vec![1; group.len() * APPEND_BYTES];
                if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
                    return;
                }
                for done in group {
                    let _gone = done.send(());
                }
            }
        });
        Ok(Self(appends))
    }

    async fn append(&self) {
        let (done, is_done) = oneshot::channel();
        let _ended = self.0.send(done);
        let _ended = is_done.await;
    }
}
