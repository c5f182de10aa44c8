//! The grace of leases after failed writes, for stores inside the owner's process.

use std::time::Duration;

use onetake_core::Clock;
use onetake_core::decide::{self, Moment};

/// The time since which writes succeed. During a failure no owner can renew its lease, so every
/// owner gets its whole grace again afterwards. A process that just opened the file cannot know how
/// long the file was unusable before (a full disk, a machine that was down), so it counts from its
/// start.
#[derive(Debug)]
pub(crate) struct WriteContact {
    failing: bool,
    back_since: Duration,
}

impl WriteContact {
    /// Contact that begins now, by the monotonic clock.
    pub(crate) fn new(monotonic: Duration) -> Self {
        Self { failing: false, back_since: monotonic }
    }

    /// Notes whether a write succeeded.
    pub(crate) fn entry(&mut self, worked: bool, monotonic: Duration) {
        if worked && self.failing {
            self.back_since = monotonic;
        }
        self.failing = !worked;
    }

    fn back_for(&self, monotonic: Duration) -> Duration {
        if self.failing {
            return Duration::ZERO;
        }
        monotonic.saturating_sub(self.back_since)
    }

    /// Returns the moment of a decision that is made now.
    pub(crate) fn moment(&self, clock: &dyn Clock) -> Moment {
        let contact = decide::Contact::For(self.back_for(clock.monotonic()));
        Moment { now: clock.now(), contact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_is_counted_anew_after_a_failure() {
        let seconds = Duration::from_secs;
        let mut contact = WriteContact::new(seconds(1));
        contact.entry(true, seconds(2));
        assert_eq!(contact.back_for(seconds(2)), seconds(1), "counted from the start");
        contact.entry(false, seconds(3));
        assert_eq!(contact.back_for(seconds(9)), Duration::ZERO);
        contact.entry(true, seconds(10));
        contact.entry(true, seconds(11));
        assert_eq!(contact.back_for(seconds(12)), seconds(2));
    }
}
