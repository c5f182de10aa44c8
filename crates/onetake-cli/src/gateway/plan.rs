//! Plans of requests: policy and upstream.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, Uri};
use ipnet::IpNet;

use onetake_http as layer;
use onetake_http::routes::{RoutePattern, find_route, handle_tenants};
use onetake_http::{AmbiguousRequest, Code, Problem, TOKENS};

use super::Connector;
use super::in_flight::Gates;
use super::reconcile::remembered_for;
use super::tenants::Tenants;
use crate::config::{Config, Route, Settings, Unmatched};

/// How much longer the layer waits than the proxy, so that the proxy times out first.
const PROXY_FIRST: Duration = Duration::from_secs(1);

/// The route label of requests that match no route.
pub(super) const NO_ROUTE: &str = "-";

/// The policy and the upstream that apply to a request.
#[derive(Debug)]
pub(super) struct Plan {
    /// The route as configured, for logs; `-` if no route matched.
    pub(super) label: String,
    /// `None` if requests of this plan are never keyed.
    pub(super) policy: Option<Arc<layer::Policy>>,
    /// `None` if no upstream is configured.
    pub(super) upstream: Option<Uri>,
    /// The gate of the upstream.
    pub(super) gate: usize,
    /// Timeout of the upstream.
    pub(super) timeout: Duration,
    /// In which words the gateway itself speaks.
    pub(super) answers: layer::ProblemFormat,
}

/// All plans, and the addresses of trusted proxies.
#[derive(Debug)]
pub(super) struct Plans {
    routes: Vec<(RoutePattern, Arc<Plan>)>,
    keyed: Arc<Plan>,
    untouched: Arc<Plan>,
    unmatched: Unmatched,
    /// True if the layer issues keys, so that it answers requests for them itself.
    issues_keys: bool,
    /// In which words the gateway speaks where it does not come to a plan.
    pub(super) answers: layer::ProblemFormat,
    trusted: Vec<IpNet>,
    /// Scheme that clients use: `http` or `https`.
    pub(super) proto: &'static str,
    /// Headers that name tenants. They are removed unless the peer is a trusted proxy.
    pub(super) tenant_headers: Vec<HeaderName>,
    /// True if a route uses the client's address as the tenant.
    pub(super) tells_addresses: bool,
    /// The number of different upstreams.
    pub(super) upstreams: usize,
}

impl Plans {
    /// Builds the plans. The connector is for `forward_auth` services.
    pub(super) fn new(config: &Config, connector: &Connector) -> Self {
        let mut tenants = Tenants::new(connector.clone());
        let upstreams = upstreams(config);
        let gate = |upstream: Option<&Uri>| {
            let number = upstreams.iter().position(|other| Some(*other) == upstream);
            Gates::of_upstream(number.unwrap_or_default())
        };
        let mut plan =
            |route: &Route| Arc::new(plan_of(route, gate(Some(&route.upstream)), &mut tenants));
        let routes: Vec<_> =
            config.routes.iter().map(|route| (route.pattern.clone(), plan(route))).collect();
        let policies = || config.settings().map(|settings| &settings.policy);
        let tells_addresses = policies().any(|policy| policy.tenant == layer::Tenant::ClientIp);
        let tenant_headers = policies()
            .filter_map(|policy| match &policy.tenant {
                layer::Tenant::Header(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        let fallback = |policy| Plan {
            label: NO_ROUTE.to_owned(),
            policy,
            upstream: config.gateway.upstream.clone(),
            gate: gate(config.gateway.upstream.as_ref()),
            timeout: config.defaults.policy.upstream_timeout,
            answers: config.defaults.policy.problem_format(),
        };
        let defaults = policy_of(&config.defaults, NO_ROUTE, &mut tenants);
        Self {
            routes,
            keyed: Arc::new(fallback(Some(Arc::new(defaults)))),
            untouched: Arc::new(fallback(None)),
            unmatched: config.gateway.unmatched,
            issues_keys: !config.secrets.issued_keys.is_empty(),
            answers: config.defaults.policy.problem_format(),
            trusted: config.gateway.trusted_proxies.clone(),
            proto: if config.gateway.tls.is_some() { "https" } else { "http" },
            tenant_headers,
            tells_addresses,
            upstreams: upstreams.len().max(1),
        }
    }

    /// Returns the first route that matches, else the defaults. Also the defaults for a request
    /// that [`admit`](Self::admit) refuses.
    pub(super) fn find(&self, method: &Method, path: &str) -> &Arc<Plan> {
        self.route(method, path).ok().flatten().unwrap_or_else(|| self.defaults(method))
    }

    /// Returns the first route that matches, else the defaults.
    ///
    /// # Errors
    /// A problem for the client, if two servers could read the request differently, or if no route
    /// matches and such requests are refused.
    pub(super) fn admit(&self, method: &Method, path: &str) -> Result<&Arc<Plan>, Refused> {
        if let Some(plan) = self.route(method, path).map_err(Refused::Ambiguous)? {
            return Ok(plan);
        }
        let is_own = self.issues_keys && *method == Method::POST && path == TOKENS;
        let is_never_keyed = layer::policy::NEVER_KEYED.contains(method);
        match self.unmatched {
            Unmatched::Refuse if !is_own && !is_never_keyed => Err(Refused::NoRoute),
            Unmatched::Pass | Unmatched::Refuse => Ok(self.defaults(method)),
        }
    }

    fn route(&self, method: &Method, path: &str) -> Result<Option<&Arc<Plan>>, AmbiguousRequest> {
        find_route(&self.routes, method, path)
    }

    fn defaults(&self, method: &Method) -> &Arc<Plan> {
        let is_keyed = self.keyed.policy.as_ref().is_some_and(|policy| policy.is_keyed(method));
        if is_keyed { &self.keyed } else { &self.untouched }
    }

    /// Tenants of all routes that can answer 202.
    pub(super) fn handle_tenants(&self) -> Vec<layer::Tenant> {
        let plans = self.routes.iter().map(|(_, plan)| plan).chain([&self.keyed]);
        let policies = plans.filter_map(|plan| plan.policy.as_deref());
        handle_tenants(policies)
    }

    pub(super) fn trusts(&self, peer: std::net::IpAddr) -> bool {
        // A listener on `[::]` sees IPv4 addresses in the form of IPv6.
        let peer = peer.to_canonical();
        self.trusted.iter().any(|network| network.contains(&peer))
    }
}

/// A request without a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Two servers could read the request differently.
    Ambiguous(AmbiguousRequest),
    /// No route matches, and such requests are refused.
    NoRoute,
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Ambiguous(ambiguous) => {
                let detail = format!("{ambiguous} Nothing was forwarded.");
                Self::new(Code::RequestRefused, detail)
            }
            Refused::NoRoute => Self::new(
                Code::NoRoute,
                "No route of this gateway matches the method and the path of the request. Nothing was forwarded.",
            ),
        }
    }
}

/// The label of a route in logs and records.
pub(super) fn label_of(route: &Route) -> String {
    route.pattern.to_string()
}

/// All upstreams, each once.
fn upstreams(config: &Config) -> Vec<&Uri> {
    let routes = config.routes.iter().map(|route| &route.upstream);
    let mut all: Vec<&Uri> = Vec::new();
    for upstream in routes.chain(config.gateway.upstream.as_ref()) {
        if !all.contains(&upstream) {
            all.push(upstream);
        }
    }
    all
}

fn plan_of(route: &Route, gate: usize, tenants: &mut Tenants) -> Plan {
    let label = label_of(route);
    let mut policy = policy_of(&route.settings, &label, tenants);
    policy.methods = Some(route.pattern.methods.to_vec());
    Plan {
        policy: Some(Arc::new(policy)),
        label,
        upstream: Some(route.upstream.clone()),
        gate,
        timeout: route.settings.policy.upstream_timeout,
        answers: route.settings.policy.problem_format(),
    }
}

/// The policy as the layer uses it.
fn policy_of(settings: &Settings, label: &str, tenants: &mut Tenants) -> layer::Policy {
    let mut policy = settings.policy.clone();
    policy.label = label.to_owned();
    policy.tenant = tenants.of(settings);
    policy.remember = settings.reconcile.iter().flat_map(remembered_for).collect();
    // The proxy speaks first: it knows whether anything was sent.
    policy.upstream_timeout = policy.upstream_timeout.saturating_add(PROXY_FIRST);
    policy
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{Overrides, load};
    use onetake_core as core;
    use onetake_http::json::{Pointer, Selection};

    pub(crate) fn plans(file: &str) -> Plans {
        let config = load(Some(file), "test", std::iter::empty(), Overrides::default());
        let connector = Connector::new(None, Arc::new(core::SystemClock)).unwrap();
        Plans::new(&config.unwrap(), &connector)
    }

    #[test]
    fn the_first_match_wins_and_get_is_never_keyed() {
        let plans = plans(
            "[gateway]\nupstream = \"http://a\"\n\
             [[route]]\nmatch = \"POST /v1/{kind}\"\nupstream = \"http://b\"\n\
             [[route]]\nmatch = \"* /v1/charges\"\nupstream = \"http://c\"\n",
        );
        for (method, path, label, keyed, upstream) in [
            (Method::POST, "/v1/charges", "POST /v1/{kind}", true, "http://b"),
            (Method::PUT, "/v1/charges", "POST,PUT,PATCH,DELETE /v1/charges", true, "http://c"),
            (Method::GET, "/v1/charges", "-", false, "http://a"),
            (Method::PATCH, "/v2", "-", true, "http://a"),
            (Method::PUT, "/v2", "-", false, "http://a"),
        ] {
            let plan = plans.find(&method, path);
            assert_eq!(plan.label, label, "{method} {path}");
            assert_eq!(plan.policy.is_some(), keyed, "{method} {path}");
            assert_eq!(*plan.upstream.as_ref().unwrap(), upstream, "{method} {path}");
        }
    }

    /// The policy of a route with these lines, as the layer uses it.
    fn written(lines: &str) -> layer::Policy {
        let file =
            format!("[gateway]\nupstream = \"http://a\"\n[[route]]\nmatch = \"POST /\"\n{lines}");
        let plans = plans(&file);
        let policy = plans.find(&Method::POST, "/").policy.clone().unwrap();
        let mut policy = (*policy).clone();
        // Fields that the gateway sets itself are reset before the comparison.
        policy.label = layer::Policy::new().label;
        policy.methods = None;
        policy.upstream_timeout -= PROXY_FIRST;
        policy
    }

    #[test]
    fn the_words_of_the_file_are_those_of_the_builder() {
        use layer::{By, Dialect, InFlight, KeyFormat, KeySource, OnStoreDown, Preset, Tenant};
        let secs = Duration::from_secs;
        let pointer = |text| Pointer::parse(text).unwrap();
        let new = layer::Policy::new;
        let preset = |preset| layer::Policy::preset(preset);
        let rate = core::Rate::new(5.try_into().unwrap(), secs(60)).unwrap();
        let mut statuses = layer::ProblemStatuses::default();
        statuses.mismatch = Some(http::StatusCode::CONFLICT);
        let all: Vec<(&str, layer::Policy)> = vec![
            ("", new()),
            ("preset = \"payment\"\ntenant = \"credential\"", preset(Preset::Payment)),
            ("preset = \"signup\"", preset(Preset::Signup)),
            ("preset = \"webhook\"", preset(Preset::Webhook)),
            ("preset = \"job\"", preset(Preset::Job)),
            ("preset = \"high-consequence\"", preset(Preset::HighConsequence)),
            ("preset = \"job\"\nttl = \"1h\"", preset(Preset::Job).ttl(secs(3600))),
            ("namespace = \"pay\"", new().namespace("pay")),
            ("key = { required = true }", new().key_required()),
            ("key = { from = \"issued\" }", new().key_from(KeySource::Issued)),
            ("key = { format = \"uuid\" }", new().key_format(KeyFormat::Uuid)),
            ("key = { min_length = 20 }", new().key_min_length(20)),
            (
                "key = { from = \"json\", pointer = \"/id\" }\ntenant = \"public\"",
                new().key_from(KeySource::Json(pointer("/id"))).tenant(Tenant::Public),
            ),
            (
                "key = { from = \"derive\", parts = [\"json:/a\"] }\ntenant = { header = \"X-A\" }",
                new()
                    .key_from(KeySource::Derive(vec![pointer("/a")]))
                    .tenant(Tenant::Header(HeaderName::from_static("x-a"))),
            ),
            (
                "fingerprint = { mode = \"json\", exclude = [\"/at\"], headers = [\"X-B\"] }",
                new()
                    .fingerprint(layer::FingerprintMode::Json(Selection::Exclude(vec![pointer(
                        "/at",
                    )])))
                    .fingerprint_headers([HeaderName::from_static("x-b")]),
            ),
            ("lease = \"10s\"", new().lease(secs(10))),
            ("grace = \"20s\"", new().grace(secs(20))),
            (
                "in_flight = \"wait\"\nwait_timeout = \"3s\"",
                new().in_flight(InFlight::Wait(secs(3))),
            ),
            (
                "in_flight = \"async\"\nwait_timeout = \"3s\"",
                new().in_flight(InFlight::Async(secs(3))),
            ),
            ("on_unknown = \"retry\"", new().on_unknown(core::OnUnknown::Retry)),
            ("on_store_down = \"fail-open\"", new().on_store_down(OnStoreDown::FailOpen)),
            (
                "key = { required = true }\nvelocity = [{ by = [\"tenant\", \"json:/card\"], limit = \"5/min\" }]",
                new().key_required().velocity([By::Tenant, By::Json(pointer("/card"))], rate),
            ),
            ("upstream_timeout = \"9s\"", new().upstream_timeout(secs(9))),
            (
                "record = [\"503\"]\nrelease = [\"5xx\"]\nmark_unknown = [\"404\"]",
                new().record(["503"]).release(["5xx"]).mark_unknown(["404"]),
            ),
            ("statuses = { mismatch = 409 }", new().statuses(statuses)),
            ("errors = \"stripe\"", new().errors(Dialect::Stripe)),
            ("max_request_body = \"2KiB\"", new().max_request_body(2048)),
            ("max_response_body = \"2KiB\"", new().max_response_body(2048)),
        ];
        for (lines, built) in all {
            assert_eq!(written(lines), built, "{lines}");
        }
    }
}
