//! The layer: what to wrap services with.

use std::any::type_name;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::Method;
use http::request::Parts;
use tokio::sync::Semaphore;
use tower_layer::Layer;

use onetake_core::engine::EngineError;
use onetake_core::{DerivingSecret, Engine, SharedVelocity};

use crate::endpoints::Endpoints;
use crate::handle::Handles;
use crate::head;
use crate::policy::{InFlight, KeySource, Mistake, Policy, PolicyError};
use crate::problem::{Problem, misconfigured};
use crate::routes::Routes;
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
    /// tenant that it was given to. By default these are the rules by credential and [`Tenant::Public`]. A
    /// request whose policy answers 202 and has another tenant is refused with 500: use
    /// [`Routes`], or write this method.
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

/// Whether one of these rules tells every tenant that the rule of a policy tells.
fn is_covered(tenants: &[Tenant], tenant: &Tenant) -> bool {
    tenants.contains(tenant)
        || (*tenant == Tenant::Credential && tenants.contains(&Tenant::CredentialOrPublic))
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
    /// Whether the tenants of all policies are known to fit their handles.
    knows_tenants: bool,
    /// Whether somebody took the endpoints, to mount them elsewhere.
    endpoints_taken: AtomicBool,
}

impl Shared {
    /// Whether keys can be issued at all.
    pub(crate) fn issues_keys(&self) -> bool {
        !self.secrets.issued_keys.is_empty()
    }

    /// Refuses a request whose policy answers 202 where nobody could fetch the outcome by its handle.
    pub(crate) fn check_outcomes(&self, policy: &Policy, parts: &Parts) -> Result<(), Problem> {
        if !matches!(policy.in_flight, InFlight::Async(_)) {
            return Ok(());
        }
        if !self.knows_tenants && !is_covered(&self.policies.handle_tenants(), &policy.tenant) {
            tracing::error!(
                route = policy.label,
                "a policy answers 202 to tenants that `Resolve::handle_tenants` does not name, so nobody could fetch the outcome: use Routes in place of the closure, or write `handle_tenants`"
            );
            return Err(misconfigured());
        }
        let is_nested = head::uri(parts).path() != parts.uri.path();
        if is_nested && !self.endpoints_taken.load(Ordering::Relaxed) {
            tracing::error!(
                route = policy.label,
                "a policy answers 202 inside of a nested router, where nobody could fetch the outcome: put the layer around the outermost router, or mount its endpoints() there"
            );
            return Err(misconfigured());
        }
        Ok(())
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
    /// A layer with one policy for all requests, and defaults for everything else.
    ///
    /// # Errors
    /// The mistakes in the policy.
    pub fn new(engine: impl Into<Engine>, policy: Policy) -> Result<Self, PolicyError> {
        Self::builder(engine).policy(policy).build()
    }

    /// A layer on this engine, or on an engine of its own on this store.
    ///
    /// ```
    /// # use onetake_core::MemoryStore;
    /// # use onetake_http::{OnetakeLayer, Policy, PolicyError, Preset, Routes, Tenant};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), PolicyError> {
    /// let routes = Routes::new()
    ///     .route("POST /charges", Policy::preset(Preset::Payment).tenant(Tenant::header("x-account")));
    /// let layer = OnetakeLayer::builder(MemoryStore::new()).routes(routes).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(engine: impl Into<Engine>) -> LayerBuilder {
        LayerBuilder {
            engine: engine.into(),
            policies: None,
            limits: HttpLimits::default(),
            secrets: Secrets::default(),
            velocity: None,
            types: Types::default(),
            mistakes: Vec::new(),
        }
    }

    /// Keeps results of this type as values, as [`LayerBuilder::typed`] does, for all clones of this layer. Of two types
    /// with one name the first counts, with an error in the log.
    #[must_use]
    pub fn typed<T: Typed>(self) -> Self {
        if !self.shared.types.add::<T>() {
            tracing::error!(
                name = T::NAME,
                "two types of results have one name; those of the second are kept as responses"
            );
        }
        self
    }

    /// The endpoints of this layer as a service of its own, for the outermost router: where the layer is not around
    /// that.
    #[must_use]
    pub fn endpoints(&self) -> Endpoints {
        self.shared.endpoints_taken.store(true, Ordering::Relaxed);
        Endpoints { shared: Arc::clone(&self.shared) }
    }
}

/// Builds an [`OnetakeLayer`].
#[must_use = "there is no layer before `build`"]
pub struct LayerBuilder {
    engine: Engine,
    policies: Option<Policies>,
    limits: HttpLimits,
    secrets: Secrets,
    velocity: Option<Arc<dyn SharedVelocity>>,
    types: Types,
    mistakes: Vec<Mistake>,
}

enum Policies {
    One(Policy),
    Routes(Routes),
    Other(Box<dyn Resolve>),
}

impl LayerBuilder {
    /// Sets one policy for all requests.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies = Some(Policies::One(policy));
        self
    }

    /// Sets the policy of each route. The layer belongs around the outermost router.
    pub fn routes(mut self, routes: Routes) -> Self {
        self.policies = Some(Policies::Routes(routes));
        self
    }

    /// Sets where policies come from: a closure, or a type that knows more. Their policies are not checked; use
    /// [`routes`](Self::routes) where the method and the path of a request tell its policy.
    pub fn resolve(mut self, policies: impl Resolve) -> Self {
        self.policies = Some(Policies::Other(Box::new(policies)));
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: HttpLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the secrets.
    pub fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = secrets;
        self
    }

    /// Counts velocity limits where many nodes do, as long as that place answers.
    pub fn shared_velocity(mut self, place: Arc<dyn SharedVelocity>) -> Self {
        self.velocity = Some(place);
        self
    }

    /// Keeps results of this type as values: on replay, their responses are built anew. See [`Typed`].
    pub fn typed<T: Typed>(mut self) -> Self {
        if !self.types.add::<T>() {
            let what = format!(
                "two types have the name {:?}, the second is {}",
                T::NAME,
                type_name::<T>()
            );
            self.mistakes.push(Mistake::new(
                "typed",
                what,
                "give each type a `Typed::NAME` of its own",
            ));
        }
        self
    }

    /// Checks everything, and builds the layer.
    ///
    /// # Errors
    /// All mistakes in its policies. [`InFlight::Async`] is one for a layer with one policy, because that layer may
    /// be around a single route, where nobody could fetch the outcome: use [`routes`](Self::routes) around the
    /// outermost router, or [`build_with_endpoints`](Self::build_with_endpoints).
    pub fn build(self) -> Result<OnetakeLayer, PolicyError> {
        self.build_checked(false)
    }

    /// Builds the layer, and the service that answers `/.onetake/…` and `/idempotency-tokens`. Mount that at the root
    /// of the outermost router; the layer may then be around single routes.
    ///
    /// # Errors
    /// All mistakes in its policies.
    pub fn build_with_endpoints(self) -> Result<(OnetakeLayer, Endpoints), PolicyError> {
        let layer = self.build_checked(true)?;
        let endpoints = layer.endpoints();
        Ok((layer, endpoints))
    }

    fn build_checked(mut self, has_endpoints: bool) -> Result<OnetakeLayer, PolicyError> {
        let mut mistakes = std::mem::take(&mut self.mistakes);
        if self.limits.bodies_max == 0 {
            let what = "no request with a key could be read";
            mistakes.push(Mistake::new("bodies_max", what, "write a number above 0"));
        }
        let issues_keys = !self.secrets.issued_keys.is_empty();
        let check_issued = |policy: &Policy, mistakes: &mut Vec<Mistake>| {
            if policy.key.source == KeySource::Issued && !issues_keys {
                let what =
                    "no key can be issued without a secret, so every request would be refused";
                let fix = "call .secrets(Secrets::default().issued_keys(…)) on the builder";
                let route = if policy.label == "-" { "" } else { &policy.label };
                mistakes.push(Mistake::new("key", what, fix).of_route(route));
            }
        };
        let mut knows_tenants = true;
        let policies: Option<Box<dyn Resolve>> = match self.policies {
            None => {
                let what = "the layer has no policy";
                let fix = "call .routes(Routes::new()…) or .policy(Policy::new()…) on the builder";
                mistakes.push(Mistake::new("policy", what, fix));
                None
            }
            Some(Policies::One(policy)) => {
                mistakes.extend(policy.check());
                check_issued(&policy, &mut mistakes);
                if matches!(policy.in_flight, InFlight::Async(_)) && !has_endpoints {
                    mistakes.push(async_without_endpoints());
                }
                Some(Box::new(Arc::new(policy)))
            }
            Some(Policies::Routes(routes)) => match routes.build() {
                Ok(table) => {
                    table.policies().for_each(|policy| check_issued(policy, &mut mistakes));
                    Some(Box::new(table))
                }
                Err(error) => {
                    mistakes.extend(error.into_mistakes());
                    None
                }
            },
            Some(Policies::Other(other)) => {
                knows_tenants = false;
                Some(other)
            }
        };
        PolicyError::unless_empty(mistakes)?;
        let policies = policies.unwrap_or_else(|| Box::new(|_: &Parts| None));
        let Self { engine, limits, secrets, velocity: place, types, .. } = self;
        let velocity = Counter::new(engine.clone(), limits.velocity_values_max);
        if let Some(place) = place {
            velocity.share(place);
        }
        let shared = Shared {
            policies,
            bodies: Arc::new(Semaphore::new(limits.bodies_max)),
            handles: secrets.make_handles(&**engine.rng()),
            engine,
            secrets,
            velocity,
            deriving: OnceLock::new(),
            types,
            misfits: Misfits::default(),
            knows_tenants,
            endpoints_taken: AtomicBool::new(false),
        };
        Ok(OnetakeLayer { shared: Arc::new(shared) })
    }
}

fn async_without_endpoints() -> Mistake {
    let what = "a layer with one policy may be around a single route, and then nobody could fetch the outcome after a 202";
    let fix = "give the layer around the outermost router .routes(Routes::new()…), or call .build_with_endpoints() and mount the endpoints at the root";
    Mistake::new("in_flight", what, fix)
}

impl std::fmt::Debug for LayerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerBuilder").finish_non_exhaustive()
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
