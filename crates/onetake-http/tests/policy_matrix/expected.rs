//! The promised answer for each combination. It is written from the tables of states and problems
//! alone and does not use the code under test.

use onetake_core::OnUnknown;
use onetake_http::{Dialect, OnStoreDown};

use super::cases::{Ask, Busy, Case, Source, State};

/// The target of the header `Location`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Nowhere,
    /// The resource that the operation made.
    Made,
    /// The handle by which the outcome is fetched later.
    Handle,
}

/// The required answer, and the number of times that the request may run the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) status: u16,
    /// The code of the problem. An outcome and a 202 have none.
    pub(crate) code: Option<&'static str>,
    pub(crate) retry_after: bool,
    /// True if all replay headers must be present, false if none may be.
    pub(crate) replayed: bool,
    /// True if there must be a reference. A request whose key is refused has none.
    pub(crate) reference: bool,
    pub(crate) location: Location,
    pub(crate) runs: usize,
}

pub(crate) fn expected(case: &Case) -> Expected {
    let choice = &case.choice;
    match (case.ask, choice.source) {
        (Ask::MissingKey, _) => return refused(400, "idempotency_key_missing").unnamed(),
        (Ask::MalformedKey, _) => return refused(400, "idempotency_key_invalid").unnamed(),
        // The deadline is checked before the body is read, which may hold the key.
        (Ask::DeadlineOver, Source::Json | Source::Derive) => {
            return refused(504, "deadline_exceeded").unnamed();
        }
        (Ask::DeadlineOver, _) => return refused(504, "deadline_exceeded"),
        (Ask::OtherTenant, Source::Issued | Source::IssuedEarlier) => {
            return refused(400, "idempotency_key_invalid").unnamed();
        }
        (Ask::Same | Ask::OtherPayload | Ask::OtherTenant, _) => {}
    }
    let other_tenant = case.ask == Ask::OtherTenant;
    match case.state {
        State::StoreDown if choice.on_store_down == OnStoreDown::FailClosed => {
            refused(503, "idempotency_store_unavailable").later()
        }
        // Limits are per tenant, and the other tenant has run nothing yet.
        _ if other_tenant => runs(),
        // The expiry of an issued key counts only while it has no record (S15).
        State::Absent | State::Expired if choice.source == Source::IssuedEarlier => {
            refused(400, "idempotency_key_invalid").unnamed()
        }
        // The store is unreachable, so it is unknown whether there is a record.
        State::StoreDown if choice.source == Source::IssuedEarlier => {
            refused(503, "idempotency_store_unavailable").later()
        }
        State::Absent | State::Expired | State::StoreDown if choice.velocity => {
            refused(429, "velocity_limit_exceeded").later()
        }
        State::Absent | State::Expired | State::StoreDown => runs(),
        _ if case.ask == Ask::OtherPayload => match choice.dialect {
            Dialect::Problem => refused(422, "idempotency_payload_mismatch"),
            Dialect::Stripe => refused(400, "idempotency_payload_mismatch"),
            other => panic!("{other:?}"),
        },
        State::RunningHere | State::RunningElsewhere => match choice.busy {
            Busy::Reject => refused(409, "request_in_progress").later(),
            Busy::Wait => refused(504, "in_progress_timeout").later(),
            Busy::Async => {
                let accepted = Expected { status: 202, code: None, ..refused(202, "") };
                Expected { location: Location::Handle, ..accepted.later() }
            }
        },
        State::Completed => Expected { replayed: true, runs: 0, ..runs() },
        State::NotReplayable => {
            Expected { location: Location::Made, ..refused(410, "response_not_replayable") }
        }
        State::Failed => refused(500, "previous_attempt_failed"),
        State::Released => runs(),
        State::Unknown => match choice.on_unknown {
            OnUnknown::Fail => refused(500, "previous_attempt_failed"),
            OnUnknown::Reconcile => refused(409, "outcome_unknown").later(),
            OnUnknown::Retry | OnUnknown::Rollback => runs(),
        },
    }
}

/// True if the request waits until the route's wait is over.
pub(crate) fn waits(case: &Case) -> bool {
    let expected = expected(case);
    expected.status == 202 || expected.code == Some("in_progress_timeout")
}

fn runs() -> Expected {
    Expected {
        status: 201,
        code: None,
        retry_after: false,
        replayed: false,
        reference: true,
        location: Location::Made,
        runs: 1,
    }
}

fn refused(status: u16, code: &'static str) -> Expected {
    Expected {
        status,
        code: Some(code),
        retry_after: false,
        replayed: false,
        reference: true,
        location: Location::Nowhere,
        runs: 0,
    }
}

impl Expected {
    fn later(self) -> Self {
        Self { retry_after: true, ..self }
    }

    fn unnamed(self) -> Self {
        Self { reference: false, ..self }
    }
}
