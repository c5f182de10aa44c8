//! The gateway's configuration: a TOML file, overridden by `ONETAKE__SECTION__KEY` variables,
//! overridden by flags.
//!
//! `load → tree (spanned TOML) → sources (variables and flags laid over it) → document (fields
//! read, every fault collected) → resolve (layers merged)`. What comes out is complete: nobody
//! behind this module asks which preset a value came from.

mod admin;
mod asking;
mod cidr;
mod document;
mod error;
mod fields;
mod fingerprint;
mod key;
mod layer;
mod pattern;
mod reader;
mod reconcile;
mod relay;
mod resolve;
mod schema;
mod secrets;
mod sources;
mod status;
mod store_url;
mod tenant;
#[cfg(test)]
mod tests;
mod tls;
mod tree;
mod units;
mod url;
mod velocity;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Method, Uri};
use onetake_http::{Answers, Jwt, KeyFormat, KeySource, StatusRules, Velocity};

pub use admin::{Admin, Token};
pub use cidr::Cidr;
pub use error::{ConfigError, Problem};
pub use onetake_http::Preset;
pub use pattern::{Methods, PathPattern, plain};
pub use reconcile::{Headers, Piece, Placeholder, Reconcile, Template};
pub use relay::{RelayConfig, SinkConfig};
pub use schema::schema;
pub use secrets::{Secret, SecretsConfig};
pub use store_url::{ServerUrl, StoreUrl};
pub use tenant::ForwardAuth;
pub use tls::{Identity, UpstreamTls};

use error::Problems;

/// Reads, merges and checks the configuration.
///
/// `text` is the file's content where there is a file, and `file_name` what messages call it. Of
/// `env`, only names that start with `ONETAKE__` are looked at, and those that the file names.
///
/// # Errors
/// With every fault that was found, if there is one: nothing is guessed and nothing is ignored.
pub fn load(
    text: Option<&str>,
    file_name: &str,
    env: impl Iterator<Item = (String, String)>,
    overrides: Overrides,
) -> Result<Config, ConfigError> {
    let mut problems = Problems::new(text, file_name);
    let draft = draft(text, env, overrides, &mut problems)?;
    let config = resolve::resolve(draft, &mut problems);
    problems.check()?;
    Ok(config)
}

/// As [`load`], for what needs nothing but a store: no upstream has to be named.
///
/// # Errors
/// As [`load`].
pub fn load_store(
    text: Option<&str>,
    file_name: &str,
    env: impl Iterator<Item = (String, String)>,
    overrides: Overrides,
) -> Result<StoreConfig, ConfigError> {
    let mut problems = Problems::new(text, file_name);
    let draft = draft(text, env, overrides, &mut problems)?;
    let store = resolve::resolve_store(&draft, &mut problems);
    problems.check()?;
    Ok(store)
}

/// As [`load`], for a relay: a sink has to be named, and no upstream.
///
/// # Errors
/// As [`load`].
pub fn load_relay(
    text: Option<&str>,
    file_name: &str,
    env: impl Iterator<Item = (String, String)>,
    overrides: Overrides,
) -> Result<RelayConfig, ConfigError> {
    let mut problems = Problems::new(text, file_name);
    let draft = draft(text, env, overrides, &mut problems)?;
    let relay = relay::resolve(draft, &mut problems);
    problems.check()?;
    Ok(relay)
}

/// What a file is for: a gateway, a relay, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purposes {
    /// `onetake serve`
    pub gateway: bool,
    /// `onetake relay`
    pub relay: bool,
}

/// What a file is for, by its sections: one with `[relay]` is a gateway's too if it has what only that needs.
#[must_use]
pub fn purposes(text: &str) -> Purposes {
    let tree = tree::parse(text, &mut Problems::new(Some(text), ""));
    let tree::Kind::Table(sections) = &tree.kind else {
        return Purposes { gateway: true, relay: false };
    };
    let is_gateways = |section: &tree::Entry| match (section.name.as_str(), &section.value.kind) {
        // How webhooks are met, too.
        ("gateway", tree::Kind::Table(fields)) => {
            fields.iter().any(|field| field.name != "upstream_tls")
        }
        (name, _) => ["gateway", "defaults", "route"].contains(&name),
    };
    let relay = sections.iter().any(|section| section.name == "relay");
    Purposes { gateway: !relay || sections.iter().any(is_gateways), relay }
}

/// As [`load`], for what needs nothing but the admin listener: nothing else of the file is read.
///
/// # Errors
/// As [`load`].
pub fn load_admin(
    text: Option<&str>,
    file_name: &str,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Admin, ConfigError> {
    let mut problems = Problems::new(text, file_name);
    let env = env
        .filter(|(name, _)| !name.starts_with("ONETAKE__") || name.starts_with("ONETAKE__ADMIN__"));
    let mut tree = tree::parse(text.unwrap_or_default(), &mut problems);
    problems.check()?;
    if let tree::Kind::Table(sections) = &mut tree.kind {
        sections.retain(|section| section.name == "admin");
    }
    let mut draft = read(tree, env, Overrides::default(), &mut problems)?;
    let admin = admin::resolve(&mut draft, &mut problems);
    problems.check()?;
    Ok(admin)
}

fn draft(
    text: Option<&str>,
    env: impl Iterator<Item = (String, String)>,
    overrides: Overrides,
    problems: &mut Problems<'_>,
) -> Result<document::Draft, ConfigError> {
    let tree = tree::parse(text.unwrap_or_default(), problems);
    // Behind a syntax error every other message would be a guess.
    problems.check()?;
    read(tree, env, overrides, problems)
}

fn read(
    mut tree: tree::Node,
    env: impl Iterator<Item = (String, String)>,
    overrides: Overrides,
    problems: &mut Problems<'_>,
) -> Result<document::Draft, ConfigError> {
    let env = env.collect::<Vec<_>>();
    sources::apply_env(&mut tree, &env, problems);
    sources::apply_flags(&mut tree, overrides);
    sources::follow_env(&mut tree, &env, problems);
    let draft = document::read(&tree, &env, problems);
    problems.check()?;
    Ok(draft)
}

/// What flags say; each stands above the environment and the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`: in place of `gateway.listen`.
    pub listen: Option<SocketAddr>,
    /// `--upstream`: in place of `gateway.upstream` and `defaults.upstream`.
    pub upstream: Option<String>,
    /// `--admin-listen`: in place of `admin.listen`.
    pub admin_listen: Option<SocketAddr>,
    /// `--store`: in place of `store.url`.
    pub store: Option<String>,
    /// `--sink`: in place of `relay.sink`.
    pub sink: Option<String>,
}

/// The whole configuration, complete and within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `[gateway]`: where clients come in and where their requests go.
    pub gateway: Gateway,
    /// `[admin]`: the listener for operators, probes and metrics.
    pub admin: Admin,
    /// `[store]`: where records are kept.
    pub store: StoreConfig,
    /// `[sweep]`: how expired records are cleaned up.
    pub sweep: Sweep,
    /// `[secrets]`: what only the operator knows.
    pub secrets: SecretsConfig,
    /// How a POST or PATCH that no route matches is treated.
    pub defaults: Policy,
    /// The routes in the order of the file; the first match wins.
    pub routes: Vec<Route>,
    /// Whether `[relay]` of the same file has a webhook that is met by `gateway.upstream_tls`.
    pub has_https_relay: bool,
}

impl Config {
    /// What is allowed, but worth a second thought: one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_used = self.has_https_upstream() || self.has_https_relay;
        if self.gateway.upstream_tls != UpstreamTls::default() && !is_used {
            let what = "gateway.upstream_tls is without effect: no upstream, forward_auth, reconcile or relay.sink is https://";
            warnings.push(what.to_owned());
        }
        for (index, route) in self.routes.iter().enumerate() {
            let Some(preset) = route.preset.filter(|preset| preset.is_dear()) else { continue };
            let name =
                format!("route[{index}] ({} {}, preset \"{preset}\")", route.methods, route.path);
            if route.policy.on_store_down == OnStoreDown::FailOpen {
                warnings.push(format!(
                    "{name} has on_store_down = \"fail-open\": while the store is away, every retry runs again"
                ));
            }
            if route.policy.tenant == TenantConfig::ClientIp {
                warnings.push(format!(
                    "{name} has tenant = \"client-ip\": a client that changes its network is somebody else, and its retry runs again"
                ));
            }
            if matches!(self.store.url, StoreUrl::Redis(_)) {
                warnings.push(format!(
                    "{name} is kept in Redis alone (allow_lossy = true): a failover can lose a claim, and the retry runs again"
                ));
            }
        }
        warnings
    }

    /// How upstreams are met over TLS, if any is.
    #[must_use]
    pub fn upstream_tls(&self) -> Option<&UpstreamTls> {
        self.has_https_upstream().then_some(&self.gateway.upstream_tls)
    }

    /// Whether TLS is spoken with any upstream, or with a service that is asked about credentials or outcomes.
    #[must_use]
    pub fn has_https_upstream(&self) -> bool {
        let upstreams = self.routes.iter().map(|route| &route.upstream);
        let policies = self.routes.iter().map(|route| &route.policy).chain([&self.defaults]);
        let asked = policies.filter_map(|policy| match &policy.tenant {
            TenantConfig::ForwardAuth(auth) => Some(&auth.url),
            _ => None,
        });
        let policies = self.routes.iter().map(|route| &route.policy).chain([&self.defaults]);
        let reconcilers = policies.filter_map(|policy| policy.reconcile.as_ref());
        let asked = asked.chain(reconcilers.map(|reconcile| &reconcile.target.server));
        let mut all = upstreams.chain(self.gateway.upstream.as_ref()).chain(asked);
        all.any(|url| url.scheme() == Some(&http::uri::Scheme::HTTPS))
    }
}

/// `[gateway]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Where clients connect; 127.0.0.1:8080 by default.
    pub listen: SocketAddr,
    /// Where requests go that no route with an upstream of its own matches.
    ///
    /// It is `None` only if there are routes and every one of them names its own.
    pub upstream: Option<Uri>,
    /// Peers whose forwarding and tenant headers count; 127.0.0.0/8 and ::1 by default.
    pub trusted_proxies: Vec<Cidr>,
    /// Whom clients meet over TLS; without it they come in plain.
    pub tls: Option<Identity>,
    /// How upstreams, and services that are asked about credentials, are met with `https://`.
    pub upstream_tls: UpstreamTls,
}

/// `[store]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Which store; `embedded:./onetake-data` by default.
    pub url: StoreUrl,
    /// A Redis in front of it, where the store is PostgreSQL.
    pub filter: Option<ServerUrl>,
    /// Whether a store that can lose acknowledged writes is accepted for what must not be lost.
    pub allow_lossy: bool,
    /// A folder of this machine for outcomes that the store did not take before the end: `journal` in the folder
    /// of the embedded store, `onetake-journal` beside SQLite's file, `./onetake-journal` for a server. None for the
    /// store in memory.
    pub journal: Option<PathBuf>,
    /// `[secrets] encryption`: what recordings are encrypted with, the first, and opened with.
    pub encryption: Vec<Secret>,
}

/// `[sweep]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// How long to pause between two sweeps; 15 minutes by default.
    pub interval: Duration,
    /// How many records one step of a sweep may remove; 5000 by default.
    pub batch: usize,
}

/// One `[[route]]`, completed from its preset, `[defaults]` and the built-in values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The methods of `match`.
    pub methods: Methods,
    /// The path of `match`.
    pub path: PathPattern,
    /// The preset that it named; its values are in `policy` already.
    pub preset: Option<Preset>,
    /// Where its requests go.
    pub upstream: Uri,
    /// How its keys are treated.
    pub policy: Policy,
}

impl Route {
    /// Whether a request belongs to this route.
    #[must_use]
    pub fn matches(&self, method: &Method, path: &str) -> bool {
        self.methods.contains(method) && self.path.matches(path)
    }
}

/// How keyed requests are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Sets keys apart from those of other namespaces; empty by default.
    pub namespace: String,
    /// What a key has to look like, and whether there has to be one.
    pub key: KeyRules,
    /// Whose keys they are.
    pub tenant: TenantConfig,
    /// What makes two requests the same.
    pub fingerprint: FingerprintConfig,
    /// Headers that count when two requests are told apart.
    pub fingerprint_headers: Vec<HeaderName>,
    /// How long an outcome is kept.
    pub ttl: Duration,
    /// How long an attempt may run between two heartbeats.
    pub lease: Duration,
    /// How long a lease is still respected after its end; one lease by default.
    pub grace: Duration,
    /// What a request gets while another attempt runs under its key.
    pub in_flight: InFlight,
    /// How long a request waits where `in_flight` is not [`InFlight::Reject`].
    pub wait_timeout: Duration,
    /// What a retry gets where the outcome of the attempt before it is unknown.
    pub on_unknown: OnUnknown,
    /// Who is asked what became of an attempt, where `on_unknown` is [`OnUnknown::Reconcile`].
    pub reconcile: Option<Reconcile>,
    /// What a request gets while the store is away.
    pub on_store_down: OnStoreDown,
    /// How many new operations there may be in a while.
    pub velocity: Vec<Velocity>,
    /// How long the upstream may take for the whole response.
    pub upstream_timeout: Duration,
    /// What becomes of an attempt, by the status of its response.
    pub outcomes: StatusRules,
    /// In which words and statuses problems are told.
    pub answers: Answers,
    /// The largest request body that is fingerprinted, in bytes.
    pub max_request_body: usize,
    /// The largest response body that is kept for replays, in bytes.
    pub max_response_body: usize,
}

/// `key`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRules {
    /// Where it comes from.
    pub source: KeySource,
    /// Whether a request without a key is refused.
    pub required: bool,
    /// What a key from a header has to look like.
    pub format: KeyFormat,
    /// The shortest key that is accepted from a header, in characters.
    pub min_length: usize,
}

/// `tenant`: whose key it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantConfig {
    /// The credential where there is one, else the public tenant. Nothing in a file says so: it
    /// is what applies where no tenant is named.
    CredentialOrPublic,
    /// The credential of the request; without one it is refused.
    Credential,
    /// One tenant for everybody.
    Public,
    /// The client's address, as trusted proxies tell it.
    ClientIp,
    /// The value of this header, believed from trusted proxies only.
    Header(HeaderName),
    /// The issuer and a claim of a token that is verified here.
    Jwt(Jwt),
    /// Whom this service names.
    ForwardAuth(ForwardAuth),
}

/// `fingerprint`: what of the body counts; method and path always do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FingerprintConfig {
    /// Every byte of it.
    Bytes,
    /// What the JSON says, apart from what these pointers name (none: all of it).
    JsonExclude(Vec<String>),
    /// Only what these pointers name in the JSON.
    JsonInclude(Vec<String>),
}

/// `in_flight`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// 409 at once.
    Reject,
    /// Wait for the outcome, for at most `wait_timeout`.
    Wait,
    /// Wait as long, then 202 and a handle by which the outcome is fetched later.
    Async,
}

/// `on_unknown`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// Say so, and do not run again.
    Fail,
    /// Ask what became of it: `reconcile` says whom.
    Reconcile,
    /// Run again: for operations that are harmless to repeat, or deduplicated downstream.
    Retry,
}

/// `on_store_down`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreDown {
    /// 503; nothing runs.
    FailClosed,
    /// It runs as if it had no key: counted, logged, and never recorded.
    FailOpen,
}
