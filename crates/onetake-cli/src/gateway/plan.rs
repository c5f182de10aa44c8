//! What applies to a request: its policy and its upstream.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method, Uri};

use onetake_core as core;
use onetake_http as layer;
use onetake_http::json::{Pointer, Selection};

use super::tenants::{self, Tenants};
use crate::config::{
    Cidr, Config, FingerprintConfig, InFlight, OnStoreDown, OnUnknown, Policy, Route, TenantConfig,
};

/// How much longer the layer waits than the proxy.
const PROXY_FIRST: Duration = Duration::from_secs(1);

/// What logs call the route of a request that none matches.
const NO_ROUTE: &str = "-";

/// What applies to a request.
#[derive(Debug)]
pub(super) struct Plan {
    /// The route as configured, for logs; `-` where none matched.
    pub(super) label: String,
    /// `None`: it is never keyed.
    pub(super) policy: Option<Arc<layer::Policy>>,
    /// `None`: nobody said where it should go.
    pub(super) upstream: Option<Uri>,
    /// How long the upstream may take.
    pub(super) timeout: Duration,
    /// In which words the gateway itself speaks.
    pub(super) answers: layer::Answers,
}

/// All plans, and who is believed about forwarding.
#[derive(Debug)]
pub(super) struct Plans {
    routes: Vec<(Route, Arc<Plan>)>,
    keyed: Arc<Plan>,
    untouched: Arc<Plan>,
    /// In which words the gateway speaks where it does not come to a plan.
    pub(super) answers: layer::Answers,
    trusted: Vec<Cidr>,
    /// How clients come in: `http` or `https`.
    pub(super) proto: &'static str,
    /// Headers that name tenants: removed from everybody who is not a trusted proxy.
    pub(super) tenant_headers: Vec<HeaderName>,
    /// Whether a client's address may name a tenant.
    pub(super) tells_addresses: bool,
}

impl Plans {
    pub(super) fn new(config: &Config) -> Self {
        let mut tenants = Tenants::default();
        let routes: Vec<_> =
            config.routes.iter().map(|r| (r.clone(), Arc::new(plan_of(r, &mut tenants)))).collect();
        let policies = || config.routes.iter().map(|r| &r.policy).chain([&config.defaults]);
        let tells_addresses = policies().any(|policy| policy.tenant == TenantConfig::ClientIp);
        let tenant_headers = policies()
            .filter_map(|policy| match &policy.tenant {
                TenantConfig::Header(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        let fallback = |policy| Plan {
            label: NO_ROUTE.to_owned(),
            policy,
            upstream: config.gateway.upstream.clone(),
            timeout: config.defaults.upstream_timeout,
            answers: config.defaults.answers,
        };
        let defaults = policy_of(&config.defaults, NO_ROUTE, &mut tenants);
        Self {
            routes,
            keyed: Arc::new(fallback(Some(Arc::new(defaults)))),
            untouched: Arc::new(fallback(None)),
            answers: config.defaults.answers,
            trusted: config.gateway.trusted_proxies.clone(),
            proto: if config.gateway.tls.is_some() { "https" } else { "http" },
            tenant_headers,
            tells_addresses,
        }
    }

    /// The first route that matches, else the defaults.
    pub(super) fn find(&self, method: &Method, path: &str) -> &Arc<Plan> {
        let found = self.routes.iter().find(|(route, _)| route.matches(method, path));
        match found {
            Some((_, plan)) => plan,
            None if *method == Method::POST || *method == Method::PATCH => &self.keyed,
            None => &self.untouched,
        }
    }

    /// The tenants of all that answers 202.
    pub(super) fn handle_tenants(&self) -> Vec<layer::Tenant> {
        let plans = self.routes.iter().map(|(_, plan)| plan).chain([&self.keyed]);
        let policies = plans.filter_map(|plan| plan.policy.as_deref());
        let answers_later =
            policies.filter(|policy| matches!(policy.in_flight, layer::InFlight::Async(_)));
        tenants::distinct(answers_later.map(|policy| &policy.tenant))
    }

    pub(super) fn trusts(&self, peer: std::net::IpAddr) -> bool {
        self.trusted.iter().any(|block| block.contains(peer))
    }
}

fn plan_of(route: &Route, tenants: &mut Tenants) -> Plan {
    let label = format!("{} {}", route.methods, route.path);
    Plan {
        policy: Some(Arc::new(policy_of(&route.policy, &label, tenants))),
        label,
        upstream: Some(route.upstream.clone()),
        timeout: route.policy.upstream_timeout,
        answers: route.policy.answers,
    }
}

fn policy_of(policy: &Policy, label: &str, tenants: &mut Tenants) -> layer::Policy {
    layer::Policy {
        label: label.to_owned(),
        // The plan was found by its method already.
        methods: vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE],
        key: layer::KeyPolicy {
            source: policy.key.source.clone(),
            required: policy.key.required,
            format: policy.key.format,
            length_min: policy.key.min_length,
        },
        tenant: tenants.of(&policy.tenant),
        namespace: policy.namespace.clone(),
        fingerprint: layer::FingerprintPolicy {
            mode: fingerprint_of(&policy.fingerprint),
            headers: policy.fingerprint_headers.clone(),
        },
        terms: core::Terms {
            ttl: policy.ttl,
            lease: policy.lease,
            grace: policy.grace,
            on_unknown: match policy.on_unknown {
                OnUnknown::Fail => core::OnUnknown::Fail,
                OnUnknown::Retry => core::OnUnknown::Retry,
            },
        },
        in_flight: match policy.in_flight {
            InFlight::Reject => layer::InFlight::Reject,
            InFlight::Wait => layer::InFlight::Wait(policy.wait_timeout),
            InFlight::Async => layer::InFlight::Async(policy.wait_timeout),
        },
        on_store_down: match policy.on_store_down {
            OnStoreDown::FailClosed => layer::OnStoreDown::FailClosed,
            OnStoreDown::FailOpen => layer::OnStoreDown::FailOpen,
        },
        // The proxy speaks first: it knows whether anything was sent.
        run_max: policy.upstream_timeout.saturating_add(PROXY_FIRST),
        outcomes: policy.outcomes.clone(),
        answers: policy.answers,
        velocity: policy.velocity.clone(),
        request_body_max: policy.max_request_body,
        response_body_max: policy.max_response_body,
        ..layer::Policy::default()
    }
}

fn fingerprint_of(config: &FingerprintConfig) -> layer::FingerprintMode {
    // The configuration was checked: every pointer in it is one.
    let pointers = |texts: &[String]| -> Vec<Pointer> {
        texts.iter().filter_map(|text| Pointer::parse(text).ok()).collect()
    };
    match config {
        FingerprintConfig::Bytes => layer::FingerprintMode::Bytes,
        FingerprintConfig::JsonExclude(texts) if texts.is_empty() => {
            layer::FingerprintMode::Json(Selection::Whole)
        }
        FingerprintConfig::JsonExclude(texts) => {
            layer::FingerprintMode::Json(Selection::Exclude(pointers(texts)))
        }
        FingerprintConfig::JsonInclude(texts) => {
            layer::FingerprintMode::Json(Selection::Include(pointers(texts)))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{Overrides, load};

    pub(crate) fn plans(file: &str) -> Plans {
        let config = load(Some(file), "test", std::iter::empty(), Overrides::default());
        Plans::new(&config.unwrap())
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
}
