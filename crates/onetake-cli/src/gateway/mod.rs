//! The HTTP gateway.
//!
//! ```text
//! connection (belongs to one core)
//!            → edge (refuse what could smuggle, forwarding headers, plan)
//!            → onetake layer (key, claim, replay)
//!            → proxy (pooled connections to the upstream)
//! ```

mod activity;
mod admin;
mod client_body;
mod client_connection;
mod client_http;
mod client_ip;
mod client_stream;
mod client_upgrade;
mod cores;
mod cors;
mod descriptors;
mod early_hints;
mod edge;
mod eviction;
#[cfg(feature = "ext-proc")]
mod ext_proc;
mod forward_auth;
mod forwarding;
mod gauges;
mod head_scanner;
mod in_flight;
mod jwks;
mod method_override;
mod peer_stream;
mod phase;
mod plan;
mod proxy;
mod readiness;
mod reconcile;
mod request_heads;
mod response_memory;
mod secrets;
mod server;
mod start;
mod tenants;
mod tidy;
mod timeouts;
mod tls;
mod trailer_names;
mod upstream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::request::Parts;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

use onetake_core::{Clock, Engine, Store, StoreError, SystemClock};
use onetake_http::{Policy, PolicyError, Resolve, Tenant};

use crate::config::{Config, Token};
use crate::stores::StoreFailed;
use cores::Cores;
pub use descriptors::raise_limit;
use edge::Routed;
use plan::Plans;
use server::Server;
use start::{Front, listen, local};
pub(crate) use tls::Connector;
pub use tls::TlsFailed;

/// The error of a gateway that could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreFailed),
    /// A certificate, key or root is missing or invalid.
    #[error(transparent)]
    Tls(#[from] TlsFailed),
    /// The layer cannot be built.
    #[error(transparent)]
    Layer(#[from] PolicyError),
    /// The threads that serve requests could not be started.
    #[error("cannot start the threads that serve requests: {0}")]
    Threads(#[source] io::Error),
    /// A port could not be listened on.
    #[error(
        "cannot listen on {address} ({field}); stop the process that listens there, or choose another address with {flag}"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The configuration field that names it.
        field: &'static str,
        /// The flag that overrides the field.
        flag: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Checks the files of `tls` and `upstream_tls`. [`Gateway::start`] refuses to start with these
/// errors.
#[must_use]
pub fn check_files(config: &Config) -> Vec<TlsFailed> {
    tls::check(config, &SystemClock)
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    admin_address: SocketAddr,
    engine: Engine,
    server: Server,
    /// Dropped last: operations run on the cores until the engine has shut down.
    cores: Arc<Cores>,
    draining: CancellationToken,
    stop_admin: CancellationToken,
}

impl Gateway {
    /// Opens the store and the listeners, and serves from then on.
    ///
    /// # Errors
    /// If the store or a listener cannot be opened.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, |store| store).await
    }

    /// Starts it on a decorator of the store that the configuration names.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(
        config: Config,
        decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
    ) -> Result<Self, StartError> {
        Self::start_as(Front::Proxy, config, decorate).await
    }

    /// Starts it as an external processor of Envoy, on a decorator of the store. Envoy takes the
    /// place of the proxy.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[cfg(feature = "ext-proc")]
    pub async fn start_ext_proc(
        config: Config,
        decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
    ) -> Result<Self, StartError> {
        Self::start_as(Front::Envoy, config, decorate).await
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin API, probes and metrics.
    #[must_use]
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Resolves when the store must not be used any more. Then the process should end.
    pub async fn fatal(&self) -> StoreError {
        self.engine.fatal().await
    }

    /// Writes unsaved outcomes to the journal for the next start, without using the failed store
    /// again.
    pub async fn abort(self) {
        self.draining.cancel();
        self.engine.abort().await;
    }

    /// Announces the end, and goes on serving: `/readyz` answers 503, so that load balancers stop
    /// sending traffic, HTTP/1.1 responses say `Connection: close`, and HTTP/2 connections send
    /// GOAWAY with their next response. Call [`shutdown`](Self::shutdown) some seconds later.
    pub fn leave(&self) {
        self.draining.cancel();
        self.server.leave();
    }

    /// Stops listening, lets connections and operations finish for at most `patience`, and closes
    /// the store. Returns true if everything finished in time.
    ///
    /// # Errors
    /// If the store could not be closed.
    pub async fn shutdown(self, patience: Duration) -> Result<bool, StoreError> {
        self.leave();
        let began = self.engine.clock().monotonic();
        let quiet = self.server.shutdown(patience).await;
        let left = patience.saturating_sub(self.engine.clock().monotonic() - began);
        let drained = self.engine.shutdown(left).await;
        self.stop_admin.cancel();
        end(self.cores).await;
        Ok(quiet && drained?)
    }
}

/// Ends the threads of the cores, without blocking this one.
async fn end(cores: Arc<Cores>) {
    let _ended = tokio::task::spawn_blocking(move || drop(cores)).await;
}

/// Policies of requests: the edge has found the plan.
struct Policies(Arc<Plans>);

impl Resolve for Policies {
    fn resolve(&self, parts: &Parts) -> Option<Arc<Policy>> {
        parts.extensions.get::<Routed>()?.plan.policy.clone()
    }

    fn resolve_for(&self, method: &Method, path: &str, _: &Parts) -> Option<Arc<Policy>> {
        self.0.find(method, path).policy.clone()
    }

    fn handle_tenants(&self) -> Vec<Tenant> {
        self.0.handle_tenants()
    }
}

/// Serves only the metrics of this process until it is stopped. Requests need the token, if there
/// is one.
pub(crate) async fn serve_metrics(
    listen_on: SocketAddr,
    token: Option<Token>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> Result<SocketAddr, StartError> {
    let listener = listen(listen_on, "relay.listen", "ONETAKE__RELAY__LISTEN").await?;
    let address = local(&listener, listen_on);
    tokio::spawn(admin::serve_metrics(listener, metrics_handle(), token, clock, stop));
    Ok(address)
}

/// The metrics recorder of this process; there is only one.
fn metrics_handle() -> Option<PrometheusHandle> {
    static HANDLE: std::sync::OnceLock<Option<PrometheusHandle>> = std::sync::OnceLock::new();
    HANDLE.get_or_init(admin::install_recorder).clone()
}
