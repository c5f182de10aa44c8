//! The state machine keeps its invariants in every state that can be reached.

use std::time::Duration;

use onetake_core::OnUnknown::{self, Fail, Retry};
use onetake_sim::model::state::{PerKey, Word};
use onetake_sim::model::{Config, Model, Violation, check};

/// With ticks of an hour, records expire an hour after they were settled, or a ttl after they
/// were claimed, whichever is later; with shorter ones, both are the same.
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn two_keys_and_the_first_may_be_retried() -> Result<(), Violation> {
    holds("two keys, retry and fail", wide(Retry, Fail))
}

#[test]
fn two_keys_and_the_first_may_not_be_retried() -> Result<(), Violation> {
    holds("two keys, fail and retry", wide(Fail, Retry))
}

#[test]
fn one_key_that_may_be_retried() -> Result<(), Violation> {
    holds("one key, retry", deep(Retry))
}

#[test]
fn one_key_that_may_be_retried_for_hours() -> Result<(), Violation> {
    holds("one key, retry, hours", hours(deep(Retry)))
}

#[test]
fn one_key_that_may_not_be_retried() -> Result<(), Violation> {
    holds("one key, fail", deep(Fail))
}

#[test]
fn one_key_that_may_not_be_retried_for_hours() -> Result<(), Violation> {
    holds("one key, fail, hours", hours(deep(Fail)))
}

/// Two keys with different terms. Together with the same terms exchanged, it is all that three
/// attempts can do.
fn wide(a: OnUnknown, b: OnUnknown) -> Config {
    let on_unknown = PerKey { a, b };
    Config { on_unknown, ..Config::default() }
}

/// One key alone, for two lives that each end in an unknown outcome: lease, grace and ttl.
fn deep(on_unknown: OnUnknown) -> Config {
    let room = PerKey { a: 3, b: 0 };
    Config { room, ttl: 2, ticks: 8, ..wide(on_unknown, on_unknown) }
}

fn hours(config: Config) -> Config {
    let outcome = Word::Fail;
    Config { tick: HOUR, outcome, ..config }
}

fn holds(name: &str, config: Config) -> Result<(), Violation> {
    let found = check(&Model::new(config)).inspect_err(|violation| eprintln!("{violation}"));
    let stats = found?;
    eprintln!("{name}: {stats}");
    for (sight, count) in &stats.sights {
        eprintln!("{count:>12} x {}", sight.name());
    }
    assert!(!stats.vacuous, "{name}: the bounds are too narrow to mean anything");
    Ok(())
}
