//! Grace anew: an owner that could not renew its lease while the store was away gets its whole
//! grace from the moment on at which the store is back.

use std::time::Duration;

use onetake_core::{Record, State, Timestamp};

/// Whether a record runs, and must be left to its owner because the store is only back for this
/// long.
pub(crate) fn must_wait(record: &Record, back_for: Duration) -> bool {
    matches!(record.state, State::Running { .. }) && back_for < record.terms.grace
}

/// The time to tell beside a running record that is left to its owner: one at which it reads as in
/// flight, so that nobody takes its lease for over and asks again at once.
pub(crate) fn while_running(record: &Record, now: Timestamp) -> Timestamp {
    let last = record.abandoned_at().map(|end| end.as_micros().saturating_sub(1));
    now.min(Timestamp::from_micros(last.unwrap_or(u64::MAX)))
}
