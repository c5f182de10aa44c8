//! The model finds the bugs of a [`BuggyStore`](onetake_conformance::BuggyStore) in its own
//! decision functions.

use onetake_conformance::StoreBug;
use onetake_core::decide::{ClaimEffect, SettleEffect};
use onetake_core::{Claim, Fence, Record, Settlement, State, Timestamp, Transition};
use onetake_sim::model::invariants::Invariant;
use onetake_sim::model::{Decisions, Model, check, decisions, suite};

/// Settles whichever attempt owns the record, and completes a record that is final.
fn settle_without_attempt_check(
    found: Option<&Record>,
    settlement: &Settlement,
    now: Timestamp,
) -> SettleEffect {
    let Some(record) = found else { return SettleEffect::Stale };
    let own = Settlement { attempt: record.attempt, ..settlement.clone() };
    match (decisions::settle(found, &own, now), &settlement.transition) {
        (SettleEffect::Stale, Transition::Complete(recording)) if !record.is_expired(now) => {
            let recording = recording.clone();
            SettleEffect::Write(record.with_state(State::Completed { at: now, recording }))
        }
        (effect, _) => effect,
    }
}

/// Grants an attempt with the fence of the one before.
fn claim_without_raising_fence(
    found: Option<&Record>,
    claim: &Claim,
    now: Timestamp,
    floor: Fence,
) -> ClaimEffect {
    match (decisions::claim(found, claim, now, floor), found) {
        (ClaimEffect::Grant(record), Some(before)) => {
            ClaimEffect::Grant(Record { fence: before.fence, ..record })
        }
        (effect, _) => effect,
    }
}

#[test]
fn bugs_are_found() {
    let right = Decisions::default();
    let bugs = [
        (
            StoreBug::SettleWithoutAttemptCheck,
            Decisions { settle: settle_without_attempt_check, ..right },
            Invariant::S3,
        ),
        (
            StoreBug::SweepWithoutRecheck,
            Decisions { may_sweep: |_, _| true, ..right },
            Invariant::S12,
        ),
        (
            StoreBug::FenceNotRaised,
            Decisions { claim: claim_without_raising_fence, ..right },
            Invariant::S2,
        ),
    ];
    let two_keys = |model: &suite::SuiteModel| model.name.starts_with("two-keys");
    for (bug, decisions, broken) in bugs {
        for model in suite::short().into_iter().filter(two_keys) {
            let found = check(&Model::with_decisions(model.config, decisions));
            let violation = found.expect_err("the bug breaks an invariant");
            eprintln!("{bug:?} breaks {violation}");
            assert!(violation.breaks(broken), "{bug:?} must break {broken:?}: {violation}");
        }
    }
}
