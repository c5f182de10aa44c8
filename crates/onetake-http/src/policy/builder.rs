//! Builder methods of `Policy`, named like the options of the gateway's file.

use std::time::Duration;

use http::{HeaderName, Method};

use onetake_core::{OnRetry, OnUnknown, Rate, Terms};

use crate::duplicates::{DuplicateAction, DuplicatePayload};
use crate::fingerprint::FingerprintMode;
use crate::memo::MemoField;
use crate::policy::{InFlight, KeyFormat, KeySource, Mistake, OnStoreDown, Policy, Preset};
use crate::problem::{Dialect, ProblemStatuses};
use crate::routes::{PathCase, TrailingSlash};
use crate::status::{Disposition, StatusPattern};
use crate::tenant::Tenant;
use crate::text::{TextError, TextOr};
use crate::velocity::{By, Velocity};

/// The methods have the names of the options of a `[[route]]` in the gateway's file. A second call
/// of the same method replaces the first value. Calls of `record`, `release`, `mark_unknown` and
/// `velocity` add up.
impl Policy {
    /// Returns the default policy.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the values of a preset; later calls override them.
    ///
    /// With `Preset::Payment`, [`tenant`](Self::tenant) must be called too. A policy without it is
    /// refused, because a wrong guess could mix payments of two customers. The presets of webhook
    /// senders, such as `Preset::Github`, need a tenant, too: see [`key_from`](Self::key_from).
    #[must_use]
    pub fn preset(preset: Preset) -> Self {
        let values = preset.values();
        let mut policy = Self::new().ttl(values.ttl);
        policy.outcomes = policy.outcomes.with_every_5xx(values.every_5xx);
        policy.key.required = values.key_required.unwrap_or(policy.key.required);
        policy.key.source = values.key_source.unwrap_or(policy.key.source);
        policy.fingerprint.mode = values.fingerprint.unwrap_or(policy.fingerprint.mode);
        policy.on_store_down = values.on_store_down.unwrap_or(policy.on_store_down);
        if values.must_name_tenant {
            (policy.tenant, policy.is_tenant_guessed) = (Tenant::Credential, true);
        }
        policy
    }

    /// Sets the name of the route in logs.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets the methods that are keyed. Requests with other methods pass through untouched.
    ///
    /// The default is POST and PATCH. If a key is required, it is every method except GET, HEAD,
    /// OPTIONS, TRACE and CONNECT, which are never keyed.
    #[must_use]
    pub fn methods<M: TextOr<Method>>(mut self, methods: impl IntoIterator<Item = M>) -> Self {
        self.methods = Some(self.read_all("methods", methods));
        self
    }

    /// Sets whether letter case counts in the path of the route. It has no effect without a route.
    #[must_use]
    pub fn path_case(mut self, case: PathCase) -> Self {
        self.paths.case = case;
        self
    }

    /// Sets whether a slash at the end counts in the path of the route. It has no effect without a
    /// route.
    #[must_use]
    pub fn trailing_slash(mut self, slash: TrailingSlash) -> Self {
        self.paths.trailing_slash = slash;
        self
    }

    /// Refuses requests without a key. This applies to every method except GET, HEAD, OPTIONS,
    /// TRACE and CONNECT, unless [`methods`](Self::methods) names fewer.
    #[must_use]
    pub fn key_required(mut self) -> Self {
        self.key.required = true;
        self
    }

    /// Sets the source of the key, such as `KeySource::header("X-GitHub-Delivery")` or
    /// `KeySource::json("/id")`. A key is required if the source is not `KeySource::Header`.
    ///
    /// Values that the request has anyway can be guessed. With them the policy must name its
    /// [`tenant`](Self::tenant).
    #[must_use]
    pub fn key_from(mut self, source: impl TextOr<KeySource>) -> Self {
        if let Some(source) = self.read_one("key", source) {
            self.key.required |= source != KeySource::Header;
            self.key.source = source;
        }
        self
    }

    /// Sets the required format of keys from a header.
    #[must_use]
    pub fn key_format(mut self, format: KeyFormat) -> Self {
        self.key.format = format;
        self
    }

    /// Sets the minimum length of keys from a header, in characters. The default is 16, or 1 for a
    /// header other than `Idempotency-Key`.
    #[must_use]
    pub fn key_min_length(mut self, characters: usize) -> Self {
        self.key.min_length = Some(characters);
        self
    }

    /// Sets the tenant that owns the keys: `"credential"`, `"public"`, `"client-ip"`,
    /// `Tenant::header("x-account")`, or another [`Tenant`].
    #[must_use]
    pub fn tenant(mut self, tenant: impl TextOr<Tenant>) -> Self {
        self.is_tenant_guessed = false;
        if let Some(tenant) = self.read_one("tenant", tenant) {
            self.tenant = tenant;
        }
        self
    }

    /// Sets the namespace, which separates the keys of this route from those of other routes.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets how bodies are compared: `"bytes"`, `"json"`, or another [`FingerprintMode`], such as
    /// `FingerprintMode::json_without(["/timestamp"])`.
    #[must_use]
    pub fn fingerprint(mut self, mode: impl TextOr<FingerprintMode>) -> Self {
        if let Some(mode) = self.read_one("fingerprint", mode) {
            self.fingerprint.mode = mode;
        }
        self
    }

    /// Sets the headers that are part of the fingerprint.
    #[must_use]
    pub fn fingerprint_headers<H: TextOr<HeaderName>>(
        mut self,
        headers: impl IntoIterator<Item = H>,
    ) -> Self {
        self.fingerprint.headers = self.read_all("fingerprint_headers", headers);
        self
    }

    /// Sets how long the outcome is kept.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = ttl;
        self
    }

    /// Sets the lease: the time that an attempt may run before it must renew. The grace is as long
    /// as the lease, unless [`grace`](Self::grace) or [`terms`](Self::terms) sets another one.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = lease;
        if !self.is_grace_set.0 {
            self.terms.grace = lease;
        }
        self
    }

    /// Sets the grace: the time after the end of a lease in which no other attempt may take the
    /// key.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.terms.grace = grace;
        self.is_grace_set.0 = true;
        self
    }

    /// Sets ttl, lease, grace and `on_unknown` at once.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self.is_grace_set.0 = true;
        self.promising_what_it_keeps()
    }

    /// Sets the answer to a request whose operation is still running, and how long the request
    /// waits.
    #[must_use]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Sets the treatment of unknown outcomes. It has no effect on a transactional route.
    /// [`OnUnknown::Rollback`] is for transactional routes only; on other routes it becomes
    /// [`OnUnknown::Fail`].
    #[must_use]
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.terms.on_unknown = on_unknown;
        self.promising_what_it_keeps()
    }

    pub(crate) fn promising_what_it_keeps(mut self) -> Self {
        self.terms = self.kept_terms();
        self
    }

    /// The terms with an `on_unknown` that fits the route (S16). A transactional operation rolls
    /// back by itself, so it is never unknown. Any other operation must not run again as if it had
    /// rolled back.
    pub(crate) fn kept_terms(&self) -> Terms {
        let on_unknown = match self.terms.on_unknown {
            _ if self.is_transactional => OnUnknown::Rollback,
            OnUnknown::Rollback => OnUnknown::Fail,
            chosen => chosen,
        };
        Terms { on_unknown, ..self.terms }
    }

    /// Sets the values that are kept in the record, by which a reconciler asks for the operation:
    /// see [`MemoValues`](crate::MemoValues).
    #[must_use]
    pub fn remember(mut self, what: impl IntoIterator<Item = MemoField>) -> Self {
        self.remember = what.into_iter().collect();
        self
    }

    /// Sets a hook that undoes partial work of an earlier attempt before the operation runs again.
    #[must_use]
    pub fn on_retry(mut self, hook: OnRetry) -> Self {
        self.on_retry = Some(hook);
        self
    }

    /// Sets the behaviour while the store is unreachable.
    #[must_use]
    pub fn on_store_down(mut self, on_store_down: OnStoreDown) -> Self {
        self.on_store_down = on_store_down;
        self
    }

    /// Adds a limit to new operations, for each combination of the values of `by`:
    /// `.velocity(["tenant", "json:/card"], "5/min")`.
    #[must_use]
    pub fn velocity<B: TextOr<By>>(
        mut self,
        by: impl IntoIterator<Item = B>,
        limit: impl TextOr<Rate>,
    ) -> Self {
        let by: Vec<By> = self.read_all("velocity", by);
        if let Some(limit) = self.read_one("velocity", limit) {
            self.velocity.push(Velocity::new(by, limit));
        }
        self
    }

    /// Looks for the same payload under another key of the same tenant, for `window` after its
    /// first request. See [`duplicates`](crate::duplicates).
    #[must_use]
    pub fn duplicate_payload(mut self, window: Duration, action: DuplicateAction) -> Self {
        self.duplicate_payload = Some(DuplicatePayload::new(window, action));
        self
    }

    /// Sets how long the body of a keyed request may take to arrive.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets how long the operation may run. The upstream is the service behind the layer.
    #[must_use]
    pub fn upstream_timeout(mut self, timeout: Duration) -> Self {
        self.upstream_timeout = timeout;
        self
    }

    /// Records responses with these statuses, such as `"404"` or `"4xx"`. The most specific entry
    /// wins.
    #[must_use]
    pub fn record<P: TextOr<StatusPattern>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.classified("record", patterns, Disposition::Record)
    }

    /// Lets another attempt run after responses with these statuses. The most specific entry wins.
    #[must_use]
    pub fn release<P: TextOr<StatusPattern>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.classified("release", patterns, Disposition::Release)
    }

    /// Treats responses with these statuses as unknown outcomes. The most specific entry wins.
    #[must_use]
    pub fn mark_unknown<P: TextOr<StatusPattern>>(
        self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Self {
        self.classified("mark_unknown", patterns, Disposition::Unknown)
    }

    fn classified<P: TextOr<StatusPattern>>(
        mut self,
        list: &'static str,
        patterns: impl IntoIterator<Item = P>,
        disposition: Disposition,
    ) -> Self {
        for pattern in self.read_all::<StatusPattern, P>(list, patterns) {
            let other = |(known, other): &&(_, _)| *known == pattern && *other != disposition;
            if self.listed.0.iter().any(|entry| other(&entry)) {
                let error = TextError::new(
                    &pattern.to_string(),
                    "the status is also in another list",
                    "keep it in one of `record`, `release` and `mark_unknown`",
                );
                self.mistakes.push(Mistake::of_text(list, error));
            }
            self.listed.0.push((pattern, disposition));
            self.outcomes = self.outcomes.with(pattern, disposition);
        }
        self
    }

    /// Reads the value of an option. Invalid text is kept as a mistake.
    fn read_one<T>(&mut self, option: &'static str, value: impl TextOr<T>) -> Option<T> {
        let mistake = |error| self.mistakes.push(Mistake::of_text(option, error));
        value.read().map_err(mistake).ok()
    }

    fn read_all<T, V: TextOr<T>>(
        &mut self,
        option: &'static str,
        values: impl IntoIterator<Item = V>,
    ) -> Vec<T> {
        values.into_iter().filter_map(|value| self.read_one(option, value)).collect()
    }

    /// Sets the statuses of some problems.
    #[must_use]
    pub fn statuses(mut self, statuses: ProblemStatuses) -> Self {
        self.statuses = statuses;
        self
    }

    /// Sets the format of problems.
    #[must_use]
    pub fn errors(mut self, dialect: Dialect) -> Self {
        self.errors = dialect;
        self
    }

    /// Sets the largest body of a keyed request, in bytes.
    #[must_use]
    pub fn max_request_body(mut self, bytes: usize) -> Self {
        self.max_request_body = bytes;
        self
    }

    /// Sets the largest response body that can be replayed, in bytes.
    #[must_use]
    pub fn max_response_body(mut self, bytes: usize) -> Self {
        self.max_response_body = bytes;
        self
    }
}
