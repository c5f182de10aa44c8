//! The result of `onetake doctor` for a store.

use std::time::Duration;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The setting is correct.
    Fine,
    /// No operation is lost or repeated, but the setting could be better.
    Weak,
    /// Acknowledged writes can be lost, so operations can be lost or repeated.
    Broken,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub weight: Weight,
    /// The observation.
    pub what: String,
    /// The remedy; empty if there is nothing to do.
    pub fix: String,
}

impl Finding {
    /// A finding that is correct.
    #[must_use]
    pub fn fine(what: impl Into<String>) -> Self {
        Self { weight: Weight::Fine, what: what.into(), fix: String::new() }
    }

    /// A finding that could be better.
    #[must_use]
    pub fn weak(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { weight: Weight::Weak, what: what.into(), fix: fix.into() }
    }

    /// A finding by which operations can be lost or repeated.
    #[must_use]
    pub fn broken(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { weight: Weight::Broken, what: what.into(), fix: fix.into() }
    }
}

/// The result of all checks of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The server's name and version.
    pub server: String,
    /// The median of a few round trips.
    pub round_trip: Duration,
    /// The lead of the server's clock over this machine's clock, in microseconds; negative if the
    /// server is behind. `None` if the server's clock is not used.
    pub clock_ahead_micros: Option<i64>,
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Creates a diagnosis and sorts its findings.
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

    /// Adds findings and sorts all of them again.
    pub fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
    }

    /// The highest severity of all findings.
    #[must_use]
    pub fn worst(&self) -> Weight {
        self.findings.iter().map(|finding| finding.weight).max().unwrap_or(Weight::Fine)
    }
}
