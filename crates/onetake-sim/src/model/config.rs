//! Bounds, terms and features of one model.

use std::time::Duration;

use onetake_core::{OnUnknown, Terms, Timestamp};

use super::state::{AttemptReport, PerKey};

/// The bounds, terms and features of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The terms of requests for each key.
    pub terms: PerKey<OfferedTerms>,
    /// The number of attempts that may claim each key successfully. Zero leaves the key out.
    pub attempts_max: PerKey<usize>,
    /// The length of a tick. With an hour, records are kept for a tick after they were settled
    /// (`KEPT_AFTER_SETTLING`), and the clock runs ahead of all fences. With a microsecond, fences
    /// run ahead of the clock.
    pub tick: Duration,
    /// The number of ticks after which time ends.
    pub ticks: u32,
    /// The settlement that ends a successful operation: completed, or failed.
    pub outcome: AttemptReport,
    /// The actors and faults that take part.
    pub features: Features,
}

impl Default for ModelConfig {
    fn default() -> Self {
        let terms = |on_unknown| OfferedTerms { usual: short_terms(on_unknown), other: None };
        Self {
            terms: PerKey { a: terms(OnUnknown::Retry), b: terms(OnUnknown::Fail) },
            attempts_max: PerKey { a: 3, b: 1 },
            tick: Duration::from_micros(1),
            ticks: 3,
            outcome: AttemptReport::Complete,
            features: Features::default(),
        }
    }
}

impl ModelConfig {
    /// Returns the store's time at the beginning, which leaves room for every step back.
    #[must_use]
    pub fn start(&self) -> Timestamp {
        Timestamp::default().plus(self.tick * u32::from(self.features.clock_steps_back))
    }
}

/// Returns terms of one tick each.
const fn short_terms(on_unknown: OnUnknown) -> TermsInTicks {
    TermsInTicks { ttl: 1, lease: 1, grace: 1, on_unknown }
}

/// The terms of requests for one key. Two nodes with different configurations send different terms
/// for the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedTerms {
    /// The terms of most nodes.
    pub usual: TermsInTicks,
    /// The terms of a node with another configuration, if there is one.
    pub other: Option<TermsInTicks>,
}

impl OfferedTerms {
    /// Creates terms that are the same on every node.
    #[must_use]
    pub const fn same(usual: TermsInTicks) -> Self {
        Self { usual, other: None }
    }

    /// Returns the terms of `choice`.
    #[must_use]
    pub fn get(&self, choice: TermsChoice) -> TermsInTicks {
        match choice {
            TermsChoice::Usual => self.usual,
            TermsChoice::Other => self.other.unwrap_or(self.usual),
        }
    }

    /// Returns the choices that differ.
    pub fn choices(&self) -> impl Iterator<Item = TermsChoice> {
        let other = self.other.map(|_| TermsChoice::Other);
        [Some(TermsChoice::Usual), other].into_iter().flatten()
    }

    /// True if any of the offered terms satisfies `condition`.
    pub fn any(&self, condition: impl Fn(OnUnknown) -> bool) -> bool {
        self.choices().any(|choice| condition(self.get(choice).on_unknown))
    }
}

/// One of the terms that are offered for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TermsChoice {
    /// [`OfferedTerms::usual`].
    Usual,
    /// [`OfferedTerms::other`].
    Other,
}

/// Terms with durations in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermsInTicks {
    /// The time to live.
    pub ttl: u32,
    /// The lease.
    pub lease: u8,
    /// The grace.
    pub grace: u32,
    /// The policy for unknown outcomes.
    pub on_unknown: OnUnknown,
}

impl TermsInTicks {
    /// Returns the terms in the form of the store.
    #[must_use]
    pub fn with_tick(&self, tick: Duration) -> Terms {
        Terms {
            ttl: tick * self.ttl,
            lease: tick * u32::from(self.lease),
            grace: tick * self.grace,
            on_unknown: self.on_unknown,
        }
    }
}

/// The actors and faults that take part in a model, beside attempts, reaper and sweeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Reconcilers postpone unknown attempts under [`OnUnknown::Reconcile`] by one tick, and settle
    /// them later.
    pub reconcilers: bool,
    /// Operators settle unknown attempts that they saw, maybe long ago.
    pub operators: bool,
    /// Operators forget records.
    pub forgetting: bool,
    /// Some operations have no effect, and their attempts release the key after they started.
    pub effectless_runs: bool,
    /// Some claims arrive after their claimers gave up, or never.
    pub lost_claims: bool,
    /// The number of times that the store's clock goes back by a tick.
    pub clock_steps_back: u8,
}

impl Features {
    /// Returns the features of both. Steps back of the clock add up.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            reconcilers: self.reconcilers || other.reconcilers,
            operators: self.operators || other.operators,
            forgetting: self.forgetting || other.forgetting,
            effectless_runs: self.effectless_runs || other.effectless_runs,
            lost_claims: self.lost_claims || other.lost_claims,
            clock_steps_back: self.clock_steps_back + other.clock_steps_back,
        }
    }
}
