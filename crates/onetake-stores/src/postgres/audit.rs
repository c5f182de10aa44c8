//! The audit log.

use bytes::Bytes;
use onetake_core::audit::{AuditEntry, AuditPage, AuditPosition};
use onetake_core::store::Cursor;
use onetake_core::{RecordId, StoreError};
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::rows::{array, get};
use super::statement_error::{Effect, StatementError};

/// Writes an entry. It replaces an entry with the same place.
const WRITE: &str = "INSERT INTO onetake_notes (place, id, said) VALUES ($1, $2, $3)
    ON CONFLICT (place) DO UPDATE SET id = excluded.id, said = excluded.said";

/// Reads entries before a place, the newest first.
const READ: &str =
    "SELECT place, said FROM onetake_notes WHERE place < $1 ORDER BY place DESC LIMIT $2";

/// Reads entries of one record. With an equality on the id, a plan could read the notes of all
/// records, if the statistics are from a time when there were only those of one record.
const READ_OF: &str = "SELECT place, said FROM onetake_notes
    WHERE (id, place) < ($3, $1) AND id >= $3 ORDER BY id DESC, place DESC LIMIT $2";

pub(super) async fn write(store: &PostgresStore, entry: AuditEntry) -> Result<(), StoreError> {
    let (place, id): (&[u8], &[u8]) = (entry.place.as_bytes(), entry.id.as_bytes());
    let said = entry.encode();
    let written = store
        .pool
        .query(
            WRITE,
            &[(&place, Type::BYTEA), (&id, Type::BYTEA), (&said.as_ref(), Type::BYTEA)],
            Effect::Writes,
        )
        .await;
    written.map(drop).map_err(StatementError::for_one)
}

pub(super) async fn read(
    store: &PostgresStore,
    of: Option<RecordId>,
    from: Option<Cursor>,
    limit: usize,
) -> Result<AuditPage, StoreError> {
    let from = from.map(|cursor| AuditPosition::of(&cursor)).transpose()?;
    // Longer than any place, and so after every place.
    let end = [0xff; AuditPosition::BYTES + 1];
    let from: &[u8] = from.as_ref().map_or(&end, |place| place.as_bytes());
    let count = i64::try_from(limit).unwrap_or(i64::MAX);
    let (from, count) = ((&from as _, Type::BYTEA), (&count as _, Type::INT8));
    let of = of.as_ref().map(|id| id.as_bytes().as_slice());
    let asked = match &of {
        None => store.pool.query(READ, &[from, count], Effect::Reads).await,
        Some(id) => {
            store.pool.query(READ_OF, &[from, count, (id, Type::BYTEA)], Effect::Reads).await
        }
    };
    let rows = asked.map_err(StatementError::for_one)?;
    let mut entries = Vec::with_capacity(rows.len());
    let mut last = None;
    for row in &rows {
        let place = AuditPosition::from_bytes(array(row, 0)?);
        last = Some(place);
        // An unreadable entry is skipped, so that it hides no other.
        match AuditEntry::decode(place, Bytes::copy_from_slice(get(row, 1)?)) {
            Ok(entry) => entries.push(entry),
            Err(error) => tracing::warn!(%error, "an entry of the audit log cannot be read"),
        }
    }
    let next = last.filter(|_| rows.len() >= limit).map(|place| place.cursor());
    Ok(AuditPage { entries, next })
}
