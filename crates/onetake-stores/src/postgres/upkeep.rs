//! Background work: the search for abandoned attempts and for due reconciliations, and the sweep.

use std::time::Duration;

use onetake_core::audit::AUDIT_KEPT;
use onetake_core::store::{DueAttempt, Swept};
use onetake_core::{AttemptId, RecordId, StoreError};
use tokio_postgres::types::Type;

use super::batch::LOCK_TIMEOUT;
use super::rows::{array, column, get};
use super::sql::{clock, clock_in_touch, over};
use super::statement_error::{Effect, StatementError};
use super::{PostgresStore, watch};

/// Finds attempts whose lease and grace have ended, the longest ended first. Because of the join
/// with the clock, the whole index of watched records is read in its order; it is nearly always
/// empty. With a time that is known beforehand, the planner would assume that a third of all
/// records are watched.
const ABANDONED: &str = concat!(
    "WITH ",
    clock_in_touch!(),
    " SELECT record.id, record.attempt
        FROM clock, onetake_records AS record
       WHERE record.watch_at <= clock.now AND ",
    over!("record"),
    " ORDER BY record.watch_at LIMIT $5::bigint"
);

/// Finds unknown attempts that are due for reconciliation, the longest due first. With a join with
/// the clock, all records could be read and sorted. With a time that is known beforehand, the index
/// is read in its order, and only as far as needed.
const UNSETTLED: &str = concat!(
    "WITH ",
    clock!(),
    " SELECT record.id, record.attempt FROM onetake_records AS record
       WHERE record.ask_at <= (SELECT now FROM clock) AND record.expires_at > (SELECT now FROM clock)
       ORDER BY record.ask_at LIMIT $3::bigint"
);

/// Deletes expired records, and audit entries whose retention has ended.
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
        .map_err(StatementError::for_one)?;
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
        .map_err(StatementError::for_one)?;
    attempts(&rows)
}

fn attempts(rows: &[tokio_postgres::Row]) -> Result<Vec<DueAttempt>, StoreError> {
    let one = |row: &tokio_postgres::Row| {
        let id = RecordId::from_bytes(array(row, 0)?);
        Ok(DueAttempt { id, attempt: AttemptId::from_bytes(array(row, 1)?) })
    };
    rows.iter().map(one).collect()
}

/// The number of rows that one statement of a sweep deletes: few enough to delay no other
/// transaction for long.
const SWEEP_ROWS: usize = 50;
/// The pause after each statement.
const SWEEP_PAUSE: Duration = Duration::from_millis(2);

pub(super) async fn sweep(store: &PostgresStore, limit: usize) -> Result<Swept, StoreError> {
    let (mut swept, mut since) = (Swept::default(), 0);
    loop {
        let rows = limit.saturating_sub(swept.removed).min(SWEEP_ROWS);
        let Some((part, last)) = sweep_part(store, since, rows).await? else {
            // Another node is sweeping now.
            return Ok(Swept { more: true, ..swept });
        };
        swept.removed += part.removed;
        swept.unknown += part.unknown;
        swept.more = part.more;
        if !part.more || part.removed == 0 || swept.removed >= limit {
            return Ok(swept);
        }
        // The index still contains the deleted entries, so the next statement begins after them.
        since = last;
        store.clock.sleep(SWEEP_PAUSE).await;
    }
}

/// Runs one statement of a sweep. Returns also how far it came; `None` if a row was locked.
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
                (&column(AUDIT_KEPT), Type::INT8),
            ],
            Effect::Writes,
        )
        .await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(StatementError::Held | StatementError::Again) => return Ok(None),
        Err(fault) => return Err(fault.for_one()),
    };
    let Some(row) = answer.first() else { return Ok(None) };
    let count = |at| get::<i64>(row, at).map(|count| usize::try_from(count).unwrap_or_default());
    let swept = Swept { removed: count(0)?, unknown: count(1)?, more: get(row, 2)? };
    Ok(Some((swept, get::<Option<i64>>(row, 3)?.unwrap_or(since))))
}
