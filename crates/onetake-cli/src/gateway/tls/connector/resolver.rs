//! Resolution of host names.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

/// The addresses of a name, in the order in which they are tried. The connector sets the port if the
/// URL names one, or if it is zero.
type Addresses = BoxFuture<'static, io::Result<vec::IntoIter<SocketAddr>>>;

/// The source of the addresses of names.
#[derive(Clone)]
pub(crate) struct Resolver(Arc<dyn Fn(Name) -> Addresses + Send + Sync>);

impl Resolver {
    /// Names are resolved by this function, each time that a connection is opened.
    pub(crate) fn new(resolve: impl Fn(Name) -> Addresses + Send + Sync + 'static) -> Self {
        Self(Arc::new(resolve))
    }

    /// Names are resolved by the operating system.
    pub(super) fn system() -> Self {
        Self::new(|name| {
            let resolving = GaiResolver::new().call(name);
            Box::pin(async move { Ok(resolving.await?.collect::<Vec<_>>().into_iter()) })
        })
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Addresses;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        (self.0)(name)
    }
}
