//! Check that the model finds planted bugs.

use onetake_core::planted::{Bug, plant};
use onetake_sim::model::invariants::Invariant;
use onetake_sim::model::{Model, check, suite};

/// One test, because bugs are planted for the whole process.
#[test]
fn planted_bugs_are_found() {
    let bugs = [
        (Bug::SettleWithoutAttemptCheck, Invariant::S3),
        (Bug::SweepWithoutRecheck, Invariant::S12),
        (Bug::FenceNotRaised, Invariant::S2),
    ];
    let two_keys = |model: &suite::SuiteModel| model.name.starts_with("two-keys");
    for (bug, broken) in bugs {
        for model in suite::short().into_iter().filter(two_keys) {
            plant(Some(bug));
            let found = check(&Model::new(model.config));
            plant(None);
            let violation = found.expect_err("a planted bug");
            eprintln!("{bug:?} breaks {violation}");
            assert!(violation.breaks(broken), "{bug:?} must break {broken:?}: {violation}");
        }
    }
}
