//! The numbers and words by which columns and parameters hold states, rules, transitions and causes, and the
//! other constants that SQL shares with Rust.
//!
//! The functions in the database get them as placeholders, such as `{{RUNNING}}`: see
//! [`PLACEHOLDERS`]. They are in tables and in migrations that were released, so none of them may
//! change.

use onetake_core::OnUnknown;
use onetake_core::outbox::LANES;

use super::finish::{SAVEPOINT_SQLSTATE, STALE_SQLSTATE};
use crate::{outbox_codes, state_names};

/// The state of a running record, for statements that are made of literals.
macro_rules! running {
    () => {
        0
    };
}

/// The kind of a row with the current record of an item that was not done, for statements that are
/// made of literals.
macro_rules! row_stands {
    () => {
        1
    };
}

/// The longest time from reading the clock to the first write of a claim whose time the mark of the
/// watch covers, in microseconds, for statements that are made of literals: see `version_2.sql`.
macro_rules! watch_margin {
    () => {
        3_000_000
    };
}

pub(super) use {row_stands, running, watch_margin};

/// See [`watch_margin`].
const WATCH_MARGIN: i64 = watch_margin!();

// The column `state`.
pub(super) const RUNNING: i64 = running!();
pub(super) const COMPLETED: i64 = 1;
pub(super) const FAILED: i64 = 2;
pub(super) const RELEASED: i64 = 3;
pub(super) const UNKNOWN: i64 = 4;

/// The transitions, as the parameter `verbs` of the function that settles.
pub(super) mod transition {
    pub(crate) const RENEW: i16 = 0;
    pub(crate) const COMPLETE: i16 = 1;
    pub(crate) const FAIL: i16 = 2;
    pub(crate) const RELEASE: i16 = 3;
    pub(crate) const UNKNOWN: i16 = 4;
    pub(crate) const EXPIRE_LEASE: i16 = 5;
    pub(crate) const FORGET: i16 = 6;
    pub(crate) const POSTPONE_RECONCILE: i16 = 7;
}

/// The behaviour towards locked rows, as the parameter `manner` of the function that claims.
pub(super) mod lock {
    pub(crate) const QUICK: i16 = 0;
    pub(crate) const TOGETHER: i16 = 1;
    pub(crate) const ALONE: i16 = 2;
}

/// The kinds of rows in answers.
pub(super) mod row {
    pub(crate) const DONE: i16 = 0;
    pub(crate) const STANDS: i16 = row_stands!();
    pub(crate) const ALL_DONE: i16 = 2;
}

// The function that settles writes these transitions as the state that they lead to.
const _: () = assert!(
    transition::COMPLETE as i64 == COMPLETED
        && transition::FAIL as i64 == FAILED
        && transition::RELEASE as i64 == RELEASED
        && transition::UNKNOWN as i64 == UNKNOWN
);

// The causes of unknown outcomes in the column `code`.
pub(super) const LEASE_ENDED: &str = "lease_ended";
pub(super) const RESTARTED: &str = "restarted";
pub(super) const INTERRUPTED: &str = "interrupted";
pub(super) const TIMED_OUT: &str = "timed_out";
pub(super) const STATUS: &str = "status";
pub(super) const REPORTED: &str = "reported";

/// Returns the number of a rule. The rules that run a key again have the highest numbers: the
/// functions compare with [`OnUnknown::Retry`].
pub(super) const fn on_unknown(rule: OnUnknown) -> i16 {
    match rule {
        OnUnknown::Fail => 0,
        OnUnknown::Reconcile => 1,
        OnUnknown::Retry => 2,
        OnUnknown::Rollback => 3,
    }
}

/// Returns the rule of a number, or `None` for a number that onetake did not write.
pub(super) fn read_on_unknown(number: i64) -> Option<OnUnknown> {
    [OnUnknown::Fail, OnUnknown::Reconcile, OnUnknown::Retry, OnUnknown::Rollback]
        .into_iter()
        .find(|rule| i64::from(on_unknown(*rule)) == number)
}

/// A value of a placeholder in SQL.
pub(super) enum Code {
    Number(i64),
    Word(&'static str),
}

/// The placeholders in the files of SQL, and their values.
pub(super) const PLACEHOLDERS: [(&str, Code); 40] = [
    ("{{RUNNING}}", Code::Number(RUNNING)),
    ("{{COMPLETED}}", Code::Number(COMPLETED)),
    ("{{FAILED}}", Code::Number(FAILED)),
    ("{{RELEASED}}", Code::Number(RELEASED)),
    ("{{UNKNOWN}}", Code::Number(UNKNOWN)),
    ("{{RUNNING_NAME}}", Code::Word(state_names::RUNNING)),
    ("{{COMPLETED_NAME}}", Code::Word(state_names::COMPLETED)),
    ("{{FAILED_NAME}}", Code::Word(state_names::FAILED)),
    ("{{RELEASED_NAME}}", Code::Word(state_names::RELEASED)),
    ("{{UNKNOWN_NAME}}", Code::Word(state_names::UNKNOWN)),
    ("{{ON_UNKNOWN_FAIL}}", Code::Number(on_unknown(OnUnknown::Fail) as i64)),
    ("{{ON_UNKNOWN_RECONCILE}}", Code::Number(on_unknown(OnUnknown::Reconcile) as i64)),
    ("{{ON_UNKNOWN_RETRY}}", Code::Number(on_unknown(OnUnknown::Retry) as i64)),
    ("{{ON_UNKNOWN_ROLLBACK}}", Code::Number(on_unknown(OnUnknown::Rollback) as i64)),
    ("{{VERB_RENEW}}", Code::Number(transition::RENEW as i64)),
    ("{{VERB_COMPLETE}}", Code::Number(transition::COMPLETE as i64)),
    ("{{VERB_FAIL}}", Code::Number(transition::FAIL as i64)),
    ("{{VERB_RELEASE}}", Code::Number(transition::RELEASE as i64)),
    ("{{VERB_UNKNOWN}}", Code::Number(transition::UNKNOWN as i64)),
    ("{{VERB_EXPIRE_LEASE}}", Code::Number(transition::EXPIRE_LEASE as i64)),
    ("{{VERB_FORGET}}", Code::Number(transition::FORGET as i64)),
    ("{{VERB_POSTPONE_RECONCILE}}", Code::Number(transition::POSTPONE_RECONCILE as i64)),
    ("{{LOCK_QUICK}}", Code::Number(lock::QUICK as i64)),
    ("{{LOCK_TOGETHER}}", Code::Number(lock::TOGETHER as i64)),
    ("{{LOCK_ALONE}}", Code::Number(lock::ALONE as i64)),
    ("{{ROW_DONE}}", Code::Number(row::DONE as i64)),
    ("{{ROW_STANDS}}", Code::Number(row::STANDS as i64)),
    ("{{ROW_ALL_DONE}}", Code::Number(row::ALL_DONE as i64)),
    ("{{WATCH_MARGIN}}", Code::Number(WATCH_MARGIN)),
    ("{{STALE_SQLSTATE}}", Code::Word(STALE_SQLSTATE)),
    ("{{SAVEPOINT_SQLSTATE}}", Code::Word(SAVEPOINT_SQLSTATE)),
    ("{{LEASE_ENDED}}", Code::Word(LEASE_ENDED)),
    ("{{FRESH}}", Code::Number(outbox_codes::FRESH as i64)),
    ("{{DELIVERED}}", Code::Number(outbox_codes::DELIVERED as i64)),
    ("{{PARKED}}", Code::Number(outbox_codes::PARKED as i64)),
    ("{{LATER}}", Code::Number(outbox_codes::LATER as i64)),
    ("{{BEHIND}}", Code::Number(outbox_codes::BEHIND as i64)),
    ("{{LOOK_MIN}}", Code::Number(outbox_codes::LOOK_MIN as i64)),
    ("{{LOOKED_MAX}}", Code::Number(outbox_codes::LOOKED_MAX as i64)),
    ("{{LANE_LAST}}", Code::Number(LANES as i64 - 1)),
];
