//! The model finds the bugs that are planted for it.

use onetake_core::OnUnknown::{Fail, Retry};
use onetake_core::planted::{Bug, plant};
use onetake_sim::model::properties::Invariant;
use onetake_sim::model::state::PerKey;
use onetake_sim::model::{Config, Model, check};

/// One test, because bugs are planted for the whole process.
#[test]
fn planted_bugs_are_found() {
    let table = [
        (Bug::SettleWithoutAttemptCheck, Invariant::S3),
        (Bug::SweepWithoutRecheck, Invariant::S12),
        (Bug::FenceNotRaised, Invariant::S2),
    ];
    for (bug, broken) in table {
        for on_unknown in [PerKey { a: Retry, b: Fail }, PerKey { a: Fail, b: Retry }] {
            plant(Some(bug));
            let found = check(&Model::new(Config { on_unknown, ..Config::default() }));
            plant(None);
            let violation = found.expect_err("a planted bug");
            eprintln!("{bug:?} breaks {violation}");
            assert!(violation.breaks(broken), "{bug:?} must break {broken:?}: {violation}");
        }
    }
}
