//! The results of a run.

use std::time::Duration;

use super::verdict::SideVerdict;

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoReport {
    /// Taps that were planned.
    pub planned: u64,
    /// How long customers tapped.
    pub elapsed: Duration,
    /// True if the run was stopped early. Payments that were in progress then were not finished.
    pub interrupted: bool,
    /// The side where phones reached the payment API directly.
    pub without: Summary,
    /// The side where phones went through the gateway.
    pub with: Summary,
}

/// The results of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The verdict from its ledger.
    pub verdict: SideVerdict,
    /// The requests and responses of its phones.
    pub traffic: PhoneTraffic,
}

/// Requests and responses of phones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhoneTraffic {
    /// Requests that were sent.
    pub requests: u64,
    /// Requests whose response never arrived.
    pub unheard: u64,
    /// Responses that were not a charge.
    pub refused: u64,
    /// Replayed responses that arrived.
    pub replayed: u64,
}

impl DemoReport {
    /// The failures of onetake, one per line; empty if every tap was charged once and answered.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let SideVerdict { doubled, missing, unanswered, .. } = self.with.verdict;
        let mut failures = Vec::new();
        if doubled > 0 {
            failures.push(format!("taps charged twice or more with onetake: {doubled}"));
        }
        if missing > 0 {
            failures.push(format!(
                "responses with a charge that is not in the ledger with onetake: {missing}"
            ));
        }
        // A gateway that refuses everything makes no double charge, but is no help either.
        if unanswered > 0 && !self.interrupted {
            failures.push(format!(
                "taps without a response with onetake after all retries: {unanswered}"
            ));
        }
        failures
    }

    /// Cents that double charges took without onetake and not with it.
    #[must_use]
    pub fn saved_cents(&self) -> u64 {
        let (without, with) = (&self.without.verdict, &self.with.verdict);
        without.overcharged_cents.saturating_sub(with.overcharged_cents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(with: SideVerdict) -> DemoReport {
        let verdict =
            SideVerdict { doubled: 3, overcharged_cents: 4_500, ..SideVerdict::default() };
        DemoReport {
            planned: 10,
            elapsed: Duration::from_secs(1),
            interrupted: false,
            without: Summary { verdict, ..Summary::default() },
            with: Summary { verdict: with, ..Summary::default() },
        }
    }

    #[test]
    fn double_charges_without_onetake_are_not_its_failure() {
        let report = report(SideVerdict::default());
        assert!(report.failures().is_empty());
        assert_eq!(report.saved_cents(), 4_500);
    }

    #[test]
    fn a_double_a_missing_and_an_unanswered_one_are_failures() {
        let bad = [
            SideVerdict { doubled: 1, overcharged_cents: 500, ..SideVerdict::default() },
            SideVerdict { missing: 1, ..SideVerdict::default() },
            SideVerdict { unanswered: 1, ..SideVerdict::default() },
        ];
        for verdict in bad {
            assert_eq!(report(verdict).failures().len(), 1, "{verdict:?}");
        }
        assert_eq!(report(bad[0]).saved_cents(), 4_000);
    }

    #[test]
    fn whoever_stops_it_early_leaves_taps_unanswered() {
        let mut report = report(SideVerdict { unanswered: 2, ..SideVerdict::default() });
        report.interrupted = true;
        assert!(report.failures().is_empty());
    }
}
