//! The models of the short and of the long form.
//!
//! All features together have too many states. The short form has one model for each feature, with
//! the features that interact with it most. The long form has more features at once, and more time.

use std::time::Duration;

use onetake_core::OnUnknown::{self, Fail, Reconcile, Retry, Rollback};

use super::config::{Features, ModelConfig, OfferedTerms, TermsInTicks};
use super::state::{AttemptReport, PerKey};

/// With ticks of an hour, records expire an hour after they were settled, or a ttl after they were
/// claimed, whichever is later. With shorter ticks, both are the same.
const HOUR: Duration = Duration::from_secs(3600);

const NONE: Features = Features {
    reconcilers: false,
    operators: false,
    forgetting: false,
    effectless_runs: false,
    lost_claims: false,
    clock_steps_back: 0,
};
const OPERATORS: Features = Features { operators: true, effectless_runs: true, ..NONE };
const RECONCILERS_ALONE: Features = Features { reconcilers: true, ..NONE };
const RECONCILERS: Features = Features { effectless_runs: true, ..RECONCILERS_ALONE };
const FORGETTING: Features = Features { forgetting: true, ..NONE };
const LOST_CLAIMS: Features = Features { lost_claims: true, ..NONE };
const CLOCK: Features = Features { clock_steps_back: 1, ..NONE };
const ALL: Features = Features {
    reconcilers: true,
    operators: true,
    forgetting: true,
    effectless_runs: true,
    lost_claims: true,
    clock_steps_back: 1,
};

/// A model and its name.
#[derive(Clone, Copy, Debug)]
pub struct SuiteModel {
    /// The name.
    pub name: &'static str,
    /// The bounds, terms and features.
    pub config: ModelConfig,
}

impl SuiteModel {
    /// Creates a model of one key with these features, for three attempts within `ticks`.
    fn new(name: &'static str, on_unknown: OnUnknown, features: Features, ticks: u32) -> Self {
        Self { name, config: ModelConfig { ticks, features, ..one_key(on_unknown) } }
    }

    /// Adds requests with other terms: a longer lease and a shorter ttl.
    fn or_terms(mut self, on_unknown: OnUnknown) -> Self {
        let other = TermsInTicks { ttl: 1, lease: 2, grace: 1, on_unknown };
        self.config.terms.a.other = Some(other);
        self
    }

    /// Sets a smaller number of attempts.
    fn attempts(mut self, attempts: usize) -> Self {
        self.config.attempts_max.a = attempts;
        self
    }

    /// Sets ticks of an hour. Operations fail.
    fn in_hours(mut self) -> Self {
        self.config = hours(self.config);
        self
    }
}

/// Returns the models that tests check.
#[must_use]
pub fn short() -> Vec<SuiteModel> {
    let mut models = attempts_alone();
    models.extend([
        SuiteModel::new("operators", Fail, OPERATORS, 5),
        SuiteModel::new("reconcilers", Reconcile, RECONCILERS, 5),
        SuiteModel::new("rollback", Rollback, FORGETTING, 6),
        SuiteModel::new("forgetting", Fail, FORGETTING, 4),
        SuiteModel::new("lost-claims", Retry, LOST_CLAIMS, 4),
        SuiteModel::new("clock-back", Retry, CLOCK, 5),
        SuiteModel::new("clock-back-forgetting", Fail, CLOCK.and(FORGETTING), 5).attempts(2),
        SuiteModel::new("terms-fail-retry", Fail, RECONCILERS_ALONE, 4).or_terms(Retry),
        SuiteModel::new("terms-rollback-reconcile", Rollback, RECONCILERS, 4).or_terms(Reconcile),
        SuiteModel::new("all-features", Reconcile, ALL, 3).or_terms(Retry).attempts(2),
    ]);
    models
}

/// Returns the models that are checked on demand.
#[must_use]
pub fn long() -> Vec<SuiteModel> {
    let mut models = attempts_alone();
    let settling = OPERATORS.and(RECONCILERS);
    models.extend([
        SuiteModel::new("operators-forgetting", Fail, OPERATORS.and(FORGETTING), 8),
        SuiteModel::new("operators-lost-claims", Retry, OPERATORS.and(LOST_CLAIMS), 6),
        SuiteModel::new("reconcilers-operators", Reconcile, settling, 8),
        SuiteModel::new("reconcilers-hours", Reconcile, RECONCILERS, 8).in_hours(),
        SuiteModel::new("reconcilers-clock-back", Reconcile, RECONCILERS.and(CLOCK), 6),
        SuiteModel::new("rollback-lost-claims", Rollback, FORGETTING.and(LOST_CLAIMS), 8),
        SuiteModel::new("rollback-clock-back", Rollback, FORGETTING.and(CLOCK), 8),
        SuiteModel::new("forgetting-hours", Fail, FORGETTING, 8).in_hours(),
        SuiteModel::new("lost-claims-clock-back", Retry, LOST_CLAIMS.and(CLOCK), 6),
        SuiteModel::new("clock-back-twice", Fail, CLOCK.and(FORGETTING).and(CLOCK), 5),
        SuiteModel::new("terms-fail-retry", Fail, OPERATORS, 7).or_terms(Retry),
        SuiteModel::new("terms-retry-rollback", Retry, LOST_CLAIMS, 6).or_terms(Rollback),
        SuiteModel::new("terms-rollback-reconcile", Rollback, settling, 7).or_terms(Reconcile),
        SuiteModel::new("terms-clock-back", Fail, CLOCK, 6).or_terms(Retry),
        SuiteModel::new("all-features-two", Reconcile, ALL, 7).or_terms(Retry).attempts(2),
        SuiteModel::new("all-features", Reconcile, ALL, 4),
        SuiteModel::new("all-features-terms", Reconcile, ALL, 3).or_terms(Retry),
        SuiteModel::new("all-features-rollback", Rollback, ALL, 3).or_terms(Fail),
    ]);
    models
}

/// Returns models with attempts, reapers and sweepers, and without other features.
fn attempts_alone() -> Vec<SuiteModel> {
    let named = |name, config| SuiteModel { name, config };
    vec![
        named("two-keys-retry-fail", two_keys(Retry, Fail)),
        named("two-keys-fail-retry", two_keys(Fail, Retry)),
        named("one-key-retry", one_key(Retry)),
        named("one-key-retry-hours", hours(one_key(Retry))),
        named("one-key-fail", one_key(Fail)),
        named("one-key-fail-hours", hours(one_key(Fail))),
    ]
}

/// Returns a model of two keys with different terms. Together with the model in which the terms are
/// exchanged, it covers everything that three attempts can do.
fn two_keys(a: OnUnknown, b: OnUnknown) -> ModelConfig {
    let terms =
        |on_unknown| OfferedTerms::same(TermsInTicks { ttl: 1, lease: 1, grace: 1, on_unknown });
    ModelConfig { terms: PerKey { a: terms(a), b: terms(b) }, ..ModelConfig::default() }
}

/// Returns a model of one key, with time for two uses that each end in an unknown outcome: lease,
/// grace and ttl.
fn one_key(on_unknown: OnUnknown) -> ModelConfig {
    let terms = OfferedTerms::same(TermsInTicks { ttl: 2, lease: 1, grace: 1, on_unknown });
    let attempts_max = PerKey { a: 3, b: 0 };
    ModelConfig {
        terms: PerKey { a: terms, b: terms },
        attempts_max,
        ticks: 8,
        ..ModelConfig::default()
    }
}

fn hours(config: ModelConfig) -> ModelConfig {
    ModelConfig { tick: HOUR, outcome: AttemptReport::Fail, ..config }
}
