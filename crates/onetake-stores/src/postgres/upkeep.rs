//! The reaper's look, the reconciler's, and the sweep.

use std::time::Duration;

use onetake_core::note::NOTES_KEPT;
use onetake_core::store::{Abandoned, Swept};
use onetake_core::{AttemptId, RecordId, StoreError};
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::batch::LOCK_TIMEOUT;
use super::fault::{Effect, Fault};
use super::rows::{array, column, get, timestamp};
use super::sql::{clock, clock_in_touch, over};

/// An operation that runs for longer than this is watched by an index.
const LONG: i64 = 10_000_000;
/// Claims that are younger than this are looked at again: a claim may have been on its way to the
/// disk when the last look passed by.
const YOUNG: i64 = 30_000_000;
/// The most time, in claims, that one look covers.
const WINDOW: i64 = 300_000_000;

/// Puts under watch what still runs some time after it was claimed: short operations never enter the
/// index of the watched, so that completing them touches no index at all. One node at a time looks,
/// from where the last one stopped, and no more than a few minutes of claims (`$5`) at once. What
/// was claimed less than `$3` ago is looked at again next time, and so is what somebody held just now.
/// A clock that was set back makes it begin anew. `$4` is how long an operation runs before it is
/// watched.
const WATCH: &str = concat!(
    "WITH ",
    clock!(),
    ",
    cursor AS MATERIALIZED (
      SELECT CASE WHEN last.seen_until > clock.now THEN 0 ELSE last.seen_until END AS seen_until
        FROM clock, (SELECT seen_until FROM onetake_watch FOR UPDATE SKIP LOCKED) AS last
    ),
    part AS MATERIALIZED (
      SELECT first.claimed_at AS oldest, least(clock.now, first.claimed_at + $5::bigint) AS newest
        FROM clock, cursor, LATERAL (
          SELECT coalesce(min(claimed_at), clock.now) AS claimed_at
            FROM onetake_records WHERE claimed_at >= cursor.seen_until
        ) AS first
    ),
    long AS MATERIALIZED (
      SELECT record.id, record.claimed_at
        FROM clock, part
        JOIN onetake_records AS record ON record.claimed_at >= part.oldest AND record.claimed_at <= part.newest
       WHERE record.state = 0 AND record.watch_at IS NULL
         AND (record.claimed_at + $4::bigint <= clock.now OR record.state_at + record.grace <= clock.now)
    ),
    picked AS MATERIALIZED (
      SELECT record.id FROM long JOIN onetake_records AS record ON record.id = long.id
         FOR NO KEY UPDATE OF record SKIP LOCKED
    ),
    watched AS (
      UPDATE onetake_records AS record SET watch_at = record.state_at + record.grace
        FROM picked WHERE record.id = picked.id AND record.state = 0
    ),
    missed AS (
      SELECT min(long.claimed_at) AS oldest FROM long
       WHERE NOT EXISTS (SELECT FROM picked WHERE picked.id = long.id)
    ),
    moved AS (
      UPDATE onetake_watch SET seen_until = least(part.newest, clock.now - $3::bigint, missed.oldest)
        FROM part, clock, missed
    )
    SELECT clock.now FROM clock"
);

/// Attempts whose lease and grace are over, the longest over first.
const ABANDONED: &str = concat!(
    "WITH ",
    clock_in_touch!(),
    " SELECT record.id, record.attempt
        FROM clock, onetake_records AS record
       WHERE record.watch_at <= clock.now AND ",
    over!("record"),
    " ORDER BY record.watch_at LIMIT $5::bigint"
);

/// Unknown attempts that are to be asked for, the longest due first. Joined with the clock, all records could
/// be read and sorted; with a time that is known beforehand, the index is read in its order, and no further
/// than it has to be.
const UNSETTLED: &str = concat!(
    "WITH ",
    clock!(),
    " SELECT record.id, record.attempt FROM onetake_records AS record
       WHERE record.ask_at <= (SELECT now FROM clock) AND record.expires_at > (SELECT now FROM clock)
       ORDER BY record.ask_at LIMIT $3::bigint"
);

/// Deletes what expired, and what the audit kept for long enough.
const SWEEP: &str = "SELECT * FROM onetake_sweep_1($1, $2, $3, $4, $5)";

pub(super) async fn abandoned(
    store: &PostgresStore,
    limit: usize,
) -> Result<Vec<Abandoned>, StoreError> {
    let (shift, timeout) = (store.shift(), LOCK_TIMEOUT);
    let watched = store
        .pool
        .query(
            WATCH,
            &[
                (&shift, Type::INT8),
                (&timeout, Type::TEXT),
                (&YOUNG, Type::INT8),
                (&LONG, Type::INT8),
                (&WINDOW, Type::INT8),
            ],
            Effect::Writes,
        )
        .await;
    match watched {
        Ok(rows) => {
            if let Some(row) = rows.first() {
                store.heard(timestamp(get(row, 0)?));
            }
        }
        // Something held a row: next time.
        Err(Fault::Held | Fault::Again) => {}
        Err(fault) => return Err(fault.for_one()),
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let in_touch = store.in_touch();
    let rows = store
        .pool
        .query(
            ABANDONED,
            &[
                (&shift, Type::INT8),
                (&timeout, Type::TEXT),
                (&in_touch.since, Type::INT8),
                (&in_touch.until, Type::INT8),
                (&limit, Type::INT8),
            ],
            Effect::Reads,
        )
        .await
        .map_err(Fault::for_one)?;
    attempts(&rows)
}

pub(super) async fn unsettled(
    store: &PostgresStore,
    limit: usize,
) -> Result<Vec<Abandoned>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = store
        .pool
        .query(
            UNSETTLED,
            &[(&store.shift(), Type::INT8), (&LOCK_TIMEOUT, Type::TEXT), (&limit, Type::INT8)],
            Effect::Reads,
        )
        .await
        .map_err(Fault::for_one)?;
    attempts(&rows)
}

fn attempts(rows: &[tokio_postgres::Row]) -> Result<Vec<Abandoned>, StoreError> {
    let one = |row: &tokio_postgres::Row| {
        let id = RecordId::from_bytes(array(row, 0)?);
        Ok(Abandoned { id, attempt: AttemptId::from_bytes(array(row, 1)?) })
    };
    rows.iter().map(one).collect()
}

/// Rows that one statement of a sweep deletes: so few that it holds up nobody for long.
const SWEEP_ROWS: usize = 50;
/// The pause behind each.
const SWEEP_PAUSE: Duration = Duration::from_millis(2);

pub(super) async fn sweep(store: &PostgresStore, limit: usize) -> Result<Swept, StoreError> {
    let (mut swept, mut since) = (Swept::default(), 0);
    loop {
        let rows = limit.saturating_sub(swept.removed).min(SWEEP_ROWS);
        let Some((part, last)) = sweep_part(store, since, rows).await? else {
            // Another node sweeps right now.
            return Ok(Swept { more: true, ..swept });
        };
        swept.removed += part.removed;
        swept.unknown += part.unknown;
        swept.more = part.more;
        if !part.more || part.removed == 0 || swept.removed >= limit {
            return Ok(swept);
        }
        // The index still names what was deleted: begin behind it.
        since = last;
        store.clock.sleep(SWEEP_PAUSE).await;
    }
}

/// One statement of a sweep, and up to where it came; `None` if something was held.
async fn sweep_part(
    store: &PostgresStore,
    since: i64,
    rows: usize,
) -> Result<Option<(Swept, i64)>, StoreError> {
    let rows = i32::try_from(rows).unwrap_or(i32::MAX);
    let answer = store
        .pool
        .query(
            SWEEP,
            &[
                (&store.shift(), Type::INT8),
                (&LOCK_TIMEOUT, Type::TEXT),
                (&since, Type::INT8),
                (&rows, Type::INT4),
                (&column(NOTES_KEPT), Type::INT8),
            ],
            Effect::Writes,
        )
        .await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(Fault::Held | Fault::Again) => return Ok(None),
        Err(fault) => return Err(fault.for_one()),
    };
    let Some(row) = answer.first() else { return Ok(None) };
    let count = |at| get::<i64>(row, at).map(|count| usize::try_from(count).unwrap_or_default());
    let swept = Swept { removed: count(0)?, unknown: count(1)?, more: get(row, 2)? };
    Ok(Some((swept, get::<Option<i64>>(row, 3)?.unwrap_or(since))))
}
