//! The reaper's look and the sweep.

use std::time::Duration;

use onetake_core::store::{Abandoned, Swept};
use onetake_core::{AttemptId, RecordId, StoreError};
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::batch::LOCK_TIMEOUT;
use super::fault::{Effect, Fault};
use super::rows::{array, get, timestamp};
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

/// Deletes what expired, looked at again under its lock; what the index named too early (a late
/// outcome, something that runs past its ttl) is put back for later. `$3` is one more than may be
/// deleted, to see whether there is more. What runs past its ttl is watched from then on, whatever
/// the watch may have missed.
const SWEEP: &str = concat!(
    "WITH ",
    clock!(),
    ",
    -- Deleting again after a crash does no harm: nobody waits for this on disk.
    unhurried AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
    due AS MATERIALIZED (
      SELECT record.id, record.fence, record.state, record.expires_at <= clock.now AS expired,
             coalesce(record.expires_at, clock.now + record.lease + record.grace) AS later,
             row_number() OVER () < $3::bigint AS within
        FROM clock, unhurried, LATERAL (
          SELECT * FROM onetake_records AS record WHERE record.sweep_at <= clock.now
           ORDER BY record.sweep_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED
        ) AS record
    ),
    gone AS (
      DELETE FROM onetake_records AS record USING due, clock
       WHERE due.within AND due.expired AND record.id = due.id AND record.expires_at <= clock.now
      RETURNING record.state, record.fence
    ),
    put_back AS (
      UPDATE onetake_records AS record
         SET sweep_at = due.later, watch_at = CASE WHEN record.state = 0 THEN record.state_at + record.grace END
        FROM due WHERE due.within AND due.expired IS NOT TRUE AND record.id = due.id
    ),
    raised AS (
      UPDATE onetake_floor SET fence = highest.fence
        FROM (SELECT max(gone.fence) AS fence FROM gone) AS highest
       WHERE highest.fence > onetake_floor.fence
    )
    SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM gone WHERE state = 4),
           EXISTS (SELECT FROM due WHERE NOT within)"
);

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
    let one = |row: &tokio_postgres::Row| {
        let id = RecordId::from_bytes(array(row, 0)?);
        Ok(Abandoned { id, attempt: AttemptId::from_bytes(array(row, 1)?) })
    };
    rows.iter().map(one).collect()
}

/// Rows that one statement of a sweep deletes: so few that what it writes to the log never holds up
/// somebody's commit for long.
const SWEEP_ROWS: usize = 250;
/// The pause behind each.
const SWEEP_PAUSE: Duration = Duration::from_millis(4);

pub(super) async fn sweep(store: &PostgresStore, limit: usize) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    loop {
        let part = sweep_part(store, (limit - swept.removed).min(SWEEP_ROWS)).await?;
        swept.removed += part.removed;
        swept.unknown += part.unknown;
        swept.more = part.more;
        if !part.more || part.removed == 0 || swept.removed >= limit {
            return Ok(swept);
        }
        store.clock.sleep(SWEEP_PAUSE).await;
    }
}

async fn sweep_part(store: &PostgresStore, limit: usize) -> Result<Swept, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let rows = store
        .pool
        .query(
            SWEEP,
            &[(&store.shift(), Type::INT8), (&LOCK_TIMEOUT, Type::TEXT), (&limit, Type::INT8)],
            Effect::Writes,
        )
        .await;
    let rows = match rows {
        Ok(rows) => rows,
        // Another node sweeps right now.
        Err(Fault::Held | Fault::Again) => return Ok(Swept { more: true, ..Swept::default() }),
        Err(fault) => return Err(fault.for_one()),
    };
    let Some(row) = rows.first() else { return Ok(Swept::default()) };
    let count = |at| get::<i64>(row, at).map(|count| usize::try_from(count).unwrap_or_default());
    Ok(Swept { removed: count(0)?, unknown: count(1)?, more: get(row, 2)? })
}
