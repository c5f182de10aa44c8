//! Circuit breaker for reconciliation services: a hanging service must not use up the time for the
//! others.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use onetake_core::Clock;

/// Number of consecutive timeouts after which a service is paused.
const SILENCES_MAX: u32 = 8;
/// Duration of the pause.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// The recent health of a service.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<Lately>);

#[derive(Debug, Default)]
struct Lately {
    silences: u32,
    left_alone_until: Duration,
}

/// A question in progress. It counts as a timeout if it is dropped before it has finished.
pub(super) struct QuestionTimer<'a> {
    health: &'a Health,
    clock: &'a dyn Clock,
    is_answered: bool,
}

impl Health {
    /// Starts a question; `None` if the service is paused.
    pub(super) fn ask<'a>(&'a self, clock: &'a dyn Clock) -> Option<QuestionTimer<'a>> {
        let is_left_alone = clock.monotonic() < self.lately().left_alone_until;
        (!is_left_alone).then_some(QuestionTimer { health: self, clock, is_answered: false })
    }

    fn lately(&self) -> std::sync::MutexGuard<'_, Lately> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QuestionTimer<'_> {
    /// Notes that the question has finished, with any result. Even a refused connection does not
    /// block others.
    pub(super) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for QuestionTimer<'_> {
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
