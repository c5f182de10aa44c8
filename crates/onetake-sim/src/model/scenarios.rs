//! Scenarios that must occur at least once, so that a check is not vacuous.

use std::sync::atomic::{AtomicU64, Ordering};

use onetake_core::OnUnknown;

use super::config::{ModelConfig, OfferedTerms};
use super::state::ModelKey;

/// Defines the scenarios with their names. The order is that of the report.
macro_rules! scenarios {
    ($($scenario:ident = $name:literal,)*) => {
        /// An event that shows that the model reaches the situations in which invariants matter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Scenario {
            $(#[doc = $name] $scenario,)*
        }

        impl Scenario {
            /// All scenarios.
            pub const ALL: &[Self] = &[$(Self::$scenario),*];

            /// Returns a sentence that describes the scenario.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$scenario => $name,)*
                }
            }
        }
    };
}

scenarios! {
    TakenOver = "an abandoned key is taken over",
    UnknownRetried = "an unknown outcome is retried",
    ClaimMadeUnknown = "a claim makes an abandoned record unknown",
    Reaped = "a reaper makes an abandoned record unknown",
    ReaperRefused = "a reaper spares an attempt that came back",
    LateOwnerBelieved = "an owner is believed after lease and grace",
    UnknownSettledByOwner = "an unknown record is settled by its owner",
    StaleOwnerRefused = "an owner is refused after its key was granted to another attempt",
    DiedRunning = "an attempt dies after it started",
    LateReleased = "an attempt comes back too late to start, and releases",
    ReportedTwice = "a report comes twice and counts as done",
    ReleasedReused = "a released key is granted again",
    ExpiredReused = "an expired key is granted again before a sweep",
    SweptReused = "a swept key is granted again",
    SweepRefused = "a sweep spares a record that its index named",
    Replayed = "an outcome is replayed",
    Mismatched = "another payload is refused",
    GrantedThreeTimes = "three attempts on three nodes are granted one life of a key",
    TwoRunAtOnce = "an attempt that was passed over runs beside its successor",
    ReleasedAfterStart = "an attempt without effect releases after it started",
    RanAgainAfterRelease = "a key runs again after an attempt that started had no effect",
    RolledBackByReaper = "a reaper releases an abandoned attempt that rolls back",
    RolledBackByOwner = "an owner that does not know releases what rolls back",
    RolledBackTakenOver = "a claim takes over an abandoned attempt that rolls back",
    RollbackCommitRefused = "a commit is refused after its attempt was released",
    Deferred = "a reconciler takes the turn to ask",
    DeferredAgain = "a reconciler takes another turn after the first one",
    DeferRefused = "a reconciler is refused because another one has the turn",
    SettledByReconciler = "a reconciler settles an unknown attempt",
    ReleasedByReconciler = "a reconciler releases an unknown attempt without effect",
    ReconcilerRefused = "a reconciler is refused because the owner came first",
    OwnerRefusedByOther = "an owner is refused because somebody else settled its attempt",
    SettledByOperator = "an operator settles an unknown attempt",
    ReleasedByOperator = "an operator releases an unknown attempt without effect",
    OperatorRefused = "an operator is refused because the attempt was settled",
    OperatorStale = "an operator is refused because another attempt has the key",
    Forgotten = "an operator forgets an outcome",
    ForgottenUnknown = "an operator forgets an unknown record",
    ForgetRefused = "an operator may not forget a running key",
    ForgottenReused = "a forgotten key is granted before a sweep",
    ForgottenOwnerRefused = "an owner is refused because its record was forgotten",
    ClaimLandedLate = "a claim is granted after its claimer gave up",
    ClaimLandedTooLate = "a claim lands after its claimer gave up, and is refused",
    DisownedTooEarly = "a release arrives before the claim that it is for",
    DisownedReleased = "a claimer that gave up releases a claim that landed late",
    DisownedPassedOver = "a claim that nobody runs is passed over after lease and grace",
    ReaperRefusedByClock = "a reaper is refused because the clock went back",
    SweepRefusedByClock = "a sweep is refused because the clock went back",
    ExpiryTakenBack = "a record that had expired is alive after the clock went back",
    GrantedBeforeItsTime = "a key is granted at an earlier time than it was created",
    TermsChanged = "a key is granted in the same life under other terms",
    RecordTermsAllow = "an attempt runs again because the record's terms allow it, not its own",
    RecordTermsForbid = "an attempt may not run again, because only its own terms allow it",
}

impl Scenario {
    /// True if the scenario can occur on `key` within the bounds of `config`.
    #[must_use]
    pub fn is_possible(self, config: &ModelConfig, key: ModelKey) -> bool {
        let terms = config.terms.get(key);
        let attempts = *config.attempts_max.get(key);
        attempts > 0
            && self.is_possible_with_terms(terms, attempts)
            && self.is_possible_with_features(config, terms, attempts)
    }

    fn is_possible_with_terms(self, terms: &OfferedTerms, attempts: usize) -> bool {
        let retries = terms.any(|on_unknown| on_unknown == OnUnknown::Retry);
        let rolls_back = terms.any(|on_unknown| on_unknown == OnUnknown::Rollback);
        let becomes_unknown = terms.any(|on_unknown| on_unknown != OnUnknown::Rollback);
        let waits = terms.any(|on_unknown| !on_unknown.runs_again());
        match self {
            Self::TakenOver | Self::UnknownRetried | Self::TwoRunAtOnce => retries && attempts > 1,
            Self::Reaped | Self::UnknownSettledByOwner => becomes_unknown,
            Self::ClaimMadeUnknown => waits,
            Self::StaleOwnerRefused
            | Self::ReleasedReused
            | Self::ExpiredReused
            | Self::SweptReused => attempts > 1,
            Self::GrantedThreeTimes => attempts > 2,
            Self::RolledBackByReaper | Self::RolledBackByOwner | Self::RollbackCommitRefused => {
                rolls_back
            }
            Self::RolledBackTakenOver => rolls_back && attempts > 1,
            _ => true,
        }
    }

    fn is_possible_with_features(
        self,
        config: &ModelConfig,
        terms: &OfferedTerms,
        attempts: usize,
    ) -> bool {
        let features = config.features;
        let reconciles = terms.any(|on_unknown| on_unknown == OnUnknown::Reconcile);
        let is_kept_for_two_turns = terms
            .choices()
            .map(|choice| terms.get(choice))
            .any(|terms| terms.on_unknown == OnUnknown::Reconcile && terms.ttl > 1);
        let reconciled = features.reconcilers && reconciles;
        let becomes_unknown = terms.any(|on_unknown| on_unknown != OnUnknown::Rollback);
        let operated = features.operators && becomes_unknown;
        let differ = terms.other.is_some_and(|other| other.on_unknown != terms.usual.on_unknown);
        match self {
            Self::ReleasedAfterStart => features.effectless_runs,
            Self::RanAgainAfterRelease => features.effectless_runs && attempts > 1,
            Self::Deferred
            | Self::DeferRefused
            | Self::SettledByReconciler
            | Self::ReleasedByReconciler
            | Self::ReconcilerRefused => reconciled,
            Self::DeferredAgain => reconciled && is_kept_for_two_turns,
            Self::OwnerRefusedByOther => reconciled || operated,
            Self::SettledByOperator | Self::ReleasedByOperator | Self::OperatorRefused => operated,
            Self::OperatorStale => operated && attempts > 1,
            Self::Forgotten | Self::ForgetRefused | Self::ForgottenOwnerRefused => {
                features.forgetting
            }
            Self::ForgottenUnknown => features.forgetting && becomes_unknown,
            Self::ForgottenReused => features.forgetting && attempts > 1,
            Self::ClaimLandedLate
            | Self::DisownedTooEarly
            | Self::DisownedReleased
            | Self::DisownedPassedOver => features.lost_claims,
            Self::ClaimLandedTooLate => features.lost_claims && attempts > 1,
            Self::ReaperRefusedByClock | Self::SweepRefusedByClock | Self::ExpiryTakenBack => {
                features.clock_steps_back > 0
            }
            Self::GrantedBeforeItsTime => features.clock_steps_back > 0 && attempts > 1,
            Self::TermsChanged => terms.other.is_some() && attempts > 1,
            Self::RecordTermsAllow => {
                let again = terms.any(OnUnknown::runs_again);
                differ && again && attempts > 1 && terms.any(|other| !other.runs_again())
            }
            Self::RecordTermsForbid => {
                differ && terms.any(OnUnknown::runs_again) && terms.any(|other| !other.runs_again())
            }
            _ => true,
        }
    }
}

/// The number of times that each scenario occurred. The checker's threads share it. No step depends
/// on it.
#[derive(Debug)]
pub(super) struct Coverage(Vec<AtomicU64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(Scenario::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Coverage {
    /// Counts `scenario` if it `occurred`.
    pub(super) fn count_if(&self, occurred: bool, scenario: Scenario) {
        if let Some(count) = self.0.get(scenario as usize).filter(|_| occurred) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of times that `scenario` occurred.
    pub(super) fn count(&self, scenario: Scenario) -> u64 {
        self.0.get(scenario as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}
