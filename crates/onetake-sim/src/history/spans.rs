//! The events of one key, gathered by request and by run.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{Chosen, Event, History, Key, OperatorDecision, Response, UpstreamAnswer};

/// A moment: the position in the history, and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HistoryMoment {
    /// The position of the event in the history.
    pub index: usize,
    /// The time of the event.
    pub at: Duration,
}

/// A request from its sending to its response.
#[derive(Clone, Debug)]
pub struct RequestSpan {
    /// The request's number.
    pub number: u64,
    /// The payload.
    pub payload: u8,
    /// The gateway.
    pub node: usize,
    /// True if it belongs to the final read.
    pub is_final: bool,
    /// The time before it was sent.
    pub sent: HistoryMoment,
    /// The time after its response arrived, or the client gave up.
    pub ended: Option<HistoryMoment>,
    /// The response, if one arrived.
    pub response: Option<Response>,
}

/// A run of the operation.
#[derive(Clone, Debug)]
pub struct OperationRun {
    /// The run's number.
    pub number: u64,
    /// The request that caused it.
    pub request: u64,
    /// The gateway that forwarded it, if the request is known.
    pub node: Option<usize>,
    /// The payload.
    pub payload: u8,
    /// The fence.
    pub fence: u64,
    /// The moment before the operation began.
    pub started: HistoryMoment,
    /// The moment before its response was sent.
    pub finished: Option<HistoryMoment>,
    /// The outcome, once it finished.
    pub chosen: Option<Chosen>,
    /// True if it had an effect.
    pub effect: bool,
}

/// The history of one key.
#[derive(Clone, Debug)]
pub struct KeyHistory {
    /// The key.
    pub key: Key,
    /// Its requests, in the order of sending.
    pub requests: Vec<RequestSpan>,
    /// Its runs, in the order of their starts.
    pub runs: Vec<OperationRun>,
    /// Answers to reconcilers.
    pub reconciled: Vec<(HistoryMoment, Option<UpstreamAnswer>)>,
    /// Decisions of operators, each with the time before it was sent.
    pub decisions: Vec<(HistoryMoment, OperatorDecision)>,
    /// Decisions that were carried out, each with the time after the operator got the answer.
    pub decided: Vec<(HistoryMoment, OperatorDecision)>,
}

/// A gateway that was killed, or suspended, and the moment when it was ready again.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// The gateway.
    pub node: usize,
    /// True if it was killed, false if it was suspended.
    pub killed: bool,
    /// The beginning.
    pub from: HistoryMoment,
    /// The end, if there was one.
    pub to: Option<HistoryMoment>,
}

/// Faults that concern all keys.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Gateways that were killed or suspended.
    pub outages: Vec<Outage>,
    /// Faults of the store or the network: name, beginning, end.
    pub store: Vec<(&'static str, HistoryMoment, Option<HistoryMoment>)>,
    /// Losses of acknowledged writes, with the age above which writes were kept.
    pub losses: Vec<(HistoryMoment, Duration)>,
}

impl OperationRun {
    /// Returns true if the run ended before `moment`, and released the key.
    #[must_use]
    pub fn released_before(&self, moment: HistoryMoment) -> bool {
        self.chosen == Some(Chosen::Release) && self.finished.is_some_and(|end| end < moment)
    }

    /// Returns true if the run ended before `moment` with an unknown outcome.
    #[must_use]
    pub fn unknown_before(&self, moment: HistoryMoment) -> bool {
        self.chosen == Some(Chosen::Unknown) && self.finished.is_some_and(|end| end < moment)
    }
}

impl KeyHistory {
    fn new(key: Key) -> Self {
        let (requests, runs, reconciled) = (Vec::new(), Vec::new(), Vec::new());
        Self { key, requests, runs, reconciled, decisions: Vec::new(), decided: Vec::new() }
    }

    /// Returns the run with this number.
    #[must_use]
    pub fn run(&self, number: u64) -> Option<&OperationRun> {
        self.runs.iter().find(|run| run.number == number)
    }

    /// Returns the request with this number.
    #[must_use]
    pub fn request(&self, number: u64) -> Option<&RequestSpan> {
        self.requests.iter().find(|request| request.number == number)
    }

    /// Returns the responses in the order of their arrival, with their requests.
    #[must_use]
    pub fn responses(&self) -> Vec<(&RequestSpan, HistoryMoment, &Response)> {
        let arrived = self.requests.iter().filter_map(|request| {
            let response = request.response.as_ref()?;
            request.ended.map(|moment| (request, moment, response))
        });
        let mut arrived: Vec<_> = arrived.collect();
        arrived.sort_by_key(|(_, moment, _)| *moment);
        arrived
    }
}

/// Gathers the events of a history by key, and the faults.
#[must_use]
pub fn gather(history: &History) -> (BTreeMap<Key, KeyHistory>, Faults) {
    let mut keys: BTreeMap<Key, KeyHistory> = BTreeMap::new();
    let (mut of_request, mut of_run) = (HashMap::new(), HashMap::new());
    let mut faults = Faults::default();
    for (index, entry) in history.entries.iter().enumerate() {
        let moment = HistoryMoment { index, at: entry.at };
        match &entry.event {
            Event::Sent { request, key, .. } => {
                let known = keys.entry(*key).or_insert_with(|| KeyHistory::new(*key));
                of_request.insert(*request, (*key, known.requests.len()));
                known.requests.extend(sent(&entry.event, moment));
            }
            Event::Received { request, response } => {
                let Some((key, place)) = of_request.get(request) else { continue };
                let known = keys.get_mut(key).and_then(|key| key.requests.get_mut(*place));
                if let Some(known) = known {
                    (known.ended, known.response) = (Some(moment), response.clone());
                }
            }
            Event::Started { run, request, key, payload, fence } => {
                let known = keys.entry(*key).or_insert_with(|| KeyHistory::new(*key));
                let node = known.request(*request).map(|request| request.node);
                of_run.insert(*run, (*key, known.runs.len()));
                known.runs.push(OperationRun {
                    number: *run,
                    request: *request,
                    node,
                    payload: *payload,
                    fence: *fence,
                    started: moment,
                    finished: None,
                    chosen: None,
                    effect: false,
                });
            }
            Event::Finished { run, chosen, effect } => {
                let Some((key, place)) = of_run.get(run) else { continue };
                let known = keys.get_mut(key).and_then(|key| key.runs.get_mut(*place));
                if let Some(known) = known {
                    (known.finished, known.chosen) = (Some(moment), Some(chosen.clone()));
                    known.effect = *effect;
                }
            }
            Event::Reconciled { key, found } => {
                let known = keys.entry(*key).or_insert_with(|| KeyHistory::new(*key));
                known.reconciled.push((moment, found.clone()));
            }
            Event::Deciding { key, decision } => {
                let known = keys.entry(*key).or_insert_with(|| KeyHistory::new(*key));
                known.decisions.push((moment, *decision));
            }
            Event::Decided { key, decision } => {
                let known = keys.entry(*key).or_insert_with(|| KeyHistory::new(*key));
                known.decided.push((moment, *decision));
            }
            other => faults.note(other, moment),
        }
    }
    (keys, faults)
}

fn sent(event: &Event, moment: HistoryMoment) -> Option<RequestSpan> {
    let Event::Sent { request, payload, node, is_final, .. } = event else { return None };
    Some(RequestSpan {
        number: *request,
        payload: *payload,
        node: *node,
        is_final: *is_final,
        sent: moment,
        ended: None,
        response: None,
    })
}

impl Faults {
    fn note(&mut self, event: &Event, moment: HistoryMoment) {
        let outage = |node, killed| Outage { node, killed, from: moment, to: None };
        match event {
            Event::Killed(node) => self.outages.push(outage(*node, true)),
            Event::Suspended(node) => self.outages.push(outage(*node, false)),
            Event::Ready(node) | Event::Resumed(node) => {
                let open = self.outages.iter_mut().rev().find(|outage| outage.node == *node);
                if let Some(open) = open.filter(|open| open.to.is_none()) {
                    open.to = Some(moment);
                }
            }
            Event::Fault(name) => self.store.push((name, moment, None)),
            Event::Healed(name) => {
                let open = self.store.iter_mut().rev().find(|(known, ..)| known == name);
                if let Some((.., to)) = open {
                    *to = Some(moment);
                }
            }
            Event::MayHaveLost { lag } => self.losses.push((moment, *lag)),
            _ => {}
        }
    }

    /// Returns true if any fault lasted at some time between `from` and `to`.
    #[must_use]
    pub fn between(&self, from: HistoryMoment, to: HistoryMoment) -> bool {
        let overlaps = |began: HistoryMoment, ended: Option<HistoryMoment>| {
            began < to && ended.is_none_or(|end| end > from)
        };
        self.outages.iter().any(|outage| overlaps(outage.from, outage.to))
            || self.store.iter().any(|(_, began, ended)| overlaps(*began, *ended))
            || self.losses.iter().any(|(at, _)| *at < to && *at > from)
    }

    /// Returns true if a gateway was killed between `from` and `to`.
    #[must_use]
    pub fn killed_between(
        &self,
        node: Option<usize>,
        from: HistoryMoment,
        to: HistoryMoment,
    ) -> bool {
        self.outages.iter().any(|outage| {
            outage.killed && node == Some(outage.node) && outage.from < to && outage.from > from
        })
    }

    /// Returns true if a gateway was suspended at `moment`, and went on before `later`.
    #[must_use]
    pub fn suspended_over(
        &self,
        node: Option<usize>,
        moment: HistoryMoment,
        later: HistoryMoment,
    ) -> bool {
        self.outages.iter().any(|outage| {
            let resumed = outage.to.is_some_and(|end| end > moment && end < later);
            !outage.killed && node == Some(outage.node) && outage.from < moment && resumed
        })
    }
}
