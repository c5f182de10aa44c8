//! The steps of actors that act for attempts: reapers, sweepers, reconcilers and operators.
//!
//! Each of them acts on an earlier read of the record, which may be out of date. Reads are never
//! forgotten, and any node may have made any of them: two nodes that act on two reads are two
//! steps.

use onetake_core::{OnUnknown, Transition};

use super::Model;
use super::invariants::Invariant;
use super::promise::LifeStage;
use super::scenarios::Scenario;
use super::settlements::{SettleAnswer, report_verb};
use super::state::{
    AttemptPhase, AttemptReport, AttemptSlot, ModelKey, ModelState, RequestPayload, Settler,
};

impl Model {
    /// A reaper ends an attempt that it saw abandoned, maybe long ago. It may repeat that.
    pub(super) fn reap(&self, state: &mut ModelState, key: ModelKey, slot: AttemptSlot) -> bool {
        let before = state.keys.get(key);
        let life = before.live(state.now).filter(|life| life.owner == slot);
        let is_disowned = matches!(before.attempts.get(slot), AttemptPhase::Disowned(_));
        let answer = self.settle(state, key, slot, Settler::Reaper, Transition::ExpireLease);
        let is_written = answer == SettleAnswer::Written;
        let rolls_back =
            life.is_some_and(|life| self.on_unknown(key, life.request) == OnUnknown::Rollback);
        self.coverage.count_if(is_written && !rolls_back, Scenario::Reaped);
        self.coverage.count_if(is_written && rolls_back, Scenario::RolledBackByReaper);
        self.coverage.count_if(is_written && is_disowned, Scenario::DisownedPassedOver);
        let is_running = life.is_some_and(|life| life.stage == LifeStage::Running);
        let is_spared = answer == SettleAnswer::Stale && is_running;
        self.coverage.count_if(is_spared, Scenario::ReaperRefused);
        let clock_went_back = state.steps_back > 0;
        self.coverage.count_if(is_spared && clock_went_back, Scenario::ReaperRefusedByClock);
        is_written
    }

    /// A sweeper checks again a record that its index named, and deletes it. It may repeat that.
    pub(super) fn sweep(&self, state: &mut ModelState, key: ModelKey) -> bool {
        let now = state.now;
        let key_state = state.keys.get_mut(key);
        let Some(record) = key_state.record.as_deref() else {
            return false;
        };
        if !(self.decisions.may_sweep)(record, now) {
            self.coverage.count_if(true, Scenario::SweepRefused);
            let is_finished = record.expires_at().is_some();
            let clock_went_back = state.steps_back > 0;
            self.coverage.count_if(is_finished && clock_went_back, Scenario::SweepRefusedByClock);
            return false;
        }
        let is_early = key_state.live(now).is_some();
        state.broken.note(is_early, Invariant::S12);
        state.broken.note(is_early, Invariant::S13);
        key_state.record = None;
        key_state.life = None;
        true
    }

    /// A reconciler takes the turn to ask for an attempt that it saw unknown, maybe long ago.
    pub(super) fn defer(&self, state: &mut ModelState, key: ModelKey, slot: AttemptSlot) -> bool {
        let life = state.keys.get(key).live(state.now).filter(|life| life.owner == slot);
        let hold = self.config.tick;
        let answer =
            self.settle(state, key, slot, Settler::Reconciler, Transition::PostponeReconcile(hold));
        let is_written = answer == SettleAnswer::Written;
        let was_asked_for = life.is_some_and(|life| life.was_asked_for);
        let is_unknown = life.is_some_and(|life| life.stage == LifeStage::Unknown);
        self.coverage.count_if(is_written, Scenario::Deferred);
        self.coverage.count_if(is_written && was_asked_for, Scenario::DeferredAgain);
        let is_held = is_unknown && was_asked_for && answer == SettleAnswer::Stale;
        self.coverage.count_if(is_held, Scenario::DeferRefused);
        is_written
    }

    /// A reconciler or an operator settles an attempt that it saw unknown, maybe long ago.
    pub(super) fn settle_for(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        slot: AttemptSlot,
        settler: Settler,
        report: AttemptReport,
    ) -> bool {
        let live = state.keys.get(key).live(state.now);
        let payload = live.map_or(RequestPayload::This, |life| life.request.payload);
        let transition = report_verb(slot, settler, payload, report);
        let answer = self.settle(state, key, slot, settler, transition);
        let is_written = answer == SettleAnswer::Written;
        let is_stale = answer == SettleAnswer::Stale;
        let is_release = report == AttemptReport::Release;
        let owner_was_first = live.is_some_and(|life| {
            life.owner == slot && life.stage == LifeStage::Settled(Settler::Owner)
        });
        let is_others = live.is_some_and(|life| life.owner != slot);
        let [settled, released, refused] = match settler {
            Settler::Operator => [
                Scenario::SettledByOperator,
                Scenario::ReleasedByOperator,
                Scenario::OperatorRefused,
            ],
            _ => [
                Scenario::SettledByReconciler,
                Scenario::ReleasedByReconciler,
                Scenario::ReconcilerRefused,
            ],
        };
        self.coverage.count_if(is_written && !is_release, settled);
        self.coverage.count_if(is_written && is_release, released);
        self.coverage.count_if(is_stale && owner_was_first, refused);
        let is_operator = settler == Settler::Operator;
        self.coverage.count_if(is_operator && is_stale && is_others, Scenario::OperatorStale);
        is_written
    }

    /// An operator forgets a record by an attempt that it saw, maybe long ago.
    pub(super) fn forget(&self, state: &mut ModelState, key: ModelKey, slot: AttemptSlot) -> bool {
        let stage = state
            .keys
            .get(key)
            .live(state.now)
            .filter(|life| life.owner == slot)
            .map(|life| life.stage);
        let answer = self.settle(state, key, slot, Settler::Operator, Transition::Forget);
        let is_written = answer == SettleAnswer::Written;
        let was_settled = matches!(stage, Some(LifeStage::Settled(_)));
        let was_unknown = stage == Some(LifeStage::Unknown);
        self.coverage.count_if(is_written && was_settled, Scenario::Forgotten);
        self.coverage.count_if(is_written && was_unknown, Scenario::ForgottenUnknown);
        let is_running = stage == Some(LifeStage::Running);
        self.coverage.count_if(!is_written && is_running, Scenario::ForgetRefused);
        is_written
    }
}
