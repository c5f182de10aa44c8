//! The layer: what to wrap services with.

use std::sync::{Arc, OnceLock};

use http::Method;
use http::request::Parts;
use tokio::sync::Semaphore;
use tower_layer::Layer;

use onetake_core::engine::EngineError;
use onetake_core::{DerivingSecret, Engine, SharedVelocity};

use crate::endpoints::Endpoints;
use crate::handle::Handles;
use crate::policy::Policy;
use crate::secrets::Secrets;
use crate::service::Onetake;
use crate::tenant::Tenant;
use crate::transaction::Misfits;
use crate::typed::{Typed, Types};
use crate::velocity::Counter;

/// Finds the policy of a request. `None`: it is passed through untouched.
pub trait Resolve: Send + Sync + 'static {
    /// The policy for this request.
    fn resolve(&self, parts: &Parts) -> Option<Arc<Policy>>;

    /// The policy for a request with another method and path, and the rest as it is here: somebody
    /// asks for a key for it.
    fn resolve_for(&self, method: &Method, path: &str, parts: &Parts) -> Option<Arc<Policy>> {
        let mut parts = parts.clone();
        parts.method = method.clone();
        parts.uri = path.parse().ok()?;
        self.resolve(&parts)
    }

    /// By which rules the tenant of somebody who asks for an outcome by its handle may be told: those of
    /// the policies that answer 202. A handle names no route, so each is tried; it is good only for the
    /// tenant that it was given to. By default these are the rules by credential and [`Tenant::Public`]; a
    /// closure that resolves to others cannot say so, and has to become a type of its own.
    fn handle_tenants(&self) -> Vec<Tenant> {
        vec![Tenant::CredentialOrPublic, Tenant::Public]
    }
}

/// The same policy for every request.
impl Resolve for Arc<Policy> {
    fn resolve(&self, _: &Parts) -> Option<Self> {
        Some(Self::clone(self))
    }

    fn handle_tenants(&self) -> Vec<Tenant> {
        vec![self.tenant.clone()]
    }
}

impl<F> Resolve for F
where
    F: Fn(&Parts) -> Option<Arc<Policy>> + Send + Sync + 'static,
{
    fn resolve(&self, parts: &Parts) -> Option<Arc<Policy>> {
        self(parts)
    }
}

/// Every bound of the layer beside the engine's own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// Keyed requests whose bodies may be in memory at once; one more is refused as overloaded.
    pub bodies_max: usize,
    /// Values that velocity limits remember at once in this process, at about 200 bytes each. Beyond
    /// that, what owes the least is forgotten first: see [`velocity`](crate::velocity).
    pub velocity_values_max: usize,
}

impl HttpLimits {
    /// Sets how many keyed requests may have their bodies in memory at once.
    #[must_use]
    pub const fn bodies_max(mut self, requests: usize) -> Self {
        self.bodies_max = requests;
        self
    }

    /// Sets how many values velocity limits remember at once.
    #[must_use]
    pub const fn velocity_values_max(mut self, values: usize) -> Self {
        self.velocity_values_max = values;
        self
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { bodies_max: 4_096, velocity_values_max: 100_000 }
    }
}

/// Makes the services that it wraps safe to retry.
///
/// It tells requests apart by their path. Inside of axum's `nest` that is not the whole path: there, turn on
/// the feature `axum`, or put the layer around the outermost router. Without either, `/accounts/1/charges` and
/// `/accounts/2/charges` are both `/charges`.
///
/// What it answers itself is at the root: `/.onetake/…`, to which problems and every 202 point, and
/// `/idempotency-tokens`. A layer inside of `nest`, or around single routes, is never asked for that: put it around
/// the outermost router where [`InFlight::Async`](crate::InFlight::Async) or issued keys are used, or mount its
/// [`endpoints`](Self::endpoints) there.
///
/// What two layers around each other take for the same operation, the outer one runs and records.
#[derive(Clone)]
pub struct OnetakeLayer {
    shared: Arc<Shared>,
}

/// What all services of one layer share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) policies: Box<dyn Resolve>,
    pub(crate) bodies: Arc<Semaphore>,
    pub(crate) secrets: Secrets,
    pub(crate) handles: Handles,
    pub(crate) velocity: Arc<Counter>,
    deriving: OnceLock<DerivingSecret>,
    pub(crate) types: Types,
    pub(crate) misfits: Misfits,
}

impl Shared {
    /// Whether keys can be issued at all.
    pub(crate) fn issues_keys(&self) -> bool {
        !self.secrets.issued_keys.is_empty()
    }

    /// What keys for further calls are made with: as configured, else as kept in the store.
    pub(crate) async fn deriving(&self) -> Result<&DerivingSecret, EngineError> {
        if let Some(known) = self.deriving_now() {
            return Ok(known);
        }
        // All who come before it is known ask for themselves, and are told the same. If one asked for all, those
        // behind it would wait in turns, each as long as a store that does not answer lets them.
        let secret = self.engine.secret("derived_keys").await?;
        Ok(self.deriving.get_or_init(|| DerivingSecret::new(&secret)))
    }

    /// The same, if it is known already: nobody waits for it.
    pub(crate) fn deriving_now(&self) -> Option<&DerivingSecret> {
        self.secrets.derived_keys.as_ref().or_else(|| self.deriving.get())
    }
}

impl OnetakeLayer {
    /// One policy for all requests.
    #[must_use]
    pub fn new(engine: Engine, policy: Policy) -> Self {
        Self::routed(engine, Arc::new(policy), HttpLimits::default())
    }

    /// A policy for each request.
    #[must_use]
    pub fn routed(engine: Engine, policies: impl Resolve, limits: HttpLimits) -> Self {
        Self::with(engine, policies, limits, Secrets::default())
    }

    /// A policy for each request, and secrets.
    #[must_use]
    pub fn with(
        engine: Engine,
        policies: impl Resolve,
        limits: HttpLimits,
        secrets: Secrets,
    ) -> Self {
        let (policies, bodies) = (Box::new(policies), Arc::new(Semaphore::new(limits.bodies_max)));
        let velocity = Counter::new(engine.clone(), limits.velocity_values_max);
        let handles = secrets.make_handles(&**engine.rng());
        let shared = Shared {
            engine,
            policies,
            bodies,
            secrets,
            handles,
            velocity,
            deriving: OnceLock::new(),
            types: Types::default(),
            misfits: Misfits::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Counts velocity limits where many nodes do, as long as that place answers. For all clones of
    /// this layer; the first one that is set stays.
    #[must_use]
    pub fn velocity_shared(self, place: Arc<dyn SharedVelocity>) -> Self {
        self.shared.velocity.share(place);
        self
    }

    /// What this layer answers itself, as a service of its own: for the outermost router, where the layer is not
    /// around that.
    #[must_use]
    pub fn endpoints(&self) -> Endpoints {
        Endpoints { shared: Arc::clone(&self.shared) }
    }

    /// Keeps results of this type as values: on replay, their responses are built anew. For all clones of
    /// this layer. See [`Typed`].
    #[must_use]
    pub fn typed<T: Typed>(self) -> Self {
        self.shared.types.add::<T>();
        self
    }
}

impl<S> Layer<S> for OnetakeLayer {
    type Service = Onetake<S>;

    fn layer(&self, inner: S) -> Onetake<S> {
        Onetake::new(inner, Arc::clone(&self.shared))
    }
}

impl std::fmt::Debug for OnetakeLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnetakeLayer").finish_non_exhaustive()
    }
}
