//! Claims: those that are answered, and those that arrive after their claimers gave up.

use onetake_core::decide::{ClaimEffect, Reading};
use onetake_core::{AttemptId, Claim, OnUnknown, Origin, Record, State};

use super::Model;
use super::invariants::Invariant;
use super::promise::{KeyLife, LifeStage};
use super::scenarios::Scenario;
use super::settlements::write;
use super::state::{
    AttemptPhase, AttemptSlot, HeldLease, ModelKey, ModelState, Request, RunProgress,
};

/// The sender of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claimer {
    /// An attempt that waits for the answer.
    Waiting(AttemptSlot),
    /// An attempt that gave up waiting, and will run nothing.
    GaveUp(AttemptSlot),
    /// A claimer beyond the bound on attempts. The model does not follow a grant to it.
    BeyondBound,
}

impl Claimer {
    const fn slot(self) -> Option<AttemptSlot> {
        match self {
            Self::Waiting(slot) | Self::GaveUp(slot) => Some(slot),
            Self::BeyondBound => None,
        }
    }

    fn attempt(self, key: ModelKey) -> AttemptId {
        const BEYOND_BOUND: AttemptId = AttemptId::from_bytes([0xff; AttemptId::BYTES]);
        self.slot().map_or(BEYOND_BOUND, |slot| slot.id(key))
    }
}

impl Model {
    /// The next attempt claims the key, and gets the answer.
    pub(super) fn claim(&self, state: &mut ModelState, key: ModelKey, request: Request) -> bool {
        let claimer = self.next_attempt(state, key).map_or(Claimer::BeyondBound, Claimer::Waiting);
        self.decide_claim(state, key, claimer, request)
    }

    /// The next attempt sends a claim, and gives up before it gets the answer.
    pub(super) fn lose_claim(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        request: Request,
    ) -> bool {
        let Some(slot) = self.next_attempt(state, key) else { return false };
        *state.keys.get_mut(key).attempts.get_mut(slot) = AttemptPhase::ClaimInFlight(request);
        true
    }

    /// A claim reaches the store after its claimer gave up.
    pub(super) fn land_claim(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        slot: AttemptSlot,
    ) -> bool {
        let AttemptPhase::ClaimInFlight(request) = *state.keys.get(key).attempts.get(slot) else {
            return false;
        };
        *state.keys.get_mut(key).attempts.get_mut(slot) = AttemptPhase::Gone;
        self.decide_claim(state, key, Claimer::GaveUp(slot), request);
        let is_granted = *state.keys.get(key).attempts.get(slot) != AttemptPhase::Gone;
        self.coverage.count_if(is_granted, Scenario::ClaimLandedLate);
        self.coverage.count_if(!is_granted, Scenario::ClaimLandedTooLate);
        true
    }

    /// Returns the next attempt that may be granted the key within the bounds.
    pub(super) fn next_attempt(&self, state: &ModelState, key: ModelKey) -> Option<AttemptSlot> {
        let attempts: usize =
            ModelKey::ALL.into_iter().map(|key| state.keys.get(key).attempts()).sum();
        let key_state = state.keys.get(key);
        let has_room = attempts < AttemptSlot::ALL.len()
            && key_state.attempts() < *self.config.attempts_max.get(key);
        key_state.idle().filter(|_| has_room)
    }

    /// Decides a claim by the function under test, and compares its answer with the promise.
    fn decide_claim(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        claimer: Claimer,
        request: Request,
    ) -> bool {
        let ModelState { now, floor, .. } = *state;
        let key_state = state.keys.get_mut(key);
        let life = key_state.live(now);
        let found = key_state.record.as_deref();
        let claim = Claim {
            id: key.id(),
            attempt: claimer.attempt(key),
            fingerprint: request.payload.fingerprint(),
            terms: self.terms(key, request),
            origin: Origin::default(),
        };
        let effect = (self.decisions.claim)(found, &claim, now, floor);
        let reading = (self.decisions.read)(found, &claim.fingerprint, now);

        let due = life.map_or(Reading::Free, |life| {
            life.reading(request.payload, self.on_unknown(key, life.request), now)
        });
        let effect_is_due = match effect {
            ClaimEffect::Grant(_) => due == Reading::Free,
            ClaimEffect::BecomeUnknown(_) => due == Reading::Abandoned,
            ClaimEffect::Keep => !matches!(due, Reading::Free | Reading::Abandoned),
        };
        state.broken.note(reading != due || !effect_is_due, Invariant::StateMachine);
        self.count_terms(key, life, request, due);
        match effect {
            ClaimEffect::Grant(record) => self.grant(state, key, claimer, request, record),
            ClaimEffect::BecomeUnknown(record) => {
                state.broken.note(due != Reading::Abandoned, Invariant::S13);
                let is_released = matches!(record.state, State::Released { .. });
                let had_effect = life.is_some_and(|life| life.run == RunProgress::WithEffect);
                state.broken.note(is_released && had_effect, Invariant::S16);
                self.coverage.count_if(true, Scenario::ClaimMadeUnknown);
                if let Some(life) = &mut key_state.life {
                    let phase = *key_state.attempts.get(life.owner);
                    let is_disowned = matches!(phase, AttemptPhase::Disowned(_));
                    self.coverage.count_if(is_disowned, Scenario::DisownedPassedOver);
                    life.passed_over(&self.terms(key, life.request), now);
                }
                write(key_state, record, now);
                true
            }
            ClaimEffect::Keep => {
                self.coverage.count_if(reading == Reading::Settled, Scenario::Replayed);
                self.coverage.count_if(reading == Reading::Mismatch, Scenario::Mismatched);
                false
            }
        }
    }

    /// Follows the grant of a key to an attempt.
    fn grant(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        claimer: Claimer,
        request: Request,
        record: Record,
    ) -> bool {
        let Some(slot) = claimer.slot() else { return false };
        let now = state.now;
        let terms = self.terms(key, request);
        let key_state = state.keys.get_mut(key);
        let before = key_state.live(now);
        if let Some(life) = before {
            let on_unknown = self.on_unknown(key, life.request);
            let may_run_twice = matches!(on_unknown, OnUnknown::Retry | OnUnknown::Rollback);
            let had_effect = life.run == RunProgress::WithEffect;
            let is_other = life.request.payload != request.payload;
            state.broken.note(!life.may_run(on_unknown, now), Invariant::S12);
            state.broken.note(had_effect && !may_run_twice, Invariant::S7);
            state.broken.note(is_other, Invariant::S9);
        }
        let fence = record.fence;
        state.broken.note(fence <= key_state.fence, Invariant::S2);
        self.count_grant(state, key, slot);

        let key_state = state.keys.get_mut(key);
        state.floor = state.floor.max(fence);
        write(key_state, record, now);
        key_state.reaper_saw = false;
        key_state.fence = key_state.fence.max(fence);
        key_state.life = Some(KeyLife::granted(before, slot, request, &terms, now));
        *key_state.attempts.get_mut(slot) = match claimer {
            Claimer::GaveUp(_) => AttemptPhase::Disowned(request),
            // The lease counts from the time of the claim. The worst case is that the answer took
            // no time.
            _ => AttemptPhase::Held(HeldLease {
                request,
                ticks_left: self.config.terms.get(key).get(request.terms).lease,
                run: RunProgress::NotStarted,
            }),
        };
        true
    }

    /// Counts the scenarios of a grant that is about to be written.
    fn count_grant(&self, state: &ModelState, key: ModelKey, slot: AttemptSlot) {
        let now = state.now;
        let key_state = state.keys.get(key);
        let is_stored = key_state.record.is_some();
        let count_if = |occurred, scenario: Scenario| self.coverage.count_if(occurred, scenario);
        count_if(slot != AttemptSlot::First && !is_stored, Scenario::SweptReused);
        let Some(life) = key_state.live(now) else {
            let is_forgotten = key_state.record.as_deref().is_some_and(|r| r.terms.ttl.is_zero());
            count_if(is_stored && !is_forgotten, Scenario::ExpiredReused);
            count_if(is_stored && is_forgotten, Scenario::ForgottenReused);
            return;
        };
        let rolls_back = self.on_unknown(key, life.request) == OnUnknown::Rollback;
        let is_running = life.stage == LifeStage::Running;
        let owner = *key_state.attempts.get(life.owner);
        count_if(is_running && !rolls_back, Scenario::TakenOver);
        count_if(is_running && rolls_back, Scenario::RolledBackTakenOver);
        let is_disowned = matches!(owner, AttemptPhase::Disowned(_));
        count_if(is_running && is_disowned, Scenario::DisownedPassedOver);
        let still_runs = matches!(owner, AttemptPhase::Held(held)
            if held.run != RunProgress::NotStarted);
        count_if(still_runs && !rolls_back, Scenario::TwoRunAtOnce);
        count_if(life.stage == LifeStage::Unknown, Scenario::UnknownRetried);
        let is_released = life.stage == LifeStage::Released;
        count_if(is_released, Scenario::ReleasedReused);
        let was_started = life.run != RunProgress::NotStarted;
        count_if(is_released && was_started && !rolls_back, Scenario::RanAgainAfterRelease);
        count_if(now < life.created, Scenario::GrantedBeforeItsTime);
        count_if(life.grants == 2, Scenario::GrantedThreeTimes);
    }

    /// Counts the scenarios in which the record's terms differ from the claim's.
    fn count_terms(&self, key: ModelKey, life: Option<KeyLife>, request: Request, due: Reading) {
        let Some(life) = life.filter(|life| life.request.terms != request.terms) else { return };
        let own = self.on_unknown(key, request).runs_again();
        let records = self.on_unknown(key, life.request).runs_again();
        let passes_over = life.stage != LifeStage::Released && due == Reading::Free;
        let is_refused = matches!(due, Reading::Unknown | Reading::Abandoned);
        self.coverage.count_if(due == Reading::Free, Scenario::TermsChanged);
        self.coverage.count_if(passes_over && !own && records, Scenario::RecordTermsAllow);
        self.coverage.count_if(is_refused && own && !records, Scenario::RecordTermsForbid);
    }
}
