//! Checks, verdicts, and the report as a table or as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

/// A property of an idempotent API.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// The name, as for `--skip`.
    pub(super) name: &'static str,
    /// The rule.
    pub(super) rule: &'static str,
}

const fn check(name: &'static str, rule: &'static str) -> Check {
    Check { name, rule }
}

pub(super) const FIRST_REQUEST: Check = check("first-request", "a first request with a key runs");
pub(super) const NEW_KEY: Check = check("new-key", "the same body under another key runs");
pub(super) const RETRY_RUNS: Check = check("retry-runs-nothing", "a retry runs nothing");
pub(super) const RETRY_RESPONSE: Check =
    check("retry-same-response", "a retry gets the status and the body of the first response");
pub(super) const RETRY_HEADERS: Check =
    check("retry-same-headers", "a retry gets the headers of the first response");
pub(super) const RETRY_ERROR: Check =
    check("retry-of-error", "a retry of a failed operation gets a definite answer");
pub(super) const OTHER_BODY: Check =
    check("other-body", "another body under a known key is refused");
pub(super) const OTHER_URL: Check =
    check("other-url", "another operation under a known key does not get the first response");
pub(super) const OTHER_CREDENTIAL: Check =
    check("other-credential", "the key of one client does not affect another client");
pub(super) const QUOTED: Check = check("quoted-and-bare", "a quoted and a bare key are one key");
pub(super) const JOINED_SAME: Check =
    check("joined-same", "a key that a proxy repeated (`A, A`) does not run again");
pub(super) const JOINED_OTHER: Check =
    check("joined-other", "two keys joined by a comma (`A,B`) are refused");
pub(super) const MISSING: Check = check("missing-key", "a request without a key is refused");
pub(super) const MALFORMED: Check = check("malformed-key", "a malformed key is refused");
pub(super) const AT_ONCE: Check = check("at-once", "of many requests at once, one runs");
pub(super) const HANG_UP: Check =
    check("hang-up", "a client that hangs up and retries gets one run and its response");
pub(super) const IN_FLIGHT: Check =
    check("in-flight", "a retry in flight runs nothing: it is refused, or waits");
pub(super) const DRAFT_STRING: Check =
    check("draft-string", "IETF draft: a key can be a structured-field string");
pub(super) const DRAFT_MISSING: Check =
    check("draft-missing", "IETF draft: a missing key is 400, with a link to the documentation");
pub(super) const DRAFT_OTHER_BODY: Check =
    check("draft-other-body", "IETF draft: another body is 422, with a link to the documentation");
pub(super) const DRAFT_IN_FLIGHT: Check =
    check("draft-in-flight", "IETF draft: a retry in flight is 409, with a problem description");

/// All checks, in the order of the report.
pub(super) const CHECKS: [&Check; 21] = [
    &FIRST_REQUEST,
    &NEW_KEY,
    &RETRY_RUNS,
    &RETRY_RESPONSE,
    &RETRY_HEADERS,
    &RETRY_ERROR,
    &OTHER_BODY,
    &OTHER_URL,
    &OTHER_CREDENTIAL,
    &QUOTED,
    &JOINED_SAME,
    &JOINED_OTHER,
    &MISSING,
    &MALFORMED,
    &AT_ONCE,
    &HANG_UP,
    &IN_FLIGHT,
    &DRAFT_STRING,
    &DRAFT_MISSING,
    &DRAFT_OTHER_BODY,
    &DRAFT_IN_FLIGHT,
];

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The rule held.
    Pass,
    /// The rule was broken.
    Fail,
    /// The probe could not tell.
    NotShown,
}

impl Verdict {
    /// The verdict as a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotShown => "not shown",
        }
    }
}

/// A verdict and its evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) check: &'static Check,
    pub(super) verdict: Verdict,
    pub(super) evidence: String,
}

impl Check {
    pub(super) fn pass(&'static self, evidence: impl Into<String>) -> Finding {
        Finding { check: self, verdict: Verdict::Pass, evidence: evidence.into() }
    }

    pub(super) fn fail(&'static self, evidence: impl Into<String>) -> Finding {
        Finding { check: self, verdict: Verdict::Fail, evidence: evidence.into() }
    }

    pub(super) fn not_shown(&'static self, evidence: impl Into<String>) -> Finding {
        Finding { check: self, verdict: Verdict::NotShown, evidence: evidence.into() }
    }
}

/// The findings of one run.
#[derive(Debug)]
pub(super) struct Report {
    /// The method and the URL.
    pub(super) target: String,
    /// One finding for each check, in the order of [`CHECKS`].
    pub(super) findings: Vec<Finding>,
    pub(super) requests: usize,
    pub(super) took: Duration,
}

impl Report {
    /// The number of findings with a verdict.
    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    /// The report as a table.
    pub(super) fn table(&self) -> String {
        let mut out = format!("{}\n\n", self.target);
        for Finding { check, verdict, evidence } in &self.findings {
            // Writing to a string cannot fail.
            let _infallible =
                writeln!(out, "{:<11}{:<20}{}", verdict.word(), check.name, check.rule);
            let _infallible = writeln!(out, "{:<31}→ {evidence}", "");
        }
        let _infallible = writeln!(
            out,
            "\n{} passed, {} failed, {} not shown; {} requests in {:.1} s",
            self.count(Verdict::Pass),
            self.count(Verdict::Fail),
            self.count(Verdict::NotShown),
            self.requests,
            self.took.as_secs_f64()
        );
        out
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> Value {
        let checks = self.findings.iter().map(|Finding { check, verdict, evidence }| {
            let verdict = verdict.word().replace(' ', "_");
            json!({ "name": check.name, "rule": check.rule, "verdict": verdict, "evidence": evidence })
        });
        json!({
            "target": self.target,
            "passed": self.count(Verdict::Pass),
            "failed": self.count(Verdict::Fail),
            "not_shown": self.count(Verdict::NotShown),
            "requests": self.requests,
            "seconds": self.took.as_secs_f64(),
            "checks": checks.collect::<Vec<_>>(),
        })
    }
}
