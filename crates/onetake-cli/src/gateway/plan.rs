//! Plans of requests: policy and upstream.

use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue, Method, Uri};
use ipnet::IpNet;

use onetake_http as layer;
use onetake_http::problem::DOCUMENTATION;
use onetake_http::routes::{RoutePattern, find_route, handle_tenants};
use onetake_http::{AmbiguousRequest, Code, Problem, TOKENS};

use super::Connector;
use super::cors::Cors;
use super::in_flight::Gates;
use super::reconcile::remembered_for;
use super::request_heads::HeadLimits;
use super::tenants::Tenants;
use crate::config::{Config, Route, Settings, Unmatched, UpstreamHost};

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
    pub(super) upstream: Option<Target>,
    /// The gate of the upstream.
    pub(super) gate: usize,
    /// Timeout of the upstream.
    pub(super) timeout: Duration,
    /// In which words the gateway itself speaks.
    pub(super) answers: layer::ProblemFormat,
}

/// The place to which requests are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The server, without a path.
    pub(super) server: Uri,
    /// The path in front of the paths of requests, without a slash at its end.
    pub(super) prefix: String,
    /// The `Host` header; `None` for that of the client.
    pub(super) host: Option<HeaderValue>,
}

impl Target {
    fn new(url: &Uri, host: &UpstreamHost) -> Self {
        let mut parts = url.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::from_static("/"));
        let host = match host {
            UpstreamHost::Pass => None,
            UpstreamHost::Name(name) => Some(name.clone()),
            UpstreamHost::Upstream => {
                let authority = url.authority().map(Authority::as_str).unwrap_or_default();
                HeaderValue::from_str(authority).ok()
            }
        };
        Self {
            server: Uri::from_parts(parts).unwrap_or_else(|_| url.clone()),
            prefix: url.path().trim_end_matches('/').to_owned(),
            host,
        }
    }

    /// The target of a request to this server; `None` if it is too long.
    pub(super) fn path(&self, requested: Option<&PathAndQuery>) -> Option<PathAndQuery> {
        let requested = requested.cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        match self.prefix.as_str() {
            "" => Some(requested),
            prefix => PathAndQuery::try_from(format!("{prefix}{requested}")).ok(),
        }
    }
}

/// All plans, and the addresses of trusted proxies.
#[derive(Debug)]
pub(super) struct Plans {
    routes: Vec<(RoutePattern, Arc<Plan>)>,
    keyed: Arc<Plan>,
    untouched: Arc<Plan>,
    unmatched: Unmatched,
    /// True if informational responses are forwarded to HTTP/1.1 clients.
    pub(super) early_hints: bool,
    pub(super) cors: Option<Cors>,
    /// True if the layer issues keys, so that it answers requests for them itself.
    issues_keys: bool,
    /// In which words the gateway speaks where it does not come to a plan.
    pub(super) answers: layer::ProblemFormat,
    trusted: Vec<IpNet>,
    /// Scheme that clients use: `http` or `https`.
    pub(super) proto: &'static str,
    /// Headers that name tenants. They are removed unless the peer is a trusted proxy.
    pub(super) tenant_headers: Vec<HeaderName>,
    /// Headers with keys, other than `Idempotency-Key`.
    pub(super) key_headers: Vec<HeaderName>,
    /// True if a route uses the client's address as the tenant.
    pub(super) tells_addresses: bool,
    /// The number of different upstreams.
    pub(super) upstreams: usize,
    /// The limits of the heads of requests.
    pub(super) heads: HeadLimits,
}

impl Plans {
    /// Builds the plans. The connector is for `forward_auth` services.
    pub(super) fn new(config: &Config, connector: &Connector) -> Self {
        let mut tenants = Tenants::new(connector.clone());
        let host = &config.gateway.upstream_host;
        let upstreams = upstreams(config);
        let gate = |upstream: Option<&Uri>| {
            let number = upstreams.iter().position(|other| Some(*other) == upstream);
            Gates::of_upstream(number.unwrap_or_default())
        };
        let mut plan = |route: &Route| {
            let gate = gate(Some(&route.upstream));
            Arc::new(plan_of(route, host, gate, &mut tenants))
        };
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
        let key_values = policies().flat_map(|policy| policy.key.source.values());
        let key_headers = key_values
            .filter_map(|value| match value {
                layer::RequestValue::Header(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        let fallback = |policy| Plan {
            label: NO_ROUTE.to_owned(),
            policy,
            upstream: config.gateway.upstream.as_ref().map(|url| Target::new(url, host)),
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
            early_hints: config.gateway.early_hints,
            cors: config.gateway.cors.as_ref().map(Cors::new),
            issues_keys: policies().any(|policy| policy.key.source == layer::KeySource::Issued),
            answers: config.defaults.policy.problem_format(),
            trusted: config.gateway.trusted_proxies.clone(),
            proto: if config.gateway.tls.is_some() { "https" } else { "http" },
            tenant_headers,
            key_headers,
            tells_addresses,
            upstreams: upstreams.len().max(1),
            heads: HeadLimits {
                headers_max: config.limits.max_headers,
                bytes_max: config.limits.max_header_bytes,
            },
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
        let is_own = self.issues_tokens(method, path);
        let is_never_keyed = layer::policy::NEVER_KEYED.contains(method);
        match self.unmatched {
            Unmatched::Refuse if !is_own && !is_never_keyed => Err(Refused::NoRoute),
            Unmatched::Pass | Unmatched::Refuse => Ok(self.defaults(method)),
        }
    }

    fn issues_tokens(&self, method: &Method, path: &str) -> bool {
        self.issues_keys && *method == Method::POST && path == TOKENS
    }

    /// True if the gateway is responsible for the CORS headers of such a request: it can be keyed,
    /// is for one of the gateway's endpoints, or is refused.
    pub(super) fn is_responsible(&self, method: &Method, path: &str) -> bool {
        let is_endpoint = *method == Method::GET
            && (path == DOCUMENTATION || path.starts_with(layer::OPERATIONS));
        is_endpoint
            || self.issues_tokens(method, path)
            || self.admit(method, path).map_or(true, |plan| plan.policy.is_some())
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

fn plan_of(route: &Route, host: &UpstreamHost, gate: usize, tenants: &mut Tenants) -> Plan {
    let label = label_of(route);
    let mut policy = policy_of(&route.settings, &label, tenants);
    policy.methods = Some(route.pattern.methods.to_vec());
    Plan {
        policy: Some(Arc::new(policy)),
        label,
        upstream: Some(Target::new(&route.upstream, host)),
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
    // The file was checked, and the layer must not check the longer timeout against the ttl.
    policy.mark_checked();
    policy
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{Overrides, load};
    use bytes::Bytes;
    use http_body_util::Full;
    use onetake_core as core;
    use onetake_http::json::{Pointer, Selection};
    use tower::{Layer, Service, ServiceExt};

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
            assert_eq!(plan.upstream.as_ref().unwrap().server, upstream, "{method} {path}");
        }
    }

    #[test]
    fn a_path_of_the_upstream_is_put_in_front() {
        for (url, path) in [
            ("http://a", "/charges?b=/c"),
            ("http://a/", "/charges?b=/c"),
            ("http://a/api", "/api/charges?b=/c"),
            ("http://a/api/v2/", "/api/v2/charges?b=/c"),
        ] {
            let target = Target::new(&url.parse().unwrap(), &UpstreamHost::Upstream);
            let requested = PathAndQuery::from_static("/charges?b=/c");
            assert_eq!(target.path(Some(&requested)).unwrap(), path, "{url}");
            assert_eq!(
                (target.server, target.host.unwrap()),
                ("http://a/".parse().unwrap(), HeaderValue::from_static("a"))
            );
        }
    }

    /// The margin for the proxy makes the ttl of this route too short for the layer's own check.
    #[tokio::test]
    async fn a_route_with_the_shortest_ttl_is_served() {
        let plans = plans(
            "[gateway]\nupstream = \"http://a\"\n[[route]]\nmatch = \"POST /\"\non_unknown = \"reconcile\"\n\
             upstream_timeout = \"10s\"\ngrace = \"10s\"\nttl = \"41s\"\n\
             reconcile = { request = \"GET http://a/{derived_key}\", timeout = \"100ms\" }\n",
        );
        let policy = plans.find(&Method::POST, "/").policy.clone().unwrap();
        assert_eq!(policy.check().len(), 1, "it would be refused");
        let builder = layer::OnetakeLayer::builder(core::MemoryStore::new());
        let layer = builder.resolve(policy).build().unwrap();
        let upstream = tower::service_fn(|_| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default()))
        });
        let request =
            http::Request::post("/").header("idempotency-key", "a-key-that-is-long-enough");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let mut service = layer.layer(upstream);
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), 200);
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
        (policy.methods, policy.path) = (None, None);
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
            (
                "preset = \"payment\"\ntenant = \"credential\"",
                preset(Preset::Payment).tenant("credential"),
            ),
            ("preset = \"signup\"", preset(Preset::Signup)),
            ("preset = \"webhook\"", preset(Preset::Webhook)),
            ("preset = \"job\"", preset(Preset::Job)),
            ("preset = \"high-consequence\"", preset(Preset::HighConsequence)),
            ("preset = \"job\"\nttl = \"1h\"", preset(Preset::Job).ttl(secs(3600))),
            ("preset = \"github\"\ntenant = \"public\"", preset(Preset::Github).tenant("public")),
            ("preset = \"shopify\"\ntenant = \"public\"", preset(Preset::Shopify).tenant("public")),
            (
                "preset = \"stripe-webhook\"\ntenant = \"public\"",
                preset(Preset::StripeWebhook).tenant("public"),
            ),
            ("preset = \"svix\"\ntenant = \"public\"", preset(Preset::Svix).tenant("public")),
            (
                "preset = \"standard-webhooks\"\ntenant = \"public\"",
                preset(Preset::StandardWebhooks).tenant("public"),
            ),
            (
                "preset = \"stripe-webhook\"\ntenant = \"public\"\n\
                 key = { from = \"query\", name = \"event\" }\nfingerprint = { mode = \"bytes\" }",
                preset(Preset::StripeWebhook)
                    .tenant("public")
                    .key_from(KeySource::query("event"))
                    .fingerprint("bytes"),
            ),
            ("namespace = \"pay\"", new().namespace("pay")),
            ("key = { required = true }", new().key_required()),
            ("key = { from = \"issued\" }", new().key_from(KeySource::Issued)),
            ("key = { format = \"uuid\" }", new().key_format(KeyFormat::Uuid)),
            ("key = { min_length = 20 }", new().key_min_length(20)),
            (
                "key = { from = \"json\", pointer = \"/id\" }\ntenant = \"public\"",
                new().key_from(KeySource::json("/id")).tenant(Tenant::Public),
            ),
            (
                "key = { from = \"header\", name = \"X-GitHub-Delivery\" }\ntenant = \"public\"",
                new().key_from(KeySource::header("x-github-delivery")).tenant(Tenant::Public),
            ),
            (
                "key = { from = \"query\", name = \"order\", required = false }\ntenant = \"public\"",
                {
                    let mut policy = new().key_from(KeySource::query("order")).tenant("public");
                    policy.key.required = false;
                    policy
                },
            ),
            (
                "key = { from = \"derive\", parts = [\"header:X-A\", \"query:b\", \"json:/c\"] }\ntenant = \"public\"",
                new()
                    .key_from(KeySource::derive(["header:x-a", "query:b", "/c"]))
                    .tenant(Tenant::Public),
            ),
            (
                "key = { from = \"derive\", parts = [\"json:/a\"] }\ntenant = { header = \"X-A\" }",
                new()
                    .key_from(KeySource::derive(["/a"]))
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
            ("request_timeout = \"9s\"", new().request_timeout(secs(9))),
            ("upstream_timeout = \"9s\"", new().upstream_timeout(secs(9))),
            (
                "duplicate_payload = { window = \"9s\", action = \"reject\" }",
                new().duplicate_payload(secs(9), layer::DuplicateAction::Reject),
            ),
            ("duplicate_payload = { action = \"off\" }", new()),
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
