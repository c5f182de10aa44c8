//! The tower layer, its builder and its limits.

use std::any::type_name;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::Method;
use http::request::Parts;
use metrics::{Counter as MetricCounter, counter, describe_counter};
use tower_layer::Layer;

use onetake_core::engine::EngineError;
use onetake_core::{DerivingSecret, Engine, SharedVelocity};

use crate::advice::{Advice, Warnings};
use crate::duplicates::Detector;
use crate::endpoints::Endpoints;
use crate::handle::Handles;
use crate::head;
use crate::memory::BodyMemory;
use crate::policy::{InFlight, KeySource, Mistake, NEVER_KEYED, Policy, PolicyError};
use crate::problem::{Problem, misconfigured};
use crate::routes::{AmbiguousRequest, IntoRouteTable, RouteTable};
use crate::secrets::Secrets;
use crate::service::Onetake;
use crate::tenant::Tenant;
use crate::transaction::MisconfiguredRoutes;
use crate::typed::{Typed, Types};
use crate::velocity::Counter;

/// Finds the policy of a request. A request without a policy passes through untouched.
pub trait Resolve: Send + Sync + 'static {
    /// Returns the policy for this request, or `None` to let it pass through.
    fn resolve(&self, parts: &Parts) -> Option<Arc<Policy>>;

    /// Returns the policy for this request, or an error if two servers could read the request
    /// differently, so that its policy is not certain. The layer refuses such a request.
    ///
    /// # Errors
    /// If the request is ambiguous. The default never is.
    fn try_resolve(&self, parts: &Parts) -> Result<Option<Arc<Policy>>, AmbiguousRequest> {
        Ok(self.resolve(parts))
    }

    /// Returns the policy for a request with this method and path, and otherwise like `parts`. It
    /// is called when a client asks for an issued key.
    fn resolve_for(&self, method: &Method, path: &str, parts: &Parts) -> Option<Arc<Policy>> {
        let mut parts = parts.clone();
        parts.method = method.clone();
        parts.uri = path.parse().ok()?;
        self.resolve(&parts)
    }

    /// Returns the tenant rules for clients that fetch an outcome by its handle: the rules of all
    /// policies that answer 202.
    ///
    /// A handle names no route, so each rule is tried. A handle is valid only for the tenant that
    /// got it. The default is the rules by credential and [`Tenant::Public`]. A request whose
    /// policy answers 202 and has another tenant rule is refused with 500. In that case use
    /// [`Routes`](crate::Routes), or implement this method.
    fn handle_tenants(&self) -> Vec<Tenant> {
        vec![Tenant::CredentialOrPublic, Tenant::Public]
    }
}

/// One policy for every request.
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

/// Returns true if one of these rules resolves every caller that a policy's rule resolves.
fn is_covered(tenants: &[Tenant], tenant: &Tenant) -> bool {
    tenants.contains(tenant)
        || (*tenant == Tenant::Credential && tenants.contains(&Tenant::CredentialOrPublic))
}

/// What lets clients fetch the outcome of an operation that was answered with 202.
const FETCHABLE: &str = "call .around_whole_app() on the builder if the layer is around the outermost router, or call .build_with_endpoints() and mount the endpoints at the root";

/// The limits of the layer. The engine has limits of its own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// The most memory for keyed requests, in bytes. Heads and bodies count as they arrive, until
    /// the outcome is settled. Further requests are refused as overloaded. One tenant gets at most
    /// two thirds of it, and one [`BodyShare`](crate::BodyShare) about a third.
    pub body_bytes_max: usize,
    /// The least rate at which a body arrives, in bytes per second and after five seconds. A slower
    /// body is refused with 408. 0 is no limit.
    pub body_rate_min: usize,
    /// The most values that velocity limits remember in this process, at about 200 bytes each.
    /// Above this, the value with the smallest debt is forgotten first: see
    /// [`velocity`](crate::velocity).
    pub velocity_values_max: usize,
    /// The most payloads that are remembered to find them under another key, at about 250 bytes
    /// each. Above this, the payload that expires first is forgotten: see
    /// [`duplicates`](crate::duplicates).
    pub duplicate_payloads_max: usize,
}

impl HttpLimits {
    /// Sets the most memory for keyed requests, in bytes.
    #[must_use]
    pub const fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// Sets the least rate at which a body arrives, in bytes per second.
    #[must_use]
    pub const fn body_rate_min(mut self, bytes_per_second: usize) -> Self {
        self.body_rate_min = bytes_per_second;
        self
    }

    /// Sets the most values that velocity limits remember.
    #[must_use]
    pub const fn velocity_values_max(mut self, values: usize) -> Self {
        self.velocity_values_max = values;
        self
    }

    /// Sets the most payloads that are remembered to find them under another key.
    #[must_use]
    pub const fn duplicate_payloads_max(mut self, payloads: usize) -> Self {
        self.duplicate_payloads_max = payloads;
        self
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: 256 << 20,
            body_rate_min: 240,
            velocity_values_max: 100_000,
            duplicate_payloads_max: 100_000,
        }
    }
}

/// A tower layer that makes the services it wraps safe to retry.
///
/// # Nested routers
///
/// The layer distinguishes requests by their path. Inside axum's `nest` a request does not have its
/// whole path. There, turn on the feature `axum`, or put the layer around the outermost router.
///
/// **Warning:** without either, `/accounts/1/charges` and `/accounts/2/charges` are both
/// `/charges`.
///
/// # Endpoints
///
/// The layer's own endpoints are at the root: `/.onetake/…`, which problems and every 202 link to,
/// and `/idempotency-tokens`. Requests for them do not reach a layer inside `nest` or around single
/// routes. If you use [`InFlight::Async`](crate::InFlight::Async) or issued keys, either put the
/// layer around the outermost router and say so
/// ([`around_whole_app`](LayerBuilder::around_whole_app)), or mount its
/// [`endpoints`](LayerBuilder::build_with_endpoints) there. Without one of the two, a policy that
/// answers 202 is refused.
///
/// # Layers around each other
///
/// If two layers around each other identify the same operation, the outer one runs and records it.
#[derive(Clone)]
pub struct OnetakeLayer {
    shared: Arc<LayerState>,
}

/// State that all services of one layer share.
pub(crate) struct LayerState {
    pub(crate) engine: Engine,
    pub(crate) policies: Box<dyn Resolve>,
    pub(crate) memory: Arc<BodyMemory>,
    /// See [`HttpLimits::body_rate_min`].
    pub(crate) body_rate_min: usize,
    /// Bodies that were refused because they arrived too slowly.
    pub(crate) slow_bodies: MetricCounter,
    pub(crate) secrets: Secrets,
    pub(crate) handles: Handles,
    pub(crate) velocity: Arc<Counter>,
    pub(crate) duplicates: Arc<Detector>,
    deriving: OnceLock<DerivingSecret>,
    pub(crate) types: Types,
    pub(crate) misfits: MisconfiguredRoutes,
    pub(crate) warnings: Warnings,
    /// True if the tenants of all policies are known to fit their handles.
    knows_tenants: bool,
    /// See [`LayerBuilder::around_whole_app`].
    is_around_whole_app: bool,
    /// True if the endpoints were taken as a service, to be mounted elsewhere.
    endpoints_taken: AtomicBool,
}

impl LayerState {
    /// Returns true if the layer has a secret for issued keys.
    pub(crate) fn issues_keys(&self) -> bool {
        !self.secrets.issued_keys.is_empty()
    }

    /// Refuses a request whose policy has mistakes. The builder has checked the policies of routes.
    /// A policy from [`LayerBuilder::resolve`] is checked here, at its first request. Requests that
    /// no policy can key pass.
    pub(crate) fn check_policy(&self, policy: &Policy, method: &Method) -> Result<(), Problem> {
        let is_valid = policy.is_valid();
        if is_valid || NEVER_KEYED.contains(method) { Ok(()) } else { Err(misconfigured()) }
    }

    /// Refuses a request whose policy needs more than this layer has: a secret for issued keys, or,
    /// after a 202, a way for the client to fetch the outcome by its handle.
    pub(crate) fn check_fit(&self, policy: &Policy, parts: &Parts) -> Result<(), Problem> {
        if policy.key.source == KeySource::Issued && !self.issues_keys() {
            self.warnings.warn(Advice::NoIssuingKey, &policy.label);
            return Err(misconfigured());
        }
        if !matches!(policy.in_flight, InFlight::Async(_)) {
            return Ok(());
        }
        if !self.knows_tenants && !is_covered(&self.policies.handle_tenants(), &policy.tenant) {
            tracing::error!(
                route = policy.label,
                "a policy answers 202 to tenants that `Resolve::handle_tenants` does not return, so clients could not fetch the outcome: use Routes instead of the closure, or implement `handle_tenants`"
            );
            return Err(misconfigured());
        }
        let is_nested = head::uri(parts).path() != parts.uri.path();
        let serves_handles = self.is_around_whole_app && !is_nested;
        if !serves_handles && !self.endpoints_taken.load(Ordering::Relaxed) {
            tracing::error!(
                route = policy.label,
                is_nested,
                "a policy answers 202 and clients could not fetch the outcome: {FETCHABLE}"
            );
            return Err(misconfigured());
        }
        Ok(())
    }

    /// Returns the secret for derived keys: the configured one, else the one kept in the store.
    pub(crate) async fn deriving(&self) -> Result<&DerivingSecret, EngineError> {
        if let Some(known) = self.deriving_now() {
            return Ok(known);
        }
        // Requests that arrive before the secret is known each ask the store, and get the same
        // secret. If one request asked for all, the others would wait one after the other, each for
        // the whole timeout of a store that does not answer.
        let secret = self.engine.secret("derived_keys").await?;
        Ok(self.deriving.get_or_init(|| DerivingSecret::new(&secret)))
    }

    /// Returns the secret for derived keys if it is already known, without waiting.
    pub(crate) fn deriving_now(&self) -> Option<&DerivingSecret> {
        self.secrets.derived_keys.as_ref().or_else(|| self.deriving.get())
    }
}

impl OnetakeLayer {
    /// Creates a layer with one policy for all requests, and defaults for everything else.
    ///
    /// # Errors
    /// The mistakes in the policy.
    pub fn new(engine: impl Into<Engine>, policy: Policy) -> Result<Self, PolicyError> {
        Self::builder(engine).policy(policy).build()
    }

    /// Starts to build a layer on an engine, or on a store, which then gets an engine of its own.
    ///
    /// ```
    /// # use onetake_core::MemoryStore;
    /// # use onetake_http::{OnetakeLayer, Policy, PolicyError, Preset, Routes, Tenant};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), PolicyError> {
    /// let routes = Routes::new().route(
    ///     "POST /charges",
    ///     Policy::preset(Preset::Payment).tenant(Tenant::header("x-account")),
    /// );
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
            is_around_whole_app: false,
            mistakes: Vec::new(),
        }
    }

    /// Records results of this type as values, like [`LayerBuilder::typed`], for all clones of this
    /// layer. If two types have the same name, the first one counts, and an error is logged.
    #[must_use]
    pub fn typed<T: Typed>(self) -> Self {
        if !self.shared.types.add::<T>() {
            tracing::error!(
                name = T::NAME,
                "two result types have the same name: results of the second type are recorded as responses, not as values. Give each type a `Typed::NAME` of its own"
            );
        }
        self
    }

    /// Returns the memory that keyed requests take now, in bytes.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.shared.memory.used()
    }

    /// Returns the endpoints of this layer as a service, to mount at the outermost router if the
    /// layer is not around that router.
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
    is_around_whole_app: bool,
    mistakes: Vec<Mistake>,
}

enum Policies {
    One(Box<Policy>),
    Routes(Result<RouteTable, PolicyError>),
    Other(Box<dyn Resolve>),
}

impl LayerBuilder {
    /// Sets one policy for all requests.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies = Some(Policies::One(Box::new(policy)));
        self
    }

    /// Sets the policy of each route: [`Routes`](crate::Routes), or a [`RouteTable`] that was built
    /// before. Put the layer around the outermost router.
    pub fn routes(mut self, routes: impl IntoRouteTable) -> Self {
        self.policies = Some(Policies::Routes(routes.into_route_table()));
        self
    }

    /// Sets the source of policies: a closure, or a type that implements `Resolve`. Use
    /// [`routes`](Self::routes) if the policy depends only on method and path.
    ///
    /// [`build`](Self::build) does not know these policies. Each is checked at its first request. If
    /// it has mistakes, the log has one error with all of them, and its requests get 500
    /// `misconfigured`: nothing runs. To find mistakes at start, call [`Policy::check`] where the
    /// policy is made. Make each policy once, outside the closure: a policy that is made for a
    /// request is checked for that request.
    pub fn resolve(mut self, policies: impl Resolve) -> Self {
        self.policies = Some(Policies::Other(Box::new(policies)));
        self
    }

    /// Says that every request of the application reaches the layer, also a request that matches no
    /// route. The layer then serves `/.onetake/…` and `/idempotency-tokens` itself, and policies may
    /// answer 202.
    ///
    /// In axum, call `Router::layer` of the outermost router, after its last route and fallback.
    /// `Router::route_layer` and layers of single routes get no other requests.
    ///
    /// **Warning:** if other requests do not reach the layer, clients cannot fetch the outcome of an
    /// operation that was answered with 202.
    pub fn around_whole_app(mut self) -> Self {
        self.is_around_whole_app = true;
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

    /// Counts velocity limits in a place that several nodes share. While that place does not
    /// answer, this node counts by itself.
    pub fn shared_velocity(mut self, place: Arc<dyn SharedVelocity>) -> Self {
        self.velocity = Some(place);
        self
    }

    /// Records results of this type as values. A replay builds the response from the value. See
    /// [`Typed`].
    pub fn typed<T: Typed>(mut self) -> Self {
        if !self.types.add::<T>() {
            let what = format!(
                "two types have the name {:?}; the second is {}",
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

    /// Checks the settings, and builds the layer.
    ///
    /// # Errors
    /// All mistakes in the policies and settings. [`InFlight::Async`] is a mistake without
    /// [`around_whole_app`](Self::around_whole_app): the layer may be around a single route, where
    /// clients could not fetch the outcome. A policy of [`resolve`](Self::resolve) is not known
    /// here, so its requests are refused with 500 instead.
    /// [`build_with_endpoints`](Self::build_with_endpoints) works in every place.
    pub fn build(self) -> Result<OnetakeLayer, PolicyError> {
        self.build_checked(false)
    }

    /// Builds the layer, and the service that answers `/.onetake/…` and `/idempotency-tokens`.
    ///
    /// Mount the service at the root of the outermost router. The layer may then be around single
    /// routes.
    ///
    /// # Errors
    /// All mistakes in the policies and settings.
    pub fn build_with_endpoints(self) -> Result<(OnetakeLayer, Endpoints), PolicyError> {
        let layer = self.build_checked(true)?;
        let endpoints = layer.endpoints();
        Ok((layer, endpoints))
    }

    fn build_checked(mut self, has_endpoints: bool) -> Result<OnetakeLayer, PolicyError> {
        let mut mistakes = std::mem::take(&mut self.mistakes);
        if self.limits.body_bytes_max == 0 {
            let what = "the value is 0, so no request with a key could be read";
            mistakes.push(Mistake::new("body_bytes_max", what, "set a number above 0"));
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
        let serves_handles = has_endpoints || self.is_around_whole_app;
        let check_async = |policy: &Policy, mistakes: &mut Vec<Mistake>| {
            if matches!(policy.in_flight, InFlight::Async(_)) && !serves_handles {
                let what = "clients could not fetch the outcome after a 202 if the layer is around a single route";
                let route = if policy.label == "-" { "" } else { &policy.label };
                mistakes.push(Mistake::new("in_flight", what, FETCHABLE).of_route(route));
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
                policy.mark_checked();
                check_issued(&policy, &mut mistakes);
                check_async(&policy, &mut mistakes);
                Some(Box::new(Arc::<Policy>::from(policy)))
            }
            Some(Policies::Routes(routes)) => match routes {
                Ok(table) => {
                    for policy in table.policies() {
                        check_issued(policy, &mut mistakes);
                        check_async(policy, &mut mistakes);
                    }
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
        let clock = Arc::clone(engine.clock());
        let duplicates = Detector::new(clock, limits.duplicate_payloads_max);
        let shared = LayerState {
            policies,
            memory: BodyMemory::new(&limits),
            body_rate_min: limits.body_rate_min,
            slow_bodies: slow_bodies(),
            handles: secrets.make_handles(&**engine.rng()),
            engine,
            secrets,
            velocity,
            duplicates,
            deriving: OnceLock::new(),
            types,
            misfits: MisconfiguredRoutes::default(),
            warnings: Warnings::default(),
            knows_tenants,
            is_around_whole_app: self.is_around_whole_app,
            endpoints_taken: AtomicBool::new(false),
        };
        Ok(OnetakeLayer { shared: Arc::new(shared) })
    }
}

fn slow_bodies() -> MetricCounter {
    const NAME: &str = "onetake_slow_bodies_total";
    describe_counter!(NAME, "Keyed requests refused because their body arrived too slowly.");
    counter!(NAME)
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
