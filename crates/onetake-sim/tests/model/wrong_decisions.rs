//! Check of the models with wrong decisions: each mutant of the decision functions breaks an
//! invariant.
#![expect(clippy::expect_used, reason = "tests may panic")]

use std::time::Duration;

use onetake_core::decide::{ClaimEffect, Reading, SettleEffect};
use onetake_core::{
    Cause, Claim, Fence, Fingerprint, Record, Settlement, State, Terms, Timestamp, Transition,
};
use onetake_sim::model::decisions as decide;
use onetake_sim::model::invariants::Invariant;
use onetake_sim::model::{Decisions, Model, check, suite};

type Settle = fn(Option<&Record>, &Settlement, Timestamp) -> SettleEffect;
type DecideClaim = fn(Option<&Record>, &Claim, Timestamp, Fence) -> ClaimEffect;

/// Checks that the short form's model of this name finds `decisions`, and that they break one of
/// `invariants`. The checker stops at the first violation, and its threads race for it.
fn finds(name: &str, decisions: Decisions, invariants: &[Invariant]) {
    let models = suite::short();
    let model = models.iter().find(|model| model.name == name).expect("a model of the short form");
    let found = check(&Model::with_decisions(model.config, decisions));
    let violation = found.expect_err("the mutant breaks an invariant");
    eprintln!("{name}: {violation}");
    let is_expected = invariants.iter().any(|invariant| violation.breaks(*invariant));
    assert!(is_expected, "it must break one of {invariants:?}: {violation}");
}

fn finds_settle(name: &str, settle: Settle, invariants: &[Invariant]) {
    finds(name, Decisions { settle, ..Decisions::default() }, invariants);
}

fn finds_claim(name: &str, claim: DecideClaim, invariants: &[Invariant]) {
    finds(name, Decisions { claim, ..Decisions::default() }, invariants);
}

/// Returns the record, if it is alive and the settled attempt owns it.
fn own<'a>(
    found: Option<&'a Record>,
    settlement: &Settlement,
    now: Timestamp,
) -> Option<&'a Record> {
    found.filter(|record| !record.is_expired(now) && record.attempt == settlement.attempt)
}

/// Changes the record that a settlement writes.
fn rewritten(effect: SettleEffect, change: impl FnOnce(Record) -> Record) -> SettleEffect {
    match effect {
        SettleEffect::Write(record) => SettleEffect::Write(change(record)),
        effect => effect,
    }
}

#[test]
fn operators_a_released_attempt_is_completed() {
    finds_settle(
        "operators",
        |found, settlement, now| match (own(found, settlement, now), &settlement.transition) {
            (Some(record), Transition::Complete(recording))
                if matches!(record.state, State::Released { .. }) =>
            {
                let recording = recording.clone();
                SettleEffect::Write(record.with_state(State::Completed { at: now, recording }))
            }
            _ => decide::settle(found, settlement, now),
        },
        &[Invariant::StateMachine],
    );
}

#[test]
fn operators_another_outcome_counts_as_done() {
    finds_settle("operators", another_outcome_counts_as_done, &[Invariant::Believed]);
}

#[test]
fn reconcilers_another_outcome_counts_as_done() {
    finds_settle("reconcilers", another_outcome_counts_as_done, &[Invariant::S4]);
}

fn another_outcome_counts_as_done(
    found: Option<&Record>,
    settlement: &Settlement,
    now: Timestamp,
) -> SettleEffect {
    match (own(found, settlement, now).map(|record| &record.state), &settlement.transition) {
        (Some(State::Completed { .. }), Transition::Complete(_)) => SettleEffect::Already,
        _ => decide::settle(found, settlement, now),
    }
}

#[test]
fn reconcilers_two_take_the_same_turn() {
    finds_settle(
        "reconcilers",
        |found, settlement, now| match (own(found, settlement, now), &settlement.transition) {
            (Some(record), Transition::PostponeReconcile(hold)) if record.ask_at().is_some() => {
                SettleEffect::Write(record.with_state(State::Unknown {
                    at: match record.state {
                        State::Unknown { at, .. } => at,
                        _ => now,
                    },
                    cause: Cause::LeaseEnded,
                    ask_at: now.plus(*hold),
                }))
            }
            _ => decide::settle(found, settlement, now),
        },
        &[Invariant::OneAsker],
    );
}

#[test]
fn reconcilers_a_deferral_prolongs_the_life_of_a_record() {
    finds_settle(
        "reconcilers",
        |found, settlement, now| {
            let defers = matches!(settlement.transition, Transition::PostponeReconcile(_));
            rewritten(decide::settle(found, settlement, now), |record| match record.state {
                State::Unknown { ref cause, ask_at, .. } if defers => {
                    record.with_state(State::Unknown { at: now, cause: cause.clone(), ask_at })
                }
                _ => record,
            })
        },
        &[Invariant::S12],
    );
}

/// Under `Reconcile`, an attempt that lost its lease is released although it may have had an
/// effect.
#[test]
fn release_after_an_effect() {
    finds_settle(
        "reconcilers",
        |found, settlement, now| {
            let passes_over =
                matches!(settlement.transition, Transition::ExpireLease | Transition::Unknown(_));
            rewritten(decide::settle(found, settlement, now), |record| {
                if passes_over { record.with_state(State::Released { at: now }) } else { record }
            })
        },
        &[Invariant::S16],
    );
}

#[test]
fn rollback_becomes_unknown() {
    finds_settle(
        "rollback",
        |found, settlement, now| {
            let passes_over =
                matches!(settlement.transition, Transition::ExpireLease | Transition::Unknown(_));
            rewritten(decide::settle(found, settlement, now), |record| {
                let cause = Cause::LeaseEnded;
                let unknown = State::Unknown { at: now, cause, ask_at: now };
                if passes_over { record.with_state(unknown) } else { record }
            })
        },
        &[Invariant::RollbackIsKnown],
    );
}

#[test]
fn rollback_refuses_the_second_report() {
    finds_settle(
        "rollback",
        |found, settlement, now| match (
            decide::settle(found, settlement, now),
            &settlement.transition,
        ) {
            (SettleEffect::Already, Transition::Unknown(_)) => SettleEffect::Stale,
            (effect, _) => effect,
        },
        &[Invariant::Believed],
    );
}

#[test]
fn rollback_commits_after_it_was_released() {
    finds_settle(
        "rollback",
        |found, settlement, now| match (own(found, settlement, now), &settlement.transition) {
            (Some(record), Transition::Complete(recording))
                if matches!(record.state, State::Released { .. }) =>
            {
                let recording = recording.clone();
                SettleEffect::Write(record.with_state(State::Completed { at: now, recording }))
            }
            _ => decide::settle(found, settlement, now),
        },
        &[Invariant::StateMachine],
    );
}

#[test]
fn forgetting_a_running_key() {
    finds_settle(
        "forgetting",
        |found, settlement, now| match own(found, settlement, now) {
            Some(record) if settlement.transition == Transition::Forget => {
                let terms = Terms { ttl: Duration::ZERO, ..record.terms };
                let released = record.with_state(State::Released { at: now });
                SettleEffect::Write(Record { terms, ..released })
            }
            _ => decide::settle(found, settlement, now),
        },
        &[Invariant::S20],
    );
}

#[test]
fn forgetting_leaves_a_record_that_is_alive() {
    finds_settle(
        "forgetting",
        |found, settlement, now| {
            let terms = found.map(|record| record.terms);
            rewritten(decide::settle(found, settlement, now), |record| Record {
                terms: terms.unwrap_or(record.terms),
                ..record
            })
        },
        &[Invariant::ForgottenIsAbsent],
    );
}

#[test]
fn forgetting_keeps_the_outcome() {
    finds_settle(
        "forgetting",
        |found, settlement, now| {
            let state = found.map(|record| record.state.clone());
            rewritten(decide::settle(found, settlement, now), |record| match state {
                Some(state) if settlement.transition == Transition::Forget => {
                    record.with_state(state)
                }
                _ => record,
            })
        },
        &[Invariant::Believed],
    );
}

#[test]
fn clock_back_a_forgotten_record_is_not_absent() {
    finds_settle(
        "clock-back-forgetting",
        |found, settlement, now| {
            let created_at = found.map(|record| record.created_at);
            rewritten(decide::settle(found, settlement, now), |record| Record {
                created_at: created_at.unwrap_or(record.created_at),
                ..record
            })
        },
        &[Invariant::ForgottenIsAbsent],
    );
}

#[test]
fn clock_back_a_renewal_never_shortens_a_lease() {
    finds_settle(
        "clock-back",
        |found, settlement, now| {
            let before = found.map(|record| record.state.clone());
            rewritten(decide::settle(found, settlement, now), |record| {
                match (&before, &record.state) {
                    (
                        Some(State::Running { lease_until: old }),
                        State::Running { lease_until: new },
                    ) => record.with_state(State::Running { lease_until: *old.max(new) }),
                    _ => record,
                }
            })
        },
        &[Invariant::Believed, Invariant::StateMachine],
    );
}

#[test]
fn clock_back_a_grant_shortens_the_life_of_a_record() {
    finds_claim(
        "clock-back",
        |found, claim, now, floor| match decide::claim(found, claim, now, floor) {
            ClaimEffect::Grant(record) => {
                ClaimEffect::Grant(Record { created_at: record.created_at.min(now), ..record })
            }
            effect => effect,
        },
        &[Invariant::S9, Invariant::StateMachine],
    );
}

/// Only older attempts are refused: an attempt whose claim has not arrived yet counts as the owner.
#[test]
fn lost_claims_a_newer_attempt_settles() {
    finds_settle(
        "lost-claims",
        |found, settlement, now| match found {
            Some(record) if record.attempt < settlement.attempt => {
                let settlement = Settlement { attempt: record.attempt, ..settlement.clone() };
                decide::settle(found, &settlement, now)
            }
            _ => decide::settle(found, settlement, now),
        },
        &[Invariant::S3],
    );
}

#[test]
fn terms_of_the_claim_decide_instead_of_the_terms_of_the_record() {
    finds_claim(
        "terms-fail-retry",
        |found, claim, now, floor| match decide::read(found, &claim.fingerprint, now) {
            Reading::Unknown if claim.terms.on_unknown.runs_again() => {
                let released = found.map(|record| record.with_state(State::Released { at: now }));
                decide::claim(released.as_ref(), claim, now, floor)
            }
            _ => decide::claim(found, claim, now, floor),
        },
        &[Invariant::S12, Invariant::StateMachine],
    );
}

#[test]
fn terms_of_the_first_claim_rule_for_ever() {
    finds_claim(
        "terms-fail-retry",
        |found, claim, now, floor| match decide::claim(found, claim, now, floor) {
            ClaimEffect::Grant(record) => {
                let earlier = found.filter(|record| !record.is_expired(now));
                let terms = earlier.map_or(record.terms, |record| record.terms);
                ClaimEffect::Grant(Record { terms, ..record })
            }
            effect => effect,
        },
        &[Invariant::S1, Invariant::S9, Invariant::S12, Invariant::StateMachine],
    );
}

#[test]
fn a_released_key_is_never_granted_again() {
    fn read(found: Option<&Record>, fingerprint: &Fingerprint, now: Timestamp) -> Reading {
        match found.map(|record| &record.state) {
            Some(State::Released { .. }) => Reading::InFlight,
            _ => decide::read(found, fingerprint, now),
        }
    }
    finds("operators", Decisions { read, ..Decisions::default() }, &[Invariant::StateMachine]);
}

/// An attempt that is not to be reconciled is postponed.
#[test]
fn reconcilers_defer_under_any_policy() {
    finds_settle(
        "terms-fail-retry",
        |found, settlement, now| match (own(found, settlement, now), &settlement.transition) {
            (Some(record), Transition::PostponeReconcile(hold)) => match &record.state {
                State::Unknown { at, cause, .. } => {
                    let (at, cause, ask_at) = (*at, cause.clone(), now.plus(*hold));
                    SettleEffect::Write(record.with_state(State::Unknown { at, cause, ask_at }))
                }
                _ => SettleEffect::Stale,
            },
            _ => decide::settle(found, settlement, now),
        },
        &[Invariant::OneAsker],
    );
}
