//! The tower layer, and the state that its services share.

mod builder;
mod limits;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::Method;
use http::request::Parts;
use metrics::Counter as MetricCounter;
use tower_layer::Layer;

use onetake_core::engine::EngineError;
use onetake_core::{DerivingSecret, Engine};

use crate::advice::{Advice, Warnings};
use crate::duplicates::Detector;
use crate::endpoints::Endpoints;
use crate::handle::Handles;
use crate::head;
use crate::memory::BodyMemory;
use crate::policy::{InFlight, KeySource, NEVER_KEYED, Policy, PolicyError};
use crate::problem::{Problem, misconfigured};
use crate::routes::AmbiguousRequest;
use crate::secrets::Secrets;
use crate::service::Onetake;
use crate::tenant::Tenant;
use crate::transaction::MisconfiguredRoutes;
use crate::typed::{Typed, Types};
use crate::velocity::Counter;

pub use builder::LayerBuilder;
pub use limits::HttpLimits;

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
        LayerBuilder::new(engine.into())
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
