//! What one place says about a policy: a route, its preset, or `[defaults]`.

use std::time::Duration;

use http::{HeaderName, StatusCode, Uri};

use super::error::{Fault, Origin, Problems};
use super::fields;
use super::fingerprint;
use super::key::{self, KeyLayer};
use super::reader::{Section, Value};
use super::reconcile::{self, Reconcile};
use super::secrets::Env;
use super::status;
use super::tenant;
use super::units::{self, body_size, duration};
use super::url::parse_upstream;
use super::velocity;
use super::{FingerprintConfig, InFlight, OnStoreDown, OnUnknown, TenantConfig};
use onetake_http::status::StatusPattern;
use onetake_http::{Dialect, Disposition, Preset, ProblemStatuses, Velocity};

/// The longest namespace; it is part of every record's id.
pub(super) const NAMESPACE_LENGTH_MAX: usize = 64;
/// The statuses that a problem may have.
pub(super) const PROBLEM_STATUSES: (usize, usize) = (400, 599);

/// The words of `in_flight`.
pub(super) const IN_FLIGHT: [(&str, InFlight); 3] =
    [("reject", InFlight::Reject), ("wait", InFlight::Wait), ("async", InFlight::Async)];
/// The words of `on_unknown`.
pub(super) const ON_UNKNOWN: [(&str, OnUnknown); 3] =
    [("fail", OnUnknown::Fail), ("reconcile", OnUnknown::Reconcile), ("retry", OnUnknown::Retry)];
/// The words of `on_store_down`.
pub(super) const ON_STORE_DOWN: [(&str, OnStoreDown); 2] =
    [("fail-closed", OnStoreDown::FailClosed), ("fail-open", OnStoreDown::FailOpen)];
/// The words of `errors`.
pub(super) const ERRORS: [(&str, Dialect); 2] =
    [("problem", Dialect::Problem), ("stripe", Dialect::Stripe)];

/// What a preset says, between a route's own values and `[defaults]`.
pub(super) fn preset_layer(preset: Preset) -> Layer {
    Layer {
        ttl: Some(preset.ttl()),
        key: KeyLayer { required: preset.is_dear().then_some(true), ..KeyLayer::default() },
        every_5xx: Some(preset.every_5xx()),
        // What [defaults] says was hardly said with money in mind: the route itself has to.
        on_store_down: preset.is_dear().then_some(OnStoreDown::FailClosed),
        ..Layer::default()
    }
}

/// A value and where it was written, for faults that show only when layers meet.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) at: Origin,
}

/// The values that one layer has; `None` leaves them to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    pub(super) namespace: Option<String>,
    pub(super) key: KeyLayer,
    pub(super) tenant: Option<TenantConfig>,
    pub(super) fingerprint: Option<FingerprintConfig>,
    pub(super) fingerprint_headers: Option<Vec<HeaderName>>,
    pub(super) ttl: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) in_flight: Option<InFlight>,
    pub(super) wait_timeout: Option<Duration>,
    pub(super) on_unknown: Option<Located<OnUnknown>>,
    pub(super) reconcile: Option<Located<Reconcile>>,
    pub(super) on_store_down: Option<OnStoreDown>,
    pub(super) upstream: Option<Located<Uri>>,
    pub(super) upstream_timeout: Option<Duration>,
    /// Only presets speak of all 5xx at once, 503 included; entries refine it.
    pub(super) every_5xx: Option<Disposition>,
    pub(super) outcomes: Vec<(StatusPattern, Disposition)>,
    pub(super) velocity: Option<Vec<Velocity>>,
    pub(super) errors: Option<Dialect>,
    pub(super) statuses: ProblemStatuses,
    pub(super) max_request_body: Option<usize>,
    pub(super) max_response_body: Option<usize>,
}

/// Reads the fields that routes and `[defaults]` have in common.
pub(super) fn read(table: &Section<'_>, env: &Env, problems: &mut Problems<'_>) -> Layer {
    let mut layer = Layer::default();
    let get = |name| table.get(name);
    layer.namespace =
        get("namespace").and_then(|value| value.parse("\"payments\"", problems, parse_namespace));
    if let Some(value) = get("key") {
        layer.key = key::read(&value, problems);
    }
    layer.tenant = get("tenant").and_then(|value| tenant::read(&value, env, problems));
    if let Some(value) = get("fingerprint") {
        (layer.fingerprint, layer.fingerprint_headers) = fingerprint::read(&value, problems);
    }
    let mut time = |name, limits| duration(&get(name)?, limits, problems);
    layer.ttl = time("ttl", &units::TTL);
    layer.lease = time("lease", &units::LEASE);
    layer.grace = time("grace", &units::GRACE);
    layer.wait_timeout = time("wait_timeout", &units::WAIT_TIMEOUT);
    layer.upstream_timeout = time("upstream_timeout", &units::UPSTREAM_TIMEOUT);
    if let Some(value) = get("in_flight") {
        layer.in_flight = value.choice(&IN_FLIGHT, problems);
    }
    if let Some(value) = get("on_unknown") {
        let at = value.node.at.clone();
        let word = value.choice(&ON_UNKNOWN, problems);
        layer.on_unknown = word.map(|value| Located { value, at });
    }
    if let Some(value) = get("reconcile") {
        let at = value.node.at.clone();
        let read = reconcile::read(&value, env, problems);
        layer.reconcile = read.map(|value| Located { value, at });
    }
    if let Some(value) = get("on_store_down") {
        layer.on_store_down = value.choice(&ON_STORE_DOWN, problems);
    }
    if let Some(value) = get("errors") {
        layer.errors = value.choice(&ERRORS, problems);
    }
    if let Some(value) = get("statuses") {
        layer.statuses = read_statuses(&value, problems);
    }
    layer.velocity = get("velocity").and_then(|value| velocity::read(&value, problems));
    layer.upstream = get("upstream").and_then(|value| read_upstream(&value, problems));
    layer.outcomes = read_outcomes(table, problems);
    layer.max_request_body = get("max_request_body").and_then(|value| body_size(&value, problems));
    layer.max_response_body =
        get("max_response_body").and_then(|value| body_size(&value, problems));
    layer
}

/// Reads `preset`.
pub(super) fn read_preset(
    value: &Value<'_>,
    problems: &mut Problems<'_>,
) -> Option<Located<Preset>> {
    let value_at = value.node.at.clone();
    let preset = value.choice(&Preset::ALL, problems)?;
    Some(Located { value: preset, at: value_at })
}

/// Reads an upstream, for a route or for all.
pub(super) fn read_upstream(
    value: &Value<'_>,
    problems: &mut Problems<'_>,
) -> Option<Located<Uri>> {
    let uri = value.parse("\"http://127.0.0.1:3000\"", problems, parse_upstream)?;
    Some(Located { value: uri, at: value.node.at.clone() })
}

fn parse_namespace(text: &str) -> Result<String, Fault> {
    let word = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    if text.len() <= NAMESPACE_LENGTH_MAX && text.chars().all(word) {
        return Ok(text.to_owned());
    }
    let fix = "write up to 64 letters, digits and - _ . : /, such as \"payments\"";
    Err(Fault::new("not a namespace", fix))
}

/// Reads `statuses`: those of problems, which clients take for an error.
fn read_statuses(value: &Value<'_>, problems: &mut Problems<'_>) -> ProblemStatuses {
    let Some(table) =
        Section::open(value, &fields::STATUSES, "{ mismatch = 422, in_flight = 409 }", problems)
    else {
        return ProblemStatuses::default();
    };
    let mut one = |name| {
        let number = table.get(name)?.integer(PROBLEM_STATUSES, problems)?;
        StatusCode::from_u16(u16::try_from(number).ok()?).ok()
    };
    ProblemStatuses {
        mismatch: one("mismatch"),
        in_flight: one("in_flight"),
        wait_timeout: one("wait_timeout"),
    }
}

fn read_outcomes(
    table: &Section<'_>,
    problems: &mut Problems<'_>,
) -> Vec<(StatusPattern, Disposition)> {
    let lists = [
        ("record", Disposition::Record),
        ("release", Disposition::Release),
        ("unknown", Disposition::Unknown),
    ];
    let mut seen: Vec<(StatusPattern, Disposition, &str)> = Vec::new();
    for (name, disposition) in lists {
        let elements = table.get(name).and_then(|value| value.list("[\"5xx\"]", problems));
        for element in elements.unwrap_or_default() {
            let Some(pattern) = element.parse("\"404\"", problems, status::parse) else {
                continue;
            };
            match seen.iter().find(|(other, ..)| *other == pattern) {
                Some((_, _, other)) if *other != name => {
                    let what = format!("`{other}` lists it too");
                    element.refuse(Fault::new(what, "keep it in one of the two"), problems);
                }
                Some(_) => {}
                None => seen.push((pattern, disposition, name)),
            }
        }
    }
    seen.into_iter().map(|(pattern, disposition, _)| (pattern, disposition)).collect()
}
