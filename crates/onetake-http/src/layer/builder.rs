//! The builder of the layer.

use std::any::type_name;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use http::request::Parts;
use metrics::{Counter as MetricCounter, counter, describe_counter};

use onetake_core::{Engine, SharedVelocity};

use super::{FETCHABLE, HttpLimits, LayerState, OnetakeLayer, Resolve};
use crate::advice::Warnings;
use crate::duplicates::Detector;
use crate::endpoints::Endpoints;
use crate::memory::BodyMemory;
use crate::policy::{InFlight, KeySource, Mistake, Policy, PolicyError};
use crate::routes::{IntoRouteTable, RouteTable};
use crate::secrets::Secrets;
use crate::transaction::MisconfiguredRoutes;
use crate::typed::{Typed, Types};
use crate::velocity::Counter;

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
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            policies: None,
            limits: HttpLimits::default(),
            secrets: Secrets::default(),
            velocity: None,
            types: Types::default(),
            is_around_whole_app: false,
            mistakes: Vec::new(),
        }
    }

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

    fn build_checked(self, has_endpoints: bool) -> Result<OnetakeLayer, PolicyError> {
        let Self { engine, policies, limits, secrets, types, is_around_whole_app, .. } = self;
        let mut mistakes = self.mistakes;
        if limits.body_bytes_max == 0 {
            let what = "the value is 0, so no request with a key could be read";
            mistakes.push(Mistake::new("body_bytes_max", what, "set a number above 0"));
        }
        let abilities = Abilities {
            issues_keys: !secrets.issued_keys.is_empty(),
            serves_handles: has_endpoints || is_around_whole_app,
        };
        let knows_tenants = !matches!(policies, Some(Policies::Other(_)));
        let policies = match policies {
            Some(policies) => policies.check(abilities, &mut mistakes),
            None => {
                let what = "the layer has no policy";
                let fix = "call .routes(Routes::new()…) or .policy(Policy::new()…) on the builder";
                mistakes.push(Mistake::new("policy", what, fix));
                None
            }
        };
        PolicyError::unless_empty(mistakes)?;
        let policies = policies.unwrap_or_else(|| Box::new(|_: &Parts| None));
        let velocity = Counter::new(engine.clone(), limits.velocity_values_max);
        if let Some(place) = self.velocity {
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
            is_around_whole_app,
            endpoints_taken: AtomicBool::new(false),
        };
        Ok(OnetakeLayer { shared: Arc::new(shared) })
    }
}

impl Policies {
    /// Checks the policies, alone and against the abilities of the layer. Returns `None` if they
    /// cannot be used at all.
    fn check(self, abilities: Abilities, mistakes: &mut Vec<Mistake>) -> Option<Box<dyn Resolve>> {
        match self {
            Self::One(policy) => {
                mistakes.extend(policy.check());
                policy.mark_checked();
                mistakes.extend(abilities.missing_for(&policy));
                Some(Box::new(Arc::<Policy>::from(policy)))
            }
            Self::Routes(Ok(table)) => {
                mistakes.extend(table.policies().flat_map(|policy| abilities.missing_for(policy)));
                Some(Box::new(table))
            }
            Self::Routes(Err(error)) => {
                mistakes.extend(error.into_mistakes());
                None
            }
            Self::Other(other) => Some(other),
        }
    }
}

/// The abilities of a layer that some policies need.
#[derive(Clone, Copy)]
struct Abilities {
    /// There is a secret for issued keys.
    issues_keys: bool,
    /// Clients can fetch outcomes by their handles.
    serves_handles: bool,
}

impl Abilities {
    /// Returns the mistakes of a policy that needs more abilities.
    fn missing_for(self, policy: &Policy) -> Vec<Mistake> {
        let route = if policy.label == "-" { "" } else { &policy.label };
        let mut found = Vec::new();
        if policy.key.source == KeySource::Issued && !self.issues_keys {
            let what = "no key can be issued without a secret, so every request would be refused";
            let fix = "call .secrets(Secrets::default().issued_keys(…)) on the builder";
            found.push(Mistake::new("key", what, fix).of_route(route));
        }
        if matches!(policy.in_flight, InFlight::Async(_)) && !self.serves_handles {
            let what = "clients could not fetch the outcome after a 202 if the layer is around a single route";
            found.push(Mistake::new("in_flight", what, FETCHABLE).of_route(route));
        }
        found
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
