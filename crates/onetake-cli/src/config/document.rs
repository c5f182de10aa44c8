//! Reads every section of the tree into a draft, and collects every fault on the way.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::admin::{self, Token};
use super::cidr::Cidr;
use super::error::{Fault, Problems};
use super::fields;
use super::layer::{self, Layer, Located};
use super::pattern::{Methods, PathPattern, parse_match};
use super::reader::{Section, Value};
use super::relay::{self, RelayDraft};
use super::secrets::{self, Env, SecretsConfig};
use super::store_url::StoreUrl;
use super::tls::{self, Identity, UpstreamTls};
use super::tree::Node;
use super::units;
use super::url::parse_listen;
use onetake_http::Preset;

/// The most records that one step of a sweep may remove.
pub(super) const SWEEP_BATCH_MAX: usize = 100_000;

/// What was written, and nothing else: defaults come later.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) listen: Option<SocketAddr>,
    pub(super) upstream: Option<Located<Uri>>,
    pub(super) trusted_proxies: Option<Vec<Cidr>>,
    pub(super) tls: Option<Identity>,
    pub(super) upstream_tls: UpstreamTls,
    pub(super) admin_listen: Option<Located<SocketAddr>>,
    pub(super) admin_token: Option<Token>,
    /// Whether there is to be one, be it that it is wrong.
    pub(super) admin_token_named: bool,
    pub(super) store: Option<Located<StoreUrl>>,
    pub(super) filter: Option<Located<StoreUrl>>,
    pub(super) allow_lossy: Option<bool>,
    pub(super) journal: Option<PathBuf>,
    pub(super) sweep_interval: Option<Duration>,
    pub(super) sweep_batch: Option<usize>,
    pub(super) relay: RelayDraft,
    pub(super) secrets: SecretsConfig,
    pub(super) defaults: Layer,
    pub(super) routes: Vec<RouteDraft>,
}

/// One `[[route]]` as it was written.
#[derive(Debug)]
pub(super) struct RouteDraft {
    pub(super) methods: Methods,
    pub(super) pattern: PathPattern,
    pub(super) preset: Option<Located<Preset>>,
    pub(super) layer: Layer,
    /// `route[0]`, for messages.
    pub(super) path: String,
}

/// Reads the whole tree.
pub(super) fn read(tree: &Node, env: &Env, problems: &mut Problems<'_>) -> Draft {
    let mut draft = Draft::default();
    let root = Value::root(tree);
    let Some(root) = Section::open(&root, &fields::ROOT, "", problems) else {
        return draft;
    };
    if let Some(value) = root.get("gateway") {
        read_gateway(&value, &mut draft, problems);
    }
    if let Some(value) = root.get("admin") {
        admin::read(&value, env, &mut draft, problems);
    }
    if let Some(value) = root.get("store") {
        read_store(&value, &mut draft, problems);
    }
    if let Some(value) = root.get("sweep") {
        read_sweep(&value, &mut draft, problems);
    }
    if let Some(value) = root.get("relay") {
        draft.relay = relay::read(&value, env, problems);
    }
    if let Some(value) = root.get("secrets") {
        draft.secrets = secrets::read(&value, env, problems);
    }
    if let Some(value) = root.get("defaults") {
        let table = Section::open(&value, &fields::DEFAULTS, "[defaults]", problems);
        draft.defaults = table.map(|table| layer::read(&table, env, problems)).unwrap_or_default();
    }
    let routes = root.get("route").and_then(|value| value.list("[[route]]", problems));
    for route in routes.unwrap_or_default() {
        draft.routes.extend(read_route(&route, env, problems));
    }
    draft
}

fn read_gateway(value: &Value<'_>, draft: &mut Draft, problems: &mut Problems<'_>) {
    let Some(table) = Section::open(value, &fields::GATEWAY, "[gateway]", problems) else {
        return;
    };
    draft.listen = table
        .get("listen")
        .and_then(|value| value.parse("\"127.0.0.1:8080\"", problems, parse_listen));
    draft.upstream = table.get("upstream").and_then(|value| layer::read_upstream(&value, problems));
    if let Some(value) = table.get("trusted_proxies") {
        let elements = value.list("[\"127.0.0.0/8\", \"::1\"]", problems).unwrap_or_default();
        let blocks = elements
            .iter()
            .filter_map(|element| element.parse("\"127.0.0.0/8\"", problems, Cidr::parse));
        draft.trusted_proxies = Some(blocks.collect());
    }
    draft.tls = table.get("tls").and_then(|value| tls::read_identity(&value, problems));
    draft.upstream_tls = table
        .get("upstream_tls")
        .map(|value| tls::read_upstream(&value, problems))
        .unwrap_or_default();
}

fn read_store(value: &Value<'_>, draft: &mut Draft, problems: &mut Problems<'_>) {
    let Some(table) = Section::open(value, &fields::STORE, "[store]", problems) else {
        return;
    };
    let mut url = |name, example| {
        let value = table.get(name)?;
        let url = value.parse(example, problems, StoreUrl::parse)?;
        Some(Located { value: url, at: value.node.at.clone() })
    };
    draft.store = url("url", "\"embedded:./onetake-data\"");
    draft.filter = url("filter", "\"redis://127.0.0.1:6379\"");
    draft.allow_lossy = table.get("allow_lossy").and_then(|value| value.boolean(problems));
    draft.journal = table
        .get("journal")
        .and_then(|value| tls::file(&value, "\"/var/lib/onetake/journal\"", problems));
}

fn read_sweep(value: &Value<'_>, draft: &mut Draft, problems: &mut Problems<'_>) {
    let Some(table) = Section::open(value, &fields::SWEEP, "[sweep]", problems) else {
        return;
    };
    draft.sweep_interval = table
        .get("interval")
        .and_then(|value| units::duration(&value, &units::SWEEP_INTERVAL, problems));
    draft.sweep_batch =
        table.get("batch").and_then(|value| value.integer((1, SWEEP_BATCH_MAX), problems));
}

fn read_route(value: &Value<'_>, env: &Env, problems: &mut Problems<'_>) -> Option<RouteDraft> {
    let table = Section::open(value, &fields::ROUTE, "{ match = \"POST /v1/charges\" }", problems)?;
    let matched = match table.get("match") {
        Some(value) => value.parse("\"POST /v1/charges\"", problems, parse_match),
        // A misspelt name may have been meant for it.
        None if table.has_faults() => None,
        None => {
            let fault = Fault::new(
                "it is missing, so the route would match nothing",
                "write for example match = \"POST /v1/charges\"",
            );
            problems.add(&value.node.at, &table.path_of("match"), None, fault);
            None
        }
    };
    let preset = table.get("preset").and_then(|value| layer::read_preset(&value, problems));
    // Read even if the match is wrong, so that every fault is reported.
    let layer = layer::read(&table, env, problems);
    let (methods, pattern) = matched?;
    Some(RouteDraft { methods, pattern, preset, layer, path: value.path.clone() })
}
