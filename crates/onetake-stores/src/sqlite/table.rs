//! The rows: one named statement for each thing that is done with them.

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use onetake_core::store::Swept;
use onetake_core::{Fence, Record, RecordId, Reference, State, Timestamp, codec};

const FIND: &str = "SELECT id, record FROM onetake_records WHERE id = :id";

const WRITE: &str = "
    INSERT INTO onetake_records (id, state, attempt, fence, fingerprint, created_at, settled_at, expires_at,
                         lease_until, abandoned_at, ask_at, record)
    VALUES (:id, :state, :attempt, :fence, :fingerprint, :created_at, :settled_at, :expires_at,
            :lease_until, :abandoned_at, :ask_at, :record)
    ON CONFLICT (id) DO UPDATE SET
        state = excluded.state, attempt = excluded.attempt, fence = excluded.fence,
        fingerprint = excluded.fingerprint, created_at = excluded.created_at,
        settled_at = excluded.settled_at, expires_at = excluded.expires_at,
        lease_until = excluded.lease_until, abandoned_at = excluded.abandoned_at,
        ask_at = excluded.ask_at, record = excluded.record";

// Every id is behind nothing at all.
const IDS: &str = "SELECT id FROM onetake_records WHERE id > :from ORDER BY id LIMIT :limit";

const WITH_REFERENCE: &str = "
    SELECT id FROM onetake_records WHERE id BETWEEN :first AND :last ORDER BY id LIMIT :limit";

const ABANDONED: &str = "
    SELECT id, record FROM onetake_records WHERE abandoned_at <= :now ORDER BY abandoned_at LIMIT :limit";

// The plus keeps the index of expiries out of it: it would go through all that is not expired.
const UNSETTLED: &str = "
    SELECT id, record FROM onetake_records WHERE ask_at <= :now AND +expires_at > :now ORDER BY ask_at LIMIT :limit";

// The row's own expiry is looked at by the statement that deletes it (S13).
const SWEEP: &str = "
    DELETE FROM onetake_records WHERE id IN (
        SELECT id FROM onetake_records WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit)
    RETURNING state, fence";

const MORE_TO_SWEEP: &str =
    "SELECT EXISTS (SELECT 1 FROM onetake_records WHERE expires_at <= :now)";

const SWEPT_FENCE: &str = "SELECT value FROM onetake_meta WHERE name = 'swept_fence'";

const RAISE_SWEPT_FENCE: &str = "
    INSERT INTO onetake_meta (name, value) VALUES ('swept_fence', :fence)
    ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)";

const SECRET: &str = "SELECT value FROM onetake_secrets WHERE name = :name";

const MAKE_SECRET: &str = "INSERT INTO onetake_secrets (name, value) VALUES (:name, :value)";

/// A row that was found, and what came of reading it: a row that cannot be read fails whoever asks
/// for it, and nobody else (S21).
pub(super) type Found = Result<Record, codec::DecodeError>;

/// The record, as it stands.
pub(super) fn find(connection: &Connection, id: RecordId) -> rusqlite::Result<Option<Found>> {
    let mut statement = connection.prepare_cached(FIND)?;
    statement.query_row(named_params! { ":id": id.as_bytes() }, read).optional()
}

/// Writes the record over whatever is there.
pub(super) fn write(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let (settled_at, lease_until) = match record.state {
        State::Running { lease_until } => (None, Some(lease_until)),
        State::Completed { at, .. }
        | State::Failed { at, .. }
        | State::Released { at }
        | State::Unknown { at, .. } => (Some(at), None),
    };
    let mut statement = connection.prepare_cached(WRITE)?;
    statement.execute(named_params! {
        ":id": record.id.as_bytes(),
        ":state": record.state.name(),
        ":attempt": record.attempt.as_bytes(),
        ":fence": signed(record.fence.get()),
        ":fingerprint": record.fingerprint.digest(),
        ":created_at": time(record.created_at),
        ":settled_at": settled_at.map(time),
        ":expires_at": record.expires_at().map(time),
        ":lease_until": lease_until.map(time),
        ":abandoned_at": record.abandoned_at().map(time),
        ":ask_at": record.ask_at().map(time),
        ":record": codec::encode(record).as_ref(),
    })?;
    Ok(())
}

/// The ids behind this one, in their order.
pub(super) fn ids(
    connection: &Connection,
    from: Option<RecordId>,
    limit: usize,
) -> rusqlite::Result<Vec<RecordId>> {
    let mut statement = connection.prepare_cached(IDS)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let from = from.as_ref().map_or(&[][..], |id| id.as_bytes());
    let read = |row: &Row<'_>| Ok(RecordId::from_bytes(row.get("id")?));
    statement.query_map(named_params! { ":from": from, ":limit": limit }, read)?.collect()
}

/// The ids that have this reference.
pub(super) fn with_reference(
    connection: &Connection,
    reference: Reference,
    limit: usize,
) -> rusqlite::Result<Vec<RecordId>> {
    let mut statement = connection.prepare_cached(WITH_REFERENCE)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let (first, last) = reference.ids().into_inner();
    let range = named_params! {
        ":first": first.as_bytes(),
        ":last": last.as_bytes(),
        ":limit": limit,
    };
    statement.query_map(range, |row| Ok(RecordId::from_bytes(row.get("id")?)))?.collect()
}

/// Running records whose lease and grace are over, the longest over first.
pub(super) fn abandoned(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    due(connection, ABANDONED, now, limit)
}

/// Unknown records that are to be asked for, the longest due first.
pub(super) fn unsettled(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    due(connection, UNSETTLED, now, limit)
}

fn due(
    connection: &Connection,
    statement: &str,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    let mut statement = connection.prepare_cached(statement)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    statement.query_map(named_params! { ":now": time(now), ":limit": limit }, read)?.collect()
}

/// Deletes expired records, and remembers the highest of their fences.
pub(super) fn sweep(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Swept> {
    let mut swept = Swept::default();
    let mut highest = None;
    let mut statement = connection.prepare_cached(SWEEP)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(named_params! { ":now": time(now), ":limit": limit })?;
    while let Some(row) = rows.next()? {
        swept.removed += 1;
        swept.unknown += usize::from(row.get_ref("state")? == ValueRef::Text(b"unknown"));
        highest = highest.max(Some(row.get::<_, i64>("fence")?));
    }
    if let Some(highest) = highest {
        let mut statement = connection.prepare_cached(RAISE_SWEPT_FENCE)?;
        statement.execute(named_params! { ":fence": highest })?;
    }
    let mut statement = connection.prepare_cached(MORE_TO_SWEEP)?;
    swept.more = statement.query_row(named_params! { ":now": time(now) }, |row| row.get(0))?;
    Ok(swept)
}

/// The highest fence of any record that is not there any more.
pub(super) fn swept_fence(connection: &Connection) -> rusqlite::Result<Fence> {
    let mut statement = connection.prepare_cached(SWEPT_FENCE)?;
    let fence = statement.query_row([], |row| row.get::<_, i64>(0)).optional()?;
    Ok(Fence::new(fence.and_then(|fence| u64::try_from(fence).ok()).unwrap_or_default()))
}

/// The secret of this name, whatever its length.
pub(super) fn secret(connection: &Connection, name: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut statement = connection.prepare_cached(SECRET)?;
    statement.query_row(named_params! { ":name": name }, |row| row.get(0)).optional()
}

/// Writes a secret that was not there.
pub(super) fn make_secret(
    connection: &Connection,
    name: &str,
    value: &[u8; 32],
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(MAKE_SECRET)?;
    statement.execute(named_params! { ":name": name, ":value": value }).map(drop)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Found> {
    let id = RecordId::from_bytes(row.get("id")?);
    let bytes = row.get_ref("record")?.as_blob().map(Bytes::copy_from_slice)?;
    Ok(codec::decode(id, bytes))
}

fn time(at: Timestamp) -> i64 {
    signed(at.as_micros())
}

/// SQLite's integers are signed; what does not fit is as good as never.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::notes;
    use super::*;

    #[test]
    fn nothing_reads_all_rows() {
        let folder = tempfile::tempdir().unwrap();
        let (_, connection) = super::super::schema::open(
            &folder.path().join("db"),
            super::super::schema::Owner::Onetake,
        )
        .unwrap();
        for statement in [
            FIND,
            IDS,
            WITH_REFERENCE,
            ABANDONED,
            UNSETTLED,
            SWEEP,
            MORE_TO_SWEEP,
            SWEPT_FENCE,
            notes::READ,
            notes::READ_OF,
            notes::SWEEP,
        ] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
            for at in 1..=plan.parameter_count() {
                plan.raw_bind_parameter(at, 1).unwrap();
            }
            let mut rows = plan.raw_query();
            while let Some(row) = rows.next().unwrap() {
                let detail: String = row.get("detail").unwrap();
                let scans = detail.starts_with("SCAN") && detail != "SCAN CONSTANT ROW";
                assert!(!scans, "{statement}: {detail}");
                // By its other index it would go through the notes of all records.
                let of_one = statement != notes::READ_OF || detail.contains("onetake_notes_id");
                assert!(of_one, "{statement}: {detail}");
                let of_asks = statement != UNSETTLED || detail.contains("onetake_records_ask");
                assert!(of_asks, "{statement}: {detail}");
                assert!(!detail.contains("TEMP B-TREE FOR ORDER BY"), "{statement}: {detail}");
            }
        }
    }
}
