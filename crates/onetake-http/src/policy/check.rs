//! Validation of a policy, shared by the gateway's file and [`Routes`](crate::Routes).

use std::fmt;
use std::time::Duration;

use http::{Method, StatusCode};
use onetake_core::OnUnknown;

use crate::fingerprint::FingerprintMode;
use crate::json::Selection;
use crate::key::{IDEMPOTENCY_KEY, X_IDEMPOTENCY_KEY};
use crate::policy::{KeyFormat, KeyPolicy, KeySource, Policy, RequestValue};
use crate::tenant::Tenant;
use crate::text::TextError;

/// Headers that differ between the attempts of one operation.
pub const CHANGING_HEADERS: [&str; 7] = [
    "date",
    "traceparent",
    "x-request-id",
    "x-request-deadline",
    "x-request-timeout-ms",
    "grpc-timeout",
    "content-length",
];

/// Headers with credentials, which do not tell one operation from another.
const CREDENTIALS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// Methods that are never keyed: requests with them have no effect that could happen twice.
pub const NEVER_KEYED: [Method; 5] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::CONNECT];

/// The mistake of a route with a preset that must name its tenant, and does not:
/// [`PresetValues::must_name_tenant`](crate::policy::PresetValues::must_name_tenant).
pub const TENANT_NOT_NAMED: &str = "a route with preset \"payment\" must name its tenant, because a wrong guess could mix payments of two customers";

/// The most values in a derived key.
const PARTS_MAX: usize = 16;
/// The most velocity limits of a route, and the most values of a limit.
const LIMITS_MAX: usize = 8;

/// A mistake in a policy or in a table of routes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mistake {
    /// The pattern of the route. It is empty if one policy applies to all requests.
    pub route: String,
    /// The option, by its name in the gateway's file. The method of [`Policy`] has the same name.
    pub option: &'static str,
    /// The invalid value, if it helps to find the mistake.
    pub value: Option<String>,
    /// The description of the mistake.
    pub what: String,
    /// The correction.
    pub fix: String,
}

impl Mistake {
    pub(crate) fn new(
        option: &'static str,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (what, fix) = (what.into(), fix.into());
        Self { route: String::new(), option, value: None, what, fix }
    }

    pub(crate) fn of_text(option: &'static str, error: TextError) -> Self {
        let TextError { value, what, fix } = error;
        Self { value: Some(value), ..Self::new(option, what, fix) }
    }

    fn value(self, value: impl Into<String>) -> Self {
        Self { value: Some(value.into()), ..self }
    }

    pub(crate) fn of_route(self, route: &str) -> Self {
        Self { route: route.to_owned(), ..self }
    }

    /// The mistake and its correction in one line.
    fn to_line(&self) -> String {
        self.to_string().replace("\n    ", " (") + ")"
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.route.is_empty() {
            write!(f, "{}: ", self.route)?;
        }
        match &self.value {
            Some(value) => write!(f, "{} {value:?}: ", self.option)?,
            None => write!(f, "{}: ", self.option)?,
        }
        write!(f, "{}\n    {}", self.what, self.fix)
    }
}

/// All mistakes in the policies of a layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    mistakes: Vec<Mistake>,
}

impl PolicyError {
    pub(crate) fn unless_empty(mistakes: Vec<Mistake>) -> Result<(), Self> {
        if mistakes.is_empty() { Ok(()) } else { Err(Self { mistakes }) }
    }

    /// Returns the mistakes. There is at least one.
    #[must_use]
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    pub(crate) fn into_mistakes(self) -> Vec<Mistake> {
        self.mistakes
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mistakes.len() {
            1 => f.write_str("the policy of the layer has 1 error:")?,
            count => write!(f, "the policies of the layer have {count} errors:")?,
        }
        self.mistakes.iter().try_for_each(|mistake| write!(f, "\n\n{mistake}"))
    }
}

impl Policy {
    /// Returns the mistakes in this policy: text that cannot be read, values out of range, and
    /// values that contradict each other.
    ///
    /// `onetake check`, [`Routes::build`](crate::Routes::build) and
    /// [`OnetakeLayer::builder`](crate::OnetakeLayer::builder) call it. A policy from a closure
    /// ([`LayerBuilder::resolve`](crate::LayerBuilder::resolve)) is checked at its first request.
    #[must_use]
    pub fn check(&self) -> Vec<Mistake> {
        let mut found = self.mistakes.clone();
        self.check_key(&mut found);
        self.check_values(&mut found);
        self.check_times(&mut found);
        found
    }

    /// Returns true if the policy has no mistakes. The first call checks the policy, and logs its
    /// mistakes as one error. Later calls cost one atomic load.
    pub(crate) fn is_valid(&self) -> bool {
        let mistakes = self.checked.0.get_or_init(|| {
            let mistakes = self.check();
            if !mistakes.is_empty() {
                let lines: Vec<String> = mistakes.iter().map(Mistake::to_line).collect();
                tracing::error!(
                    route = self.label,
                    mistakes = lines.join("; "),
                    "a policy from `LayerBuilder::resolve` has mistakes, so its requests are refused with 500. Call `Policy::check` where the policy is made, or use Routes: then the mistakes are found at start"
                );
            }
            mistakes
        });
        mistakes.is_empty()
    }

    /// Marks the policy as checked, so that the layer does not check it again. It is for sources of
    /// policies that check them themselves. A clone is not marked.
    #[doc(hidden)]
    pub fn mark_checked(&self) {
        let _already = self.checked.0.set(Vec::new());
    }

    /// True if keys can be guessed and the policy does not name the tenant that owns them.
    ///
    /// A client makes up an `Idempotency-Key` for this purpose. A value that a request has anyway
    /// (the number of an order or of an event) is known to others, too. Without a named tenant,
    /// clients without a credential are one tenant. One of them could then send the key of another,
    /// and read its outcome or use up its key (S8).
    fn needs_tenant(&self) -> bool {
        let is_made_of_values =
            !self.key.source.values().is_empty() || matches!(self.key.source, KeySource::Grpc(_));
        is_made_of_values && self.tenant == Tenant::CredentialOrPublic
    }

    fn check_key(&self, found: &mut Vec<Mistake>) {
        let KeyPolicy { source, format, min_length, .. } = &self.key;
        if self.is_tenant_guessed && self.tenant == Tenant::Credential {
            let fix = "call .tenant(\"credential\"), .tenant(\"public\") or .tenant(Tenant::header(\"x-account\"))";
            found.push(Mistake::new("tenant", TENANT_NOT_NAMED, fix));
        }
        if self.needs_tenant() {
            let what = "keys from values that a request has anyway can be guessed, so the policy must name the tenant";
            let fix = "set the tenant to \"credential\", \"public\", or a header such as X-Account";
            found.push(Mistake::new("tenant", what, fix));
        }
        if let KeySource::Derive(values) = source
            && !(1..=PARTS_MAX).contains(&values.len())
        {
            let what = "a derived key needs 1 to 16 values of the request";
            let fix = "name the values that make the operation unique, such as \"json:/order_id\"";
            found.push(Mistake::new("key", what, fix).value(format!("{} values", values.len())));
        }
        for value in source.values() {
            self.check_value(value, found);
        }
        if !source.is_header() && (*format != KeyFormat::Any || min_length.is_some()) {
            let what = "`format` and `min_length` apply only to keys from a header";
            let fix = "remove them, or take the key from a header";
            found.push(Mistake::new("key", what, fix));
        }
        let min_length = min_length.unwrap_or(1);
        if !(1..=255).contains(&min_length) {
            let what = "the minimum length of a key must be from 1 to 255";
            let fix = "set a number from 1 to 255, such as 16";
            found.push(Mistake::new("key", what, fix).value(min_length.to_string()));
        }
        let never = self.methods.iter().flatten().find(|method| NEVER_KEYED.contains(method));
        if let Some(method) = never {
            let what = format!("{method} requests are never keyed: they pass through unchanged");
            let fix = "remove it; only POST, PUT, PATCH and DELETE can be keyed";
            found.push(Mistake::new("methods", what, fix));
        }
    }

    /// Checks one value that keys are made of.
    fn check_value(&self, value: &RequestValue, found: &mut Vec<Mistake>) {
        let mut mistake = |what: &str, fix: String| {
            found.push(Mistake::new("key", what, fix).value(value.to_string()));
        };
        match value {
            RequestValue::Header(name) => {
                let other =
                    "name a header that stays the same on each retry, such as X-GitHub-Delivery";
                if CHANGING_HEADERS.contains(&name.as_str()) {
                    let what = "the header changes with each attempt, so every retry would be a new operation";
                    mistake(what, other.to_owned());
                }
                if CREDENTIALS.contains(&name.as_str()) {
                    let what = "the header is a credential, which is the same for all operations";
                    mistake(what, other.to_owned());
                }
                let is_usual = [IDEMPOTENCY_KEY, X_IDEMPOTENCY_KEY].contains(name);
                if is_usual && self.key.source.is_header() {
                    let fix = "remove the name: without one, this header has the key";
                    mistake("the header is the usual source of keys", fix.to_owned());
                }
            }
            RequestValue::Path(name) => {
                let pattern = self.path.as_ref();
                let count = pattern.map_or(0, |pattern| pattern.count_of(name));
                if count != 1 {
                    let what = match pattern {
                        None => "only a route has path parameters",
                        Some(_) if count == 0 => "the path of the route has no such parameter",
                        Some(_) => "the path of the route has this parameter twice",
                    };
                    let fix = format!(
                        "write {{{name}}} once in the path of the route, such as \"PUT /orders/{{{name}}}\""
                    );
                    mistake(what, fix);
                }
            }
            RequestValue::Query(name) if !RequestValue::is_name(name) => {
                let fix = "write a name of 1 to 255 bytes, such as \"order\"";
                mistake("not the name of a parameter", fix.to_owned());
            }
            RequestValue::Query(_) | RequestValue::Json(_) => {}
        }
    }

    fn check_values(&self, found: &mut Vec<Mistake>) {
        if !is_namespace(&self.namespace) {
            let fix = "write up to 64 letters, digits and - _ . : /, such as \"payments\"";
            found.push(Mistake::new("namespace", "not a namespace", fix).value(&*self.namespace));
        }
        for name in &self.fingerprint.headers {
            if CHANGING_HEADERS.contains(&name.as_str()) {
                let what = "the header changes with each attempt, so every retry would be refused";
                let mistake = Mistake::new("fingerprint_headers", what, "remove it");
                found.push(mistake.value(name.as_str()));
            }
        }
        if matches!(&self.fingerprint.mode, FingerprintMode::Json(Selection::Include(all)) if all.is_empty())
        {
            let what = "no member of the body is compared, so any two bodies would count as the same request";
            found.push(Mistake::new("fingerprint", what, "name at least one, such as \"/amount\""));
        }
        let is_long = |len| len > LIMITS_MAX;
        if is_long(self.velocity.len()) || self.velocity.iter().any(|it| is_long(it.by.len())) {
            let what = "a route can have at most 8 limits, each by at most 8 values";
            found.push(Mistake::new("velocity", what, "remove some of them"));
        }
        if !self.velocity.is_empty() && !self.key.required {
            let what = "the route does not require a key, and a request without one is not counted: leaving out the key would get around the limit";
            let fix = "require a key beside it: key = { required = true } in the file, .key_required() in Rust";
            found.push(Mistake::new("velocity", what, fix));
        }
        let statuses = &self.statuses;
        let is_error = |status: &StatusCode| (400..=599).contains(&status.as_u16());
        for status in [statuses.mismatch, statuses.in_flight, statuses.wait_timeout] {
            if let Some(status) = status.filter(|status| !is_error(status)) {
                let what = "not an error status";
                let fix = "write a status from 400 to 599";
                found.push(Mistake::new("statuses", what, fix).value(status.as_str()));
            }
        }
    }

    fn check_times(&self, found: &mut Vec<Mistake>) {
        let times = [
            ("ttl", self.terms.ttl),
            ("lease", self.terms.lease),
            ("upstream_timeout", self.upstream_timeout),
            ("request_timeout", self.request_timeout),
        ];
        for (option, _) in times.into_iter().filter(|(_, time)| time.is_zero()) {
            let what = "the duration is zero, so no operation could run";
            found.push(Mistake::new(option, what, "set a longer duration"));
        }
        if self.duplicate_payload.is_some_and(|rule| rule.window.is_zero()) {
            let what = "the window is zero, so no payload would be found";
            found.push(Mistake::new("duplicate_payload", what, "set a longer window"));
        }
        let needed = self.reconcile_ttl_min(Duration::ZERO, Duration::ZERO);
        if self.terms.on_unknown == OnUnknown::Reconcile && self.terms.ttl < needed {
            let what = "the key would expire before its outcome can be reconciled: ttl is less than twice upstream_timeout plus grace";
            let fix =
                format!("set a ttl of {needed:?} or more, or a shorter upstream_timeout or grace");
            found.push(Mistake::new("ttl", what, fix).value(format!("{:?}", self.terms.ttl)));
        }
    }

    /// The earliest time, after the start of an attempt, at which its outcome is reconciled.
    #[must_use]
    pub fn reconciles_after(&self, clock_skew_max: Duration) -> Duration {
        self.upstream_timeout.saturating_add(self.terms.grace).saturating_add(clock_skew_max)
    }

    /// The shortest ttl for `on_unknown = "reconcile"`. Half of it is left for reconciliation.
    #[must_use]
    pub fn reconcile_ttl_min(&self, asking: Duration, clock_skew_max: Duration) -> Duration {
        self.reconciles_after(clock_skew_max).saturating_add(asking).saturating_mul(2)
    }

    /// True if requests with this method are keyed: see [`methods`](Self::methods).
    #[must_use]
    pub fn is_keyed(&self, method: &Method) -> bool {
        !NEVER_KEYED.contains(method)
            && match &self.methods {
                Some(methods) => methods.contains(method),
                None => self.key.required || [Method::POST, Method::PATCH].contains(method),
            }
    }
}

/// True if the text is a namespace: up to 64 letters, digits and `- _ . : /`.
#[must_use]
pub fn is_namespace(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    text.len() <= 64 && text.chars().all(is_word)
}
