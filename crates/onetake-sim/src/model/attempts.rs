//! The steps of attempts, and of time.

use onetake_core::clock::micros;
use onetake_core::{OnUnknown, Record, Timestamp, Transition};

use super::Model;
use super::invariants::Invariant;
use super::promise::{KeyLife, LifeStage};
use super::scenarios::Scenario;
use super::settlements::{SettleAnswer, report_verb};
use super::state::{
    AttemptPhase, AttemptReport, AttemptSlot, ExpiryIndex, KeyState, ModelKey, ModelState,
    RunProgress, Settler,
};

impl Model {
    /// Advances all clocks by a tick: leases, graces and records end. Reapers and sweepers read at
    /// once, and remember what they saw.
    pub(super) fn tick(&self, state: &mut ModelState) -> bool {
        let now = state.now.plus(self.config.tick);
        state.now = now;
        let clock_may_go_back = state.steps_back < self.config.features.clock_steps_back;
        for key in ModelKey::ALL {
            let key_state = state.keys.get_mut(key);
            // An expired promise has no meaning any more, unless the clock can bring it back.
            if !clock_may_go_back {
                key_state.life = key_state.live(now);
            }
            let abandoned = key_state.record.as_deref().and_then(Record::abandoned_at);
            key_state.reaper_saw |= abandoned.is_some_and(|end| end <= now);
            if matches!(key_state.expiry_index, ExpiryIndex::Due(at) if at <= now) {
                key_state.expiry_index = ExpiryIndex::Named;
            }
            for slot in AttemptSlot::ALL {
                if let AttemptPhase::Held(held) = key_state.attempts.get_mut(slot) {
                    held.ticks_left = held.ticks_left.saturating_sub(1);
                }
            }
        }
        true
    }

    /// Sets the store's clock back by a tick. No time passes.
    pub(super) fn step_clock_back(&self, state: &mut ModelState) -> bool {
        let before = state.now;
        let now =
            Timestamp::from_micros(before.as_micros().saturating_sub(micros(self.config.tick)));
        state.now = now;
        state.steps_back += 1;
        let clock_may_go_back = state.steps_back < self.config.features.clock_steps_back;
        for key in ModelKey::ALL {
            let key_state = state.keys.get_mut(key);
            let is_back = key_state.live(before).is_none() && key_state.live(now).is_some();
            self.coverage.count_if(is_back, Scenario::ExpiryTakenBack);
            if !clock_may_go_back {
                key_state.life = key_state.live(now);
            }
        }
        true
    }

    /// Starts the operation: the attempt checks its own clock, and does not ask the store.
    pub(super) fn start(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        slot: AttemptSlot,
        run: RunProgress,
    ) -> bool {
        let now = state.now;
        let KeyState { attempts, life, .. } = state.keys.get_mut(key);
        let AttemptPhase::Held(held) = attempts.get_mut(slot) else {
            return false;
        };
        if held.run != RunProgress::NotStarted || held.ticks_left == 0 {
            return false;
        }
        held.run = run;
        let is_owner = |life: &&mut KeyLife| life.owner == slot && !life.is_over(now);
        let Some(life) = life.as_mut().filter(is_owner) else {
            // The attempt started although it no longer owns the key.
            state.broken.note(true, Invariant::S1);
            return true;
        };
        state.broken.note(life.request.payload != held.request.payload, Invariant::S9);
        state.broken.note(life.run != RunProgress::NotStarted, Invariant::S7);
        life.run = run;
        true
    }

    /// An attempt renews its lease.
    pub(super) fn renew(&self, state: &mut ModelState, key: ModelKey, slot: AttemptSlot) -> bool {
        let before = *state.keys.get(key).attempts.get(slot);
        let answer = self.settle(state, key, slot, Settler::Owner, Transition::Renew);
        let attempt = state.keys.get_mut(key).attempts.get_mut(slot);
        if let AttemptPhase::Held(held) = attempt {
            held.ticks_left = match answer {
                SettleAnswer::Stale => 0,
                _ => self.config.terms.get(key).get(held.request.terms).lease,
            };
        }
        answer == SettleAnswer::Written || *attempt != before
    }

    /// An attempt reports its end, for the first time or again because no answer came.
    pub(super) fn report(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        slot: AttemptSlot,
        report: AttemptReport,
    ) -> bool {
        let before = *state.keys.get(key).attempts.get(slot);
        let request = match before {
            AttemptPhase::Held(held) => held.request,
            AttemptPhase::ClaimInFlight(request)
            | AttemptPhase::Disowned(request)
            | AttemptPhase::Reported(request, _) => request,
            AttemptPhase::Idle | AttemptPhase::Gone => return false,
        };
        let earlier = state.keys.get(key).clone();
        let transition = report_verb(slot, Settler::Owner, request.payload, report);
        let answer = self.settle(state, key, slot, Settler::Owner, transition);
        let rolls_back = self.on_unknown(key, request) == OnUnknown::Rollback;
        let attempt = state.keys.get_mut(key).attempts.get_mut(slot);
        *attempt = match (before, answer) {
            // The claim may still arrive: the attempt releases again.
            (AttemptPhase::ClaimInFlight(_), _) => before,
            // A commit and a release of the same attempt may both be on their way.
            _ if rolls_back => AttemptPhase::Reported(request, AttemptReport::Release),
            (_, SettleAnswer::Stale) => AttemptPhase::Gone,
            _ => AttemptPhase::Reported(request, report),
        };
        let is_changed = answer == SettleAnswer::Written || *attempt != before;
        self.count_report(&earlier, state.now, (key, slot), report, answer);
        is_changed
    }

    /// Counts the scenarios of a report on a key that was `before` in this state.
    fn count_report(
        &self,
        before: &KeyState,
        now: Timestamp,
        (key, slot): (ModelKey, AttemptSlot),
        report: AttemptReport,
        answer: SettleAnswer,
    ) {
        let count_if = |occurred, scenario| self.coverage.count_if(occurred, scenario);
        let is_written = answer == SettleAnswer::Written;
        let is_stale = answer == SettleAnswer::Stale;
        let finishes = matches!(report, AttemptReport::Complete | AttemptReport::Fail);
        let releases = report == AttemptReport::Release;
        count_if(answer == SettleAnswer::Already, Scenario::ReportedTwice);
        let phase = *before.attempts.get(slot);
        let is_disowned = matches!(phase, AttemptPhase::Disowned(_));
        count_if(is_disowned && is_written, Scenario::DisownedReleased);
        let is_in_flight = matches!(phase, AttemptPhase::ClaimInFlight(_));
        count_if(is_in_flight && is_stale, Scenario::DisownedTooEarly);
        let Some(life) = before.live(now) else {
            let is_forgotten = before
                .record
                .as_deref()
                .is_some_and(|record| record.terms.ttl.is_zero() && record.attempt == slot.id(key));
            return count_if(finishes && is_forgotten && is_stale, Scenario::ForgottenOwnerRefused);
        };
        if life.owner != slot {
            return count_if(finishes && is_stale, Scenario::StaleOwnerRefused);
        }
        let rolls_back = self.on_unknown(key, life.request) == OnUnknown::Rollback;
        let is_late = life.is_abandoned(now);
        let is_unknown = life.stage == LifeStage::Unknown;
        let was_started = life.run != RunProgress::NotStarted;
        count_if(finishes && is_written && is_late, Scenario::LateOwnerBelieved);
        count_if(finishes && is_written && is_unknown, Scenario::UnknownSettledByOwner);
        let is_too_late = releases && !was_started && (is_late || is_unknown);
        count_if(is_too_late && is_written && !is_disowned, Scenario::LateReleased);
        let started_and_released = releases && was_started && is_written && !rolls_back;
        count_if(started_and_released, Scenario::ReleasedAfterStart);
        let is_passed_over = rolls_back && life.stage == LifeStage::Released;
        count_if(is_passed_over && finishes && is_stale, Scenario::RollbackCommitRefused);
        let gives_up = report == AttemptReport::Unknown && is_written;
        count_if(gives_up && rolls_back, Scenario::RolledBackByOwner);
        let settled_by_other = match life.stage {
            LifeStage::Settled(settler) => settler != Settler::Owner,
            LifeStage::Released => !rolls_back,
            LifeStage::Running | LifeStage::Unknown => false,
        };
        count_if(settled_by_other && finishes && is_stale, Scenario::OwnerRefusedByOther);
    }

    /// An attempt dies, or its claimer no longer sends releases.
    pub(super) fn die(&self, state: &mut ModelState, key: ModelKey, slot: AttemptSlot) -> bool {
        let attempt = state.keys.get_mut(key).attempts.get_mut(slot);
        if let AttemptPhase::Held(held) = attempt {
            let is_running = held.run != RunProgress::NotStarted;
            self.coverage.count_if(is_running, Scenario::DiedRunning);
        }
        *attempt = AttemptPhase::Gone;
        true
    }
}
