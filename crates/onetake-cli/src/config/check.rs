//! Rules between options, and the complete configuration of a file that follows them.

use std::net::SocketAddr;

use http::{HeaderName, Uri};
use onetake_core::OnUnknown;
use onetake_http::policy::TENANT_NOT_NAMED;
use onetake_http::routes::{RoutePattern, never_reached};
use onetake_http::{InFlight, Policy, Preset, Tenant};
use onetake_stores::StoreUrl;

use super::error::{Origin, Problems, ValueError};
use super::explain::hidden_defaults;
use super::policy::{LISTS, PolicyOptions, RouteOptions, Settings};
use super::reconcile::{Placeholder, Reconcile};
use super::sections::{File, Sink};
use super::tenant::TenantOption;
use super::tree::TomlNode;
use super::units::show_size;
use super::{Admin, Config, Forwarder, RelayConfig, Route, StoreConfig, is_https};

/// The upstream of every route if Envoy forwards. It is never connected to.
pub(super) const BY_ENVOY: &str = "http://envoy";

/// A file whose options were read, its tree for positions of values, and the errors.
pub(super) struct Checks<'c> {
    pub(super) file: &'c File,
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
        if node.is_none() || !self.problems.is_of_defaults(&place, &fault.what) {
            self.problems.add(&place, field, value, fault);
        }
    }

    /// The path of an option of a route, or of `[defaults]` if only that sets it.
    pub(super) fn written(&self, path: &str, option: &str) -> String {
        let mut paths = [path, "defaults"].map(|layer| format!("{layer}.{option}")).into_iter();
        let found = paths.clone().find(|path| self.tree.get(path).is_some());
        found.or(paths.next()).unwrap_or_default()
    }

    /// Completes the configuration of a gateway, or of a processor of Envoy.
    pub(super) fn config(&self, forwarder: Forwarder) -> Option<Config> {
        let (file, admin) = (self.file, self.admin());
        if admin.listen == file.gateway.listen && admin.listen.port() != 0 {
            let what = "the same address as gateway.listen";
            let fault = ValueError::new(what, "change the port of one of them");
            self.refuse("admin.listen", fault.showing(Some(admin.listen.to_string())));
        }
        let upstream = match forwarder {
            Forwarder::Gateway => self.upstream(),
            Forwarder::Envoy => Some(Uri::from_static(BY_ENVOY)),
        };
        let mut defaults = Settings::new(&PolicyOptions::default(), None, &file.defaults);
        self.policy("defaults", &file.defaults, None, &mut defaults);
        self.upstream_of("defaults", None, &defaults, &upstream, forwarder);
        let (mut routes, mut patterns) = (Vec::new(), Vec::<RoutePattern>::new());
        for (index, route) in file.route.iter().enumerate() {
            let path = format!("route[{index}]");
            let (own, preset) = (&route.policy, route.preset);
            let mut settings = Settings::new(own, preset, &file.defaults);
            let pattern = route.r#match.clone().with_rules(settings.policy.paths);
            settings.policy.path = Some(pattern.path.clone());
            self.lossy(&path, preset);
            self.policy(&path, own, Some(route), &mut settings);
            if let Some(earlier) = patterns.iter().find(|earlier| earlier.covers(&pattern)) {
                let mistake = never_reached(earlier);
                let fault = ValueError::new(mistake.what, mistake.fix);
                self.refuse(&format!("{path}.match"), fault);
            }
            patterns.push(pattern.clone());
            let own = own.upstream.as_ref();
            let upstream = self.upstream_of(&path, own, &settings, &upstream, forwarder);
            routes.extend(upstream.map(|upstream| Route { pattern, preset, upstream, settings }));
        }
        let mut config = Config {
            gateway: super::Gateway { upstream, ..file.gateway.clone() },
            admin,
            ext_proc: file.ext_proc.clone(),
            store: self.store(),
            sweep: file.sweep.clone(),
            limits: file.limits.clone(),
            secrets: file.secrets.clone(),
            defaults,
            routes,
            has_https_relay: matches!(&file.relay.sink, Some(Sink::Webhook(url)) if is_https(url)),
            notes: Vec::new(),
        };
        self.memory(&config);
        config.notes = hidden_defaults(&config, self);
        Some(config)
    }

    /// The upstream of a route, or of requests without a route. If no section names one, that was
    /// reported once for all routes.
    fn upstream_of(
        &self,
        path: &str,
        own: Option<&Uri>,
        settings: &Settings,
        usual: &Option<Uri>,
        forwarder: Forwarder,
    ) -> Option<Uri> {
        let is_async = matches!(settings.policy.in_flight, InFlight::Async(_));
        if own.is_some() || !is_async || forwarder == Forwarder::Gateway {
            return own.cloned().or(usual.clone());
        }
        let (gateway, defaults) = (&self.file.gateway.upstream, &self.file.defaults.upstream);
        // Requests without a route go through Envoy.
        let shared = gateway.as_ref().or(defaults.as_ref()).filter(|_| path != "defaults");
        if shared.is_none() {
            let what = "\"async\" needs an upstream: Envoy breaks off a request once it is answered, so the processor sends it itself";
            let fix = "write upstream = \"http://127.0.0.1:3000\" below this route, or in_flight = \"wait\" or \"reject\"";
            let fault = ValueError::new(what, fix).showing(Some("async".to_owned()));
            self.refuse(&format!("{path}.in_flight"), fault);
        }
        shared.cloned()
    }

    /// The upstream for all routes that name none: from `[gateway]` or `[defaults]`, which mean the
    /// same.
    fn upstream(&self) -> Option<Uri> {
        let file = self.file;
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
        let what = match homeless {
            _ if upstream.is_some() => return upstream,
            Some(index) => format!("missing, and route[{index}] has no upstream of its own"),
            None if file.route.is_empty() => "missing, so requests cannot be forwarded".to_owned(),
            None => return None,
        };
        let fix = "start with --upstream http://127.0.0.1:3000, or write upstream = \
                   \"http://127.0.0.1:3000\" below [gateway]";
        self.refuse("gateway.upstream", ValueError::new(what, fix));
        upstream
    }

    /// Checks that the largest body fits the memory. One connection gets two thirds of the memory
    /// for requests, and the head counts too.
    fn memory(&self, config: &Config) {
        let check = |limit: &str, memory: usize, option: &str, of: fn(&Policy) -> usize, done| {
            let bodies = config.settings().map(|settings| of(&settings.policy));
            let largest = bodies.max().unwrap_or_default();
            let (body, needed) = (show_size(largest), largest.saturating_mul(2));
            let what = format!(
                "less than twice the largest {option} ({body}), so such a body could never be {done}"
            );
            let fix = format!("write at least \"{}\", or a smaller {option}", show_size(needed));
            if memory < needed {
                self.refuse(&format!("limits.{limit}"), ValueError::new(what, fix));
            }
        };
        let (requests, responses) =
            (config.limits.max_body_memory, config.limits.max_response_memory);
        check("max_body_memory", requests, "max_request_body", |it| it.max_request_body, "read");
        check(
            "max_response_memory",
            responses,
            "max_response_body",
            |it| it.max_response_body,
            "shown",
        );
    }

    /// The listener for operators. Without a token it must be on loopback.
    pub(super) fn admin(&self) -> Admin {
        self.guarded("admin.listen", Some(self.file.admin.listen), "see and change keys");
        self.file.admin.clone()
    }

    /// The store, with the values of other sections that it needs.
    pub(super) fn store(&self) -> StoreConfig {
        let encryption = self.file.secrets.encryption.clone();
        let memory_bytes = self.file.limits.max_store_memory;
        StoreConfig { encryption, memory_bytes, ..self.file.store.clone() }
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

    /// Refuses Redis alone as the store for payments, unless the operator allows it.
    fn lossy(&self, path: &str, preset: Option<Preset>) {
        let store = &self.file.store;
        let is_lossy = !store.allow_lossy && matches!(store.url, StoreUrl::Redis(_));
        if is_lossy && preset.is_some_and(Preset::is_dear) {
            let what = "Redis alone is not durable enough for this preset: a failover loses \
                        acknowledged writes, and a lost claim can cause a second charge";
            let fix = "use PostgreSQL with Redis as its filter (below [store]: url = \
                       \"postgres://HOST/DATABASE\", filter = \"redis://HOST\"), or accept the \
                       risk with allow_lossy = true below [store]";
            self.refuse(&format!("{path}.preset"), ValueError::new(what, fix));
        }
    }

    /// Checks the rules between the options of one policy, and reads the types of its messages.
    fn policy(
        &self,
        path: &str,
        own: &PolicyOptions,
        route: Option<&RouteOptions>,
        settings: &mut Settings,
    ) {
        self.read_messages(path, own, route, &mut settings.policy);
        self.statuses(path, own);
        for mistake in settings.policy.check() {
            let is_it = |header: &HeaderName| mistake.value.as_deref() == Some(header.as_str());
            let index = settings.policy.fingerprint.headers.iter().position(is_it);
            let option = match (mistake.option, index) {
                ("fingerprint_headers", Some(index)) => format!("fingerprint.headers[{index}]"),
                (option, _) => option.to_owned(),
            };
            let (at, fix) = match mistake.option {
                // The error of a ttl for reconciliation is reported below, with the times of the
                // service that is asked.
                "ttl" => continue,
                "tenant" => {
                    let is_payment = mistake.what == TENANT_NOT_NAMED;
                    let near =
                        if is_payment { "in this route or in [defaults]" } else { "next to them" };
                    let preset = route.and_then(|route| route.preset);
                    let of_preset = preset.and_then(|preset| preset.values().key_source);
                    let at = match is_payment || own.key.source.is_none() && of_preset.is_some() {
                        true => format!("{path}.preset"),
                        false => self.written(path, "key.from"),
                    };
                    let names = "tenant = \"credential\", \"public\" or { header = \"X-Account\" }";
                    (at, format!("write {names} {near}"))
                }
                _ => (self.written(path, &option), mistake.fix),
            };
            let field = format!("{path}.{option}");
            self.refuse_at(&at, &field, ValueError::new(mistake.what, fix));
        }
        if let Some((option, at, fault)) = self.reconcile(path, own, settings) {
            self.refuse_at(&at, &format!("{path}.{option}"), fault);
        }
    }

    /// Checks that a status is in one list only.
    fn statuses(&self, path: &str, options: &PolicyOptions) {
        let lists = LISTS.map(|(name, _)| name).into_iter().zip(options.lists());
        for (nth, (name, list)) in lists.clone().enumerate() {
            for (index, pattern) in list.iter().enumerate() {
                let mut earlier = lists.clone().take(nth);
                let Some((other, _)) = earlier.find(|(_, other)| other.contains(pattern)) else {
                    continue;
                };
                let what = format!("the status is also in `{other}`");
                let fault = ValueError::new(what, "keep it in one of the two lists");
                self.refuse(&format!("{path}.{name}[{index}]"), fault);
            }
        }
    }

    /// Checks that the service for outcomes is named, that each question is about one operation
    /// only, and that there is time for questions. Returns the last error: the option, the position
    /// and the error.
    fn reconcile(
        &self,
        path: &str,
        own: &PolicyOptions,
        Settings { policy, reconcile, .. }: &Settings,
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
        let tenant = own.tenant.as_ref().or(self.file.defaults.tenant.as_ref());
        if let Some(what) = unsafe_for(reconcile, tenant) {
            let fix = "use {derived_key}: the upstream receives it with the operation as Idempotency-Derived-Key";
            let fault = ValueError::new(what, fix).showing(None);
            self.refuse_at(&at, &format!("{path}.reconcile"), fault);
        }
        let (ttl, skew) = (policy.terms.ttl, self.file.store.url.clock_skew_max());
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
    pub(super) fn relay(&self) -> Option<RelayConfig> {
        let (file, relay) = (self.file, self.file.relay.clone());
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
        let (token, tls) = (file.admin.token.clone(), file.gateway.upstream_tls.clone());
        Some(RelayConfig { store: self.store(), relay, sink, token, tls })
    }
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
