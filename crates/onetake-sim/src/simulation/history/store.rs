//! Checks of every change of the store.

use std::time::Duration;

use onetake_core::store::{Claimed, Settled};
use onetake_core::{
    Cause, Claim, OnUnknown, Record, RecordId, Settlement, State, Timestamp, Transition,
};

use super::{Facts, Grant, History, Recorded};
use crate::simulation::timeline::Micros;

/// The author of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    /// A process of a node: the node, and the number of its start.
    Node(usize, u64),
    /// The opening of a store that one process owns.
    Opening,
}

impl Actor {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Node(node, incarnation) => node as u64 + 1 + (incarnation << 8),
            Self::Opening => 0,
        }
    }
}

impl History {
    /// Records and checks a decision about a claim.
    pub fn claimed(
        &self,
        at: Micros,
        by: Actor,
        claim: &Claim,
        answer: &Claimed,
        after: Option<&Record>,
        store_now: Timestamp,
    ) {
        let facts = &mut *self.lock();
        let fence = match answer {
            Claimed::Granted { fence } => fence.get(),
            Claimed::Found { .. } => 0,
        };
        facts.event(at, "claim", &[by.number(), fence], || {
            let stands = after.map_or("absent", |record| record.state.name());
            format!("{by:?} {:?} {:?} fence {fence}, stands {stands}", claim.id, claim.attempt)
        });
        if let Claimed::Granted { fence } = answer {
            facts.granted(at, claim, fence.get(), after, store_now);
        }
        facts.key(claim.id).owners.insert(claim.attempt, by);
        facts.written(at, claim.id, after, None, store_now);
    }

    /// Records that a process learns at this time that its attempt is settled for good.
    ///
    /// Only attempts that were still running count. An attempt that was unknown can also be settled
    /// by reconcilers and operators of its process, and they do not know of each other.
    pub fn will_tell(&self, told_at: Micros, by: Actor, settlement: &Settlement) {
        let facts = &mut *self.lock();
        let Settlement { id, attempt, transition } = settlement;
        if matches!(transition, Transition::Complete(_) | Transition::Fail(_) | Transition::Release)
            && facts.settled_while_running.contains(attempt)
            && facts.key(*id).owners.get(attempt) == Some(&by)
        {
            facts.told.entry(*attempt).or_insert(told_at);
        }
    }

    /// Checks a settlement that a process sends. The process knows the answer to its earlier one,
    /// whatever became of the other items of that batch.
    pub fn sends(&self, at: Micros, by: Actor, settlement: &Settlement) {
        let facts = &mut *self.lock();
        let Settlement { id, attempt, transition } = settlement;
        // A reaper settles the end of a lease without asking the process that ran the attempt.
        let is_final = match transition {
            Transition::Unknown(cause) => *cause != Cause::LeaseEnded,
            Transition::Complete(_) | Transition::Fail(_) | Transition::Release => true,
            _ => false,
        };
        let is_own = facts.key(*id).owners.get(attempt) == Some(&by);
        if is_final && is_own && facts.told.get(attempt).is_some_and(|told_at| *told_at < at) {
            let what = format!("{by:?} settles {id:?} again, although the store said it is done");
            facts.violate(at, "S21", what);
        }
    }

    /// Records and checks a decision about a settlement.
    pub fn settled(
        &self,
        at: Micros,
        by: Actor,
        settlement: &Settlement,
        answer: &Settled,
        after: Option<&Record>,
        store_now: Timestamp,
    ) {
        let facts = &mut *self.lock();
        let is_done = matches!(answer, Settled::Done { .. });
        facts.event(at, "settle", &[by.number(), u64::from(is_done)], || {
            let stands = after.map_or("absent", |record| record.state.name());
            let Settlement { id, attempt, transition } = settlement;
            let transition = format!("{transition:?}");
            let transition: String = transition.chars().take(24).collect();
            format!("{by:?} {id:?} {attempt:?} {transition} done {is_done}, stands {stands}")
        });
        let before = facts.key(settlement.id).record.clone();
        let owns = before.as_ref().is_some_and(|record| record.attempt == settlement.attempt);
        let was_running =
            before.as_ref().is_some_and(|record| matches!(record.state, State::Running { .. }));
        // A renewed attempt still runs, and one that became unknown can be settled by others.
        let is_final = after.is_some_and(|record| {
            !matches!(record.state, State::Running { .. } | State::Unknown { .. })
        });
        if is_done && owns && was_running && is_final {
            facts.settled_while_running.insert(settlement.attempt);
        }
        if is_done && !owns {
            let what = format!("{settlement:?} was done although another attempt owns the key");
            facts.violate(at, "S3", what);
        }
        let released = match (&before, after) {
            (Some(before), Some(after)) => {
                is_open(&before.state) && matches!(after.state, State::Released { .. })
            }
            _ => false,
        };
        if let Some(before) = before.as_ref().filter(|_| is_done && owns) {
            facts.check_passing_over(at, by, settlement, before, store_now);
        }
        if released && owns {
            facts.released(at, settlement);
        }
        let forgotten_by = match by {
            Actor::Node(node, _) if settlement.transition == Transition::Forget && is_done => {
                Some(node)
            }
            _ => None,
        };
        facts.written(at, settlement.id, after, forgotten_by, store_now);
    }

    /// Records and checks a sweep: `is_left` is true for the records that still exist.
    pub fn swept(
        &self,
        at: Micros,
        by: Actor,
        is_left: impl Fn(RecordId) -> bool,
        store_now: Timestamp,
    ) {
        let facts = &mut *self.lock();
        let gone: Vec<(RecordId, bool)> = facts
            .keys
            .iter()
            .filter(|(id, key)| key.record.is_some() && !is_left(**id))
            .map(|(id, key)| {
                (*id, key.record.as_ref().is_some_and(|record| is_expired(record, store_now)))
            })
            .collect();
        for (id, was_expired) in gone {
            facts.event(at, "sweep", &[by.number()], || format!("{by:?} {id:?}"));
            if !was_expired {
                facts.violate(at, "S13", format!("{id:?} was deleted before it expired"));
            }
            facts.written(at, id, None, None, store_now);
        }
    }
}

impl Facts {
    pub(super) fn key(&mut self, id: RecordId) -> &mut super::KeyHistory {
        self.keys.entry(id).or_default()
    }

    fn granted(
        &mut self,
        at: Micros,
        claim: &Claim,
        fence: u64,
        after: Option<&Record>,
        store_now: Timestamp,
    ) {
        let key = self.key(claim.id);
        let before = key.record.clone();
        let own = before.as_ref().filter(|record| record.attempt == claim.attempt);
        if let Some(own) = own.filter(|record| !is_expired(record, store_now)) {
            self.granted_again(at, claim, fence, own);
            return;
        }
        let key = self.key(claim.id);
        let fence_max = std::mem::replace(&mut key.fence_max, fence);
        let created_at = after.map_or(store_now, |record| record.created_at);
        let (attempt, on_unknown) = (claim.attempt, claim.terms.on_unknown);
        key.grants.push(Grant { attempt, fence, created_at, on_unknown });
        if fence <= fence_max {
            self.violate(at, "S2", format!("fence {fence} came after fence {fence_max}"));
        }
        let Some(before) = before.filter(|record| !is_expired(record, store_now)) else { return };
        let again = before.terms.on_unknown.runs_again();
        let may_run = match before.state {
            State::Released { .. } => true,
            State::Unknown { .. } => again,
            State::Running { lease_until } => {
                again && lease_until.plus(before.terms.grace) <= store_now
            }
            State::Completed { .. } | State::Failed { .. } => false,
        };
        if !may_run {
            let (id, state) = (claim.id, before.state.name());
            self.violate(at, "S12", format!("{id:?} was given away although it was {state}"));
        }
        if before.fingerprint != claim.fingerprint {
            let id = claim.id;
            self.violate(at, "S9", format!("{id:?} was given to another payload"));
        }
    }

    /// Checks a claim that was sent again and granted again: the attempt still runs, and it is the
    /// same grant.
    fn granted_again(&mut self, at: Micros, claim: &Claim, fence: u64, before: &Record) {
        let id = claim.id;
        if fence != before.fence.get() {
            let what = format!("{id:?} was granted again with another fence: {fence}");
            self.violate(at, "S2", what);
        }
        if !matches!(before.state, State::Running { .. }) {
            let state = before.state.name();
            self.violate(at, "S12", format!("{id:?} was granted again although it was {state}"));
        }
        if before.fingerprint != claim.fingerprint {
            self.violate(at, "S9", format!("{id:?} was granted again to another payload"));
        }
    }

    /// Records and checks a release: the attempt is known to have had no effect.
    fn released(&mut self, at: Micros, settlement: &Settlement) {
        let Settlement { id, attempt, .. } = settlement;
        let key = self.key(*id);
        key.released.insert(*attempt);
        let is_promised =
            key.promised.contains(attempt) && settlement.transition == Transition::Release;
        let rolls_back = key
            .grants
            .iter()
            .any(|grant| grant.attempt == *attempt && grant.on_unknown == OnUnknown::Rollback);
        // An attempt that never started can be released: its handle says that a retry runs it.
        let has_started = self.runs.iter().any(|run| run.is_of(*id, *attempt));
        let by_others = self.is_settled_by_others(settlement);
        if is_promised && has_started && !rolls_back && self.clocks_agree && !by_others {
            self.violate(at, "promise", format!("{id:?} was released after a 202"));
        }
        let effect = self.runs.iter().find(|run| run.is_of(*id, *attempt) && run.effect.is_some());
        if let Some(run) = effect {
            let what = format!("{id:?} was released although run {} had an effect", run.number);
            self.violate(at, "S16", what);
        }
    }

    /// Checks that the reaper or another node ends a running attempt only after its lease and
    /// grace, and not at all if nothing hinders its owner.
    fn check_passing_over(
        &mut self,
        at: Micros,
        by: Actor,
        settlement: &Settlement,
        before: &Record,
        store_now: Timestamp,
    ) {
        let State::Running { lease_until } = before.state else { return };
        let owner =
            self.keys.get(&before.id).and_then(|key| key.owners.get(&before.attempt)).copied();
        let by_another =
            matches!((owner, by), (Some(Actor::Node(owner, _)), Actor::Node(by, _)) if owner != by);
        let passes_over = settlement.transition == Transition::ExpireLease
            || by_another
                && !matches!(settlement.transition, Transition::Renew | Transition::Complete(_));
        if !passes_over {
            return;
        }
        // A lease is renewed only for the maximum duration of its operation.
        let run_max = match owner {
            Some(Actor::Node(node, _)) => self.run_max.get(node).copied().unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let is_renewed = before.claimed_at.plus(run_max) > store_now;
        if lease_until.plus(before.terms.grace) > store_now {
            let what = format!("{:?} was passed over while its lease was alive", before.id);
            self.violate(at, "S13", what);
        } else if self.is_faultless && is_renewed {
            let what = format!("{:?} lost its lease although nothing went wrong", before.id);
            self.violate(at, "leases are renewed", what);
        }
    }

    /// Returns true if the record was unknown: then a reconciler or an operator may release it.
    fn is_settled_by_others(&self, settlement: &Settlement) -> bool {
        let record = self.keys.get(&settlement.id).and_then(|key| key.record.as_ref());
        record.is_some_and(|record| matches!(record.state, State::Unknown { .. }))
    }

    /// Records the new state of a record.
    fn written(
        &mut self,
        at: Micros,
        id: RecordId,
        after: Option<&Record>,
        forgotten_by: Option<usize>,
        store_now: Timestamp,
    ) {
        let (cache_age, set_back, set_ahead) = (self.cache_age_max, self.set_back, self.set_ahead);
        let forgets = forgotten_by.is_some();
        let key = self.key(id);
        let before = key.record.take();
        key.record = after.cloned();
        let final_before = before.as_ref().filter(|record| {
            matches!(record.state, State::Completed { .. } | State::Failed { .. })
                && !is_expired(record, store_now)
        });
        let changed = before.as_ref().map(|record| &record.state) != after.map(|it| &it.state)
            || before.as_ref().map(|record| record.fence) != after.map(|it| it.fence);
        let broken = final_before.is_some() && changed && !forgets;
        if changed {
            // A forgotten outcome may be in the caches of other nodes for a while. So may one that
            // expired early, because the store's clock was set forward.
            let until = at.saturating_add(if forgets { cache_age } else { set_ahead });
            if let Some(open) = key.recorded.last_mut().filter(|it| it.forgotten_by.is_none()) {
                open.until = open.until.min(until);
                open.forgotten_by = forgotten_by.map(|node| (node, until));
            }
            if let Some(open) = key.refused.last_mut().filter(|it| it.1 == Micros::MAX) {
                open.1 = until;
            }
            match after.map(|record| (&record.state, record.attempt)) {
                Some((State::Completed { recording, .. }, attempt)) => {
                    let body = recording.body.clone().unwrap_or_default();
                    let expires_at = after.and_then(Record::expires_at).unwrap_or(store_now);
                    let left = onetake_core::clock::micros(expires_at.since(store_now));
                    let until = at.saturating_add(left).saturating_add(set_back);
                    let (from, forgotten_by) = (at, None);
                    key.recorded.push(Recorded { body, from, until, attempt, forgotten_by });
                }
                Some((State::Unknown { .. } | State::Failed { .. }, _)) => {
                    key.refused.push((at, Micros::MAX));
                }
                _ => {}
            }
        }
        if forgets {
            key.forgotten_at = Some(at);
        }
        if broken {
            self.violate(at, "S4", format!("the outcome of {id:?} changed before it expired"));
        }
    }
}

fn is_open(state: &State) -> bool {
    matches!(state, State::Running { .. } | State::Unknown { .. })
}

/// Returns true if a record counts as absent. This is written from the design, and does not call
/// the code under test.
fn is_expired(record: &Record, now: Timestamp) -> bool {
    let hour = std::time::Duration::from_secs(3_600);
    let ttl = record.terms.ttl;
    match record.state {
        State::Running { .. } => false,
        State::Completed { at, .. } | State::Failed { at, .. } | State::Released { at } => {
            now >= record.created_at.plus(ttl) && now >= at.plus(ttl.min(hour))
        }
        State::Unknown { at, .. } => now >= at.plus(ttl),
    }
}
