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
mod tenants;
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
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use onetake_core::engine::Housekeeping;
use onetake_core::{Clock, Engine, ReconcileOptions, Store, StoreError, SystemClock};
use onetake_http::{HttpLimits, OnetakeLayer, Policy, PolicyError, Resolve, Tenant};

use crate::config::{Config, Token};
use crate::stores::{self, OpenStore, StoreFailed};
use cores::Cores;
use descriptors::Descriptors;
pub use descriptors::raise_limit;
use edge::{Edge, Routed};
use gauges::Gauges;
use in_flight::Gates;
use plan::Plans;
use proxy::Proxy;
use readiness::Readiness;
use reconcile::Reconciler;
use response_memory::ResponseMemory;
use server::{Server, ServerLimits};
use tls::Acceptor;
pub(crate) use tls::Connector;
pub use tls::TlsFailed;
use upstream::{Census, UpstreamSettings};

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

    async fn start_as(
        front: Front,
        config: Config,
        decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
    ) -> Result<Self, StartError> {
        let metrics = metrics_handle();
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let tls = match front {
            Front::Proxy => config.gateway.tls.clone(),
            #[cfg(feature = "ext-proc")]
            Front::Envoy => config.ext_proc.tls.clone(),
        };
        let tls = tls.map(|identity| Acceptor::new(identity, Arc::clone(&clock))).transpose()?;
        let connector = Connector::new(config.upstream_tls().cloned(), Arc::clone(&clock))?;
        let admin = listen(config.admin.listen, "admin.listen", "--admin-listen").await?;
        let admin_address = local(&admin, config.admin.listen);
        let (asked, field, flag) = match front {
            Front::Proxy => (config.gateway.listen, "gateway.listen", "--listen"),
            #[cfg(feature = "ext-proc")]
            Front::Envoy => {
                (config.ext_proc.listen, "ext_proc.listen", "ONETAKE__EXT_PROC__LISTEN")
            }
        };
        if front != Front::Proxy && !asked.ip().to_canonical().is_loopback() {
            tracing::warn!(
                "{field} is not a loopback address: every program that can connect to {asked} can \
                 act as Envoy, and name any tenant"
            );
        }
        let listener = listen(asked, field, flag).await?;
        let address = local(&listener, asked);
        let OpenStore { store, interrupted, mut limits, reap_interval, journal } =
            stores::open(&config.store).await?;
        limits.running_max = config.limits.max_operations;
        let store = decorate(store);

        let secrets = secrets::secrets(&config, &*store).await;
        let (secrets, tenants) =
            secrets.map_err(stores::failed("read secrets of", &config.store.url))?;
        let shared_velocity = stores::open_velocity(&config).await?;
        let mut engine =
            Engine::builder(store).clock(clock).limits(limits).housekeeping(Housekeeping {
                reap_interval,
                sweep_interval: config.sweep.interval,
                sweep_batch: config.sweep.batch,
                ..Housekeeping::default()
            });
        engine = engine.run_in_callers_task();
        if let Some(journal) = journal {
            engine = engine.journal(journal);
        }
        let engine = engine.build();
        engine.count_unknown(interrupted);
        let draining = CancellationToken::new();
        let stop_admin = CancellationToken::new();
        let key_sets = jwks::distinct(config.settings().map(|settings| &settings.policy.tenant));
        for set in key_sets.clone() {
            let (connector, clock) = (connector.clone(), Arc::clone(engine.clock()));
            tokio::spawn(jwks::keep(set, connector, clock, stop_admin.clone()));
        }
        let readiness = Readiness::new(engine.clone(), key_sets);
        let gauges = Arc::<Gauges>::default();
        let status = admin::Status {
            readiness,
            metrics,
            gauges: Arc::clone(&gauges),
            draining: draining.clone(),
        };
        let api = admin::Api::new(engine.clone(), tenants);
        let token = config.admin.token.clone();
        tokio::spawn(admin::serve(admin, (status, api, token), stop_admin.clone()));

        if let Some(reconciler) = Reconciler::new(&config, &connector, Arc::clone(engine.clock())) {
            engine.reconcile_with(Arc::new(reconciler), ReconcileOptions::default());
        }
        let plans = Arc::new(Plans::new(&config, &connector));
        let policies = Policies(Arc::clone(&plans));
        let limits =
            HttpLimits::default().duplicate_payloads_max(config.gateway.duplicate_payloads_max);
        let mut layer = OnetakeLayer::builder(engine.clone()).resolve(policies).secrets(secrets);
        layer = layer.limits(
            limits
                .body_bytes_max(config.limits.max_body_memory)
                .body_rate_min(config.limits.min_body_rate),
        );
        if let Some(place) = shared_velocity {
            layer = layer.shared_velocity(place);
        }
        let layer = layer.around_whole_app().build()?;
        let cores = Arc::new(Cores::start(stores::cores()).map_err(StartError::Threads)?);
        let (clock, keep_alive) = (Arc::clone(engine.clock()), config.gateway.keep_alive);
        let descriptors = Descriptors::of(&config, cores.count());
        let gates = descriptors.gates(&config.limits);
        let gates = Gates::new(gates, plans.upstreams, Arc::clone(&clock));
        let limits = ServerLimits {
            places: Arc::new(Semaphore::new(descriptors.connections_max)),
            configured: Arc::new(config.limits.clone()),
            gates,
            keep_alive,
        };
        let responses = ResponseMemory::new(config.limits.max_response_memory);
        let census = Census::new();
        let memory = (layer.clone(), Arc::clone(&responses));
        let streams_max = match front {
            Front::Proxy => config.limits.max_streams,
            #[cfg(feature = "ext-proc")]
            Front::Envoy => ext_proc::STREAMS_MAX,
        };
        gauges::tell_limits(&config, descriptors, streams_max);
        gauges.watch(&limits, descriptors, memory, Arc::clone(&census));
        let upstream_settings = UpstreamSettings {
            idle_max: descriptors.idle_per_core_max,
            keep_alive: config.gateway.upstream_keep_alive,
            ping_interval: config.gateway.upstream_ping_interval,
        };
        let server = match front {
            Front::Proxy => {
                let edge = |_| {
                    let proxy = Proxy::new(connector.clone(), upstream_settings, &census);
                    let inner = layer.layer(proxy);
                    let (plans, responses) = (Arc::clone(&plans), Arc::clone(&responses));
                    Arc::new(Edge::new(inner, plans, responses, Arc::clone(&clock)))
                };
                let edges = (0..cores.count()).map(edge).collect();
                let cores_and_edges = (Arc::clone(&cores), edges);
                Server::start(listener, tls, cores_and_edges, limits, Arc::clone(&clock))
            }
            #[cfg(feature = "ext-proc")]
            Front::Envoy => {
                let edge = |_| {
                    let proxy = Proxy::new(connector.clone(), upstream_settings, &census);
                    let (config, gates) = (&config.ext_proc, &limits.gates);
                    let edge =
                        ext_proc::EnvoyEdge::new(&layer, &plans, &clock, config, gates, proxy);
                    Arc::new(edge)
                };
                let edges = (0..cores.count()).map(edge).collect();
                let cores_and_edges = (Arc::clone(&cores), edges);
                Server::start(listener, tls, cores_and_edges, limits, Arc::clone(&clock))
            }
        };
        Ok(Self { address, admin_address, engine, server, cores, draining, stop_admin })
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

/// The side of the layer that clients are on, and the service behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// Clients connect here, and requests are forwarded from here.
    Proxy,
    /// Clients connect to Envoy, which also forwards.
    #[cfg(feature = "ext-proc")]
    Envoy,
}

/// Ends the threads of the cores, without blocking this one.
async fn end(cores: Arc<Cores>) {
    let _ended = tokio::task::spawn_blocking(move || drop(cores)).await;
}

async fn listen(
    address: SocketAddr,
    field: &'static str,
    flag: &'static str,
) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| StartError::Listen { address, field, flag, source })
}

fn local(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
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
