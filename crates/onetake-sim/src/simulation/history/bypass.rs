//! Checks of runs without a record (S10): the process of such a run must have learned, after the
//! request arrived, that the store is unreachable. The request must not know that the key has a record.

use std::collections::{BTreeMap, BTreeSet};

use onetake_core::{AttemptId, Record, RecordId, State};

use super::{Actor, Facts, History, RunNumber};
use crate::simulation::timeline::Micros;

/// What a process learns about a key from an answer of the store, or from its absence. A dropped call
/// has no answer, also if its client has left: the checks are lenient there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreNews {
    /// The store is unreachable, or the process gave up waiting for its answer.
    Outage,
    /// The key has a record that excludes another run.
    Taken,
    /// The key has no record, or a released one.
    Free,
}

impl StoreNews {
    /// Returns what a record says about its key.
    #[must_use]
    pub fn of(record: Option<&Record>) -> Self {
        match record.map(|record| &record.state) {
            None | Some(State::Released { .. }) => Self::Free,
            Some(_) => Self::Taken,
        }
    }
}

/// What a process asks the store about a key.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The key.
    pub id: RecordId,
    /// The request that needs the answer: the time at which it arrived. `None` if no request needs
    /// it.
    pub asked_by: Option<Micros>,
    /// True if it is a renewal that recovers a claim whose answer was lost.
    pub is_recovery: bool,
}

/// All that the processes know of the store.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    /// The last outage that a process noticed with a call for a key.
    outages: BTreeMap<(Actor, RecordId), Micros>,
    /// The last outage that a process noticed when it asked for a secret.
    outages_of_all: BTreeMap<Actor, Micros>,
    /// The requests that know that their key is taken. A request is the time at which it arrived.
    taken: BTreeSet<(Actor, RecordId, Micros)>,
    /// The requests that need the claims of attempts.
    claims: BTreeMap<AttemptId, Option<Micros>>,
    /// The beginning and the end of the last suspension of each node.
    suspensions: BTreeMap<usize, (Micros, Micros)>,
    /// The times at which processes began to shut down.
    closing: BTreeMap<Actor, Micros>,
    /// Runs without a record that have not ended.
    running: BTreeMap<RunNumber, Actor>,
}

/// A run without a record.
#[derive(Clone, Copy, Debug)]
pub struct BypassedRun {
    /// The run.
    pub number: RunNumber,
    /// Its process.
    pub by: Actor,
    /// Its key.
    pub id: RecordId,
    /// The time at which its request arrived at the process.
    pub arrived_at: Micros,
}

impl History {
    /// Records that a process learns something about a key, or about all keys (`None`).
    pub fn learns(&self, at: Micros, by: Actor, about: Option<Question>, news: StoreNews) {
        let facts = &mut *self.lock();
        facts.event(at, "learns", &[by.number(), news as u64], || {
            format!("{by:?} {about:?} {news:?}")
        });
        let knowledge = &mut facts.knowledge;
        // The claim stays lost, for all requests that have joined it.
        if let Some(Question { id, is_recovery: true, .. }) = about
            && news == StoreNews::Free
        {
            knowledge.outages.insert((by, id), at);
        }
        match (about, news) {
            (Some(Question { id, .. }), StoreNews::Outage) => {
                knowledge.outages.insert((by, id), at);
            }
            (None, StoreNews::Outage) => {
                knowledge.outages_of_all.insert(by, at);
            }
            (Some(Question { id, asked_by: Some(request), .. }), StoreNews::Taken) => {
                knowledge.taken.insert((by, id, request));
            }
            // All requests of a process that wait for the key learn that it is free.
            (Some(Question { id, .. }), StoreNews::Free) => {
                knowledge.taken.retain(|(other, key, _)| (*other, *key) != (by, id));
            }
            _ => {}
        }
    }

    /// Records the request that needs the claim of an attempt.
    pub fn claims(&self, attempt: AttemptId, request: Option<Micros>) {
        self.lock().knowledge.claims.insert(attempt, request);
    }

    /// Returns the request that needs the claim of an attempt.
    #[must_use]
    pub fn claimed_by(&self, attempt: AttemptId) -> Option<Micros> {
        self.lock().knowledge.claims.get(&attempt).copied().flatten()
    }

    /// Records that a node is suspended.
    pub fn suspends(&self, from: Micros, node: usize, until: Micros) {
        self.lock().knowledge.suspensions.insert(node, (from, until));
    }

    /// Records that a process begins to shut down.
    pub fn closes(&self, at: Micros, by: Actor) {
        self.lock().knowledge.closing.entry(by).or_insert(at);
    }

    /// Checks the start of a run without a record. It counts as running until
    /// [`bypass_ended`](Self::bypass_ended).
    pub fn bypasses(&self, at: Micros, run: BypassedRun) {
        self.lock().bypasses(at, run);
    }

    /// Records that a process has the answer of a run without a record, or gave it up.
    pub fn bypass_ended(&self, number: RunNumber) {
        self.lock().knowledge.running.remove(&number);
    }
}

impl Facts {
    fn bypasses(&mut self, at: Micros, run: BypassedRun) {
        let BypassedRun { number, by, id, arrived_at } = run;
        let Actor::Node(node, _) = by else { return };
        let knowledge = &self.knowledge;
        // A suspended process continues with what it learned before the suspension.
        let suspended = knowledge.suspensions.get(&node);
        let since = suspended
            .filter(|(from, until)| (*from..=*until).contains(&arrived_at))
            .map_or(arrived_at, |(from, _)| *from);
        // A request that is as old may have had no answer for this time, which counts as an outage.
        // Clocks drift by 1 %.
        let patience = self.claim_patience.get(node).copied().unwrap_or(Micros::MAX);
        let waited = at.saturating_sub(since) >= patience - patience / 20;
        let is_new = |outage: Option<&Micros>| outage.is_some_and(|outage| *outage >= since);
        let noticed =
            is_new(knowledge.outages.get(&(by, id))) || is_new(knowledge.outages_of_all.get(&by));
        let is_taken = knowledge.taken.contains(&(by, id, arrived_at));
        let was_closing = knowledge.closing.get(&by).is_some_and(|from| *from < since);
        if !noticed && !waited {
            let what = format!("run {number} of {id:?} has no record, and {by:?} saw no outage");
            self.violate(at, "S10", what);
        }
        if is_taken {
            let what =
                format!("run {number} has no record, and its request knows that {id:?} has one");
            self.violate(at, "S10", what);
        }
        if was_closing {
            let what = format!("run {number} of {id:?} has no record, and {by:?} shuts down");
            self.violate(at, "S10", what);
        }
        self.check_running(at, by);
        self.knowledge.running.insert(number, by);
    }

    /// Returns the number of runs of a process without a record.
    pub(super) fn bypassed(&self, by: Actor) -> usize {
        self.knowledge.running.values().filter(|owner| **owner == by).count()
    }
}
