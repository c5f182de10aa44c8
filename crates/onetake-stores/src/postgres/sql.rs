//! The SQL statements on records. Each is one implicit transaction, sent unnamed with its types, so
//! that PgBouncer may send each of them to another server connection.
//!
//! Claiming and settling are functions in the database: see `functions.sql` and `version_3.sql`. They
//! and the statements here get the numbers of states from `codes.rs`. In the other statements,
//! `clock` is evaluated before anything is written, because every write needs its `now`. It also
//! limits, for this statement alone, the wait for another transaction.

use super::codes::row_stands;

/// The server's clock. Times are microseconds since the epoch. `$1` is the offset that tests add,
/// and `$2` the longest wait for another transaction's lock.
macro_rules! clock {
    () => {
        "clock AS MATERIALIZED (
           SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1::bigint AS now,
                  set_config('lock_timeout', $2::text, true) AS bounded
         )"
    };
}

/// The same for statements that may take over from an owner. `$3` is how long this node has been in
/// contact with the server. `$4` is the time, by the server's clock, until which `$3` may be used:
/// a statement that was stuck in a broken network is executed when the network recovers, and by
/// then the contact was interrupted.
macro_rules! clock_in_touch {
    () => {
        "clock AS MATERIALIZED (
           SELECT now, CASE WHEN now <= $4::bigint THEN $3::bigint ELSE -1 END AS in_touch, bounded
             FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1::bigint AS now,
                          set_config('lock_timeout', $2::text, true) AS bounded OFFSET 0) AS read
         )"
    };
}

pub(super) use {clock, clock_in_touch};

/// True if the owner of a running record may be replaced. Its lease and grace have ended, and this
/// node has been in contact with the server for a whole grace, so that an owner that could not
/// reach the server had the time to come back.
macro_rules! over {
    ($of:literal) => {
        concat!(
            "(",
            $of,
            ".state = ",
            $crate::postgres::codes::running!(),
            " AND ",
            $of,
            ".state_at + ",
            $of,
            ".grace <= clock.now AND ",
            $of,
            ".grace <= clock.in_touch)"
        )
    };
}

pub(super) use over;

/// Lists all keys.
pub(super) const IDS: &str = "SELECT id FROM onetake_records WHERE id > $1 ORDER BY id LIMIT $2";

/// Finds the keys that have a reference.
pub(super) const WITH_REFERENCE: &str =
    "SELECT id FROM onetake_records WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3";

/// Claims many keys.
pub(super) const CLAIM: &str =
    "SELECT * FROM onetake_claim_3($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// Settles many attempts.
pub(super) const SETTLE: &str =
    "SELECT * FROM onetake_settle_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// Reads records that have not expired. It takes the parameters of `clock` like the others.
pub(super) const LOAD: &str = concat!(
    "WITH ",
    clock!(),
    " SELECT ",
    row_stands!(),
    "::smallint, clock.now, NULL::bigint, record.id,
             ARRAY[record.state, record.fence, record.ttl, record.lease, record.grace, record.on_unknown,
                   record.created_at, record.state_at, record.claimed_at, record.ask_at],
             ARRAY[record.attempt, record.fingerprint, record.origin, convert_to(record.history, 'UTF8'),
                   record.code, record.detail], record.head, record.body
        FROM clock, onetake_records AS record
     WHERE record.id = ANY ($3::bytea[]) AND (record.expires_at IS NULL OR record.expires_at > clock.now)"
);
