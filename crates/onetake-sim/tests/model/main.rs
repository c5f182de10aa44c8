//! Tests of the exhaustive model of a record's life: the short form.

mod deliberate_bugs;
mod invariants;
mod wrong_decisions;
