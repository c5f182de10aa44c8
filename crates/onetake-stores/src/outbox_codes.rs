//! The numbers that the outboxes of PostgreSQL and SQLite share: states of messages, and limits for
//! reading them.
//!
//! They are in tables, in indexes and in migrations that were released, so none of them may change.
//! Migrations get them as placeholders, statements through [`outbox_sql`].

use std::time::Duration;

/// Returns the literal of a state. `HELD` is the list of the states of a message that is held back.
macro_rules! state {
    (FRESH) => {
        0
    };
    (DELIVERED) => {
        1
    };
    (PARKED) => {
        2
    };
    (LATER) => {
        3
    };
    (BEHIND) => {
        4
    };
    (HELD) => {
        concat!(
            "(",
            $crate::outbox_codes::state!(LATER),
            ", ",
            $crate::outbox_codes::state!(BEHIND),
            ")"
        )
    };
    ($sql:literal) => {
        $sql
    };
}

/// Makes a statement of literals and of states: `outbox_sql!("… WHERE state = " FRESH " LIMIT 1")`.
macro_rules! outbox_sql {
    ($($part:tt)+) => {
        concat!($($crate::outbox_codes::state!($part)),+)
    };
}

pub(crate) use {outbox_sql, state};

// The column `state`.
/// The message was never tried.
#[cfg(feature = "postgres")]
pub(crate) const FRESH: i16 = state!(FRESH);
/// The message was delivered.
pub(crate) const DELIVERED: i16 = state!(DELIVERED);
/// The message is set aside for an operator.
pub(crate) const PARKED: i16 = state!(PARKED);
/// The message failed, and is tried again at its time.
pub(crate) const LATER: i16 = state!(LATER);
/// An earlier message of its ordering key is tried later.
pub(crate) const BEHIND: i16 = state!(BEHIND);

/// The least number of fresh messages that are read together.
pub(crate) const LOOK_MIN: u32 = 100;
/// The largest number of fresh messages that one call reads while none of them can be delivered.
pub(crate) const LOOKED_MAX: u32 = 2_000;
/// The time after which a held-back message is checked, if it was not reached before.
pub(crate) const HELD_MAX: Duration = Duration::from_hours(24);
