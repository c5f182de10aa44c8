//! The reaper's watch: long-running claims enter the index by which abandoned attempts are found.
//!
//! Short operations never enter that index, so that completing them changes no index at all. The
//! price is that every claim is checked when it is some seconds old. Two cursors go through the
//! claims in the order of their times, in the one row of `onetake_watch`. One node at a time moves
//! them.
//!
//! - [`WATCH`] follows the present closely. Its delay is the time that a claim usually takes to
//!   become visible.
//! - [`WATCH_SETTLED`] comes later. It passes a time only when every claim of that time is certain
//!   to be visible, however long its commit took.

use onetake_core::StoreError;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::batch::LOCK_TIMEOUT;
use super::codes::{running, watch_margin};
use super::rows::{get, timestamp};
use super::sql::clock;
use super::statement_error::{Effect, StatementError};

/// An operation that runs for longer than this, in microseconds, is watched.
const LONG: i64 = 10_000_000;
/// Claims that are younger than this, in microseconds, are checked again: a claim may have been
/// committing during the last check.
const YOUNG: i64 = 30_000_000;
/// The longest period of claims that one call covers, in microseconds.
const WINDOW: i64 = 300_000_000;

/// Puts claims of the times from `part.oldest` to `part.newest` under watch if they still run. `$4`
/// is how long an operation runs before it is watched. `missed.oldest` is the time of the first
/// claim that another transaction holds now. The times are scalar subqueries: with a join with
/// `part` the planner would read all records.
macro_rules! put_under_watch {
    () => {
        concat!(
            "long AS MATERIALIZED (
           SELECT record.id, record.claimed_at
             FROM clock, onetake_records AS record
            WHERE record.claimed_at >= (SELECT oldest FROM part)
              AND record.claimed_at <= (SELECT newest FROM part)
              AND record.state = ",
            running!(),
            " AND record.watch_at IS NULL
              AND (record.claimed_at + $4::bigint <= clock.now OR record.state_at + record.grace <= clock.now)
         ),
         picked AS MATERIALIZED (
           SELECT record.id FROM long JOIN onetake_records AS record ON record.id = long.id
              FOR NO KEY UPDATE OF record SKIP LOCKED
         ),
         watched AS (
           UPDATE onetake_records AS record SET watch_at = record.state_at + record.grace
             FROM picked WHERE record.id = picked.id AND record.state = ",
            running!(),
            "
         ),
         missed AS (
           SELECT min(long.claimed_at) AS oldest FROM long
            WHERE NOT EXISTS (SELECT FROM picked WHERE picked.id = long.id)
         )"
        )
    };
}

/// Checks the claims since the last call, at most a few minutes of them (`$5`) at once. Claims that
/// are younger than `$3`, and claims that another transaction held, are checked again by the next
/// call. If the clock was set back, the cursor starts again from the beginning.
const WATCH: &str = concat!(
    "WITH ",
    clock!(),
    ",
    cursor AS MATERIALIZED (
      SELECT CASE WHEN last.seen_until > clock.now THEN 0 ELSE last.seen_until END AS seen_until
        FROM clock, (SELECT seen_until FROM onetake_watch LIMIT 1 FOR UPDATE SKIP LOCKED) AS last
    ),
    part AS MATERIALIZED (
      SELECT first.claimed_at AS oldest, least(clock.now, first.claimed_at + $5::bigint) AS newest
        FROM clock, cursor, LATERAL (
          SELECT coalesce(min(claimed_at), clock.now) AS claimed_at
            FROM onetake_records WHERE claimed_at >= cursor.seen_until
        ) AS first
    ),",
    put_under_watch!(),
    ",
    moved AS (
      UPDATE onetake_watch SET seen_until = least(part.newest, clock.now - $3::bigint, missed.oldest)
        FROM part, clock, missed
    )
    SELECT clock.now FROM clock"
);

/// Checks the claims from before the mark once more, when all of them are visible and none is
/// younger than `$3`. Then it sets the next mark. All claims from three seconds before the mark
/// have lower transaction numbers than the mark, and all of these transactions have ended by then:
/// see `version_2.sql`. A mark in the future, by time or by number, is replaced: the clock was set
/// back, or the tables were restored on another server. If nothing is due, nothing is locked or
/// written.
const WATCH_SETTLED: &str = concat!(
    "WITH ",
    clock!(),
    ",
    last AS MATERIALIZED (
      SELECT CASE WHEN watch.settled_until > clock.now THEN 0 ELSE watch.settled_until END AS settled_until,
             watch.mark_at - ",
    watch_margin!(),
    " AS visible_until,
             watch.mark_at > clock.now OR watch.mark_xid >= pg_snapshot_xmax(pg_current_snapshot()) AS is_odd
        FROM clock, onetake_watch AS watch
       WHERE watch.mark_at > clock.now OR watch.mark_xid >= pg_snapshot_xmax(pg_current_snapshot())
          OR (watch.mark_at <= clock.now - $3::bigint
              AND watch.mark_xid < pg_snapshot_xmin(pg_current_snapshot()))
       LIMIT 1 FOR UPDATE OF watch SKIP LOCKED
    ),
    part AS MATERIALIZED (
      SELECT first.claimed_at AS oldest, least(last.visible_until, first.claimed_at + $5::bigint) AS newest
        FROM last, LATERAL (
          SELECT coalesce(min(claimed_at), last.visible_until) AS claimed_at
            FROM onetake_records WHERE claimed_at >= last.settled_until
        ) AS first
       WHERE NOT last.is_odd
    ),",
    put_under_watch!(),
    ",
    reached AS MATERIALIZED (
      SELECT last.is_odd, last.visible_until,
             greatest(last.settled_until, least(part.newest, missed.oldest)) AS until
        FROM last LEFT JOIN part ON true, missed
    ),
    moved AS (
      UPDATE onetake_watch AS watch
         SET settled_until = reached.until,
             mark_at = CASE WHEN reached.is_odd OR reached.until >= reached.visible_until
                            THEN (extract(epoch FROM transaction_timestamp()) * 1000000)::bigint + $1::bigint
                            ELSE watch.mark_at END,
             mark_xid = CASE WHEN reached.is_odd OR reached.until >= reached.visible_until
                             THEN pg_current_xact_id() ELSE watch.mark_xid END
        FROM reached
    )
    SELECT clock.now FROM clock"
);

/// Moves each of the two cursors once.
pub(super) async fn look(store: &PostgresStore) -> Result<(), StoreError> {
    for statement in [WATCH, WATCH_SETTLED] {
        let looked = store
            .pool
            .query(
                statement,
                &[
                    (&store.shift(), Type::INT8),
                    (&LOCK_TIMEOUT, Type::TEXT),
                    (&YOUNG, Type::INT8),
                    (&LONG, Type::INT8),
                    (&WINDOW, Type::INT8),
                ],
                Effect::Writes,
            )
            .await;
        match looked {
            Ok(rows) => {
                if let Some(row) = rows.first() {
                    store.heard(timestamp(get(row, 0)?));
                }
            }
            // Another transaction holds a row. The next call comes soon.
            Err(StatementError::Held | StatementError::Again) => {}
            Err(fault) => return Err(fault.for_one()),
        }
    }
    Ok(())
}
