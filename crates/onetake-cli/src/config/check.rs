//! Rules between options, and the complete configuration of a file that follows them.

use std::net::SocketAddr;
use std::path::PathBuf;

use http::Uri;
use http::uri::Scheme;
use onetake_core::OnUnknown;
use onetake_http::policy::TENANT_NOT_NAMED;
use onetake_http::routes::{RoutePattern, never_reached};
use onetake_http::{InFlight, Preset, Tenant};
use onetake_relay::RelayOptions as Bounds;
use onetake_stores::StoreUrl;

use super::error::{Origin, Problems, ValueError};
use super::policy::{PolicyOptions, RouteOptions, Settings};
use super::reconcile::{Placeholder, Template};
use super::sections::{File, RelayOptions, Sink};
use super::tenant::TenantOption;
use super::tree::TomlNode;
use super::{Admin, Config, RelayConfig, Route, SinkConfig, StoreConfig, StoreTimeouts};

/// Default folder of the journal, for outcomes that the store has not accepted at shutdown.
const JOURNAL_FOLDER: &str = "onetake-journal";

/// The upstream of every route if Envoy forwards. It is never connected to.
pub(super) const BY_ENVOY: &str = "http://envoy";

/// The tree of the file, for positions of values, and the errors that were found.
pub(super) struct Checks<'c, 'a> {
    pub(super) tree: &'c TomlNode,
    pub(super) problems: &'c mut Problems<'a>,
}

impl Checks<'_, '_> {
    /// Reports an error of `field`, at the position of the value at `at`.
    pub(super) fn refuse(&mut self, at: &str, field: &str, fault: ValueError) {
        let node = self.tree.get(at);
        let place = node.map_or(Origin::Absent, |node| node.at.clone());
        let value = node.filter(|_| at == field).and_then(TomlNode::shown);
        self.problems.add(&place, field, value, fault);
    }

    /// Completes the configuration of a gateway.
    pub(super) fn config(&mut self, file: File) -> Option<Config> {
        let upstream = self.upstream(&file);
        self.complete(file, upstream)
    }

    /// Completes the configuration of an external processor. Envoy forwards, so no upstream counts.
    pub(super) fn ext_proc(&mut self, file: File) -> Option<Config> {
        let shared = file.gateway.upstream.clone().or_else(|| file.defaults.upstream.clone());
        let mut config = self.complete(file, Some(Uri::from_static(BY_ENVOY)))?;
        let is_async =
            |settings: &Settings| matches!(settings.policy.in_flight, InFlight::Async(_));
        let mut homeless = Vec::new();
        for (index, route) in config.routes.iter_mut().enumerate() {
            let is_envoys = route.upstream == Uri::from_static(BY_ENVOY);
            match (is_async(&route.settings) && is_envoys, &shared) {
                (true, Some(shared)) => route.upstream = shared.clone(),
                (true, None) => homeless.push(format!("route[{index}].in_flight")),
                (false, _) => {}
            }
        }
        // Requests without a route go through Envoy.
        homeless.extend(is_async(&config.defaults).then(|| "defaults.in_flight".to_owned()));
        for field in homeless {
            let fault = ValueError::new(
                "\"async\" needs an upstream: Envoy breaks off a request once it is answered, so the processor sends it itself",
                "write upstream = \"http://127.0.0.1:3000\" below this route, or in_flight = \"wait\" or \"reject\"",
            );
            self.refuse(&field, &field, fault.showing(Some("\"async\"".to_owned())));
        }
        Some(config)
    }

    fn complete(&mut self, file: File, upstream: Option<Uri>) -> Option<Config> {
        if file.admin.listen == file.gateway.listen && file.admin.listen.port() != 0 {
            let fault = ValueError::new(
                "the same address as gateway.listen",
                "change the port of one of them",
            );
            let shown = Some(file.admin.listen.to_string());
            self.refuse("admin.listen", "admin.listen", fault.showing(shown));
        }
        let admin = self.admin(&file);
        let store = self.store(&file);
        self.lossy(&store, &file.route);
        let mut defaults = Settings::new(&PolicyOptions::default(), None, &file.defaults);
        let shared_set = file.defaults.descriptor_set.clone();
        let shared_set = shared_set.as_ref().map(|set| (set, "defaults"));
        self.read_messages("defaults", shared_set, None, &mut defaults);
        let nothing = PolicyOptions::default();
        self.policy("defaults", &file.defaults, &nothing, &defaults, None, &store.url);
        let (mut routes, mut patterns) = (Vec::new(), Vec::<RoutePattern>::new());
        for (index, route) in file.route.into_iter().enumerate() {
            let path = format!("route[{index}]");
            let mut settings = Settings::new(&route.policy, route.preset, &file.defaults);
            let pattern = route.pattern.clone().with_rules(settings.policy.paths);
            settings.policy.path = Some(pattern.path.clone());
            let own_set = route.policy.descriptor_set.clone();
            let set = own_set.as_ref().map(|set| (set, path.as_str())).or(shared_set);
            self.read_messages(&path, set, Some(&route.pattern), &mut settings);
            self.tenant_named(&path, &route, &file.defaults);
            self.policy(
                &path,
                &route.policy,
                &file.defaults,
                &settings,
                Some(&defaults),
                &store.url,
            );
            // If there is no upstream at all, that was reported once for all routes.
            let own = route.policy.upstream.or_else(|| upstream.clone());
            let preset = route.preset;
            let is_covered = |earlier: &&RoutePattern| earlier.covers(&pattern);
            if let Some(earlier) = patterns.iter().find(is_covered) {
                let mistake = never_reached(earlier);
                let field = format!("{path}.match");
                self.refuse(&field, &field, ValueError::new(mistake.what, mistake.fix));
            }
            patterns.push(pattern.clone());
            routes.extend(own.map(|upstream| Route { pattern, preset, upstream, settings }));
        }
        let settings = routes.iter().map(|route: &Route| &route.settings).chain([&defaults]);
        let bodies = settings
            .map(|settings| (settings.policy.max_request_body, settings.policy.max_response_body));
        let (requests, responses): (Vec<_>, Vec<_>) = bodies.unzip();
        for (field, fault) in file.limits.too_little_memory(&requests, &responses) {
            self.refuse(field, field, fault);
        }
        let is_https = |sink: &Sink| matches!(sink, Sink::Webhook(url) if url.scheme() == Some(&Scheme::HTTPS));
        Some(Config {
            has_https_relay: file.relay.sink.as_ref().is_some_and(is_https),
            gateway: super::Gateway { upstream, ..file.gateway },
            admin,
            ext_proc: file.ext_proc,
            store,
            sweep: file.sweep,
            limits: file.limits,
            secrets: file.secrets,
            defaults,
            routes,
            notes: Vec::new(),
        })
    }

    /// The upstream for all routes that name none: from `[gateway]` or `[defaults]`, which mean the
    /// same.
    fn upstream(&mut self, file: &File) -> Option<Uri> {
        let (gateway, defaults) = (&file.gateway.upstream, &file.defaults.upstream);
        if let (Some(gateway), Some(defaults)) = (gateway, defaults)
            && gateway != defaults
        {
            // With two upstreams, unkeyed requests would go to one and keyed requests to the other.
            let other = self.tree.get("gateway.upstream").map(|node| self.problems.place(&node.at));
            let what = format!("differs from gateway.upstream ({})", other.unwrap_or_default());
            let fault = ValueError::new(what, "keep gateway.upstream and remove this field");
            let shown = Some(defaults.to_string());
            self.refuse("defaults.upstream", "defaults.upstream", fault.showing(shown));
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
        self.refuse("gateway.upstream", "gateway.upstream", ValueError::new(what, fix));
        upstream
    }

    /// The listener for operators. Without a token it must be on loopback.
    pub(super) fn admin(&mut self, file: &File) -> Admin {
        self.guarded("admin.listen", Some(file.admin.listen), "see and change keys");
        file.admin.clone()
    }

    fn guarded(&mut self, field: &str, listen: Option<SocketAddr>, could: &str) {
        let Some(listen) = listen.filter(|listen| !listen.ip().to_canonical().is_loopback()) else {
            return;
        };
        if self.tree.get("admin.token").is_none() {
            let what = format!(
                "not a loopback address, and `admin.token` is not set: everyone in the network could {could}"
            );
            let fix = format!(
                "write token = {{ env = \"ONETAKE_ADMIN_TOKEN\" }} below [admin], set ONETAKE__ADMIN__TOKEN, or listen on 127.0.0.1:{}",
                listen.port()
            );
            self.refuse(field, field, ValueError::new(what, fix));
        }
    }

    /// The store, and the filter in front of it.
    pub(super) fn store(&mut self, file: &File) -> StoreConfig {
        let url = file.store.url.clone();
        let filter = file.store.filter.as_ref().and_then(|filter| {
            let fault = match (filter, &url) {
                (StoreUrl::Redis(server), StoreUrl::Postgres(_)) => return Some(server.clone()),
                (StoreUrl::Redis(_), other) => ValueError::new(
                    format!("a filter works only in front of PostgreSQL, and store.url is {other}"),
                    "write url = \"postgres://HOST/DATABASE\", or remove the filter",
                ),
                _ => ValueError::new(
                    "not a Redis URL; only Redis can be a filter",
                    "write for example filter = \"redis://127.0.0.1:6379\"",
                ),
            };
            self.refuse("store.filter", "store.filter", fault.showing(Some(filter.to_string())));
            None
        });
        // Next to the data, or in the folder where the process runs.
        let journal = file.store.journal.clone().or_else(|| match &url {
            StoreUrl::Memory => None,
            StoreUrl::Embedded(folder) => Some(folder.join("journal")),
            StoreUrl::Sqlite(file) => Some(file.with_file_name(JOURNAL_FOLDER)),
            _ => Some(PathBuf::from(JOURNAL_FOLDER)),
        });
        let encryption = file.secrets.encryption.clone();
        let timeouts = StoreTimeouts {
            connect: file.store.connect_timeout,
            command: file.store.timeout,
            claim: file.store.claim_timeout,
            settle: file.store.settle_timeout,
        };
        let (allow_lossy, memory_bytes) = (file.store.allow_lossy, file.limits.max_store_memory);
        StoreConfig { url, filter, allow_lossy, journal, timeouts, encryption, memory_bytes }
    }

    /// Refuses Redis alone as the store for payments, unless the operator allows it.
    fn lossy(&mut self, store: &StoreConfig, routes: &[RouteOptions]) {
        if store.allow_lossy || !matches!(store.url, StoreUrl::Redis(_)) {
            return;
        }
        for (index, route) in routes.iter().enumerate() {
            if route.preset.is_some_and(Preset::is_dear) {
                let what = "Redis alone is not durable enough for this preset: a failover loses \
                            acknowledged writes, and a lost claim can cause a second charge";
                let fix = "use PostgreSQL with Redis as its filter (below [store]: url = \
                           \"postgres://HOST/DATABASE\", filter = \"redis://HOST\"), or accept \
                           the risk with allow_lossy = true below [store]";
                let field = format!("route[{index}].preset");
                self.refuse(&field, &field, ValueError::new(what, fix));
            }
        }
    }

    fn tenant_named(&mut self, path: &str, route: &RouteOptions, defaults: &PolicyOptions) {
        let is_named = route.policy.tenant.is_some() || defaults.tenant.is_some();
        if route.preset.is_some_and(|preset| preset.values().must_name_tenant) && !is_named {
            let fault = ValueError::new(
                TENANT_NOT_NAMED,
                "write tenant = \"credential\", \"public\" or { header = \"X-Account\" } in this route \
                 or in [defaults]",
            );
            self.refuse(&format!("{path}.preset"), &format!("{path}.tenant"), fault);
        }
        let has_source = route.policy.key.source.is_some()
            || route.preset.is_some_and(|preset| preset.values().key_source.is_some());
        let source = defaults.key.source.as_ref().filter(|_| !has_source);
        let has_form = route.policy.key.format.is_some() || route.policy.key.min_length.is_some();
        if has_form && source.is_some_and(|source| !source.is_header()) {
            let what = "`format` and `min_length` apply only to keys with from = \"header\", and [defaults] has another `from`";
            let fix = "write from = \"header\" next to them, or remove them";
            self.refuse("", &format!("{path}.key"), ValueError::new(what, fix));
        }
    }

    /// Checks the rules between the options of one policy. `known` is the policy of `[defaults]`,
    /// whose errors were already reported.
    fn policy(
        &mut self,
        path: &str,
        own: &PolicyOptions,
        weaker: &PolicyOptions,
        settings: &Settings,
        known: Option<&Settings>,
        store: &StoreUrl,
    ) {
        self.statuses(path, own);
        // The option that the source of the key comes from.
        let source = match (&own.key.source, &weaker.key.source) {
            (Some(_), _) => format!("{path}.key.from"),
            (None, Some(source)) if *source == settings.policy.key.source => {
                "defaults.key.from".to_owned()
            }
            (None, _) => format!("{path}.preset"),
        };
        for mistake in settings.policy.check() {
            let field = format!("{path}.{}", mistake.option);
            let (at, fix) = match mistake.option {
                // The error of a ttl for reconciliation is reported below, with the times of the
                // service that is asked.
                "ttl" => continue,
                "tenant" => (
                    source.clone(),
                    "write tenant = \"credential\", \"public\" or { header = \"X-Account\" } next to them".to_owned(),
                ),
                _ => (field.clone(), mistake.fix),
            };
            self.refuse(&at, &field, ValueError::new(mistake.what, fix));
        }
        self.reconcile(path, own, weaker, settings, known, store);
    }

    /// Checks that a status is in one list only.
    fn statuses(&mut self, path: &str, options: &PolicyOptions) {
        let lists = options.lists();
        for (nth, (name, _, list)) in lists.iter().enumerate() {
            for (index, pattern) in list.iter().enumerate() {
                let other = lists.iter().take(nth).find(|(_, _, other)| other.contains(pattern));
                if let Some((other, ..)) = other {
                    let fault = ValueError::new(
                        format!("the status is also in `{other}`"),
                        "keep it in one of the two lists",
                    );
                    let field = format!("{path}.{name}[{index}]");
                    self.refuse(&field, &field, fault);
                }
            }
        }
    }

    /// Checks that the service for outcomes is named, and that each question is about one operation
    /// only.
    fn reconcile(
        &mut self,
        path: &str,
        own: &PolicyOptions,
        weaker: &PolicyOptions,
        settings: &Settings,
        known: Option<&Settings>,
        store: &StoreUrl,
    ) {
        let says_something =
            own.on_unknown.is_some() || own.reconcile.is_some() || own.tenant.is_some();
        let of = |layer: &str| format!("{layer}.reconcile");
        let at = if own.reconcile.is_some() { of(path) } else { of("defaults") };
        let wants = settings.policy.terms.on_unknown == OnUnknown::Reconcile;
        if known.is_none() || says_something {
            let is_named = own.reconcile.is_some() || weaker.reconcile.is_some();
            if wants && !is_named {
                let at = if own.on_unknown.is_some() { path } else { "defaults" };
                let field = format!("{path}.on_unknown");
                let fault = ValueError::new(
                    "`reconcile` is missing: it names the service that knows the outcome",
                    "write next to it, for example, reconcile = \"GET http://127.0.0.1:3000/charges/by-key/{derived_key}\"",
                );
                let fault = fault.showing(Some("reconcile".to_owned()));
                return self.refuse(&format!("{at}.on_unknown"), &field, fault);
            }
            if !wants && own.reconcile.is_some() {
                let what = "without effect, because on_unknown is not \"reconcile\"";
                let fix = "write on_unknown = \"reconcile\" next to it, or remove it";
                return self.refuse(&at, &of(path), ValueError::new(what, fix).showing(None));
            }
            let tenant = own.tenant.as_ref().or(weaker.tenant.as_ref());
            let fault = settings.reconcile.as_ref().and_then(|it| unsafe_for(&it.request, tenant));
            if let Some(fault) = fault {
                self.refuse(&at, &of(path), fault.showing(None));
            }
        }
        let times = |it: &Settings| {
            (it.policy.terms.ttl, it.policy.upstream_timeout, it.policy.terms.grace)
        };
        let is_told = known.is_some_and(|known| {
            times(known) == times(settings) && known.reconcile == settings.reconcile
        });
        let Some(reconcile) = settings.reconcile.as_ref().filter(|_| !is_told) else { return };
        let (ttl, ..) = times(settings);
        let skew = store.clock_skew_max();
        let from = settings.policy.reconciles_after(skew);
        // Half of it is for asking; see `give_up_after`.
        let needed = settings.policy.reconcile_ttl_min(reconcile.timeout, skew);
        if ttl < needed {
            let what = format!(
                "an outcome is reconciled {from:?} after the attempt began (upstream_timeout and grace{}) at the earliest, and the key expires after {ttl:?}: that is too early",
                if skew.is_zero() { "" } else { ", and the clock difference between nodes" },
            );
            let seconds = needed.as_secs_f64().ceil();
            let fix =
                format!("set a ttl of {seconds}s or more, or a shorter upstream_timeout or grace");
            self.refuse(&at, &format!("{path}.ttl"), ValueError::new(what, fix));
        }
    }

    /// Completes the configuration of a relay.
    pub(super) fn relay(&mut self, file: File) -> Option<RelayConfig> {
        let store = self.store(&file);
        let RelayOptions { sink, subject_prefix, secrets, timeout, listen, .. } = &file.relay;
        self.guarded("relay.listen", *listen, "see the metrics");
        let Some(sink) = sink else {
            let fault = ValueError::new(
                "missing, so messages cannot be delivered",
                "write sink = \"nats://HOST:4222\" or \"https://HOST/PATH\" below [relay], or start with --sink URL",
            );
            self.refuse("relay.sink", "relay.sink", fault);
            return None;
        };
        let sink = match sink.clone() {
            Sink::Nats(url) => SinkConfig::Nats { url, subject_prefix: subject_prefix.clone() },
            Sink::Webhook(url) => {
                if secrets.is_empty() {
                    let what =
                        "missing: webhooks are signed, and there is no secret to sign them with";
                    let fix =
                        "write secrets = [{ env = \"ONETAKE_WEBHOOK_SECRET\" }] below [relay]";
                    self.refuse("relay.sink", "relay.secrets", ValueError::new(what, fix));
                }
                SinkConfig::Webhook { url, secrets: secrets.clone() }
            }
        };
        let (usual, relay) = (Bounds::default(), &file.relay);
        let options = Bounds {
            batch_items: relay.batch,
            hold: relay.hold,
            idle_poll: relay.poll,
            backoff_min: usual.backoff_min.min(relay.backoff_max),
            backoff_max: relay.backoff_max,
            tries_max: relay.tries_max.and_then(|tries| u32::try_from(tries).ok()),
            kept: relay.kept,
            ..usual
        };
        // A delivery that takes longer would be cut off, and repeated for ever.
        if *timeout > options.deliver_within() {
            let what = format!(
                "longer than three quarters of `hold` ({:?}), the time for one delivery",
                options.hold
            );
            let fix = "set a shorter timeout or a longer hold below [relay]";
            let fault = ValueError::new(what, fix).showing(Some(format!("{timeout:?}")));
            self.refuse("relay.timeout", "relay.timeout", fault);
        }
        let (token, tls) = (file.admin.token, file.gateway.upstream_tls);
        Some(RelayConfig { store, sink, timeout: *timeout, options, listen: *listen, token, tls })
    }
}

/// Returns an error if the placeholders of a request are unsafe with the tenant of its keys.
fn unsafe_for(target: &Template, tenant: Option<&TenantOption>) -> Option<ValueError> {
    let has = |place| target.has(place);
    let fix =
        "use {derived_key}: the upstream receives it with the operation as Idempotency-Derived-Key";
    let what = match tenant {
        None | Some(TenantOption::Plain(Tenant::Credential)) if has(Placeholder::Tenant) => {
            "the tenant is a credential, and {tenant} would put it into a URL and into logs"
        }
        Some(TenantOption::Plain(Tenant::Jwt(_))) if has(Placeholder::Tenant) => {
            "the tenant is an issuer and a claim, and {tenant} cannot hold both"
        }
        Some(TenantOption::Plain(Tenant::Public)) => return None,
        _ if has(Placeholder::Key) && !has(Placeholder::Tenant) => {
            "{key} without {tenant}: two tenants can use the same key, and would get each other's outcome"
        }
        _ => return None,
    };
    Some(ValueError::new(what, fix))
}
