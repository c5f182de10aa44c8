//! The programs beside the gateway: an upstream, a bare proxy, the limit for fresh keys, and the
//! common SQL pattern.
//!
//! Each has one thread per core with a runtime of its own. One thread accepts connections and hands
//! them to the cores in turn. Each core has its own pool of upstream connections.

mod fill;
mod log;
mod pool;
mod sql_pattern;
mod upstream;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc as channel;

use log::Log;
use pool::Pool;
use sql_pattern::SqlPattern;

pub(crate) use fill::fill;
pub(crate) use sql_pattern::migrate as migrate_sql_pattern;

/// The size of one durable append: about that of a record of the embedded store with a small body.
const APPEND_BYTES: usize = 300;

type Body = BoxBody<Bytes, hyper::Error>;

/// One of the programs.
#[derive(Clone)]
enum Program {
    /// Answers every POST with 58 bytes and counts them. `GET /runs` returns the count.
    Upstream(Arc<AtomicU64>),
    /// Forwards requests, and does nothing else.
    Proxy(SocketAddr),
    /// Forwards requests, with a durable append before and after each.
    Limit(SocketAddr, Log),
    /// Forwards requests, with a row inserted before and updated after each.
    SqlPattern(SocketAddr, String),
}

/// Runs a program until the process ends. Its arguments are its name, the address to listen on, a
/// folder for its files, the address of the upstream, and the URL of a database.
pub(crate) fn serve(arguments: &[&str]) -> io::Result<()> {
    let wrong = || io::Error::other(format!("there is no program {arguments:?}"));
    let [name, address, folder, rest @ ..] = arguments else { return Err(wrong()) };
    let upstream = rest.first().and_then(|address| address.parse().ok());
    let program = match (*name, upstream, rest) {
        ("upstream", _, _) => Program::Upstream(Arc::default()),
        ("proxy", Some(upstream), _) => Program::Proxy(upstream),
        ("limit", Some(upstream), _) => Program::Limit(upstream, Log::create(Path::new(*folder))?),
        ("sql-pattern", Some(upstream), [_, url]) => {
            Program::SqlPattern(upstream, (*url).to_owned())
        }
        _ => return Err(wrong()),
    };
    program.serve(address)
}

impl Program {
    fn serve(self, address: &str) -> io::Result<()> {
        let listener = TcpListener::bind(address)?;
        let cores = std::thread::available_parallelism()?.get();
        let mut queues = Vec::new();
        for _ in 0..cores {
            let (queue, connections) = channel::unbounded_channel();
            let program = self.clone();
            std::thread::spawn(move || core(&program, connections));
            queues.push(queue);
        }
        for queue in queues.iter().cycle() {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            queue.send(stream).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn upstream(&self) -> Option<SocketAddr> {
        match self {
            Self::Upstream(_) => None,
            Self::Proxy(upstream) | Self::Limit(upstream, _) | Self::SqlPattern(upstream, _) => {
                Some(*upstream)
            }
        }
    }
}

/// The state of a program on one core.
struct Core {
    program: Program,
    pool: Rc<Pool>,
    pattern: Option<SqlPattern>,
}

impl Core {
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        match &self.program {
            Program::Upstream(runs) => Ok(upstream::answer(runs, request).await),
            Program::Proxy(_) => Ok(self.pool.forward(request).await?.map(BodyExt::boxed)),
            Program::Limit(_, log) => {
                log.append(APPEND_BYTES).await;
                let (parts, body) = self.pool.whole(request).await?;
                log.append(APPEND_BYTES.max(body.len())).await;
                Ok(Response::from_parts(parts, whole(body)))
            }
            Program::SqlPattern(..) => {
                let pattern = self.pattern.as_ref();
                let pattern = pattern.ok_or_else(|| io::Error::other("not connected"))?;
                let key = request.headers().get("idempotency-key").cloned();
                let key = key.ok_or_else(|| io::Error::other("the request has no key"))?;
                let key = key.to_str().map_err(io::Error::other)?;
                pattern.insert(key).await?;
                let (parts, body) = self.pool.whole(request).await?;
                pattern.update(key, &body).await?;
                Ok(Response::from_parts(parts, whole(body)))
            }
        }
    }
}

fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed()
}

/// Serves the connections of one core.
fn core(program: &Program, connections: channel::UnboundedReceiver<std::net::TcpStream>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    let local = tokio::task::LocalSet::new();
    let served = local.block_on(&runtime, serve_core(program.clone(), connections));
    if let Err(error) = served {
        eprintln!("{error}");
    }
}

async fn serve_core(
    program: Program,
    mut connections: channel::UnboundedReceiver<std::net::TcpStream>,
) -> io::Result<()> {
    let pattern = match &program {
        Program::SqlPattern(_, url) => Some(SqlPattern::connect(url).await?),
        _ => None,
    };
    let pool = Rc::new(Pool::new(program.upstream()));
    let core = Rc::new(Core { program, pool, pattern });
    while let Some(stream) = connections.recv().await {
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let _best_effort = stream.set_nodelay(true);
        let is_upstream = matches!(core.program, Program::Upstream(_));
        let core = Rc::clone(&core);
        let service = service_fn(move |request| {
            let core = Rc::clone(&core);
            async move { core.answer(request).await }
        });
        if is_upstream {
            // HTTP/2 is for gRPC.
            tokio::task::spawn_local(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(LocalExecutor);
                builder.serve_connection(TokioIo::new(stream), service).await
            });
        } else {
            let builder = hyper::server::conn::http1::Builder::new();
            tokio::task::spawn_local(builder.serve_connection(TokioIo::new(stream), service));
        }
    }
    Ok(())
}

/// Runs the tasks of a connection on its own core.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async {
            future.await;
        });
    }
}
