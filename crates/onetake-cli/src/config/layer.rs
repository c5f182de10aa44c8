//! What one place says about a policy: a route, its preset, or `[defaults]`.

use std::time::Duration;

use http::{HeaderName, Uri};

use super::error::{Fault, Origin, Problems};
use super::fields;
use super::reader::{Section, Value, unknown_word};
use super::status;
use super::tree::Kind;
use super::units::{self, body_size, duration};
use super::url::parse_upstream;
use super::{FingerprintConfig, InFlight, OnStoreDown, OnUnknown, TenantConfig};
use onetake_http::Disposition;
use onetake_http::status::StatusPattern;

/// The longest key that is accepted anywhere, and so the most that can be asked for.
const KEY_LENGTH_MAX: usize = 255;
/// The longest namespace; it is part of every record's id.
const NAMESPACE_LENGTH_MAX: usize = 64;

/// Values for a use case, between a route's own and `[defaults]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// 24 hours; a key is required, a tenant must be named, every 5xx is unknown, fail-closed.
    Payment,
    /// 1 hour; every 5xx is released.
    Signup,
    /// 7 days; every 5xx is released.
    Webhook,
    /// 30 days; every 5xx is released.
    Job,
    /// 72 hours; a key is required, every 5xx is unknown, fail-closed.
    HighConsequence,
}

impl Preset {
    const ALL: [(&'static str, Self); 5] = [
        ("payment", Self::Payment),
        ("signup", Self::Signup),
        ("webhook", Self::Webhook),
        ("job", Self::Job),
        ("high-consequence", Self::HighConsequence),
    ];

    /// Whether running twice is dear.
    pub(super) fn is_dear(self) -> bool {
        matches!(self, Self::Payment | Self::HighConsequence)
    }

    /// What the preset says.
    pub(super) fn layer(self) -> Layer {
        let hours = match self {
            Self::Payment => 24,
            Self::Signup => 1,
            Self::Webhook => 7 * 24,
            Self::Job => 30 * 24,
            Self::HighConsequence => 72,
        };
        Layer {
            ttl: Some(Duration::from_secs(hours * 3600)),
            key_required: self.is_dear().then_some(true),
            every_5xx: Some(match self.is_dear() {
                true => Disposition::Unknown,
                false => Disposition::Release,
            }),
            // What [defaults] says was hardly said with money in mind: the route itself has to.
            on_store_down: self.is_dear().then_some(OnStoreDown::FailClosed),
            ..Layer::default()
        }
    }
}

impl std::fmt::Display for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = Self::ALL.iter().find(|(_, preset)| preset == self);
        f.write_str(found.map_or("", |(word, _)| word))
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
    pub(super) key_required: Option<bool>,
    pub(super) key_min_length: Option<usize>,
    pub(super) tenant: Option<TenantConfig>,
    pub(super) fingerprint: Option<FingerprintConfig>,
    pub(super) ttl: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) in_flight: Option<InFlight>,
    pub(super) wait_timeout: Option<Duration>,
    pub(super) on_unknown: Option<OnUnknown>,
    pub(super) on_store_down: Option<OnStoreDown>,
    pub(super) upstream: Option<Located<Uri>>,
    pub(super) upstream_timeout: Option<Duration>,
    /// Only presets speak of all 5xx at once, 503 included; entries refine it.
    pub(super) every_5xx: Option<Disposition>,
    pub(super) outcomes: Vec<(StatusPattern, Disposition)>,
    pub(super) max_request_body: Option<usize>,
    pub(super) max_response_body: Option<usize>,
}

/// Reads the fields that routes and `[defaults]` have in common.
pub(super) fn read(table: &Section<'_>, problems: &mut Problems<'_>) -> Layer {
    let mut layer = Layer::default();
    let get = |name| table.get(name);
    layer.namespace =
        get("namespace").and_then(|value| value.parse("\"payments\"", problems, parse_namespace));
    if let Some(value) = get("key") {
        read_key(&value, &mut layer, problems);
    }
    layer.tenant = get("tenant").and_then(|value| read_tenant(&value, problems));
    layer.fingerprint = get("fingerprint").and_then(|value| read_fingerprint(&value, problems));
    let mut time = |name, limits| duration(&get(name)?, limits, problems);
    layer.ttl = time("ttl", &units::TTL);
    layer.lease = time("lease", &units::LEASE);
    layer.grace = time("grace", &units::GRACE);
    layer.wait_timeout = time("wait_timeout", &units::WAIT_TIMEOUT);
    layer.upstream_timeout = time("upstream_timeout", &units::UPSTREAM_TIMEOUT);
    if let Some(value) = get("in_flight") {
        let choices = [("reject", InFlight::Reject), ("wait", InFlight::Wait)];
        layer.in_flight = value.choice(&choices, &["async"], problems);
    }
    if let Some(value) = get("on_unknown") {
        let choices = [("fail", OnUnknown::Fail), ("retry", OnUnknown::Retry)];
        layer.on_unknown = value.choice(&choices, &["reconcile"], problems);
    }
    if let Some(value) = get("on_store_down") {
        let choices =
            [("fail-closed", OnStoreDown::FailClosed), ("fail-open", OnStoreDown::FailOpen)];
        layer.on_store_down = value.choice(&choices, &[], problems);
    }
    // It has one value by now; naming it is fine.
    if let Some(value) = get("errors") {
        value.choice(&[("problem", ())], &["stripe"], problems);
    }
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
    let preset = value.choice(&Preset::ALL, &[], problems)?;
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

fn read_key(value: &Value<'_>, layer: &mut Layer, problems: &mut Problems<'_>) {
    let example = "{ from = \"header\", required = true }";
    let Some(table) = Section::open(value, &fields::KEY, example, problems) else {
        return;
    };
    if let Some(value) = table.get("from") {
        value.choice(&[("header", ())], &["json", "derive", "issued"], problems);
    }
    if let Some(value) = table.get("format") {
        value.choice(&[("any", ())], &["uuid"], problems);
    }
    layer.key_required = table.get("required").and_then(|value| value.boolean(problems));
    layer.key_min_length =
        table.get("min_length").and_then(|value| value.integer((1, KEY_LENGTH_MAX), problems));
}

fn read_tenant(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<TenantConfig> {
    const WORDS: [&str; 2] = ["credential", "public"];
    if !matches!(value.node.kind, Kind::Table(_)) {
        return match value.text("\"credential\"", problems)? {
            "credential" => Some(TenantConfig::Credential),
            "public" => Some(TenantConfig::Public),
            word => {
                let later = ["client-ip", "jwt", "forward_auth"];
                let mut fault = unknown_word(word, &WORDS, &later);
                if !fault.fix.starts_with("did you") {
                    fault.fix.push_str(", or { header = \"X-Account\" }");
                }
                value.refuse(fault, problems);
                None
            }
        };
    }
    let example = "{ header = \"X-Account\" }";
    let table = Section::open(value, &fields::TENANT, example, problems)?;
    let Some(header) = table.get("header") else {
        if !table.has_faults() {
            let fix = format!("write tenant = \"credential\", \"public\" or {example}");
            value.refuse(Fault::new("names no tenant", fix), problems);
        }
        return None;
    };
    header.parse("\"X-Account\"", problems, |text| {
        let name = HeaderName::from_bytes(text.as_bytes());
        let bad = |_| Fault::new("not the name of a header", "write for example \"X-Account\"");
        name.map(TenantConfig::Header).map_err(bad)
    })
}

fn read_fingerprint(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<FingerprintConfig> {
    let example = "{ mode = \"json\", exclude = [\"/timestamp\"] }";
    let table = Section::open(value, &fields::FINGERPRINT, example, problems)?;
    let exclude = table.get("exclude");
    let include = table.get("include");
    let Some(mode) = table.get("mode") else {
        if !table.has_faults() {
            let fix = "write mode = \"bytes\" or mode = \"json\"";
            value.refuse(Fault::new("`mode` is missing", fix), problems);
        }
        return None;
    };
    let is_json = mode.choice(&[("bytes", false), ("json", true)], &[], problems)?;
    match (is_json, exclude, include) {
        (false, None, None) => Some(FingerprintConfig::Bytes),
        (false, Some(pointers), _) | (false, None, Some(pointers)) => {
            let fix = "write mode = \"json\", or leave the pointers out";
            pointers.refuse(Fault::new("mode \"bytes\" compares every byte", fix), problems);
            None
        }
        (true, Some(_), Some(include)) => {
            let what = "cannot be combined with `exclude`";
            include.refuse(Fault::new(what, "keep one of the two"), problems);
            None
        }
        (true, None, None) => Some(FingerprintConfig::JsonExclude(Vec::new())),
        (true, Some(exclude), None) => {
            read_pointers(&exclude, problems).map(FingerprintConfig::JsonExclude)
        }
        (true, None, Some(include)) => {
            let pointers = read_pointers(&include, problems)?;
            if pointers.is_empty() {
                let what = "nothing of the body would be compared";
                include.refuse(Fault::new(what, "name at least one pointer"), problems);
                return None;
            }
            Some(FingerprintConfig::JsonInclude(pointers))
        }
    }
}

fn read_pointers(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let elements = value.list("[\"/timestamp\"]", problems)?;
    let pointers =
        elements.iter().map(|element| element.parse("\"/timestamp\"", problems, parse_pointer));
    // Collected before they are judged, so that every bad one is reported.
    let pointers = pointers.collect::<Vec<_>>();
    pointers.into_iter().collect()
}

/// A JSON Pointer (RFC 6901), other than the empty one, which names the whole body.
fn parse_pointer(text: &str) -> Result<String, Fault> {
    let fix = "write a JSON Pointer, such as \"/order/timestamp\" (`~1` for `/`, `~0` for `~`)";
    if text.is_empty() {
        return Err(Fault::new("the empty pointer names the whole body", fix));
    }
    if !text.starts_with('/') {
        return Err(Fault::new("a JSON Pointer starts with `/`", fix));
    }
    if text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
        return Err(Fault::new("`~` without 0 or 1 behind it", fix));
    }
    Ok(text.to_owned())
}

fn parse_namespace(text: &str) -> Result<String, Fault> {
    let word = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    if text.len() <= NAMESPACE_LENGTH_MAX && text.chars().all(word) {
        return Ok(text.to_owned());
    }
    let fix = "write up to 64 letters, digits and - _ . : /, such as \"payments\"";
    Err(Fault::new("not a namespace", fix))
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
