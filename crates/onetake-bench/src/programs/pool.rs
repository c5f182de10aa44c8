//! The upstream connections of one core.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The connection that was used last is used next.
pub(super) struct Pool {
    upstream: Option<SocketAddr>,
    idle: RefCell<Vec<SendRequest<Incoming>>>,
}

impl Pool {
    pub(super) fn new(upstream: Option<SocketAddr>) -> Self {
        Self { upstream, idle: RefCell::default() }
    }

    /// Forwards a request, and reads the whole response.
    pub(super) async fn whole(
        self: &Rc<Self>,
        request: Request<Incoming>,
    ) -> io::Result<(Parts, Bytes)> {
        let (parts, body) = self.forward(request).await?.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?;
        Ok((parts, body.to_bytes()))
    }

    pub(super) async fn forward(
        self: &Rc<Self>,
        request: Request<Incoming>,
    ) -> io::Result<Response<Incoming>> {
        let idle = self.idle.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) if connection.is_ready() => connection,
            _ => self.connect().await?,
        };
        let response = connection.send_request(request).await.map_err(io::Error::other)?;
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

    async fn connect(&self) -> io::Result<SendRequest<Incoming>> {
        let upstream = self.upstream.ok_or_else(|| io::Error::other("there is no upstream"))?;
        let stream = TcpStream::connect(upstream).await?;
        let _best_effort = stream.set_nodelay(true);
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::task::spawn_local(connection);
        Ok(sender)
    }
}
