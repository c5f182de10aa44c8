//! The start of a gateway, step by step: certificates, ports, store, engine, admin API, layer, cores,
//! and the server for clients.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body::Body;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use onetake_core::engine::Housekeeping;
use onetake_core::{Clock, Engine, ReconcileOptions, SharedVelocity, Store, SystemClock};
use onetake_http::{BoxError, HttpLimits, OnetakeLayer, PolicyError, Secrets};

use super::client_connection::Answer;
use super::cores::Cores;
use super::descriptors::Descriptors;
use super::edge::Edge;
#[cfg(feature = "ext-proc")]
use super::ext_proc;
use super::gauges::{self, Gauges};
use super::in_flight::Gates;
use super::plan::Plans;
use super::proxy::Proxy;
use super::readiness::Readiness;
use super::reconcile::Reconciler;
use super::response_memory::ResponseMemory;
use super::server::{Server, ServerLimits};
use super::tls::{Acceptor, Connector};
use super::upstream::{Census, UpstreamSettings};
use super::{Gateway, Policies, StartError, admin, jwks, metrics_handle, secrets};
use crate::config::{Config, Identity};
use crate::stores::{self, OpenStore};

/// The side of the layer that clients are on, and the service behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// Clients connect here, and requests are forwarded from here.
    Proxy,
    /// Clients connect to Envoy, which also forwards.
    #[cfg(feature = "ext-proc")]
    Envoy,
}

impl Front {
    /// The certificate of the port.
    fn tls(self, config: &Config) -> Option<Identity> {
        match self {
            Self::Proxy => config.gateway.tls.clone(),
            #[cfg(feature = "ext-proc")]
            Self::Envoy => config.ext_proc.tls.clone(),
        }
    }

    /// The address of the port, with the field and the flag or variable that set it.
    fn listen(self, config: &Config) -> (SocketAddr, &'static str, &'static str) {
        match self {
            Self::Proxy => (config.gateway.listen, "gateway.listen", "--listen"),
            #[cfg(feature = "ext-proc")]
            Self::Envoy => (config.ext_proc.listen, "ext_proc.listen", "ONETAKE__EXT_PROC__LISTEN"),
        }
    }

    /// The most concurrent streams of an HTTP/2 connection.
    fn streams_max(self, config: &Config) -> usize {
        match self {
            Self::Proxy => config.limits.max_streams,
            #[cfg(feature = "ext-proc")]
            Self::Envoy => ext_proc::STREAMS_MAX,
        }
    }
}

impl Gateway {
    /// Starts everything that a gateway consists of, and serves from then on.
    pub(super) async fn start_as(
        front: Front,
        config: Config,
        decorate: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store> + Send,
    ) -> Result<Self, StartError> {
        let metrics = metrics_handle();
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let tls = front.tls(&config);
        let tls = tls.map(|identity| Acceptor::new(identity, Arc::clone(&clock))).transpose()?;
        let connector = Connector::new(config.upstream_tls().cloned(), Arc::clone(&clock))?;
        let Ports { admin, admin_address, clients, address } = Ports::open(front, &config).await?;

        let mut opened = stores::open(&config.store).await?;
        opened.store = decorate(opened.store);
        let secrets = secrets::secrets(&config, &*opened.store).await;
        let (secrets, tenants) =
            secrets.map_err(stores::failed("read secrets of", &config.store.url))?;
        let velocity = stores::open_velocity(&config).await?;
        let engine = engine_on(opened, &config, clock);

        let (draining, stop_admin) = (CancellationToken::new(), CancellationToken::new());
        let gauges = Arc::<Gauges>::default();
        let readiness = watch_key_sets(&config, &connector, &engine, &stop_admin);
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
        let layer = layer_on(&engine, &plans, &config, secrets, velocity)?;
        let cores = Cores::start(stores::cores(), engine.clock());
        let cores = Arc::new(cores.map_err(StartError::Threads)?);
        let clock = Arc::clone(engine.clock());
        let parts = ServerParts {
            config: &config,
            clock,
            connector,
            plans,
            layer,
            cores: Arc::clone(&cores),
        };
        let server = parts.serve(front, (clients, tls), &gauges);
        Ok(Self { address, admin_address, engine, server, cores, draining, stop_admin })
    }
}

/// The open ports of a gateway.
struct Ports {
    admin: TcpListener,
    admin_address: SocketAddr,
    clients: TcpListener,
    address: SocketAddr,
}

impl Ports {
    async fn open(front: Front, config: &Config) -> Result<Self, StartError> {
        let admin = listen(config.admin.listen, "admin.listen", "--admin-listen").await?;
        let admin_address = local(&admin, config.admin.listen);
        let (asked, field, flag) = front.listen(config);
        if front != Front::Proxy && !asked.ip().to_canonical().is_loopback() {
            tracing::warn!(
                "{field} is not a loopback address: every program that can connect to {asked} can \
                 act as Envoy, and name any tenant"
            );
        }
        let clients = listen(asked, field, flag).await?;
        let address = local(&clients, asked);
        Ok(Self { admin, admin_address, clients, address })
    }
}

/// Builds the engine on an open store.
fn engine_on(opened: OpenStore, config: &Config, clock: Arc<dyn Clock>) -> Engine {
    let OpenStore { store, interrupted, mut limits, reap_interval, journal } = opened;
    limits.running_max = config.limits.max_operations;
    let housekeeping = Housekeeping {
        reap_interval,
        sweep_interval: config.sweep.interval,
        sweep_batch: config.sweep.batch,
        ..Housekeeping::default()
    };
    let mut engine = Engine::builder(store).clock(clock).limits(limits).housekeeping(housekeeping);
    engine = engine.run_in_callers_task();
    if let Some(journal) = journal {
        engine = engine.journal(journal);
    }
    let engine = engine.build();
    engine.count_unknown(interrupted);
    engine
}

/// Keeps the key sets for tokens up to date. The gateway is ready once each was fetched.
fn watch_key_sets(
    config: &Config,
    connector: &Connector,
    engine: &Engine,
    stop: &CancellationToken,
) -> Readiness {
    let key_sets = jwks::distinct(config.settings().map(|settings| &settings.policy.tenant));
    for set in key_sets.clone() {
        let (connector, clock) = (connector.clone(), Arc::clone(engine.clock()));
        tokio::spawn(jwks::keep(set, connector, clock, stop.clone()));
    }
    Readiness::new(engine.clone(), key_sets)
}

/// Builds the layer, with the policies of the plans.
fn layer_on(
    engine: &Engine,
    plans: &Arc<Plans>,
    config: &Config,
    secrets: Secrets,
    velocity: Option<Arc<dyn SharedVelocity>>,
) -> Result<OnetakeLayer, PolicyError> {
    let limits = HttpLimits::default()
        .duplicate_payloads_max(config.gateway.duplicate_payloads_max)
        .body_bytes_max(config.limits.max_body_memory)
        .body_rate_min(config.limits.min_body_rate);
    let mut layer = OnetakeLayer::builder(engine.clone())
        .resolve(Policies(Arc::clone(plans)))
        .secrets(secrets)
        .limits(limits);
    if let Some(place) = velocity {
        layer = layer.shared_velocity(place);
    }
    layer.around_whole_app().build()
}

/// The parts of which the server for clients is made.
struct ServerParts<'a> {
    config: &'a Config,
    clock: Arc<dyn Clock>,
    connector: Connector,
    plans: Arc<Plans>,
    layer: OnetakeLayer,
    cores: Arc<Cores>,
}

impl ServerParts<'_> {
    /// Serves clients. Each core gets an edge, and a proxy with connections of its own.
    fn serve(self, front: Front, port: (TcpListener, Option<Acceptor>), gauges: &Gauges) -> Server {
        let descriptors = Descriptors::of(self.config, self.cores.count());
        let limits = self.limits(descriptors);
        let responses = ResponseMemory::new(self.config.limits.max_response_memory);
        let census = Census::new();
        gauges::tell_limits(self.config, descriptors, front.streams_max(self.config));
        let memory = (self.layer.clone(), Arc::clone(&responses));
        gauges.watch(&limits, descriptors, memory, Arc::clone(&census));
        match front {
            Front::Proxy => self.start(port, limits, || {
                let inner = self.layer.layer(self.proxy(descriptors, &census));
                let (plans, responses) = (Arc::clone(&self.plans), Arc::clone(&responses));
                Edge::new(inner, plans, responses, Arc::clone(&self.clock))
            }),
            #[cfg(feature = "ext-proc")]
            Front::Envoy => {
                let gates = Arc::clone(&limits.gates);
                self.start(port, limits, || {
                    let (config, proxy) = (&self.config.ext_proc, self.proxy(descriptors, &census));
                    let (layer, plans) = (&self.layer, &self.plans);
                    ext_proc::EnvoyEdge::new(layer, plans, &self.clock, config, &gates, proxy)
                })
            }
        }
    }

    fn limits(&self, descriptors: Descriptors) -> ServerLimits {
        let gates = descriptors.gates(&self.config.limits);
        ServerLimits {
            places: Arc::new(Semaphore::new(descriptors.connections_max)),
            configured: Arc::new(self.config.limits.clone()),
            gates: Gates::new(gates, self.plans.upstreams, Arc::clone(&self.clock)),
            keep_alive: self.config.gateway.keep_alive,
        }
    }

    fn proxy<B>(&self, descriptors: Descriptors, census: &Arc<Census>) -> Proxy<B>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let settings = UpstreamSettings {
            idle_max: descriptors.idle_per_core_max,
            keep_alive: self.config.gateway.upstream_keep_alive,
            ping_interval: self.config.gateway.upstream_ping_interval,
        };
        Proxy::new(self.connector.clone(), settings, census)
    }

    /// Starts the server, with an edge for each core.
    fn start<E: Answer>(
        &self,
        (listener, tls): (TcpListener, Option<Acceptor>),
        limits: ServerLimits,
        edge: impl Fn() -> E,
    ) -> Server {
        let edges = (0..self.cores.count()).map(|_| Arc::new(edge())).collect();
        let cores_and_edges = (Arc::clone(&self.cores), edges);
        Server::start(listener, tls, cores_and_edges, limits, Arc::clone(&self.clock))
    }
}

/// Opens a port. The error names the configuration field and the flag that set its address.
pub(super) async fn listen(
    address: SocketAddr,
    field: &'static str,
    flag: &'static str,
) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| StartError::Listen { address, field, flag, source })
}

/// Returns the address of an open port, also if any free port was asked for.
pub(super) fn local(listener: &TcpListener, asked: SocketAddr) -> SocketAddr {
    listener.local_addr().unwrap_or(asked)
}
