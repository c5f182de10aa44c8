//! Settlements: the store decides by the function under test, and its answer is compared with the
//! promise.

use std::sync::Arc;

use onetake_core::decide::SettleEffect;
use onetake_core::origin::AttemptHistory;
use onetake_core::{
    Cause, Failure, OnUnknown, Record, Recording, Settlement, State, Timestamp, Transition,
};

use super::Model;
use super::invariants::{Invariant, InvariantSet, is_free};
use super::promise::{KeyLife, LifeStage};
use super::state::{
    AttemptReport, AttemptSlot, ExpiryIndex, KeyState, ModelKey, ModelState, RequestPayload,
    RunProgress, Settler,
};

/// The store's answer to a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettleAnswer {
    /// The settlement was written.
    Written,
    /// The settlement was written before.
    Already,
    /// The settlement was refused.
    Stale,
}

impl Model {
    /// Settles by the function under test, and compares its answer with the promise.
    pub(super) fn settle(
        &self,
        state: &mut ModelState,
        key: ModelKey,
        slot: AttemptSlot,
        settler: Settler,
        transition: Transition,
    ) -> SettleAnswer {
        let now = state.now;
        let key_state = state.keys.get(key);
        let life = key_state.live(now);
        let settlement = Settlement { id: key.id(), attempt: slot.id(key), transition };
        let effect = (self.decisions.settle)(key_state.record.as_deref(), &settlement, now);
        let Settlement { transition, .. } = settlement;
        let answer = match effect {
            SettleEffect::Write(_) => SettleAnswer::Written,
            SettleEffect::Already => SettleAnswer::Already,
            SettleEffect::Stale => SettleAnswer::Stale,
        };

        let mine = life.filter(|life| life.owner == slot);
        let mut broken = state.broken;
        self.judge_answer(&mut broken, key, (life, mine), (settler, &transition), answer, now);
        if let SettleEffect::Write(after) = &effect
            && let Some(before) = key_state.record.as_deref()
        {
            self.judge_write(&mut broken, key, life, &transition, before, after);
        }
        let key_state = state.keys.get_mut(key);
        if let SettleEffect::Write(record) = effect {
            if let Some(life) = &mut key_state.life {
                life.settled(settler, &transition, &self.terms(key, life.request), now);
            }
            write(key_state, record, now);
        }
        if answer != SettleAnswer::Stale {
            let record = key_state.record.as_deref();
            let holds = record.is_some_and(|record| is_as_told(record, &transition, now));
            broken.note(!holds, Invariant::Believed);
            let is_gone = transition != Transition::Forget || is_free(self, state, key);
            broken.note(!is_gone, Invariant::ForgottenIsAbsent);
        }
        state.broken = broken;
        answer
    }

    /// Compares the answer to a settlement with the promise for the key (`life`), if the settled
    /// attempt owns it (`mine`).
    fn judge_answer(
        &self,
        broken: &mut InvariantSet,
        key: ModelKey,
        (life, mine): (Option<KeyLife>, Option<KeyLife>),
        (settler, transition): (Settler, &Transition),
        answer: SettleAnswer,
        now: Timestamp,
    ) {
        let is_stale = answer == SettleAnswer::Stale;
        let is_other = matches!(settler, Settler::Reconciler | Settler::Operator);
        broken.note(mine.is_none() && !is_stale, Invariant::S3);
        broken.note(mine.is_none() && !is_stale && is_other, Invariant::S20);
        let is_settled = life.is_some_and(|life| matches!(life.stage, LifeStage::Settled(_)));
        let Some(life) = mine else { return };
        let accepts = life.accepts(settler, transition, self.on_unknown(key, life.request), now);
        broken.note(accepts && is_stale, Invariant::Believed);
        if accepts || is_stale {
            return;
        }
        // The store accepted a settlement that it had to refuse.
        let is_running = life.stage == LifeStage::Running;
        match transition {
            // A lease that ended never lives again.
            Transition::Renew => broken.note(true, Invariant::S1),
            Transition::ExpireLease => broken.note(true, Invariant::S13),
            Transition::PostponeReconcile(_) => broken.note(true, Invariant::OneAsker),
            Transition::Forget => broken.note(is_running, Invariant::S20),
            _ => {
                broken.note(is_settled, Invariant::S4);
                broken.note(is_settled && is_other, Invariant::S20);
                broken.note(!is_settled, Invariant::StateMachine);
            }
        }
    }

    /// Compares a record that a settlement writes with the one before it.
    fn judge_write(
        &self,
        broken: &mut InvariantSet,
        key: ModelKey,
        life: Option<KeyLife>,
        transition: &Transition,
        before: &Record,
        after: &Record,
    ) {
        broken.note(after.fence != before.fence, Invariant::S2);
        broken.note(after.attempt != before.attempt, Invariant::S1);
        let Some(life) = life else { return };
        let is_forgotten = *transition == Transition::Forget;
        let is_settled = matches!(life.stage, LifeStage::Settled(_));
        broken.note(is_settled && !is_forgotten && after != before, Invariant::S4);
        let is_released = matches!(after.state, State::Released { .. });
        let rolls_back = self.on_unknown(key, life.request) == OnUnknown::Rollback;
        let had_effect = life.run == RunProgress::WithEffect;
        broken.note(is_released && had_effect && !is_forgotten && !rolls_back, Invariant::S16);
    }
}

/// Returns the settlement that reports the end of an attempt. Its outcome names the payload and the
/// settler.
pub(super) fn report_verb(
    slot: AttemptSlot,
    settler: Settler,
    payload: RequestPayload,
    report: AttemptReport,
) -> Transition {
    let (payload, signature) = (payload.name(), settler.signature(slot));
    match report {
        AttemptReport::Complete => {
            Transition::Complete(Recording { head: payload.into(), body: Some(signature.into()) })
        }
        AttemptReport::Fail => {
            Transition::Fail(Failure { code: payload.into(), detail: signature.into() })
        }
        AttemptReport::Release => Transition::Release,
        // The reaper's cause is used, so that all unknown records are alike.
        AttemptReport::Unknown => Transition::Unknown(Cause::LeaseEnded),
    }
}

/// Writes a record as a store does: with an entry in the index if it can expire, and without
/// removing the entry before it.
pub(super) fn write(key_state: &mut KeyState, mut record: Record, now: Timestamp) {
    // No decision depends on these fields, and they would make equal states different.
    record.claimed_at = record.created_at;
    record.history = AttemptHistory::default();
    if let Some(at) = record.expires_at() {
        key_state.expiry_index = match key_state.expiry_index {
            ExpiryIndex::Named => ExpiryIndex::Named,
            _ if at <= now => ExpiryIndex::Named,
            ExpiryIndex::Due(before) => ExpiryIndex::Due(before.min(at)),
            ExpiryIndex::Empty => ExpiryIndex::Due(at),
        };
    }
    key_state.record = Some(Arc::new(record));
}

/// True if the store holds the settlement that it answered as done.
fn is_as_told(record: &Record, transition: &Transition, now: Timestamp) -> bool {
    let rolls_back = record.terms.on_unknown == OnUnknown::Rollback;
    match (&record.state, transition) {
        (State::Completed { recording, .. }, Transition::Complete(told)) => recording == told,
        (State::Failed { failure, .. }, Transition::Fail(told)) => failure == told,
        (State::Running { .. }, Transition::Renew)
        | (State::Released { .. }, Transition::Release | Transition::Forget) => true,
        (State::Unknown { .. }, Transition::Unknown(_) | Transition::ExpireLease) => !rolls_back,
        (State::Released { .. }, Transition::Unknown(_) | Transition::ExpireLease) => rolls_back,
        (State::Unknown { ask_at, .. }, Transition::PostponeReconcile(hold)) => {
            *ask_at == now.plus(*hold)
        }
        _ => false,
    }
}
