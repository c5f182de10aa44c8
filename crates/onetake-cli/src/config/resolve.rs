//! Merges layers and built-in values into what the gateway runs with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::admin;
use super::asking;
use super::cidr::Cidr;
use super::document::{Draft, RouteDraft};
use super::error::{Fault, Origin, Problems};
use super::key;
use super::layer::{Layer, preset_layer};
use super::store_url::StoreUrl;
use super::{
    Config, FingerprintConfig, Gateway, InFlight, KeyRules, OnStoreDown, OnUnknown, Policy, Route,
    StoreConfig, Sweep, TenantConfig,
};
use onetake_http::{Answers, KeySource, Preset, ProblemStatuses, StatusRules};

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
pub(super) const ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9091);
const STORE_FOLDER: &str = "./onetake-data";
/// Where outcomes wait that a server did not take, unless the file says otherwise.
const JOURNAL_FOLDER: &str = "onetake-journal";
const SWEEP_INTERVAL: Duration = Duration::from_secs(15 * 60);
const SWEEP_BATCH: usize = 5000;

const KEY_MIN_LENGTH: usize = 16;
const TTL: Duration = Duration::from_secs(24 * 3600);
const LEASE: Duration = Duration::from_secs(30);
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(30);
const BODY_BYTES: usize = 1024 * 1024;

/// Completes a draft that was read without a fault.
pub(super) fn resolve(mut draft: Draft, problems: &mut Problems<'_>) -> Config {
    let upstream = default_upstream(&draft, problems);
    let listen = draft.listen.unwrap_or(LISTEN);
    check_listeners(listen, &draft, problems);
    let admin = admin::resolve(&mut draft, problems);
    let store = resolve_store(&draft, problems);
    check_lossy(&store, &draft.routes, problems);
    let defaults = &draft.defaults;
    check_guessable(&[defaults], "defaults", problems);
    asking::check(&[defaults], "defaults", &store.url, problems);
    let routes = draft.routes.iter();
    let routes = routes.filter_map(|route| {
        resolve_route(route, defaults, upstream.as_ref(), &store.url, problems)
    });
    let routes = routes.collect();
    let trusted_proxies = draft.trusted_proxies.unwrap_or_else(|| {
        let loopback = [(Ipv4Addr::new(127, 0, 0, 0).into(), 8), (Ipv6Addr::LOCALHOST.into(), 128)];
        loopback.map(|(address, prefix)| Cidr::new(address, prefix)).into()
    });
    Config {
        has_https_relay: draft.relay.has_https_webhook(),
        defaults: policy(&[defaults]),
        gateway: Gateway {
            listen,
            upstream,
            trusted_proxies,
            tls: draft.tls,
            upstream_tls: draft.upstream_tls,
        },
        admin,
        store,
        secrets: draft.secrets,
        sweep: Sweep {
            interval: draft.sweep_interval.unwrap_or(SWEEP_INTERVAL),
            batch: draft.sweep_batch.unwrap_or(SWEEP_BATCH),
        },
        routes,
    }
}

/// The store, and what stands in front of it.
pub(super) fn resolve_store(draft: &Draft, problems: &mut Problems<'_>) -> StoreConfig {
    let url = draft.store.as_ref().map(|url| url.value.clone());
    let url = url.unwrap_or_else(|| StoreUrl::Embedded(PathBuf::from(STORE_FOLDER)));
    let filter = draft.filter.as_ref().and_then(|filter| {
        let fault = match (&filter.value, &url) {
            (StoreUrl::Redis(server), StoreUrl::Postgres(_)) => return Some(server.clone()),
            (StoreUrl::Redis(_), other) => Fault::new(
                format!("a filter stands in front of PostgreSQL, and store.url is {other}"),
                "write url = \"postgres://HOST/DATABASE\", or remove the filter",
            ),
            _ => Fault::new(
                "only Redis can be a filter",
                "write for example filter = \"redis://127.0.0.1:6379\"",
            ),
        };
        let value = Some(format!("\"{}\"", filter.value));
        problems.add(&filter.at, "store.filter", value, fault);
        None
    });
    let encryption = draft.secrets.encryption.clone();
    let journal = draft.journal.clone().or_else(|| journal_of(&url));
    let allow_lossy = draft.allow_lossy.unwrap_or(false);
    StoreConfig { url, filter, allow_lossy, journal, encryption }
}

/// Where outcomes wait that the store did not take before the end: with the data, or where the process runs.
fn journal_of(url: &StoreUrl) -> Option<PathBuf> {
    match url {
        StoreUrl::Memory => None,
        StoreUrl::Embedded(folder) => Some(folder.join("journal")),
        StoreUrl::Sqlite(file) => Some(file.with_file_name(JOURNAL_FOLDER)),
        StoreUrl::Postgres(_) | StoreUrl::Redis(_) | StoreUrl::DynamoDb(_) => {
            Some(PathBuf::from(JOURNAL_FOLDER))
        }
    }
}

/// Redis alone is not where a claim on money should be kept, unless somebody says so.
fn check_lossy(store: &StoreConfig, routes: &[RouteDraft], problems: &mut Problems<'_>) {
    if store.allow_lossy || !matches!(store.url, StoreUrl::Redis(_)) {
        return;
    }
    for route in routes {
        let Some(preset) = route.preset.as_ref().filter(|preset| preset.value.is_dear()) else {
            continue;
        };
        let what = "Redis alone is not durable enough for it: a failover loses writes that were \
                    acknowledged, and a claim that is lost is a second charge";
        let fix = "use PostgreSQL with Redis as its filter (below [store]: url = \
                   \"postgres://HOST/DATABASE\", filter = \"redis://HOST\"); or, if you can bear \
                   that loss, write allow_lossy = true below [store]";
        let value = Some(format!("\"{}\"", preset.value));
        problems.add(&preset.at, &format!("{}.preset", route.path), value, Fault::new(what, fix));
    }
}

/// The one upstream for all that name none: from `[gateway]` or, the same thing, `[defaults]`.
fn default_upstream(draft: &Draft, problems: &mut Problems<'_>) -> Option<Uri> {
    let (gateway, defaults) = (draft.upstream.as_ref(), draft.defaults.upstream.as_ref());
    if let (Some(gateway), Some(defaults)) = (gateway, defaults)
        && gateway.value != defaults.value
    {
        // With two, unkeyed requests would go to one and keyed ones to the other.
        let other = problems.place(&gateway.at);
        let what = format!("gateway.upstream names another one ({other})");
        let fault = Fault::new(what, "keep gateway.upstream and remove this one");
        let value = Some(format!("\"{}\"", defaults.value));
        problems.add(&defaults.at, "defaults.upstream", value, fault);
    }
    let upstream = gateway.or(defaults).map(|upstream| upstream.value.clone());
    let homeless = draft.routes.iter().find(|route| route.layer.upstream.is_none());
    let what = match (&upstream, homeless) {
        (None, Some(route)) => format!("it is missing, and {} names none of its own", route.path),
        (None, None) if draft.routes.is_empty() => {
            "it is missing, so there is nowhere to send requests to".to_owned()
        }
        _ => return upstream,
    };
    let fix = "start with --upstream http://127.0.0.1:3000, or write upstream = \
               \"http://127.0.0.1:3000\" below [gateway]";
    problems.add(&Origin::Absent, "gateway.upstream", None, Fault::new(what, fix));
    upstream
}

fn check_listeners(listen: SocketAddr, draft: &Draft, problems: &mut Problems<'_>) {
    let admin = draft.admin_listen.as_ref();
    let admin_listen = admin.map_or(ADMIN_LISTEN, |admin| admin.value);
    // Port 0 asks the system for a free one, so two of them are never the same.
    if admin_listen != listen || listen.port() == 0 {
        return;
    }
    let at = admin.map_or(Origin::Absent, |admin| admin.at.clone());
    let fault = Fault::new("gateway.listen has the same address", "give one another port");
    problems.add(&at, "admin.listen", Some(format!("\"{listen}\"")), fault);
}

fn resolve_route(
    draft: &RouteDraft,
    defaults: &Layer,
    upstream: Option<&Uri>,
    store: &StoreUrl,
    problems: &mut Problems<'_>,
) -> Option<Route> {
    let preset = draft.preset.as_ref();
    let preset_layer = preset.map(|preset| preset_layer(preset.value)).unwrap_or_default();
    let tenant_named = draft.layer.tenant.is_some() || defaults.tenant.is_some();
    if let Some(preset) = preset.filter(|preset| preset.value == Preset::Payment && !tenant_named) {
        let fault = Fault::new(
            "preset \"payment\" must name its tenant: a guess could mix two customers' payments",
            "write tenant = \"credential\", \"public\" or { header = \"X-Account\" } in this route \
             or in [defaults]",
        );
        problems.add(&preset.at, &format!("{}.tenant", draft.path), None, fault);
    }
    check_guessable(&[&draft.layer, &preset_layer, defaults], &draft.path, problems);
    check_form(&draft.layer, defaults, &draft.path, problems);
    asking::check(&[&draft.layer, &preset_layer, defaults], &draft.path, store, problems);
    let own = draft.layer.upstream.as_ref().map(|upstream| &upstream.value);
    // Where there is none at all, that was reported once for all routes.
    let upstream = own.or(upstream)?;
    Some(Route {
        methods: draft.methods.clone(),
        path: draft.pattern.clone(),
        preset: preset.map(|preset| preset.value),
        upstream: upstream.clone(),
        policy: policy(&[&draft.layer, &preset_layer, defaults]),
    })
}

/// Keys that people choose can be guessed, and so must not be everybody's by accident.
fn check_guessable(layers: &[&Layer], path: &str, problems: &mut Problems<'_>) {
    let guessable = |layer: &&&Layer| {
        layer.key.source.as_ref().is_some_and(|source| key::is_guessable(&source.value))
    };
    let tenant_named = layers.iter().any(|layer| layer.tenant.is_some());
    let strongest = layers.iter().find(|layer| layer.key.source.is_some());
    let Some(layer) = strongest.filter(guessable).filter(|_| !tenant_named) else { return };
    let fault = Fault::new(
        "keys from the body can be guessed, so their tenant must be named",
        "write tenant = \"credential\", \"public\" or { header = \"X-Account\" } beside them",
    );
    problems.add(&key::origin(&layer.key), &format!("{path}.tenant"), None, fault);
}

/// What a route says of the form of keys would be without effect where `[defaults]` takes them from elsewhere.
fn check_form(route: &Layer, defaults: &Layer, path: &str, problems: &mut Problems<'_>) {
    let has_form = route.key.format.is_some() || route.key.min_length.is_some();
    let source = defaults.key.source.as_ref().map(|source| &source.value);
    if has_form && route.key.source.is_none() && source.is_some_and(|it| *it != KeySource::Header) {
        let what = "`format` and `min_length` are for keys with from = \"header\", and [defaults] has others";
        let fix = "write from = \"header\" beside them, or leave them out";
        problems.add(&Origin::Absent, &format!("{path}.key"), None, Fault::new(what, fix));
    }
}

/// Merges layers, the strongest first, and completes them with the built-in values.
pub(super) fn policy(layers: &[&Layer]) -> Policy {
    let lease = pick(layers, |layer| layer.lease).unwrap_or(LEASE);
    let on_unknown = on_unknown(layers);
    let reconcile = pick(layers, |layer| layer.reconcile.clone()).map(|reconcile| reconcile.value);
    let mut outcomes = StatusRules::new();
    for layer in layers.iter().rev() {
        if let Some(disposition) = layer.every_5xx {
            outcomes = outcomes.with_every_5xx(disposition);
        }
        for (pattern, disposition) in &layer.outcomes {
            outcomes = outcomes.with(*pattern, *disposition);
        }
    }
    Policy {
        namespace: pick(layers, |layer| layer.namespace.clone()).unwrap_or_default(),
        key: key_rules(layers),
        tenant: pick(layers, |layer| layer.tenant.clone())
            .unwrap_or(TenantConfig::CredentialOrPublic),
        fingerprint: pick(layers, |layer| layer.fingerprint.clone())
            .unwrap_or(FingerprintConfig::Bytes),
        fingerprint_headers: pick(layers, |layer| layer.fingerprint_headers.clone())
            .unwrap_or_default(),
        ttl: pick(layers, |layer| layer.ttl).unwrap_or(TTL),
        lease,
        grace: pick(layers, |layer| layer.grace).unwrap_or(lease),
        in_flight: pick(layers, |layer| layer.in_flight).unwrap_or(InFlight::Reject),
        wait_timeout: pick(layers, |layer| layer.wait_timeout).unwrap_or(WAIT_TIMEOUT),
        on_unknown,
        reconcile: reconcile.filter(|_| on_unknown == OnUnknown::Reconcile),
        on_store_down: pick(layers, |layer| layer.on_store_down).unwrap_or(OnStoreDown::FailClosed),
        velocity: pick(layers, |layer| layer.velocity.clone()).unwrap_or_default(),
        upstream_timeout: pick(layers, |layer| layer.upstream_timeout).unwrap_or(UPSTREAM_TIMEOUT),
        outcomes,
        answers: Answers {
            dialect: pick(layers, |layer| layer.errors).unwrap_or_default(),
            statuses: ProblemStatuses {
                mismatch: pick(layers, |layer| layer.statuses.mismatch),
                in_flight: pick(layers, |layer| layer.statuses.in_flight),
                wait_timeout: pick(layers, |layer| layer.statuses.wait_timeout),
            },
        },
        max_request_body: pick(layers, |layer| layer.max_request_body).unwrap_or(BODY_BYTES),
        max_response_body: pick(layers, |layer| layer.max_response_body).unwrap_or(BODY_BYTES),
    }
}

pub(super) fn on_unknown(layers: &[&Layer]) -> OnUnknown {
    pick(layers, |layer| layer.on_unknown.as_ref().map(|it| it.value)).unwrap_or(OnUnknown::Fail)
}

fn key_rules(layers: &[&Layer]) -> KeyRules {
    let source = pick(layers, |layer| layer.key.source.clone()).map(|source| source.value);
    let source = source.unwrap_or_default();
    KeyRules {
        // Where it is not a header, whoever sends nothing has forgotten it.
        required: pick(layers, |layer| layer.key.required).unwrap_or(source != KeySource::Header),
        format: pick(layers, |layer| layer.key.format).unwrap_or_default(),
        min_length: pick(layers, |layer| layer.key.min_length).unwrap_or(KEY_MIN_LENGTH),
        source,
    }
}

/// The strongest layer's value.
pub(super) fn pick<T>(layers: &[&Layer], get: impl Fn(&Layer) -> Option<T>) -> Option<T> {
    layers.iter().find_map(|layer| get(layer))
}
