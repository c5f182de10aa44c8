//! Log lines about failures that repeat.

use std::time::Duration;

/// The time between two log lines about the same failure.
const REPORT_PAUSE: Duration = Duration::from_secs(60);

/// Failures of one kind, which have one log line a minute together.
#[derive(Debug, Default)]
pub(super) struct RepeatedFailure {
    next_line_at: Duration,
    failures: u64,
}

impl RepeatedFailure {
    /// Counts a failure at this monotonic time. If a log line is due now, it returns the number of
    /// failures since the last line, this one included.
    pub(super) fn count(&mut self, now: Duration) -> Option<u64> {
        self.failures = self.failures.saturating_add(1);
        if now < self.next_line_at {
            return None;
        }
        self.next_line_at = now.saturating_add(REPORT_PAUSE);
        Some(std::mem::take(&mut self.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_one_line_a_minute_with_their_number() {
        let mut failure = RepeatedFailure::default();
        let at = |millis| Duration::from_millis(millis);
        assert_eq!(failure.count(at(5_000)), Some(1), "the first one is told at once");
        assert_eq!(failure.count(at(5_000)), None);
        assert_eq!(failure.count(at(64_999)), None);
        assert_eq!(failure.count(at(65_000)), Some(3));
        assert_eq!(failure.count(at(65_001)), None);
        assert_eq!(failure.count(at(900_000)), Some(2));
    }
}
