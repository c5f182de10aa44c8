//! What is counted of questions. docs/OPERATIONS.md says what to look at.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, describe_counter, describe_histogram, histogram};
use onetake_core::Clock;
use onetake_http::{Code, Problem};

const TOTAL: &str = "onetake_forward_auth_total";
const SECONDS: &str = "onetake_forward_auth_seconds";

/// Every way to answer, looked up once.
pub(super) struct Counters {
    allowed: Counter,
    refused: Counter,
    unavailable: Counter,
    abandoned: Counter,
    /// The service was not asked: it said so a moment ago.
    pub(super) cached: Counter,
    /// The service was not asked: too many questions wait for it.
    pub(super) overloaded: Counter,
    seconds: Histogram,
}

impl Counters {
    pub(super) fn new() -> Self {
        describe_counter!(TOTAL, "Keyed requests that forward_auth decides about, by its answer.");
        describe_histogram!(SECONDS, "Time of one question to the service of forward_auth.");
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

    /// Begins to count a question. Unless its answer is told, whoever wanted to know it has gone.
    pub(super) fn ask<'a>(&'a self, clock: &'a dyn Clock) -> Asked<'a> {
        Asked { counters: self, clock, from: clock.monotonic(), answer: &self.abandoned }
    }
}

/// A question under way, counted when it ends, however it ends: a client does not hide a service that hangs by
/// being less patient than the gateway.
pub(super) struct Asked<'a> {
    counters: &'a Counters,
    clock: &'a dyn Clock,
    from: Duration,
    answer: &'a Counter,
}

impl Asked<'_> {
    /// It was answered.
    pub(super) fn answered<T>(mut self, answer: &Result<T, Problem>) {
        self.answer = match answer {
            Ok(_) => &self.counters.allowed,
            Err(problem) if problem.code() == Code::AuthUnavailable => &self.counters.unavailable,
            Err(_) => &self.counters.refused,
        };
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.answer.increment(1);
        let took = self.clock.monotonic().saturating_sub(self.from);
        self.counters.seconds.record(took.as_secs_f64());
    }
}
