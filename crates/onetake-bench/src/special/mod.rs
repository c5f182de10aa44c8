//! The cases that are more than a load on each program in turn.

mod growth;
mod hot_key;
mod idle;
mod sweep;

pub(crate) use growth::growth;
pub(crate) use hot_key::hot_key;
pub(crate) use idle::idle;
pub(crate) use sweep::sweep;

use crate::report::Fact;

fn fact(program: &str, what: &str, value: f64) -> Fact {
    Fact { program: program.to_owned(), what: what.to_owned(), value }
}

/// Returns the median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
