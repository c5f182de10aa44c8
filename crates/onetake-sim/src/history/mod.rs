//! Histories of concurrent clients, and a checker for them.
//!
//! In a test, clients send keyed requests to gateways while processes are killed and networks fail.
//! A [`Recorder`] records every event in the order in which it happened: requests, responses, runs
//! of the operation at the upstream, reconciliations, operators' actions and faults. [`check()`]
//! then compares the history of every key with the rules of the design.
//!
//! The order of events is sound evidence. A request is recorded before it is sent and a response
//! after it was received. A run is recorded as started before the upstream does anything, and as
//! finished before the upstream responds.
//!
//! | module | contents |
//! | --- | --- |
//! | [`check`](mod@check) | the rules, from the text of the design |
//! | [`spans`] | the events of one key, gathered by request and by run |
//! | [`upstream`] | an upstream that chooses outcomes by a seed and records its runs |

pub mod check;
mod render;
mod settled;
pub mod spans;
pub mod upstream;

#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use onetake_core::{Clock, SystemClock};

pub use check::{CheckReport, Violation, check};
pub use upstream::RecordedUpstream;

/// The route's choice for unknown outcomes (`on_unknown`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Answer 500 and never run again.
    Fail,
    /// Run again; runs may overlap.
    Retry,
    /// Ask the upstream for the outcome.
    Reconcile,
}

/// A key, and the policy of the route that it is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The key's number in its history.
    pub number: u64,
    /// The route's policy.
    pub policy: Policy,
}

/// A response, reduced to the parts that the rules need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The `code` of a problem, empty for other responses.
    pub code: String,
    /// The run that produced the response (`X-Run`), if it came from the upstream.
    pub run: Option<u64>,
    /// The body.
    pub body: Bytes,
    /// True if the response is marked as a replay.
    pub replayed: bool,
    /// The value of `Idempotency-Reference`, or empty.
    pub reference: String,
}

/// The outcome that the upstream chose for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A response that the gateway records.
    Record {
        /// The status.
        status: u16,
        /// The body.
        body: Bytes,
    },
    /// A response that says "not handled": the gateway releases the key.
    Release,
    /// A response, or a closed connection, that leaves the outcome unknown.
    Unknown,
}

/// The outcome that the upstream names to a reconciler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAnswer {
    /// The run that had the effect.
    pub run: u64,
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

/// An operator's decision on a key whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorDecision {
    /// The attempt had no effect: the next request runs.
    Release,
    /// The attempt failed permanently.
    Fail,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client is about to send a request.
    Sent {
        /// The request's number, unique in the history.
        request: u64,
        /// The key.
        key: Key,
        /// The payload: requests with equal numbers have equal bodies.
        payload: u8,
        /// The gateway that it is sent to.
        node: usize,
        /// True for the requests of the final read, after all faults.
        is_final: bool,
    },
    /// A client received a response, or gave up (`None`).
    Received {
        /// The request's number.
        request: u64,
        /// The response, if one arrived.
        response: Option<Response>,
    },
    /// The upstream received a request: a run starts.
    Started {
        /// The run's number, unique in the history.
        run: u64,
        /// The request that the gateway forwarded.
        request: u64,
        /// The key.
        key: Key,
        /// The payload.
        payload: u8,
        /// The value of `Idempotency-Fence`.
        fence: u64,
    },
    /// A run ended; its response, if any, is sent after this event.
    Finished {
        /// The run's number.
        run: u64,
        /// The outcome.
        chosen: Chosen,
        /// True if the run changed something in the world.
        effect: bool,
    },
    /// The upstream answered a reconciler: the outcome of the run that had an effect, or none.
    Reconciled {
        /// The key.
        key: Key,
        /// The effect.
        found: Option<UpstreamAnswer>,
    },
    /// An operator is about to send a decision.
    Deciding {
        /// The key.
        key: Key,
        /// The decision.
        decision: OperatorDecision,
    },
    /// The gateway answered an operator that the decision was carried out.
    Decided {
        /// The key.
        key: Key,
        /// The decision.
        decision: OperatorDecision,
    },
    /// A gateway was killed.
    Killed(usize),
    /// A gateway accepts requests.
    Ready(usize),
    /// A gateway was suspended.
    Suspended(usize),
    /// A gateway runs again after it was suspended.
    Resumed(usize),
    /// A fault of the store or of the network to it began.
    Fault(&'static str),
    /// The fault ended.
    Healed(&'static str),
    /// The store lost acknowledged writes, as its documentation warns: all writes older than `lag`
    /// were kept, younger ones may be lost.
    MayHaveLost {
        /// The age above which a write was kept.
        lag: Duration,
    },
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// The time, by the clock of the test.
    pub at: Duration,
    /// The event.
    pub event: Event,
}

/// All events, in order.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The events.
    pub entries: Vec<TimedEvent>,
    /// The lease of all routes.
    pub lease: Duration,
    /// The grace of all routes.
    pub grace: Duration,
}

/// Records events in the order in which they happen.
#[derive(Debug, Default)]
pub struct Recorder {
    entries: Mutex<Vec<TimedEvent>>,
}

impl Recorder {
    /// Records an event now.
    pub fn record(&self, event: Event) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // The time is read inside the lock, so that the order of times is the order of entries.
        let at = SystemClock.monotonic();
        entries.push(TimedEvent { at, event });
    }

    /// Returns a copy of the history so far, for routes with this lease and grace.
    #[must_use]
    pub fn history(&self, lease: Duration, grace: Duration) -> History {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone();
        History { entries, lease, grace }
    }
}
