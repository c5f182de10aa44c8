//! Checks the models of a record's life, and prints the figures of each.
//!
//! `onetake-model [--long] [NAME…]` checks the models of the short or of the long form, or only
//! those whose names are given.

use std::process::ExitCode;

use onetake_core::{Clock as _, SystemClock};
use onetake_sim::model::suite::{self, SuiteModel};
use onetake_sim::model::{Model, check};

fn main() -> ExitCode {
    let (options, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    let is_long = options.iter().any(|option| option == "--long");
    let is_verbose = options.iter().any(|option| option == "--scenarios");
    let unknown = options.iter().find(|option| !["--long", "--scenarios"].contains(&&***option));
    let models = if is_long { suite::long() } else { suite::short() };
    let is_wanted =
        |model: &SuiteModel| names.is_empty() || names.iter().any(|name| name == model.name);
    let wanted: Vec<_> = models.iter().filter(|model| is_wanted(model)).collect();
    if unknown.is_some() || (!names.is_empty() && wanted.len() != names.len()) {
        eprintln!("usage: onetake-model [--long] [--scenarios] [NAME...]; names:");
        models.iter().for_each(|model| eprintln!("  {}", model.name));
        return ExitCode::from(2);
    }

    let began = SystemClock.monotonic();
    let (mut states, mut steps) = (0, 0);
    let mut failed = false;
    for model in &wanted {
        match check(&Model::new(model.config)) {
            Ok(stats) => {
                println!("{:<28} {stats}", model.name);
                states += stats.states;
                steps += stats.steps;
                for (scenario, count) in stats.scenarios.iter().filter(|_| is_verbose) {
                    println!("{count:>14} x {}", scenario.name());
                }
                for scenario in stats.missing() {
                    println!("  never occurred: {}", scenario.name());
                    failed = true;
                }
            }
            Err(violation) => {
                println!("{:<28} BROKEN: {violation}", model.name);
                failed = true;
            }
        }
    }
    let seconds = SystemClock.monotonic().saturating_sub(began).as_secs_f64();
    println!("{} models, {states} states, {steps} steps, {seconds:.1} s", wanted.len());
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
