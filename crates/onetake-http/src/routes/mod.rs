//! The table of routes: a policy for each pattern, checked when the table is built.

mod path;
mod pattern;

use std::sync::Arc;

use http::Method;
use http::request::Parts;

pub use path::{AmbiguousRequest, has_dot_segment};
pub use pattern::{Methods, PathCase, PathPattern, PathRules, RoutePattern, TrailingSlash};

use path::{NormalPath, check_method};

use crate::head;
use crate::layer::Resolve;
use crate::policy::{InFlight, Mistake, NEVER_KEYED, Policy, PolicyError};
use crate::tenant::Tenant;

/// Routes with their policies, as in the gateway's file.
///
/// The first pattern that matches a request decides. If no pattern matches, the
/// [`fallback`](Self::fallback) applies.
///
/// Patterns are matched on one normal form of the path, so that no other spelling gets around a
/// route: percent-decoded once, slashes merged, and a slash at the end ignored. A request that two
/// servers could read differently is refused with 400 `request_refused`: see [`AmbiguousRequest`].
///
/// ```
/// use onetake_http::{Policy, Preset, Routes, Tenant};
///
/// let routes = Routes::new()
///     .route("POST /charges", Policy::preset(Preset::Payment).tenant(Tenant::header("x-account")))
///     .route("POST,PATCH /users/{id}", Policy::preset(Preset::Signup).release(["5xx"]))
///     .build()?;
/// # Ok::<(), onetake_http::PolicyError>(())
/// ```
///
/// [`build`](Self::build) reports every mistake at once:
///
/// ```
/// use onetake_http::{KeySource, Policy, Routes};
///
/// let error = Routes::new()
///     .route("PSOT /charges", Policy::new())
///     .route("POST /orders", Policy::new().key_from(KeySource::json("/id")))
///     .build()
///     .unwrap_err();
/// assert!(error.to_string().contains("did you mean `POST`?"));
/// assert!(error.to_string().contains("can be guessed"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is checked before `build`"]
pub struct Routes {
    routes: Vec<(String, Policy)>,
    fallback: Option<Policy>,
}

impl Default for Routes {
    fn default() -> Self {
        Self { routes: Vec::new(), fallback: Some(Policy::new()) }
    }
}

impl Routes {
    /// Returns a table without routes, with [`Policy::new`] as its fallback.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route. The pattern is a list of methods, separated by commas, and a path. `*` stands
    /// for POST, PUT, PATCH and DELETE. In the path, `{id}` is one segment and `{*rest}` is the
    /// rest. [`Policy::path_case`] and [`Policy::trailing_slash`] say how paths are compared.
    pub fn route(mut self, pattern: impl Into<String>, policy: Policy) -> Self {
        self.routes.push((pattern.into(), policy));
        self
    }

    /// Sets the policy of requests that no route matches. The default is [`Policy::new`].
    pub fn fallback(mut self, policy: Policy) -> Self {
        self.fallback = Some(policy);
        self
    }

    /// Lets requests that no route matches pass through untouched, with or without a key.
    pub fn pass_others(mut self) -> Self {
        self.fallback = None;
        self
    }

    /// Checks all routes and returns the table.
    ///
    /// # Errors
    /// Returns every mistake, with its route, its value and the fix.
    pub fn build(self) -> Result<RouteTable, PolicyError> {
        let mut mistakes = Vec::new();
        let mut routes: Vec<(RoutePattern, Arc<Policy>)> = Vec::new();
        for (text, mut policy) in self.routes {
            let pattern = RoutePattern::parse(&text);
            let pattern = pattern.map(|pattern| pattern.with_rules(policy.paths));
            policy.path = pattern.as_ref().ok().map(|pattern| pattern.path.clone());
            let of_route = |mistake: Mistake| mistake.of_route(&text);
            mistakes.extend(policy.check().into_iter().map(of_route));
            let pattern = match pattern {
                Ok(pattern) => pattern,
                Err(error) => {
                    mistakes.push(Mistake::of_text("match", error).of_route(&text));
                    continue;
                }
            };
            if policy.methods.is_some() {
                let fix = "remove `methods`, and write the methods in the pattern";
                let what = "the pattern of the route already has its methods";
                mistakes.push(Mistake::new("methods", what, fix).of_route(&text));
            }
            if let Some((earlier, _)) = routes.iter().find(|(other, _)| other.covers(&pattern)) {
                mistakes.push(never_reached(earlier).of_route(&text));
            }
            policy.methods = Some(pattern.methods.to_vec());
            if policy.label == Policy::new().label {
                policy.label = pattern.to_string();
            }
            policy.mark_checked();
            routes.push((pattern, Arc::new(policy)));
        }
        if let Some(fallback) = &self.fallback {
            mistakes.extend(fallback.check().into_iter().map(|it| it.of_route("fallback")));
            fallback.mark_checked();
        }
        PolicyError::unless_empty(mistakes)?;
        Ok(RouteTable { routes, fallback: self.fallback.map(Arc::new) })
    }
}

/// The mistake of a route that is never reached, because an earlier one matches all of its
/// requests.
#[must_use]
pub fn never_reached(earlier: &RoutePattern) -> Mistake {
    let what = format!(
        "the route is never reached: the earlier route `{earlier}` matches all of its requests"
    );
    Mistake::new("match", what, "move it before that route, or remove it")
}

/// A checked table of routes, made from [`Routes`].
///
/// The table knows the tenants of all routes, so that clients can fetch the outcomes of every
/// [`InFlight::Async`] route.
#[derive(Clone, Debug)]
pub struct RouteTable {
    routes: Vec<(RoutePattern, Arc<Policy>)>,
    fallback: Option<Arc<Policy>>,
}

impl RouteTable {
    /// Returns the policy for this method and path, or `None` if such requests pass through
    /// untouched.
    ///
    /// # Errors
    /// If two servers could read the request differently. The layer refuses such requests.
    pub fn find(
        &self,
        method: &Method,
        path: &str,
    ) -> Result<Option<&Arc<Policy>>, AmbiguousRequest> {
        let found = find_route(&self.routes, method, path)?;
        Ok(found.or(self.fallback.as_ref()))
    }

    /// Returns all policies, the fallback last.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.routes.iter().map(|(_, policy)| policy).chain(&self.fallback)
    }
}

/// Routes that [`LayerBuilder::routes`](crate::LayerBuilder::routes) takes: [`Routes`], or a
/// [`RouteTable`] that was built before.
pub trait IntoRouteTable {
    /// Returns the checked table.
    ///
    /// # Errors
    /// Every mistake in the routes.
    fn into_route_table(self) -> Result<RouteTable, PolicyError>;
}

impl IntoRouteTable for Routes {
    fn into_route_table(self) -> Result<RouteTable, PolicyError> {
        self.build()
    }
}

impl IntoRouteTable for RouteTable {
    fn into_route_table(self) -> Result<RouteTable, PolicyError> {
        Ok(self)
    }
}

/// Returns the value of the first pattern that matches a request, or `None` if none does.
///
/// # Errors
/// If two servers could read the request differently. Paths of methods that are never keyed are not
/// checked, and neither are paths if there are no routes: there is no route to get around.
pub fn find_route<'a, T>(
    routes: &'a [(RoutePattern, T)],
    method: &Method,
    path: &str,
) -> Result<Option<&'a T>, AmbiguousRequest> {
    check_method(method)?;
    if routes.is_empty() || NEVER_KEYED.contains(method) {
        return Ok(None);
    }
    let path = NormalPath::parse(path)?;
    let route_of = |segments| {
        let fits = |pattern: &RoutePattern| {
            pattern.methods.contains(method) && pattern.path.fits(segments)
        };
        routes.iter().position(|(pattern, _)| fits(pattern))
    };
    let found = route_of(&path.normal);
    for other in &path.others {
        if route_of(other).is_some_and(|other| Some(other) != found) {
            return Err(AmbiguousRequest::TwoRoutes);
        }
    }
    Ok(found.and_then(|index| routes.get(index)).map(|(_, value)| value))
}

/// Returns the tenants of the policies that answer 202, without duplicates.
pub fn handle_tenants<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Vec<Tenant> {
    let mut found: Vec<Tenant> = Vec::new();
    for policy in policies {
        if matches!(policy.in_flight, InFlight::Async(_)) && !found.contains(&policy.tenant) {
            found.push(policy.tenant.clone());
        }
    }
    found
}

impl Resolve for RouteTable {
    fn resolve(&self, parts: &Parts) -> Option<Arc<Policy>> {
        self.try_resolve(parts).unwrap_or_else(|_| self.fallback.clone())
    }

    fn try_resolve(&self, parts: &Parts) -> Result<Option<Arc<Policy>>, AmbiguousRequest> {
        Ok(self.find(&parts.method, head::uri(parts).path())?.cloned())
    }

    fn resolve_for(&self, method: &Method, path: &str, _: &Parts) -> Option<Arc<Policy>> {
        self.find(method, path).ok()?.cloned()
    }

    fn handle_tenants(&self) -> Vec<Tenant> {
        handle_tenants(self.policies().map(|policy| &**policy))
    }
}
