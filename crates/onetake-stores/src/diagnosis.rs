//! What `onetake doctor` has to say of a store.

use std::time::Duration;

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// As it should be.
    Fine,
    /// The promise holds, but something about it could be better.
    Weak,
    /// Acknowledged writes can be lost, and the promise with them.
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it weighs.
    pub weight: Weight,
    /// What was seen.
    pub what: String,
    /// What to do about it; empty where there is nothing to do.
    pub fix: String,
}

impl Finding {
    /// Something that is as it should be.
    #[must_use]
    pub fn fine(what: impl Into<String>) -> Self {
        Self { weight: Weight::Fine, what: what.into(), fix: String::new() }
    }

    /// Something that could be better.
    #[must_use]
    pub fn weak(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { weight: Weight::Weak, what: what.into(), fix: fix.into() }
    }

    /// Something that breaks the promise.
    #[must_use]
    pub fn broken(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { weight: Weight::Broken, what: what.into(), fix: fix.into() }
    }
}

/// What was found when a store was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// What answered, with its version.
    pub server: String,
    /// The median of a few round trips.
    pub round_trip: Duration,
    /// How far the server's clock is ahead of this machine's, in microseconds (behind: negative);
    /// `None` where the server has no clock that counts.
    pub clock_ahead_micros: Option<i64>,
    /// What was looked at, the gravest first.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// A diagnosis with its findings in order.
    #[must_use]
    pub fn new(
        server: impl Into<String>,
        round_trip: Duration,
        clock_ahead_micros: Option<i64>,
        mut findings: Vec<Finding>,
    ) -> Self {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
        Self { server: server.into(), round_trip, clock_ahead_micros, findings }
    }

    /// Adds findings, in their order.
    pub fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
    }

    /// The gravest weight of all findings.
    #[must_use]
    pub fn worst(&self) -> Weight {
        self.findings.iter().map(|finding| finding.weight).max().unwrap_or(Weight::Fine)
    }
}
