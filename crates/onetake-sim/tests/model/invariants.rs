//! Check of the short form's models: the state machine keeps its invariants in every reachable
//! state.
#![expect(clippy::expect_used, reason = "tests may panic")]

use onetake_sim::model::{Model, Violation, check, suite};

macro_rules! models {
    ($($test:ident = $name:literal,)*) => {
        $(#[test]
        fn $test() -> Result<(), Violation> {
            holds($name)
        })*

        #[test]
        fn every_model_has_a_test() {
            let tested = [$($name),*];
            for model in suite::short() {
                assert!(tested.contains(&model.name), "{} has no test", model.name);
            }
        }
    };
}

models! {
    two_keys_and_the_first_may_be_retried = "two-keys-retry-fail",
    two_keys_and_the_first_may_not_be_retried = "two-keys-fail-retry",
    one_key_that_may_be_retried = "one-key-retry",
    one_key_that_may_be_retried_for_hours = "one-key-retry-hours",
    one_key_that_may_not_be_retried = "one-key-fail",
    one_key_that_may_not_be_retried_for_hours = "one-key-fail-hours",
    operators_settle = "operators",
    reconcilers_settle = "reconcilers",
    attempts_roll_back = "rollback",
    records_are_forgotten = "forgetting",
    claims_are_lost = "lost-claims",
    the_clock_goes_back = "clock-back",
    the_clock_goes_back_and_records_are_forgotten = "clock-back-forgetting",
    terms_differ_in_retries = "terms-fail-retry",
    terms_differ_in_rollback = "terms-rollback-reconcile",
    all_features_together = "all-features",
}

/// Checks the model of the short form with this name.
fn holds(name: &str) -> Result<(), Violation> {
    let models = suite::short();
    let model = models.iter().find(|model| model.name == name).expect("a model of the short form");
    let found = check(&Model::new(model.config)).inspect_err(|violation| eprintln!("{violation}"));
    let stats = found?;
    eprintln!("{name}: {stats}");
    for (scenario, count) in &stats.scenarios {
        eprintln!("{count:>12} x {}", scenario.name());
    }
    let missing: Vec<_> = stats.missing().collect();
    assert!(missing.is_empty(), "{name}: the bounds are too narrow for {missing:?}");
    Ok(())
}
