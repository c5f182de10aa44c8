//! The gateway's configuration: a TOML file, overridden by `ONETAKE__SECTION__KEY` variables,
//! overridden by flags.
//!
//! ```text
//! text → tree (TOML with positions) → sources (variables, flags)
//!   → sections, policy (options read, ${NAME} replaced, every error collected)
//!   → check (rules between options) → Config
//! ```
//!
//! An option is declared once, in `sections.rs`, `limits.rs`, `policy.rs`, `key.rs`, `tenant.rs` or
//! `reconcile.rs`: its name, its documentation, its form and its default, with the macro in
//! `table.rs`. The declaration gives the field, the reader, the JSON Schema (`onetake schema`), the
//! lines of `onetake check --explain` and the tables in docs/CONFIGURATION.md.
//!
//! Why a table of forms and not serde with schemars: serde stops at the first error, and an
//! untagged enum (`tenant`, `reconcile`, every secret) loses the position and the reason of the
//! error. Users of this file get all errors at once, each with its line, its value and its fix.
//! With serde, every option would need a `Spanned` wrapper, a visitor and a schema by hand; a form
//! has all three in one place.
//!
//! The size: about 3,440 lines of code declare 154 options, which is 22 lines for each. Before the
//! table, about 4,600 lines declared 100, and the reference was written by hand. A third of the
//! lines declares options and parses what is special to them. Two fifths read values of any option
//! with their positions, and make the schema. The rest is rules between options with their error
//! texts, explanations and warnings. A new option adds only its declaration.
//!
//! Rules that also hold for a policy in Rust are not here: `onetake_http::Policy::check` has them,
//! and `check.rs` adds the positions. What keeps the code from being smaller is that every error
//! has a text of its own with its fix, and that every value knows its position and its layer.

mod address;
mod check;
mod error;
mod explain;
mod fall_through;
mod form;
mod key;
mod limits;
mod messages;
mod policy;
mod presets;
mod reader;
mod reconcile;
mod sections;
mod sources;
mod table;
mod tenant;
#[cfg(test)]
mod tests;
mod tree;
mod units;

use std::fmt;
use std::net::SocketAddr;

use http::Uri;
use onetake_http::{OnStoreDown, RequestValue, Tenant};
use serde_json::{Value as Json, json};
use toml::de::{DeTable, DeValue};

pub use error::{ConfigError, ConfigProblem};
pub use ipnet::IpNet;
pub use limits::Limits;
pub use onetake_http::Preset;
pub use onetake_http::routes::RoutePattern;
pub use onetake_stores::{ServerUrl, StoreUrl};
pub use policy::Settings;
pub use reconcile::{Piece, Placeholder, Reconcile, Template};
pub use sections::{
    Admin, Cors, ExtProc, Gateway, Identity, Relay, Secret, SecretsConfig, Sink, StoreConfig,
    Sweep, Token, Unmatched, UpstreamHost, UpstreamTls,
};
pub use tenant::ForwardAuth;

use check::Checks;
use error::Problems;
use reader::Value;
use sections::File;
use table::Table as _;
use tree::TomlType;

/// The process that forwards requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// The gateway.
    Gateway,
    /// Envoy, for whose external processor the configuration is. No upstream has to be named.
    Envoy,
}

/// The sources of a configuration. The `Debug` form hides the text and the environment, which can
/// have secrets.
#[derive(Clone, Default)]
pub struct Input<'a> {
    /// The content of the file, if there is a file.
    pub text: Option<&'a str>,
    /// The name of the file. Relative paths in the file are relative to its folder.
    pub file_name: &'a str,
    /// The environment. Names that start with `ONETAKE__` count, and those that the file names.
    pub env: Vec<(String, String)>,
    /// The flags.
    pub overrides: Overrides,
}

/// Reads, merges and checks the configuration of a gateway: see [`Input`].
///
/// # Errors
/// With all errors that were found. Nothing is guessed and nothing is ignored.
pub fn load(
    text: Option<&str>,
    file_name: &str,
    env: impl Iterator<Item = (String, String)>,
    overrides: Overrides,
) -> Result<Config, ConfigError> {
    Input { text, file_name, env: env.collect(), overrides }.config(Forwarder::Gateway)
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("file_name", &self.file_name).finish_non_exhaustive()
    }
}

impl Input<'_> {
    /// The configuration of a gateway, or of an external processor of Envoy.
    ///
    /// # Errors
    /// As [`load`].
    pub fn config(self, forwarder: Forwarder) -> Result<Config, ConfigError> {
        self.read("", |checks| checks.config(forwarder))
    }

    /// The effective options of every route, each with the layer that it comes from.
    ///
    /// # Errors
    /// As [`load`].
    pub fn explain(self, forwarder: Forwarder) -> Result<String, ConfigError> {
        self.read("", |checks| Some(explain::explain(&checks.config(forwarder)?, checks)))
    }

    /// The store, for commands that need only a store: no upstream has to be named.
    ///
    /// # Errors
    /// As [`load`].
    pub fn store(self) -> Result<StoreConfig, ConfigError> {
        self.read("", |checks| Some(checks.store()))
    }

    /// The configuration of a relay: a sink has to be named, but no upstream.
    ///
    /// # Errors
    /// As [`load`].
    pub fn relay(self) -> Result<RelayConfig, ConfigError> {
        self.read("", |checks| checks.relay())
    }

    /// The admin listener, for commands that need only that: no other section is read.
    ///
    /// # Errors
    /// As [`load`].
    pub fn admin(mut self) -> Result<Admin, ConfigError> {
        self.env.retain(|(name, _)| {
            !name.starts_with("ONETAKE__") || name.starts_with("ONETAKE__ADMIN__")
        });
        self.read("admin", |checks| Some(checks.admin()))
    }

    /// Reads the section `only`, or every section if it is empty.
    fn read<T>(
        self,
        only: &str,
        check: impl FnOnce(&Checks<'_>) -> Option<T>,
    ) -> Result<T, ConfigError> {
        let problems = &Problems::new(self.text, self.file_name, &self.env);
        let mut tree = tree::parse(problems);
        if let TomlType::Table(sections) = &mut tree.kind {
            sections.retain(|section| only.is_empty() || section.name == only);
        }
        // After a syntax error, every other message would be a guess.
        problems.check()?;
        sources::apply_env(&mut tree, problems);
        sources::apply_flags(&mut tree, self.overrides);
        problems.check()?;
        let file = Value { node: &tree, path: String::new(), problems }.table::<File>();
        let checked = file.and_then(|file| check(&Checks { file: &file, tree: &tree, problems }));
        problems.check()?;
        checked.ok_or_else(ConfigError::unexplained)
    }
}

/// The JSON Schema (draft 2020-12) of the configuration file.
///
/// It describes names, types, words and forms of all options. Rules between options, bounds of
/// durations and everything outside the file are checked by `check` only. The schema never refuses
/// a file that `check` accepts.
#[must_use]
pub fn schema() -> Json {
    let mut schema = table::schema(&File::info(), "");
    let shared = policy::PolicyOptions::info().options;
    let about = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "onetake",
        "description": "The configuration file of onetake. `onetake check` also checks rules that \
                        this schema cannot express.",
        "$defs": shared.iter().map(|it| (it.name, it.schema(""))).collect::<Json>(),
    });
    table::extend(&mut schema, about);
    schema
}

/// The purposes of a file: a gateway, a processor of Envoy, a relay, or several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purposes {
    /// `onetake serve`
    pub gateway: bool,
    /// `onetake ext-proc`
    pub ext_proc: bool,
    /// `onetake relay`
    pub relay: bool,
}

/// Finds the purposes of a file by its sections. A file with `[relay]` is also for a gateway if it
/// has a section that only a gateway needs. Routes beside `[ext_proc]` are for Envoy alone, unless
/// `[gateway]` has options.
#[must_use]
pub fn purposes(text: &str) -> Purposes {
    // As the tree reads it: an integer that is too large does not hide the sections.
    let file = DeTable::parse(text).map(toml::Spanned::into_inner).unwrap_or_default();
    let sections =
        || file.iter().map(|(name, section)| (name.get_ref().as_ref(), section.get_ref()));
    let has = |wanted: &str| sections().any(|(name, _)| name == wanted);
    let (ext_proc, relay) = (has("ext_proc"), has("relay"));
    let is_gateways = |(name, section): (&str, &DeValue<'_>)| match (name, section) {
        // `upstream_tls` alone may be for the webhook of a relay.
        ("gateway", DeValue::Table(options)) => {
            options.keys().any(|it| it.get_ref() != "upstream_tls")
        }
        ("defaults" | "route", _) => !ext_proc,
        (name, _) => ["gateway", "limits"].contains(&name),
    };
    let is_other = ext_proc || relay;
    Purposes { gateway: !is_other || sections().any(is_gateways), ext_proc, relay }
}

/// Values of flags. Each overrides the environment and the file.
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

/// The whole configuration, complete and validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[gateway]`: the listener for clients, and the upstream.
    pub gateway: Gateway,
    /// `[admin]`: the listener for operators, probes and metrics.
    pub admin: Admin,
    /// `[ext_proc]`: the listener for Envoy.
    pub ext_proc: ExtProc,
    /// `[store]`: the store for records.
    pub store: StoreConfig,
    /// `[sweep]`: deletion of expired records.
    pub sweep: Sweep,
    /// `[limits]`: limits on connections, requests and memory.
    pub limits: Limits,
    /// `[secrets]`: secrets of the operator.
    pub secrets: SecretsConfig,
    /// The settings of a POST or PATCH that no route matches.
    pub defaults: Settings,
    /// The routes in the order of the file; the first match wins.
    pub routes: Vec<Route>,
    /// True if `[relay]` of the same file has an `https://` webhook, which uses
    /// `gateway.upstream_tls`.
    pub has_https_relay: bool,
    /// Warnings about values of `[defaults]` that presets hide.
    pub notes: Vec<String>,
}

impl Config {
    /// Warnings about settings that are allowed but risky, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.notes.clone();
        let is_used = self.has_https_upstream() || self.has_https_relay;
        if self.gateway.upstream_tls != UpstreamTls::default() && !is_used {
            let what = "gateway.upstream_tls has no effect: no upstream, forward_auth, reconcile or relay.sink is https://";
            warnings.push(what.to_owned());
        }
        for (index, route) in self.routes.iter().enumerate() {
            let (policy, pattern) = (&route.settings.policy, &route.pattern);
            let values = policy.key.source.values();
            let is_in_target =
                |it: &RequestValue| matches!(it, RequestValue::Path(_) | RequestValue::Query(_));
            let is_useless = !values.is_empty() && values.iter().all(is_in_target);
            if policy.duplicate_payload.is_some() && is_useless {
                warnings.push(format!("route[{index}] ({pattern}) has duplicate_payload without effect: its key is in the path or the query, so a request with another key is another payload"));
            }
            let Some(preset) = route.preset.filter(|preset| preset.is_dear()) else { continue };
            let open = "has on_store_down = \"fail-open\": while the store is unreachable, every retry runs again";
            let moving = "has tenant = \"client-ip\": a client that changes its network is another tenant, and its retry runs again";
            let lossy = "is stored in Redis alone (allow_lossy = true): a failover can lose a claim, and the retry runs again";
            for (risk, is_taken) in [
                (open, policy.on_store_down == OnStoreDown::FailOpen),
                (moving, policy.tenant == Tenant::ClientIp),
                (lossy, matches!(self.store.url, StoreUrl::Redis(_))),
            ] {
                let name = format!("route[{index}] ({pattern}, preset \"{preset}\")");
                warnings.extend(is_taken.then(|| format!("{name} {risk}")));
            }
        }
        warnings
    }

    /// The TLS settings for upstreams, if any upstream uses TLS.
    #[must_use]
    pub fn upstream_tls(&self) -> Option<&UpstreamTls> {
        self.has_https_upstream().then_some(&self.gateway.upstream_tls)
    }

    /// True if any upstream, or any service for credentials or outcomes, is `https://`.
    #[must_use]
    pub fn has_https_upstream(&self) -> bool {
        let upstreams = self.routes.iter().map(|route| &route.upstream);
        let is_asked = |it: &Settings| {
            it.forward_auth.as_ref().is_some_and(|auth| is_https(&auth.url))
                || it.reconcile.as_ref().is_some_and(|it| is_https(&it.request.server))
                || matches!(&it.policy.tenant, Tenant::Jwt(jwt) if jwt.key_set().is_some_and(|set| set.source().starts_with("https:")))
        };
        self.settings().any(is_asked) || upstreams.chain(&self.gateway.upstream).any(is_https)
    }

    /// The settings of all routes, and those of requests without a route.
    pub fn settings(&self) -> impl Iterator<Item = &Settings> {
        self.routes.iter().map(|route| &route.settings).chain([&self.defaults])
    }
}

fn is_https(url: &Uri) -> bool {
    url.scheme() == Some(&http::uri::Scheme::HTTPS)
}

/// `[relay]`, and the other sections that a relay needs.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The store with the outbox.
    pub store: StoreConfig,
    /// `[relay]`
    pub relay: Relay,
    /// `[relay] sink`, which is required here.
    pub sink: Sink,
    /// `[admin] token`
    pub token: Option<Token>,
    /// `[gateway] upstream_tls`, for an `https://` webhook.
    pub tls: UpstreamTls,
}

/// One `[[route]]`, completed from its preset, `[defaults]` and the built-in values.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The pattern, `match`.
    pub pattern: RoutePattern,
    /// The preset; its values are in `settings` already.
    pub preset: Option<Preset>,
    /// The upstream of its requests.
    pub upstream: Uri,
    /// The policy of its keys.
    pub settings: Settings,
}
