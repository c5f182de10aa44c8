//! Metrics of `forward_auth`. docs/OPERATIONS.md describes them.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, describe_counter, describe_histogram, histogram};
use onetake_core::Clock;
use onetake_http::{Code, Problem};

const TOTAL: &str = "onetake_forward_auth_total";
const SECONDS: &str = "onetake_forward_auth_seconds";

/// The counters for every answer, looked up once.
pub(super) struct AuthCounters {
    allowed: Counter,
    refused: Counter,
    unavailable: Counter,
    abandoned: Counter,
    /// Answered from the cache.
    pub(super) cached: Counter,
    /// Refused without asking, because too many questions are in progress.
    pub(super) overloaded: Counter,
    seconds: Histogram,
}

impl AuthCounters {
    pub(super) fn new() -> Self {
        describe_counter!(TOTAL, "Keyed requests authorized by forward_auth, by answer.");
        describe_histogram!(SECONDS, "Duration of one request to the forward_auth service.");
        let answer = |answer: &'static str| counter!(TOTAL, "answer" => answer);
        Self {
            allowed: answer("allowed"),
            refused: answer("refused"),
            unavailable: answer("unavailable"),
            abandoned: answer("abandoned"),
            cached: answer("cached"),
            overloaded: answer("overloaded"),
            seconds: histogram!(SECONDS),
        }
    }

    /// Starts to count a question. Unless it is answered, it counts as abandoned: the client has
    /// gone.
    pub(super) fn ask<'a>(&'a self, clock: &'a dyn Clock) -> QuestionTimer<'a> {
        QuestionTimer { counters: self, clock, from: clock.monotonic(), answer: &self.abandoned }
    }
}

/// A question in progress. It is counted in any case when it ends, so a hanging service shows in
/// the metrics even if clients give up before the gateway does.
pub(super) struct QuestionTimer<'a> {
    counters: &'a AuthCounters,
    clock: &'a dyn Clock,
    from: Duration,
    answer: &'a Counter,
}

impl QuestionTimer<'_> {
    /// Notes the answer.
    pub(super) fn answered<T>(mut self, answer: &Result<T, Problem>) {
        self.answer = match answer {
            Ok(_) => &self.counters.allowed,
            Err(problem) if problem.code() == Code::AuthUnavailable => &self.counters.unavailable,
            Err(_) => &self.counters.refused,
        };
    }
}

impl Drop for QuestionTimer<'_> {
    fn drop(&mut self) {
        self.answer.increment(1);
        let took = self.clock.monotonic().saturating_sub(self.from);
        self.counters.seconds.record(took.as_secs_f64());
    }
}
