//! Whether a service answers at all: one that hangs must not take the time of all others.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use onetake_core::Clock;

/// After so many asks in a row without an answer a service is left alone for a while.
const SILENCES_MAX: u32 = 8;
/// For how long.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// How a service has answered lately.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    silences: u32,
    left_alone_until: Duration,
}

/// An ask that counts as unanswered if it is dropped before it came to an end.
pub(super) struct Ask<'a> {
    health: &'a Health,
    clock: &'a dyn Clock,
    is_answered: bool,
}

impl Health {
    /// Begins an ask; `None` if the service is left alone now.
    pub(super) fn ask<'a>(&'a self, clock: &'a dyn Clock) -> Option<Ask<'a>> {
        let is_left_alone = clock.monotonic() < self.lately().left_alone_until;
        (!is_left_alone).then_some(Ask { health: self, clock, is_answered: false })
    }

    fn lately(&self) -> std::sync::MutexGuard<'_, Lately> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ask<'_> {
    /// It came to an end, whatever it was: also a connection that is refused takes nobody's time.
    pub(super) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Ask<'_> {
    fn drop(&mut self) {
        let mut lately = self.health.lately();
        if self.is_answered {
            *lately = Lately::default();
            return;
        }
        lately.silences = lately.silences.saturating_add(1);
        if lately.silences >= SILENCES_MAX {
            lately.left_alone_until = self.clock.monotonic().saturating_add(LEFT_ALONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::ManualClock;

    #[test]
    fn one_that_never_answers_is_left_alone_for_a_while() {
        let (health, clock) = (Health::default(), ManualClock::default());
        for _ in 0..SILENCES_MAX {
            drop(health.ask(&clock).expect("it is asked"));
        }
        assert!(health.ask(&clock).is_none());
        clock.advance(LEFT_ALONE);
        drop(health.ask(&clock).expect("once more"));
        assert!(health.ask(&clock).is_none(), "it still does not answer");
        clock.advance(LEFT_ALONE);
        health.ask(&clock).expect("once more").answered();
        for _ in 1..SILENCES_MAX {
            drop(health.ask(&clock).expect("a few silences are no matter"));
        }
        assert!(health.ask(&clock).is_some());
    }
}
