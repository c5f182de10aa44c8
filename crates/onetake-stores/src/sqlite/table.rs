//! The rows of records and secrets: one named statement for each operation on them.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use xxhash_rust::xxh3::Xxh3;

use onetake_core::store::Swept;
use onetake_core::{Fence, Record, RecordId, Reference, State, Timestamp, codec, decide};

const FIND: &str = "SELECT id, record, checksum FROM onetake_records WHERE id = :id";

const WRITE: &str = "
    INSERT INTO onetake_records (id, state, attempt, fence, fingerprint, created_at, settled_at, expires_at,
                         lease_until, abandoned_at, ask_at, record, checksum)
    VALUES (:id, :state, :attempt, :fence, :fingerprint, :created_at, :settled_at, :expires_at,
            :lease_until, :abandoned_at, :ask_at, :record, :checksum)
    ON CONFLICT (id) DO UPDATE SET
        state = excluded.state, attempt = excluded.attempt, fence = excluded.fence,
        fingerprint = excluded.fingerprint, created_at = excluded.created_at,
        settled_at = excluded.settled_at, expires_at = excluded.expires_at,
        lease_until = excluded.lease_until, abandoned_at = excluded.abandoned_at,
        ask_at = excluded.ask_at, record = excluded.record, checksum = excluded.checksum";

// Without a start, `:from` is empty, which is less than every id.
const IDS: &str = "SELECT id FROM onetake_records WHERE id > :from ORDER BY id LIMIT :limit";

const WITH_REFERENCE: &str = "
    SELECT id FROM onetake_records WHERE id BETWEEN :first AND :last ORDER BY id LIMIT :limit";

const ABANDONED: &str = "
    SELECT id, record, checksum FROM onetake_records WHERE abandoned_at <= :now ORDER BY abandoned_at LIMIT :limit";

// The plus sign excludes the expiry index, which would visit every record that has not expired.
const UNSETTLED: &str = "
    SELECT id, record, checksum FROM onetake_records WHERE ask_at <= :now AND +expires_at > :now ORDER BY ask_at LIMIT :limit";

const DUE: &str = "
    SELECT id, record, checksum FROM onetake_records WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit";

// The statement that deletes the row checks the row's own expiry (S13).
const SWEEP: &str = "DELETE FROM onetake_records WHERE id = :id AND expires_at <= :now";

// An unreadable record stays where it is, so that it can be repaired.
const NEVER_SWEEP: &str = "UPDATE onetake_records SET expires_at = NULL WHERE id = :id";

const MORE_TO_SWEEP: &str =
    "SELECT EXISTS (SELECT 1 FROM onetake_records WHERE expires_at <= :now)";

const SWEPT_FENCE: &str = "SELECT value, checksum FROM onetake_meta WHERE name = 'swept_fence'";

const RAISE_SWEPT_FENCE: &str = "
    INSERT INTO onetake_meta (name, value, checksum) VALUES ('swept_fence', :fence, :checksum)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, checksum = excluded.checksum
    WHERE excluded.value > value";

const SECRET: &str = "SELECT value, checksum FROM onetake_secrets WHERE name = :name";

const MAKE_SECRET: &str =
    "INSERT INTO onetake_secrets (name, value, checksum) VALUES (:name, :value, :checksum)";

/// The record of a row, or the error of reading it. An unreadable row fails only the requests for
/// it (S21).
pub(super) type RowResult = Result<Record, codec::DecodeError>;

/// Returns the record of an id.
pub(super) fn find(connection: &Connection, id: RecordId) -> rusqlite::Result<Option<RowResult>> {
    let mut statement = connection.prepare_cached(FIND)?;
    statement.query_row(named_params! { ":id": id.as_bytes() }, read).optional()
}

/// Writes the record, and replaces an existing one.
pub(super) fn write(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let (settled_at, lease_until) = match record.state {
        State::Running { lease_until } => (None, Some(lease_until)),
        State::Completed { at, .. }
        | State::Failed { at, .. }
        | State::Released { at }
        | State::Unknown { at, .. } => (Some(at), None),
    };
    let bytes = codec::encode(record);
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
        ":record": bytes.as_ref(),
        ":checksum": checksum([record.id.as_bytes(), &bytes]),
    })?;
    Ok(())
}

/// Returns the ids after `from`, in order.
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

/// Returns the ids that have this reference.
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

/// Returns running records whose lease and grace have ended, the longest ended first.
pub(super) fn abandoned(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<RowResult>> {
    due(connection, ABANDONED, now, limit)
}

/// Returns unknown records that are due for reconciliation, the longest due first.
pub(super) fn unsettled(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<RowResult>> {
    due(connection, UNSETTLED, now, limit)
}

fn due(
    connection: &Connection,
    statement: &str,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<RowResult>> {
    let found = due_with_ids(connection, statement, now, limit)?;
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

fn due_with_ids(
    connection: &Connection,
    statement: &str,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Vec<(RecordId, RowResult)>> {
    let mut statement = connection.prepare_cached(statement)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let due = named_params! { ":now": time(now), ":limit": limit };
    statement.query_map(due, read_with_id)?.collect()
}

/// Deletes expired records, and keeps the highest of their fences. The record itself decides
/// whether it is expired, because the index may be damaged.
pub(super) fn sweep(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Swept> {
    let mut swept = Swept::default();
    let mut highest = None;
    for (id, found) in due_with_ids(connection, DUE, now, limit)? {
        match found {
            Ok(record) if decide::may_sweep(&record, now) => {
                let mut statement = connection.prepare_cached(SWEEP)?;
                statement.execute(named_params! { ":id": id.as_bytes(), ":now": time(now) })?;
                swept.removed += 1;
                swept.unknown += usize::from(matches!(record.state, State::Unknown { .. }));
                highest = highest.max(Some(signed(record.fence.get())));
            }
            Ok(record) => write(connection, &record)?,
            Err(_) => {
                let mut statement = connection.prepare_cached(NEVER_SWEEP)?;
                statement.execute(named_params! { ":id": id.as_bytes() })?;
            }
        }
    }
    if let Some(highest) = highest {
        let mut statement = connection.prepare_cached(RAISE_SWEPT_FENCE)?;
        let checksum = checksum([&highest.to_le_bytes()]);
        statement.execute(named_params! { ":fence": highest, ":checksum": checksum })?;
    }
    let mut statement = connection.prepare_cached(MORE_TO_SWEEP)?;
    swept.more = statement.query_row(named_params! { ":now": time(now) }, |row| row.get(0))?;
    Ok(swept)
}

/// Returns the highest fence of any swept record.
pub(super) fn swept_fence(
    connection: &Connection,
) -> rusqlite::Result<Result<Fence, codec::DecodeError>> {
    let mut statement = connection.prepare_cached(SWEPT_FENCE)?;
    let found = statement.query_row([], |row| {
        let fence = row.get::<_, i64>("value")?;
        Ok(is_checked(row, [&fence.to_le_bytes()])?.then_some(fence))
    });
    Ok(match found.optional()? {
        Some(None) => Err(codec::DecodeError::new("the highest fence that was swept")),
        Some(Some(fence)) => Ok(Fence::new(u64::try_from(fence).unwrap_or_default())),
        None => Ok(Fence::default()),
    })
}

/// Returns the secret of this name, whatever its length. It is empty if its checksum is wrong.
pub(super) fn secret(connection: &Connection, name: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut statement = connection.prepare_cached(SECRET)?;
    let read = |row: &Row<'_>| {
        let value: Vec<u8> = row.get("value")?;
        let is_whole = is_checked(row, [name.as_bytes(), &value])?;
        Ok(if is_whole { value } else { Vec::new() })
    };
    statement.query_row(named_params! { ":name": name }, read).optional()
}

/// Writes a secret that does not exist yet.
pub(super) fn make_secret(
    connection: &Connection,
    name: &str,
    value: &[u8; 32],
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(MAKE_SECRET)?;
    let checksum = checksum([name.as_bytes(), value]);
    let made = named_params! { ":name": name, ":value": value, ":checksum": checksum };
    statement.execute(made).map(drop)
}

fn read(row: &Row<'_>) -> rusqlite::Result<RowResult> {
    read_with_id(row).map(|(_, found)| found)
}

fn read_with_id(row: &Row<'_>) -> rusqlite::Result<(RecordId, RowResult)> {
    let id = RecordId::from_bytes(row.get("id")?);
    let bytes = row.get_ref("record")?.as_blob()?;
    if !is_checked(row, [id.as_bytes(), bytes])? {
        return Ok((id, Err(codec::DecodeError::new("the checksum is wrong"))));
    }
    Ok((id, codec::decode(id, Bytes::copy_from_slice(bytes))))
}

/// Returns true if a row matches its checksum. A row of an earlier version has no checksum.
pub(super) fn is_checked<const N: usize>(
    row: &Row<'_>,
    parts: [&[u8]; N],
) -> rusqlite::Result<bool> {
    let written: Option<i64> = row.get("checksum")?;
    Ok(written.is_none_or(|written| written == checksum(parts)))
}

/// The checksum of a row's content.
pub(super) fn checksum<const N: usize>(parts: [&[u8]; N]) -> i64 {
    let mut hasher = Xxh3::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.digest().cast_signed()
}

fn time(at: Timestamp) -> i64 {
    signed(at.as_micros())
}

/// Converts to SQLite's signed integers. A larger value becomes the maximum, which as a time means
/// never.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::audit;
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
            DUE,
            SWEEP,
            NEVER_SWEEP,
            MORE_TO_SWEEP,
            SWEPT_FENCE,
            audit::READ,
            audit::READ_OF,
            audit::SWEEP,
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
                // With the other index it would visit the notes of all records.
                let of_one = statement != audit::READ_OF || detail.contains("onetake_notes_id");
                assert!(of_one, "{statement}: {detail}");
                let of_asks = statement != UNSETTLED || detail.contains("onetake_records_ask");
                assert!(of_asks, "{statement}: {detail}");
                assert!(!detail.contains("TEMP B-TREE FOR ORDER BY"), "{statement}: {detail}");
            }
        }
    }
}
