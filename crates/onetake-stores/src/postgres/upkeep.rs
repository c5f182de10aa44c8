//! The reaper's look and the sweep.

use onetake_core::store::{Abandoned, Swept};
use onetake_core::{AttemptId, RecordId, StoreError};
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::batch::LOCK_TIMEOUT;
use super::fault::{Effect, Fault};
use super::rows::{array, get, timestamp};
use super::sql;

/// An operation that runs for longer than this is watched by an index.
const LONG: i64 = 10_000_000;
/// Claims that are younger than this are looked at again: a claim may have been on its way to the
/// disk when the last look passed by.
const YOUNG: i64 = 30_000_000;
/// The most time, in claims, that one look covers.
const WINDOW: i64 = 300_000_000;

pub(super) async fn abandoned(
    store: &PostgresStore,
    limit: usize,
) -> Result<Vec<Abandoned>, StoreError> {
    let (shift, timeout) = (store.shift(), LOCK_TIMEOUT);
    let watched = store
        .pool
        .query(
            sql::WATCH,
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
            sql::ABANDONED,
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

pub(super) async fn sweep(store: &PostgresStore, limit: usize) -> Result<Swept, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let rows = store
        .pool
        .query(
            sql::SWEEP,
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
