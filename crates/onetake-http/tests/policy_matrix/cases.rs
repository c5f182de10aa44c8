//! The combined dimensions: policies, states of a key, and requests.

use std::time::Duration;

use onetake_core::{OnUnknown, Terms};
use onetake_http::json::Pointer;
use onetake_http::{By, Dialect, InFlight, KeySource, OnStoreDown, Policy, RequestValue};

/// The wait of a route. The manual clock moves only for cases that must wait.
pub(crate) const WAIT: Duration = Duration::from_secs(2);
/// The largest response that is recorded, in bytes.
pub(crate) const RESPONSE_MAX: usize = 1000;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    Reject,
    Wait,
    Async,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Header,
    Json,
    Derive,
    Issued,
    /// An issued key that is too old to be used for the first time.
    IssuedEarlier,
}

/// One policy: a value for each option. A key is always required.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) busy: Busy,
    pub(crate) on_unknown: OnUnknown,
    pub(crate) source: Source,
    pub(crate) dialect: Dialect,
    /// A limit of one new operation an hour for each tenant and card, which another operation has
    /// just used up.
    pub(crate) velocity: bool,
    pub(crate) on_store_down: OnStoreDown,
}

/// The state of the key when the request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Absent,
    /// On the node that gets the request.
    RunningHere,
    RunningElsewhere,
    Completed,
    /// The response body was too large to record.
    NotReplayable,
    Failed,
    Released,
    Unknown,
    Expired,
    /// The store is unreachable, so the state of the key cannot be read.
    StoreDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Same,
    OtherPayload,
    MissingKey,
    MalformedKey,
    OtherTenant,
    DeadlineOver,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// The index in [`choices`].
    pub(crate) route: usize,
    pub(crate) choice: Choice,
    pub(crate) state: State,
    pub(crate) ask: Ask,
}

pub(crate) const STATES: [State; 10] = [
    State::Absent,
    State::RunningHere,
    State::RunningElsewhere,
    State::Completed,
    State::NotReplayable,
    State::Failed,
    State::Released,
    State::Unknown,
    State::Expired,
    State::StoreDown,
];

pub(crate) const ASKS: [Ask; 6] = [
    Ask::Same,
    Ask::OtherPayload,
    Ask::MissingKey,
    Ask::MalformedKey,
    Ask::OtherTenant,
    Ask::DeadlineOver,
];

const SOURCES: [Source; 5] =
    [Source::Header, Source::Json, Source::Derive, Source::Issued, Source::IssuedEarlier];

/// Returns every policy.
pub(crate) fn choices() -> Vec<Choice> {
    let mut choices = Vec::new();
    for busy in [Busy::Reject, Busy::Wait, Busy::Async] {
        for on_unknown in [OnUnknown::Fail, OnUnknown::Reconcile, OnUnknown::Retry] {
            for source in SOURCES {
                for dialect in [Dialect::Problem, Dialect::Stripe] {
                    for velocity in [false, true] {
                        for on_store_down in [OnStoreDown::FailClosed, OnStoreDown::FailOpen] {
                            choices.push(Choice {
                                busy,
                                on_unknown,
                                source,
                                dialect,
                                velocity,
                                on_store_down,
                            });
                        }
                    }
                }
            }
        }
    }
    choices
}

/// Returns every combination, also those that are left out.
pub(crate) fn product() -> Vec<Case> {
    let mut cases = Vec::new();
    for (route, choice) in choices().into_iter().enumerate() {
        for state in STATES {
            cases.extend(ASKS.map(|ask| Case { route, choice, state, ask }));
        }
    }
    cases
}

/// Returns the reason why a combination is left out.
pub(crate) fn left_out(case: &Case) -> Option<&'static str> {
    let is_open = case.choice.on_store_down == OnStoreDown::FailOpen;
    if is_open && case.state != State::StoreDown {
        return Some("the store is there, so there is no fail-open: it would be the same again");
    }
    if case.choice.source == Source::Issued && case.state == State::Expired {
        return Some("a record lives at least as long as its issued key (S15)");
    }
    None
}

impl Choice {
    pub(crate) fn policy(&self) -> Policy {
        let pointer = |text| Pointer::parse(text).unwrap();
        let source = match self.source {
            Source::Header => KeySource::Header,
            Source::Json => KeySource::Value(RequestValue::Json(pointer("/reference"))),
            Source::Derive => KeySource::Derive(
                ["/merchant", "/order"].map(|text| RequestValue::Json(pointer(text))).to_vec(),
            ),
            Source::Issued | Source::IssuedEarlier => KeySource::Issued,
        };
        let in_flight = match self.busy {
            Busy::Reject => InFlight::Reject,
            Busy::Wait => InFlight::Wait(WAIT),
            Busy::Async => InFlight::Async(WAIT),
        };
        // No lease or record ends while the clock moves for waiting requests.
        let on_unknown = self.on_unknown;
        let terms = Terms { ttl: DAY, lease: DAY, grace: DAY, on_unknown };
        let mut policy = Policy::new()
            .key_required()
            .key_from(source)
            .in_flight(in_flight)
            .on_store_down(self.on_store_down)
            .errors(self.dialect)
            .terms(terms)
            .upstream_timeout(DAY)
            .max_request_body(RESPONSE_MAX)
            .max_response_body(RESPONSE_MAX);
        if self.velocity {
            let by = [By::Tenant, By::Json(pointer("/card"))];
            policy = policy.velocity(by, "1/h");
        }
        policy
    }
}
