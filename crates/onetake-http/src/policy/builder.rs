//! A policy in the words of the gateway's file.

use std::time::Duration;

use http::{HeaderName, Method};

use onetake_core::{OnRetry, OnUnknown, Rate, Terms};

use crate::fingerprint::FingerprintMode;
use crate::policy::{InFlight, KeyFormat, KeySource, Mistake, OnStoreDown, Policy, Preset};
use crate::problem::{Dialect, ProblemStatuses};
use crate::remember::Remembered;
use crate::status::{Disposition, StatusPattern};
use crate::tenant::Tenant;
use crate::text::{TextError, TextOr};
use crate::velocity::{By, Velocity};

/// The words are those of a `[[route]]` in the gateway's file. Of two calls of the same word, the later
/// counts; those that name several things (`record`, `release`, `mark_unknown`, `velocity`) add up.
impl Policy {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The values for a use case; what is set afterwards overrides them. Payments need a
    /// [`Tenant::Credential`] unless another tenant is named.
    #[must_use]
    pub fn preset(preset: Preset) -> Self {
        let values = preset.values();
        let mut policy = Self::new().ttl(values.ttl);
        policy.outcomes = policy.outcomes.with_every_5xx(values.every_5xx);
        policy.key.required = values.key_required.unwrap_or(policy.key.required);
        policy.on_store_down = values.on_store_down.unwrap_or(policy.on_store_down);
        if preset == Preset::Payment {
            policy.tenant = Tenant::Credential;
        }
        policy
    }

    /// Sets how logs call the route.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Sets which methods are keyed; requests with others pass through untouched. Unless it is called, these are POST
    /// and PATCH or, if a key is required, all but GET, HEAD, OPTIONS, TRACE and CONNECT, which never are.
    #[must_use]
    pub fn methods<M: TextOr<Method>>(mut self, methods: impl IntoIterator<Item = M>) -> Self {
        self.methods = Some(self.read_all("methods", methods));
        self
    }

    /// Refuses requests without a key, whatever their method: all but GET, HEAD, OPTIONS, TRACE and CONNECT, unless
    /// [`methods`](Self::methods) says less.
    #[must_use]
    pub fn key_required(mut self) -> Self {
        self.key.required = true;
        self
    }

    /// Sets where the key comes from, such as `KeySource::json("/id")`. Where it is not a header, a key is required.
    #[must_use]
    pub fn key_from(mut self, source: impl TextOr<KeySource>) -> Self {
        if let Some(source) = self.read_one("key", source) {
            self.key.required |= source != KeySource::Header;
            self.key.source = source;
        }
        self
    }

    /// Sets what a key from a header has to look like.
    #[must_use]
    pub fn key_format(mut self, format: KeyFormat) -> Self {
        self.key.format = format;
        self
    }

    /// Sets how many characters a key from a header has at least.
    #[must_use]
    pub fn key_min_length(mut self, characters: usize) -> Self {
        self.key.min_length = characters;
        self
    }

    /// Sets whose key it is: `"credential"`, `"public"`, `"client-ip"`, `Tenant::header("x-account")`, or another
    /// [`Tenant`].
    #[must_use]
    pub fn tenant(mut self, tenant: impl TextOr<Tenant>) -> Self {
        if let Some(tenant) = self.read_one("tenant", tenant) {
            self.tenant = tenant;
        }
        self
    }

    /// Sets a word that separates this route's keys from others'.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets how two requests are told apart: `"bytes"`, `"json"`, or another [`FingerprintMode`], such as
    /// `FingerprintMode::json_without(["/timestamp"])`.
    #[must_use]
    pub fn fingerprint(mut self, mode: impl TextOr<FingerprintMode>) -> Self {
        if let Some(mode) = self.read_one("fingerprint", mode) {
            self.fingerprint.mode = mode;
        }
        self
    }

    /// Sets which headers count when two requests are told apart.
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

    /// Sets for how long an attempt may run before it must renew, and for as long an ended lease is still
    /// respected, unless [`grace`](Self::grace) is set afterwards.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        (self.terms.lease, self.terms.grace) = (lease, lease);
        self
    }

    /// Sets for how long an ended lease is still respected.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.terms.grace = grace;
        self
    }

    /// Sets ttl, lease, grace and `on_unknown` at once.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self.promising_what_it_keeps()
    }

    /// Sets what to do while the operation runs, and how long to wait for it.
    #[must_use]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Sets what to do with an outcome that nobody knows. It changes nothing where the route is
    /// transactional, and [`OnUnknown::Rollback`] is for those alone: elsewhere it is
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

    /// What rolls back by itself is never unknown, and nothing else may run again because it is taken for that (S16).
    pub(crate) fn kept_terms(&self) -> Terms {
        let on_unknown = match self.terms.on_unknown {
            _ if self.is_transactional => OnUnknown::Rollback,
            OnUnknown::Rollback => OnUnknown::Fail,
            chosen => chosen,
        };
        Terms { on_unknown, ..self.terms }
    }

    /// Sets what is kept with the record, so that whoever reconciles can ask for the operation: see
    /// [`Known`](crate::Known).
    #[must_use]
    pub fn remember(mut self, what: impl IntoIterator<Item = Remembered>) -> Self {
        self.remember = what.into_iter().collect();
        self
    }

    /// Sets what rolls back what an earlier attempt left half done, before the operation runs again.
    #[must_use]
    pub fn on_retry(mut self, hook: OnRetry) -> Self {
        self.on_retry = Some(hook);
        self
    }

    /// Sets what to do while the store is away.
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

    /// Sets for how long the operation may run: the service behind the layer is its upstream.
    #[must_use]
    pub fn upstream_timeout(mut self, timeout: Duration) -> Self {
        self.upstream_timeout = timeout;
        self
    }

    /// Records responses with these statuses, such as `"404"` or `"4xx"`. The most specific entry wins.
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
                    "another list has it too",
                    "keep it in one of `record`, `release` and `mark_unknown`",
                );
                self.mistakes.push(Mistake::of_text(list, error));
            }
            self.listed.0.push((pattern, disposition));
            self.outcomes = self.outcomes.with(pattern, disposition);
        }
        self
    }

    /// Reads the value of an option; a text that is wrong is kept as a mistake.
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

    /// Sets with which statuses some problems are answered.
    #[must_use]
    pub fn statuses(mut self, statuses: ProblemStatuses) -> Self {
        self.statuses = statuses;
        self
    }

    /// Sets in which dialect problems are told.
    #[must_use]
    pub fn errors(mut self, dialect: Dialect) -> Self {
        self.errors = dialect;
        self
    }

    /// Sets the largest request that is accepted with a key, in bytes.
    #[must_use]
    pub fn max_request_body(mut self, bytes: usize) -> Self {
        self.max_request_body = bytes;
        self
    }

    /// Sets the largest response that can be replayed, in bytes.
    #[must_use]
    pub fn max_response_body(mut self, bytes: usize) -> Self {
        self.max_response_body = bytes;
        self
    }
}
