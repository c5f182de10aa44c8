//! The promise for a key, which follows from the store's answers and the text of the design.
//!
//! A wrong decision of the store shows as a difference between its record and this promise. Nothing
//! here calls [`onetake_core::decide`], and nothing reads the store's record.

use onetake_core::decide::Reading;
use onetake_core::record::KEPT_AFTER_SETTLING;
use onetake_core::{OnUnknown, Terms, Timestamp, Transition};

use super::state::{AttemptSlot, Request, RequestPayload, RunProgress, Settler};

/// The promise for a key from its first claim to its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyLife {
    /// The attempt that was granted the key last.
    pub owner: AttemptSlot,
    /// The request of that attempt. Its terms apply.
    pub request: Request,
    /// The number of grants in this use of the key.
    pub grants: u8,
    /// The progress of that attempt's operation.
    pub run: RunProgress,
    /// The time of the first claim.
    pub created: Timestamp,
    /// The stage.
    pub stage: LifeStage,
    /// The end of lease and grace while it runs; the expiry otherwise.
    pub until: Timestamp,
    /// The moment from which a reconciler should ask, while the outcome is unknown.
    pub ask_from: Timestamp,
    /// True if a reconciler has taken the turn to ask for the owner's outcome.
    pub was_asked_for: bool,
}

/// The stage of a [`KeyLife`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifeStage {
    /// An attempt was granted the key.
    Running,
    /// An outcome or a failure was recorded, by this actor.
    Settled(Settler),
    /// Another attempt may run.
    Released,
    /// The outcome is unknown.
    Unknown,
}

impl KeyLife {
    /// Returns the promise for a key that is granted now, after `before` or as a new one.
    #[must_use]
    pub fn granted(
        before: Option<Self>,
        owner: AttemptSlot,
        request: Request,
        terms: &Terms,
        now: Timestamp,
    ) -> Self {
        Self {
            owner,
            request,
            grants: before.map_or(0, |life| life.grants) + 1,
            run: RunProgress::NotStarted,
            created: before.map_or(now, |life| life.created),
            stage: LifeStage::Running,
            until: now.plus(terms.lease).plus(terms.grace),
            ask_from: Timestamp::default(),
            was_asked_for: false,
        }
    }

    /// True if the promise has expired. A running key never expires.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.stage != LifeStage::Running && self.until <= now
    }

    /// True if the owner may lose the key.
    #[must_use]
    pub fn is_abandoned(&self, now: Timestamp) -> bool {
        self.stage == LifeStage::Running && self.until <= now
    }

    /// True if the key may be granted again: the rows of the design's table that say "run".
    #[must_use]
    pub fn may_run(&self, on_unknown: OnUnknown, now: Timestamp) -> bool {
        let runs_again = matches!(on_unknown, OnUnknown::Retry | OnUnknown::Rollback);
        match self.stage {
            LifeStage::Released => true,
            LifeStage::Unknown => runs_again,
            LifeStage::Running => runs_again && self.is_abandoned(now),
            LifeStage::Settled(_) => false,
        }
    }

    /// Returns the answer of the design's table to a claim with `payload`.
    #[must_use]
    pub fn reading(
        &self,
        payload: RequestPayload,
        on_unknown: OnUnknown,
        now: Timestamp,
    ) -> Reading {
        if payload != self.request.payload {
            return Reading::Mismatch;
        }
        if self.may_run(on_unknown, now) {
            return Reading::Free;
        }
        match self.stage {
            LifeStage::Running if self.is_abandoned(now) => Reading::Abandoned,
            LifeStage::Running => Reading::InFlight,
            LifeStage::Unknown => Reading::Unknown,
            LifeStage::Settled(_) | LifeStage::Released => Reading::Settled,
        }
    }

    /// True if the owner's settlement by `settler` must be accepted. If not, it must be refused:
    /// the state machine has no other transitions.
    #[must_use]
    pub fn accepts(
        &self,
        settler: Settler,
        transition: &Transition,
        on_unknown: OnUnknown,
        now: Timestamp,
    ) -> bool {
        match (self.stage, transition) {
            // A running key is neither forgotten nor reconciled.
            (LifeStage::Running, Transition::Forget | Transition::PostponeReconcile(_)) => false,
            (LifeStage::Running, Transition::ExpireLease) => self.is_abandoned(now),
            (LifeStage::Running, _) => true,
            // A lease that ended never lives again: another actor may have acted on its end.
            (_, Transition::Renew | Transition::ExpireLease) => false,
            (_, Transition::Forget) => true,
            (LifeStage::Unknown, Transition::PostponeReconcile(_)) => {
                on_unknown == OnUnknown::Reconcile && self.ask_from <= now
            }
            (LifeStage::Unknown, _) => true,
            // A report whose answer was lost is sent again, and succeeds.
            (LifeStage::Released, Transition::Release) => true,
            (LifeStage::Released, Transition::Unknown(_)) => on_unknown == OnUnknown::Rollback,
            (LifeStage::Settled(by), Transition::Complete(_) | Transition::Fail(_)) => {
                by == settler
            }
            _ => false,
        }
    }

    /// Applies a settlement that the store accepted and wrote.
    pub fn settled(
        &mut self,
        settler: Settler,
        transition: &Transition,
        terms: &Terms,
        now: Timestamp,
    ) {
        match transition {
            Transition::Renew => self.until = now.plus(terms.lease).plus(terms.grace),
            Transition::Complete(_) | Transition::Fail(_) => {
                self.finished(LifeStage::Settled(settler), terms, now);
            }
            Transition::Release => self.finished(LifeStage::Released, terms, now),
            Transition::Unknown(_) | Transition::ExpireLease => self.passed_over(terms, now),
            Transition::PostponeReconcile(hold) => {
                self.ask_from = now.plus(*hold);
                self.was_asked_for = true;
            }
            Transition::Forget => {
                // The key is as if it had never been used.
                self.run = RunProgress::NotStarted;
                self.stage = LifeStage::Released;
                self.created = self.created.min(now);
                self.until = now;
            }
        }
    }

    /// Applies the end of an attempt whose outcome is unknown.
    pub fn passed_over(&mut self, terms: &Terms, now: Timestamp) {
        if terms.on_unknown == OnUnknown::Rollback {
            return self.finished(LifeStage::Released, terms, now);
        }
        self.stage = LifeStage::Unknown;
        self.until = now.plus(terms.ttl);
        if terms.on_unknown == OnUnknown::Reconcile {
            self.ask_from = now;
        }
    }

    fn finished(&mut self, stage: LifeStage, terms: &Terms, now: Timestamp) {
        let kept = now.plus(terms.ttl.min(KEPT_AFTER_SETTLING));
        self.stage = stage;
        self.until = self.created.plus(terms.ttl).max(kept);
        self.ask_from = Timestamp::default();
        if stage != LifeStage::Released {
            // No rule uses it any more, and it would make equal states different.
            self.run = RunProgress::NotStarted;
        }
    }
}
