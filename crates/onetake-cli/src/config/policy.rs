//! `[[route]]` and `[defaults]`: the options of a policy, and the policy that their layers make.
//!
//! A route's own options are the strongest layer, then its preset's, then those of `[defaults]`.
//! The built-in values are those of [`Policy::default`]: there is one policy for the file and for
//! Rust.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, StatusCode, Uri};
use onetake_core::OnUnknown;
use onetake_http::grpc::{DescriptorSet, ProtobufFingerprint, Schema};
use onetake_http::json::{Pointer, Selection};
use onetake_http::policy::is_namespace;
use onetake_http::routes::RoutePattern;
use onetake_http::status::StatusPattern;
use onetake_http::text::TextOr;
use onetake_http::velocity::Rate;
use onetake_http::{
    By, Dialect, Disposition, DuplicateAction, DuplicatePayload, FingerprintMode, InFlight,
    OnStoreDown, PathCase, Policy, Preset, RequestValue, StatusRules, TrailingSlash, Velocity,
};
use serde_json::json;

use super::error::ValueError;
use super::form::{
    Form, Shape, duration, file, header_name, integer, list, plain, pointer, size, table, text,
    upstream, words,
};
use super::key::{KeyOptions, key};
use super::presets;
use super::reader::Value;
use super::reconcile::{Reconcile, reconcile};
use super::table::{Layered, Table, TableInfo, table};
use super::tenant::{ForwardAuth, TenantOption, tenant};
use super::units::show_duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
const ANY: (usize, usize) = (0, usize::MAX);

table! {
    layered
    /// The options that routes and `[defaults]` share.
    pub(super) struct PolicyOptions [Clone, Debug, Default] ("[defaults]", "[defaults]") {
        /// Whether `/V1/charges` and `/v1/charges` are different paths, or the same: see
        /// [Paths](#paths).
        path_case: Option<PathCase> = words([("exact", PathCase::Exact), ("ignore", PathCase::Ignore)])
            .at(|policy| &mut policy.paths.case),
        /// Whether `/charges/` and `/charges` are the same path, or different ones.
        trailing_slash: Option<TrailingSlash> = words([("ignore", TrailingSlash::Ignore), ("exact", TrailingSlash::Exact)])
            .at(|policy| &mut policy.paths.trailing_slash),
        /// A word that separates the keys of this route from the keys of others: up to 64 letters,
        /// digits and `- _ . : /`.
        namespace: Option<String> = plain("[A-Za-z0-9_.:/-]{0,64}", "\"payments\"", is_namespace, (
            "not a namespace", "write up to 64 letters, digits and - _ . : /, such as \"payments\"",
        )).shown(|text| format!("\"{text}\"")).at(|policy| &mut policy.namespace),
        /// The source of the key, and its format: see [Keys](#keys).
        key: KeyOptions = key().or_default().applied(KeyOptions::apply)
            .else_says("that of the preset, else the header; required for `payment` and `high-consequence`"),
        /// The owner of the key: see [Tenants](#tenants).
        tenant: Option<TenantOption> = tenant().optional().applied(TenantOption::apply)
            .else_says("the credential if there is one, else public"),
        /// The parts of a request that make two requests the same: see
        /// [Fingerprints](#fingerprints).
        fingerprint: Fingerprint = table().then(fingerprint).or_default()
            .applied(|policy, it: Fingerprint| it.apply(policy)).else_says("{ mode = \"bytes\" }"),
        /// The types of gRPC messages: a file that `protoc --include_imports --descriptor_set_out=FILE` writes.
        /// See [Keys](#keys).
        descriptor_set: Option<PathBuf> = file("\"billing.pb\"").optional(),
        /// The time for which an outcome is kept.
        ttl: Option<Duration> = duration("1s", "400d", "24h").at(|policy| &mut policy.terms.ttl),
        /// The time for which an attempt may run without renewing its lease.
        lease: Option<Duration> = duration("100ms", "1h", "30s").at(|policy| &mut policy.terms.lease),
        /// The time after a lease ends until the attempt counts as lost.
        grace: Option<Duration> = duration("0s", "1h", "30s").optional()
            .applied(|policy, grace| policy.terms.grace = grace.unwrap_or(policy.terms.lease))
            .else_says("one `lease`"),
        /// The answer while an attempt is in progress: 409, a wait, or 202 after the wait
        /// (see [Long operations](#long-operations)).
        in_flight: Option<InFlight> = words([
            ("reject", InFlight::Reject),
            ("wait", InFlight::Wait(WAIT_TIMEOUT)),
            ("async", InFlight::Async(WAIT_TIMEOUT)),
        ]).at(|policy| &mut policy.in_flight),
        /// The time to wait for an attempt that is in progress.
        wait_timeout: Option<Duration> = duration("0s", "5m", "5s").optional().applied(set_wait)
            .else_says(&format!("\"{}\"", show_duration(WAIT_TIMEOUT))),
        /// The answer to a retry whose outcome is unknown: say so and never run again, ask a
        /// service (see [Reconciling](#reconciling)), or run again, which is only for operations
        /// that are harmless to repeat.
        on_unknown: Option<OnUnknown> = words([
            ("fail", OnUnknown::Fail),
            ("reconcile", OnUnknown::Reconcile),
            ("retry", OnUnknown::Retry),
        ]).at(|policy| &mut policy.terms.on_unknown),
        /// The service that knows outcomes, for `on_unknown = "reconcile"`: see
        /// [Reconciling](#reconciling).
        reconcile: Option<Reconcile> = reconcile().optional(),
        /// The behaviour while the store is unreachable: 503, or a run without a record
        /// (see [While the store is unreachable](#while-the-store-is-unreachable)).
        on_store_down: Option<OnStoreDown> = words([
            ("fail-closed", OnStoreDown::FailClosed),
            ("fail-open", OnStoreDown::FailOpen),
        ]).at(|policy| &mut policy.on_store_down),
        /// Limits on new operations: see [Velocity](#velocity).
        velocity: Option<Vec<Velocity>> = velocity().at(|policy| &mut policy.velocity),
        /// The treatment of a payload that the same tenant sent under another key a short time ago: see
        /// [Re-keyed retries](#re-keyed-retries).
        duplicate_payload: Option<Option<DuplicatePayload>> = duplicate_payload()
            .at(|policy| &mut policy.duplicate_payload).else_says("off"),
        /// The URL for the requests of this route.
        upstream: Option<Uri> = upstream().optional().else_says("the gateway's"),
        /// The time for the body of a request with a key to arrive. A slower request is refused with 408.
        request_timeout: Option<Duration> = duration("1ms", "1h", "30s").at(|policy| &mut policy.request_timeout),
        /// The time for the whole response of the upstream.
        upstream_timeout: Option<Duration> = duration("1ms", "1h", "30s").at(|policy| &mut policy.upstream_timeout),
        /// Statuses whose response is recorded and replayed, such as `"404"`, `"4xx"`, or a code of
        /// gRPC such as `"NOT_FOUND"`. The most specific entry counts, built-in ones included: see
        /// [What becomes of an attempt](#what-becomes-of-an-attempt).
        record: Option<Vec<StatusPattern>> = statuses().optional().else_says("see the link"),
        /// Statuses after which a retry runs again.
        release: Option<Vec<StatusPattern>> = statuses().optional().else_says("see the link"),
        /// Statuses after which the outcome is unknown.
        mark_unknown: Option<Vec<StatusPattern>> = statuses().optional().formerly("unknown")
            .else_says("see the link"),
        /// The format of errors: RFC 9457, or that of [Stripe's SDKs](#stripes-sdks).
        errors: Option<Dialect> = words([("problem", Dialect::Problem), ("stripe", Dialect::Stripe)])
            .at(|policy| &mut policy.errors),
        /// Other statuses for some errors.
        statuses: Statuses = table().or_default().applied(|policy, statuses: Statuses| statuses.apply(policy)),
        /// The largest request with a key. A larger request is refused with 413.
        max_request_body: Option<usize> = size("1B", "64MiB").at(|policy| &mut policy.max_request_body),
        /// The largest response that is recorded. A larger response is passed on, and cannot be
        /// replayed.
        max_response_body: Option<usize> = size("1B", "64MiB").at(|policy| &mut policy.max_response_body),
    }
}

table! {
    /// One `[[route]]`: its own options, and those that it shares with `[defaults]`.
    pub(super) struct RouteOptions [Debug] ("[[route]]", "{ match = \"POST /v1/charges\" }") {
        /// Methods, separated by commas, or `*` for POST, PUT, PATCH and DELETE; and a path, in
        /// which `{id}` is one segment and `{*rest}` the rest. Or `grpc` and a method of gRPC, such
        /// as `grpc billing.v1.Payments/Charge`; `/*` is every method of the service.
        r#match: RoutePattern = text(MATCH, "\"POST /v1/charges\"", RoutePattern::parse).required(),
        /// Values for a use case: see [Presets](#presets).
        preset: Option<Preset> = words(Preset::ALL).optional(),
    } with policy: PolicyOptions
}

const MATCH: &str = r"\s*grpc\s+[A-Za-z_][0-9A-Za-z_]*(\.[A-Za-z_][0-9A-Za-z_]*)*/(\*|[A-Za-z_][0-9A-Za-z_]*)\s*|\s*(\*|(POST|PUT|PATCH|DELETE)(\s*,\s*(POST|PUT|PATCH|DELETE))*)\s+(/(\{\*?[!$%&'()+,\-.0-9;=@A-Z\[\]_a-z~]+\}|[!$%&'()+,\-.0-9;=@A-Z\[\]_a-z~][!$%&'()+,\-.0-9;=@A-Z\[\]_a-z~:*]*)?)+\s*";

/// `[defaults]`
pub(super) fn defaults() -> Form<PolicyOptions> {
    fn info() -> TableInfo {
        let all = PolicyOptions::info();
        TableInfo { shared: all.options, options: Vec::new(), ..PolicyOptions::info() }
    }
    Form { shape: Shape::Table(info), ..table::<PolicyOptions>() }
}

/// The complete policy of a route or of `[defaults]`, and the settings that only a gateway has.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The policy. Its tenant is a placeholder that refuses every request if `forward_auth` is set.
    pub policy: Policy,
    /// The service that names the tenant, if there is one.
    pub forward_auth: Option<ForwardAuth>,
    /// The service that knows outcomes, if `on_unknown` is `reconcile`.
    pub reconcile: Option<Reconcile>,
}

impl Settings {
    /// Merges the layers: a route overrides its preset, and both override `[defaults]`.
    pub(super) fn new(
        route: &PolicyOptions,
        preset: Option<Preset>,
        defaults: &PolicyOptions,
    ) -> Self {
        let of_preset = preset.map(presets::options).unwrap_or_default();
        let all = route.clone().over(of_preset).over(defaults.clone());
        let mut outcomes = defaults.classify(StatusRules::new());
        if let Some(preset) = preset {
            outcomes = outcomes.with_every_5xx(preset.values().every_5xx);
        }
        let mut policy = preset.map_or_else(Policy::default, Policy::preset);
        policy.outcomes = route.classify(outcomes);
        let forward_auth = match &all.tenant {
            Some(TenantOption::ForwardAuth(auth)) => Some(auth.clone()),
            _ => None,
        };
        let reconcile = all.reconcile.clone();
        all.apply(&mut policy);
        let reconcile = reconcile.filter(|_| policy.terms.on_unknown == OnUnknown::Reconcile);
        Self { policy, forward_auth, reconcile }
    }
}

fn set_wait(policy: &mut Policy, timeout: Option<Duration>) {
    if let (Some(timeout), InFlight::Wait(wait) | InFlight::Async(wait)) =
        (timeout, &mut policy.in_flight)
    {
        *wait = timeout;
    }
}

/// The options that are lists of statuses. They add up from layer to layer. Other options replace
/// each other.
pub(super) const LISTS: [(&str, Disposition); 3] = [
    ("record", Disposition::Record),
    ("release", Disposition::Release),
    ("mark_unknown", Disposition::Unknown),
];

impl PolicyOptions {
    /// The lists of statuses, in the order of `LISTS`.
    pub(super) fn lists(&self) -> [&[StatusPattern]; 3] {
        let lists = [&self.record, &self.release, &self.mark_unknown];
        lists.map(|list| list.as_deref().unwrap_or_default())
    }

    fn classify(&self, mut rules: StatusRules) -> StatusRules {
        for ((_, disposition), list) in LISTS.iter().zip(self.lists()) {
            rules = list.iter().fold(rules, |rules, pattern| rules.with(*pattern, *disposition));
        }
        rules
    }
}

const STATUS: &str = "[2-5](xx|[0-9]{2})|OK|CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED";

fn statuses() -> Form<Vec<StatusPattern>> {
    list(text(STATUS, "\"404\"", |text| TextOr::read(text)), ANY, "[\"5xx\"]")
}

table! {
    layered
    /// `statuses`: the statuses of some errors.
    pub(super) struct Statuses [Clone, Debug, Default] ("statuses", "{ mismatch = 422, in_flight = 409 }") {
        /// The status for another payload under a known key. With `errors = "stripe"` the default
        /// is 400.
        mismatch: Option<Option<StatusCode>> = problem_status().at(|policy| &mut policy.statuses.mismatch).else_says("422"),
        /// The status while an attempt is in progress.
        in_flight: Option<Option<StatusCode>> = problem_status().at(|policy| &mut policy.statuses.in_flight).else_says("409"),
        /// The status if the attempt is still in progress when the wait is over.
        wait_timeout: Option<Option<StatusCode>> = problem_status().at(|policy| &mut policy.statuses.wait_timeout).else_says("504"),
    }
}

fn problem_status() -> Form<Option<StatusCode>> {
    integer(400, 599).map(|number| StatusCode::from_u16(u16::try_from(number).ok()?).ok())
}

table! {
    layered
    /// `fingerprint`
    pub(super) struct Fingerprint [Clone, Debug, Default] ("fingerprint", "{ mode = \"json\", exclude = [\"/timestamp\"] }", json!({ "oneOf": [
        { "properties": { "mode": { "const": "bytes" }, "exclude": false, "include": false } },
        { "properties": { "mode": { "enum": ["json", "protobuf"] }, "include": false } },
        { "properties": { "mode": { "const": "json" }, "exclude": false }, "required": ["include"] },
        { "properties": { "mode": { "pattern": r"\$\{" } } },
    ] })) {
        /// The comparison of bodies: byte by byte, as JSON, or as the message of a gRPC call, which needs
        /// `descriptor_set`.
        mode: Option<FingerprintMode> = words([
            ("bytes", FingerprintMode::Bytes),
            ("json", FingerprintMode::Json(Selection::Whole)),
            ("protobuf", FingerprintMode::Protobuf(ProtobufFingerprint {
                // The schema is read from the descriptor set later.
                schema: Schema::new(DescriptorSet::default()),
                exclude: Vec::new(),
            })),
        ]).at(|policy| &mut policy.fingerprint.mode).required(),
        /// JSON Pointers to values or fields that do not count.
        exclude: Option<Vec<Pointer>> = list(pointer(), ANY, "[\"/timestamp\"]").optional(),
        /// JSON Pointers to the only values that count.
        include: Option<Vec<Pointer>> = list(pointer(), (1, usize::MAX), "[\"/amount\"]").optional(),
        /// The names of headers that count, too.
        headers: Option<Vec<HeaderName>> =
            list(header_name("\"X-Account\""), ANY, "[\"X-Account\"]")
            .optional().applied(|policy, names| policy.fingerprint.headers = names.unwrap_or_default()),
    }
}

/// The field of a message that a JSON Pointer names.
fn field_at(pointer: &Pointer) -> String {
    pointer.as_str().trim_start_matches('/').replace('/', ".")
}

/// Makes the mode of its pointers, and refuses pointers without effect.
fn fingerprint(written: Fingerprint, value: &Value<'_>) -> Option<Fingerprint> {
    let Fingerprint { mode, exclude, include, headers } = written;
    let mode = match (mode?, exclude, include) {
        (FingerprintMode::Bytes, None, None) => FingerprintMode::Bytes,
        (FingerprintMode::Protobuf(protobuf), exclude, None) => {
            let exclude = exclude.iter().flatten().map(field_at).collect();
            FingerprintMode::Protobuf(ProtobufFingerprint { exclude, ..protobuf })
        }
        (FingerprintMode::Json(_), Some(_), Some(_)) => {
            let fault = ValueError::new("cannot be combined with `exclude`", "keep one of the two");
            return value.field("include")?.refuse(fault);
        }
        (FingerprintMode::Json(whole), exclude, include) => {
            let exclude = exclude.filter(|exclude| !exclude.is_empty()).map(Selection::Exclude);
            FingerprintMode::Json(exclude.or(include.map(Selection::Include)).unwrap_or(whole))
        }
        _ => {
            let what = "without effect: mode \"bytes\" compares every byte";
            let fault = ValueError::new(what, "write mode = \"json\", or remove the pointers");
            return value.field("exclude").or_else(|| value.field("include"))?.refuse(fault);
        }
    };
    Some(Fingerprint { mode: Some(mode), headers, exclude: None, include: None })
}

table! {
    /// One limit of `velocity`.
    struct VelocityOptions [Debug] ("velocity", "{ by = [\"tenant\"], limit = \"5/min\" }") {
        /// The values whose combinations are counted separately: `"tenant"`, and values in the JSON
        /// body such as `"json:/card"`.
        by: Vec<By> = list(text("tenant|json:/([^~]|~[01])*", "\"tenant\"", parse_by), (0, 8), "[\"tenant\", \"json:/card\"]").required(),
        /// The largest rate: a number and `s`, `min`, `h` or `d`, such as `"5/min"`.
        limit: Rate = text(r"\s*0*[1-9][0-9]*\s*/\s*(s|min|h|d)\s*", "\"5/min\"", |text| TextOr::read(text)).required(),
    }
}

fn velocity() -> Form<Vec<Velocity>> {
    let one =
        table::<VelocityOptions>().map(|VelocityOptions { by, limit }| Velocity::new(by, limit));
    list(one, (0, 8), "[{ by = [\"tenant\", \"json:/card\"], limit = \"5/min\" }]")
}

table! {
    /// `duplicate_payload`
    struct DuplicateOptions [Debug] ("duplicate_payload", "{ window = \"10m\", action = \"log\" }") {
        /// The time after the first request in which a second key is suspicious.
        window: Duration = duration("1s", "1d", "10m").or("\"10m\""),
        /// The treatment: none, a metric and a line in the log, or a refusal with 409 `duplicate_payload`.
        action: Option<DuplicateAction> = words([
            ("off", None),
            ("log", Some(DuplicateAction::Log)),
            ("reject", Some(DuplicateAction::Reject)),
        ]).required(),
    }
}

fn duplicate_payload() -> Form<Option<DuplicatePayload>> {
    table::<DuplicateOptions>()
        .map(|it| it.action.map(|action| DuplicatePayload::new(it.window, action)))
}

fn parse_by(text: &str) -> Result<By, ValueError> {
    let fix = "write json: and a JSON Pointer, such as \"json:/order_id\", or \"tenant\"";
    match (text, text.parse()) {
        ("tenant", _) => Ok(By::Tenant),
        (_, Ok(RequestValue::Json(pointer))) => Ok(By::Json(pointer)),
        (_, Ok(_)) => Err(ValueError::new("not a value of the request", fix)),
        (_, Err(error)) => Err(ValueError::new(error.what, fix)),
    }
}
