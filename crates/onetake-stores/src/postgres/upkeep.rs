//! The reaper's look, the reconciler's, and the sweep.

use std::time::Duration;

use onetake_core::note::NOTES_KEPT;
use onetake_core::store::{DueAttempt, Swept};
use onetake_core::{AttemptId, RecordId, StoreError};
use tokio_postgres::types::Type;

use super::batch::LOCK_TIMEOUT;
use super::fault::{Effect, Fault};
use super::rows::{array, column, get};
use super::sql::{clock, clock_in_touch, over};
use super::{PostgresStore, watch};

/// Attempts whose lease and grace are over, the longest over first. Joined with the clock, the whole index of
/// the watched is read in its order: it is nearly always empty. With a time that is known beforehand, the
/// planner takes a third of all records for watched.
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
) -> Result<Vec<DueAttempt>, StoreError> {
    watch::look(store).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let in_touch = store.in_touch();
    let rows = store
        .pool
        .query(
            ABANDONED,
            &[
                (&store.shift(), Type::INT8),
                (&LOCK_TIMEOUT, Type::TEXT),
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
) -> Result<Vec<DueAttempt>, StoreError> {
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

fn attempts(rows: &[tokio_postgres::Row]) -> Result<Vec<DueAttempt>, StoreError> {
    let one = |row: &tokio_postgres::Row| {
        let id = RecordId::from_bytes(array(row, 0)?);
        Ok(DueAttempt { id, attempt: AttemptId::from_bytes(array(row, 1)?) })
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
