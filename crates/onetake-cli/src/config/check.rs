//! Rules between options, and the complete configuration of a file that follows them.

use std::net::SocketAddr;
use std::path::Path;

use http::Uri;
use http::uri::Scheme;
use onetake_core::OnUnknown;
use onetake_http::policy::TENANT_NOT_NAMED;
use onetake_http::routes::{RoutePattern, never_reached};
use onetake_http::{InFlight, Policy, Preset, Tenant};
use onetake_stores::StoreUrl;

use super::error::{Origin, Problems, ValueError};
use super::policy::{PolicyOptions, RouteOptions, Settings};
use super::reconcile::{Placeholder, Reconcile};
use super::sections::{File, Sink};
use super::tenant::TenantOption;
use super::tree::TomlNode;
use super::units::show_size;
use super::{Admin, Config, Forwarder, RelayConfig, Route, StoreConfig};

/// The upstream of every route if Envoy forwards. It is never connected to.
pub(super) const BY_ENVOY: &str = "http://envoy";

/// The tree of the file, for positions of values, and the errors that were found.
pub(super) struct Checks<'c> {
    pub(super) tree: &'c TomlNode,
    pub(super) problems: &'c Problems<'c>,
}

impl Checks<'_> {
    /// Reports an error of an option, at the position of its value.
    pub(super) fn refuse(&self, field: &str, fault: ValueError) {
        self.refuse_at(field, field, fault);
    }

    /// Reports an error of `field`, at the position of the value at `at`. A mistake in `[defaults]`
    /// is reported once, and not again for each route.
    fn refuse_at(&self, at: &str, field: &str, fault: ValueError) {
        let node = self.tree.get(at);
        let value = node.filter(|_| at == field).and_then(TomlNode::shown);
        let place = node.map_or(Origin::Absent, |node| node.at.clone());
        if node.is_none() || !self.problems.is_known(&place, &fault.what) {
            self.problems.add(&place, field, value, fault);
        }
    }

    /// The path of an option of a route, or of `[defaults]` if only that sets it.
    fn written(&self, path: &str, option: &str) -> String {
        let mut paths = [path, "defaults"].map(|layer| format!("{layer}.{option}")).into_iter();
        let found = paths.clone().find(|path| self.tree.get(path).is_some());
        found.or(paths.next()).unwrap_or_default()
    }

    /// Completes the configuration of a gateway, or of a processor of Envoy.
    pub(super) fn config(&self, file: File, forwarder: Forwarder) -> Option<Config> {
        if file.admin.listen == file.gateway.listen && file.admin.listen.port() != 0 {
            let what = "the same address as gateway.listen";
            let fault = ValueError::new(what, "change the port of one of them");
            self.refuse("admin.listen", fault.showing(Some(file.admin.listen.to_string())));
        }
        let named = file.gateway.upstream.as_ref().or(file.defaults.upstream.as_ref()).cloned();
        let upstream = match forwarder {
            Forwarder::Gateway => self.upstream(&file),
            Forwarder::Envoy => Some(Uri::from_static(BY_ENVOY)),
        };
        let (admin, store) = (self.admin(&file), store(&file));
        let mut defaults = Settings::new(&PolicyOptions::default(), None, &file.defaults);
        let shared_set = file.defaults.descriptor_set.as_deref().map(|set| (set, "defaults"));
        self.read_messages("defaults", shared_set, None, &mut defaults.policy);
        let layers =
            Layers { own: &file.defaults, weaker: &PolicyOptions::default(), preset: None };
        self.policy("defaults", layers, &defaults, &store.url);
        let upstream_of = |path: &str, settings: &Settings, own: Option<&Uri>| {
            let is_async = matches!(settings.policy.in_flight, InFlight::Async(_));
            if own.is_some() || !is_async || forwarder == Forwarder::Gateway {
                // If there is no upstream at all, that was reported once for all routes.
                return own.or(upstream.as_ref()).cloned();
            }
            // Requests without a route go through Envoy.
            let shared = named.clone().filter(|_| path != "defaults");
            if shared.is_none() {
                let what = "\"async\" needs an upstream: Envoy breaks off a request once it is answered, so the processor sends it itself";
                let fix = "write upstream = \"http://127.0.0.1:3000\" below this route, or in_flight = \"wait\" or \"reject\"";
                let fault = ValueError::new(what, fix).showing(Some("async".to_owned()));
                self.refuse(&format!("{path}.in_flight"), fault);
            }
            shared
        };
        upstream_of("defaults", &defaults, None);
        let (mut routes, mut patterns) = (Vec::new(), Vec::<RoutePattern>::new());
        for (index, route) in file.route.iter().enumerate() {
            let path = format!("route[{index}]");
            let mut settings = Settings::new(&route.policy, route.preset, &file.defaults);
            let pattern = route.pattern.clone().with_rules(settings.policy.paths);
            settings.policy.path = Some(pattern.path.clone());
            let own_set = route.policy.descriptor_set.as_deref().map(|set| (set, path.as_str()));
            let set: Option<(&Path, &str)> = own_set.or(shared_set);
            self.read_messages(&path, set, Some(&pattern), &mut settings.policy);
            self.preset(&path, route, &file.defaults, &store);
            let (own, preset) = (&route.policy, route.preset);
            let layers = Layers { own, weaker: &file.defaults, preset };
            self.policy(&path, layers, &settings, &store.url);
            if let Some(earlier) = patterns.iter().find(|earlier| earlier.covers(&pattern)) {
                let mistake = never_reached(earlier);
                let fault = ValueError::new(mistake.what, mistake.fix);
                self.refuse(&format!("{path}.match"), fault);
            }
            patterns.push(pattern.clone());
            let upstream = upstream_of(&path, &settings, own.upstream.as_ref());
            routes.extend(upstream.map(|upstream| Route { pattern, preset, upstream, settings }));
        }
        let has_https_relay = matches!(&file.relay.sink, Some(Sink::Webhook(url)) if url.scheme() == Some(&Scheme::HTTPS));
        let config = Config {
            gateway: super::Gateway { upstream, ..file.gateway },
            admin,
            ext_proc: file.ext_proc,
            store,
            sweep: file.sweep,
            limits: file.limits,
            secrets: file.secrets,
            defaults,
            routes,
            has_https_relay,
            notes: Vec::new(),
        };
        self.memory(&config);
        let notes = super::explain::hidden_defaults(&config, self);
        Some(Config { notes, ..config })
    }

    /// The upstream for all routes that name none: from `[gateway]` or `[defaults]`, which mean the
    /// same.
    fn upstream(&self, file: &File) -> Option<Uri> {
        let (gateway, defaults) = (&file.gateway.upstream, &file.defaults.upstream);
        if let (Some(gateway), Some(defaults)) = (gateway, defaults)
            && gateway != defaults
        {
            // With two upstreams, unkeyed requests would go to one and keyed requests to the other.
            let other = self.tree.get("gateway.upstream").map(|node| self.problems.place(&node.at));
            let what = format!("differs from gateway.upstream ({})", other.unwrap_or_default());
            let fault = ValueError::new(what, "keep gateway.upstream and remove this field");
            self.refuse("defaults.upstream", fault.showing(Some(defaults.to_string())));
        }
        let upstream = gateway.clone().or_else(|| defaults.clone());
        let homeless = file.route.iter().position(|route| route.policy.upstream.is_none());
        let what = match (&upstream, homeless) {
            (None, Some(index)) => {
                format!("missing, and route[{index}] has no upstream of its own")
            }
            (None, None) if file.route.is_empty() => {
                "missing, so requests cannot be forwarded".to_owned()
            }
            _ => return upstream,
        };
        let fix = "start with --upstream http://127.0.0.1:3000, or write upstream = \
                   \"http://127.0.0.1:3000\" below [gateway]";
        self.refuse("gateway.upstream", ValueError::new(what, fix));
        upstream
    }

    /// Checks that the largest body fits the memory. One connection gets two thirds of the memory
    /// for requests, and the head counts too.
    fn memory(&self, config: &Config) {
        let largest = |of: fn(&Policy) -> usize| {
            config.settings().map(|settings| of(&settings.policy)).max().unwrap_or_default()
        };
        let requests = largest(|policy| policy.max_request_body);
        let responses = largest(|policy| policy.max_response_body);
        let limits = &config.limits;
        for (limit, memory, option, largest, done) in [
            ("max_body_memory", limits.max_body_memory, "max_request_body", requests, "read"),
            (
                "max_response_memory",
                limits.max_response_memory,
                "max_response_body",
                responses,
                "shown",
            ),
        ] {
            let (body, needed) = (show_size(largest), largest.saturating_mul(2));
            let what = format!(
                "less than twice the largest {option} ({body}), so such a body could never be {done}"
            );
            let fix = format!("write at least \"{}\", or a smaller {option}", show_size(needed));
            if memory < needed {
                self.refuse(&format!("limits.{limit}"), ValueError::new(what, fix));
            }
        }
    }

    /// The listener for operators. Without a token it must be on loopback.
    pub(super) fn admin(&self, file: &File) -> Admin {
        self.guarded("admin.listen", Some(file.admin.listen), "see and change keys");
        file.admin.clone()
    }

    fn guarded(&self, field: &str, listen: Option<SocketAddr>, could: &str) {
        let open = listen.filter(|listen| !listen.ip().to_canonical().is_loopback());
        if let Some(port) = open.map(|listen| listen.port())
            && self.tree.get("admin.token").is_none()
        {
            let what = format!(
                "not a loopback address, and `admin.token` is not set: everyone in the network could {could}"
            );
            let fix = format!(
                "write token = {{ env = \"ONETAKE_ADMIN_TOKEN\" }} below [admin], set ONETAKE__ADMIN__TOKEN, or listen on 127.0.0.1:{port}"
            );
            self.refuse(field, ValueError::new(what, fix));
        }
    }

    /// Checks the store and the tenant of a route with a preset.
    fn preset(
        &self,
        path: &str,
        route: &RouteOptions,
        defaults: &PolicyOptions,
        store: &StoreConfig,
    ) {
        let (field, Some(preset)) = (format!("{path}.preset"), route.preset) else { return };
        if preset.is_dear() && !store.allow_lossy && matches!(store.url, StoreUrl::Redis(_)) {
            let what = "Redis alone is not durable enough for this preset: a failover loses \
                        acknowledged writes, and a lost claim can cause a second charge";
            let fix = "use PostgreSQL with Redis as its filter (below [store]: url = \
                       \"postgres://HOST/DATABASE\", filter = \"redis://HOST\"), or accept the \
                       risk with allow_lossy = true below [store]";
            self.refuse(&field, ValueError::new(what, fix));
        }
        let is_named = route.policy.tenant.is_some() || defaults.tenant.is_some();
        if preset.values().must_name_tenant && !is_named {
            let fix = "write tenant = \"credential\", \"public\" or { header = \"X-Account\" } in \
                       this route or in [defaults]";
            let fault = ValueError::new(TENANT_NOT_NAMED, fix);
            self.refuse_at(&field, &format!("{path}.tenant"), fault);
        }
    }

    /// Checks the rules between the options of one policy.
    fn policy(&self, path: &str, layers: Layers<'_>, settings: &Settings, store: &StoreUrl) {
        self.statuses(path, layers.own);
        for mistake in settings.policy.check() {
            let at = match mistake.option {
                // The error of a ttl for reconciliation is reported below, with the times of the
                // service that is asked.
                "ttl" => continue,
                "tenant" => layers.source_of_keys(path),
                option => self.written(path, option),
            };
            let fix = match mistake.option {
                "tenant" => {
                    "write tenant = \"credential\", \"public\" or { header = \"X-Account\" } next to them"
                }
                _ => &mistake.fix,
            };
            let field = format!("{path}.{}", mistake.option);
            self.refuse_at(&at, &field, ValueError::new(mistake.what, fix));
        }
        if let Some((option, at, fault)) = self.reconcile(path, layers, settings, store) {
            self.refuse_at(&at, &format!("{path}.{option}"), fault);
        }
    }

    /// Checks that a status is in one list only.
    fn statuses(&self, path: &str, options: &PolicyOptions) {
        let lists = options.lists();
        for (nth, (name, _, list)) in lists.iter().enumerate() {
            for (index, pattern) in list.iter().enumerate() {
                let other = lists.iter().take(nth).find(|(_, _, other)| other.contains(pattern));
                if let Some((other, ..)) = other {
                    let what = format!("the status is also in `{other}`");
                    let fault = ValueError::new(what, "keep it in one of the two lists");
                    self.refuse(&format!("{path}.{name}[{index}]"), fault);
                }
            }
        }
    }

    /// Checks that the service for outcomes is named, that each question is about one operation
    /// only, and that there is time for questions. Returns the option, the position and the error.
    fn reconcile(
        &self,
        path: &str,
        Layers { own, weaker, .. }: Layers<'_>,
        Settings { policy, reconcile, .. }: &Settings,
        store: &StoreUrl,
    ) -> Option<(&'static str, String, ValueError)> {
        let at = self.written(path, "reconcile");
        if policy.terms.on_unknown != OnUnknown::Reconcile {
            own.reconcile.as_ref()?;
            let what = "without effect, because on_unknown is not \"reconcile\"";
            let fix = "write on_unknown = \"reconcile\" next to it, or remove it";
            return Some(("reconcile", at, ValueError::new(what, fix).showing(None)));
        }
        let Some(reconcile) = reconcile else {
            let what = "`reconcile` is missing: it names the service that knows the outcome";
            let fix = "write next to it, for example, reconcile = \"GET http://127.0.0.1:3000/charges/by-key/{derived_key}\"";
            return Some((
                "on_unknown",
                self.written(path, "on_unknown"),
                ValueError::new(what, fix),
            ));
        };
        if let Some(what) = unsafe_for(reconcile, own.tenant.as_ref().or(weaker.tenant.as_ref())) {
            let fix = "use {derived_key}: the upstream receives it with the operation as Idempotency-Derived-Key";
            return Some(("reconcile", at, ValueError::new(what, fix).showing(None)));
        }
        let (ttl, skew) = (policy.terms.ttl, store.clock_skew_max());
        let from = policy.reconciles_after(skew);
        // Half of it is for asking; see `give_up_after`.
        let needed = policy.reconcile_ttl_min(reconcile.timeout, skew);
        let clocks = if skew.is_zero() { "" } else { ", and the clock difference between nodes" };
        let what = format!(
            "an outcome is reconciled {from:?} after the attempt began (upstream_timeout and grace{clocks}) at the earliest, and the key expires after {ttl:?}: that is too early"
        );
        let seconds = needed.as_secs_f64().ceil();
        let fix =
            format!("set a ttl of {seconds}s or more, or a shorter upstream_timeout or grace");
        (ttl < needed).then(|| ("ttl", at, ValueError::new(what, fix)))
    }

    /// Completes the configuration of a relay.
    pub(super) fn relay(&self, file: File) -> Option<RelayConfig> {
        let (store, relay) = (store(&file), file.relay);
        self.guarded("relay.listen", relay.listen, "see the metrics");
        let Some(sink) = relay.sink.clone() else {
            let what = "missing, so messages cannot be delivered";
            let fix = "write sink = \"nats://HOST:4222\" or \"https://HOST/PATH\" below [relay], or start with --sink URL";
            self.refuse("relay.sink", ValueError::new(what, fix));
            return None;
        };
        if matches!(sink, Sink::Webhook(_)) && relay.secrets.is_empty() {
            let what = "missing: webhooks are signed, and there is no secret to sign them with";
            let fix = "write secrets = [{ env = \"ONETAKE_WEBHOOK_SECRET\" }] below [relay]";
            self.refuse_at("relay.sink", "relay.secrets", ValueError::new(what, fix));
        }
        // A delivery that takes longer would be cut off, and repeated for ever.
        let (timeout, hold) = (relay.timeout, relay.hold);
        if timeout > relay.options().deliver_within() {
            let what = format!(
                "longer than three quarters of `hold` ({hold:?}), the time for one delivery"
            );
            let fix = "set a shorter timeout or a longer hold below [relay]";
            let fault = ValueError::new(what, fix).showing(Some(format!("{timeout:?}")));
            self.refuse("relay.timeout", fault);
        }
        let (token, tls) = (file.admin.token, file.gateway.upstream_tls);
        Some(RelayConfig { store, relay, sink, token, tls })
    }
}

/// The layers that a policy was made of.
#[derive(Clone, Copy)]
struct Layers<'a> {
    own: &'a PolicyOptions,
    preset: Option<Preset>,
    weaker: &'a PolicyOptions,
}

impl Layers<'_> {
    /// The path of the option that the source of the key comes from.
    fn source_of_keys(self, path: &str) -> String {
        let is_of_preset = self.preset.is_some_and(|preset| preset.values().key_source.is_some());
        match self.own.key.source {
            Some(_) => format!("{path}.key.from"),
            None if is_of_preset => format!("{path}.preset"),
            None => "defaults.key.from".to_owned(),
        }
    }
}

/// The store, with the values of other sections that it needs.
pub(super) fn store(file: &File) -> StoreConfig {
    let encryption = file.secrets.encryption.clone();
    StoreConfig { encryption, memory_bytes: file.limits.max_store_memory, ..file.store.clone() }
}

/// Returns an error if the placeholders of a request are unsafe with the tenant of its keys.
fn unsafe_for(reconcile: &Reconcile, tenant: Option<&TenantOption>) -> Option<&'static str> {
    let has = |place| reconcile.request.has(place);
    match tenant {
        None | Some(TenantOption::Plain(Tenant::Credential)) if has(Placeholder::Tenant) => {
            Some("the tenant is a credential, and {tenant} would put it into a URL and into logs")
        }
        Some(TenantOption::Plain(Tenant::Jwt(_))) if has(Placeholder::Tenant) => {
            Some("the tenant is an issuer and a claim, and {tenant} cannot hold both")
        }
        Some(TenantOption::Plain(Tenant::Public)) => None,
        _ if has(Placeholder::Key) && !has(Placeholder::Tenant) => Some(
            "{key} without {tenant}: two tenants can use the same key, and would get each other's outcome",
        ),
        _ => None,
    }
}
