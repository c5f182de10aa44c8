//! What a caller is told of a running record that is left to its owner, although its lease and grace
//! are over by the clock: an owner that could not renew gets its whole grace anew.

use onetake_core::{Record, Timestamp};

/// The time to tell beside a running record that is left to its owner: one at which it reads as in
/// flight, so that nobody takes its lease for over and asks again at once.
pub(crate) fn while_running(record: &Record, now: Timestamp) -> Timestamp {
    let last = record.abandoned_at().map(|end| end.as_micros().saturating_sub(1));
    now.min(Timestamp::from_micros(last.unwrap_or(u64::MAX)))
}
