//! The audit log: the rows of `onetake_notes`.

use bytes::Bytes;
use rusqlite::{Connection, Row, named_params};

use onetake_core::audit::{AUDIT_KEPT, AuditEntry, AuditPage, AuditPosition};
use onetake_core::clock::micros;
use onetake_core::codec::DecodeError;
use onetake_core::{RecordId, Timestamp};

use super::table::{checksum, is_checked};

pub(super) const WRITE: &str = "
    INSERT INTO onetake_notes (place, id, said, checksum) VALUES (:place, :id, :said, :checksum)
    ON CONFLICT (place) DO UPDATE SET
        id = excluded.id, said = excluded.said, checksum = excluded.checksum";

pub(super) const READ: &str = "SELECT place, said, checksum FROM onetake_notes WHERE place < :from ORDER BY place DESC LIMIT :limit";

pub(super) const READ_OF: &str = "
    SELECT place, said, checksum FROM onetake_notes WHERE id = :id AND place < :from ORDER BY place DESC LIMIT :limit";

pub(super) const SWEEP: &str = "
    DELETE FROM onetake_notes WHERE place IN (
        SELECT place FROM onetake_notes WHERE place < :kept_since ORDER BY place LIMIT :limit)";

/// Writes an entry. It replaces an entry with the same place.
pub(super) fn write(connection: &Connection, entry: &AuditEntry) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(WRITE)?;
    let said = entry.encode();
    let written = statement.execute(named_params! {
        ":place": entry.place.as_bytes(),
        ":id": entry.id.as_bytes(),
        ":said": said.as_ref(),
        ":checksum": checksum([entry.place.as_bytes(), &said]),
    });
    written.map(drop)
}

/// Reads entries before a place, the newest first: those of one record, or all.
pub(super) fn read(
    connection: &Connection,
    of: Option<RecordId>,
    from: Option<AuditPosition>,
    limit: usize,
) -> rusqlite::Result<AuditPage> {
    // Longer than any place, and so after every place.
    let end = [0xff; AuditPosition::BYTES + 1];
    let from: &[u8] = from.as_ref().map_or(&end, |place| place.as_bytes());
    let count = i64::try_from(limit).unwrap_or(i64::MAX);
    let row = |row: &Row<'_>| {
        let place = AuditPosition::from_bytes(row.get("place")?);
        let said = row.get_ref("said")?.as_blob()?;
        if !is_checked(row, [place.as_bytes(), said])? {
            return Ok((place, Err(DecodeError::new("the checksum is wrong"))));
        }
        Ok((place, AuditEntry::decode(place, Bytes::copy_from_slice(said))))
    };
    let found: rusqlite::Result<Vec<_>> = match of {
        None => {
            let mut statement = connection.prepare_cached(READ)?;
            statement.query_map(named_params! { ":from": from, ":limit": count }, row)?.collect()
        }
        Some(id) => {
            let mut statement = connection.prepare_cached(READ_OF)?;
            let asked = named_params! { ":id": id.as_bytes(), ":from": from, ":limit": count };
            statement.query_map(asked, row)?.collect()
        }
    };
    let found = found?;
    let next = found.last().filter(|_| found.len() >= limit).map(|(place, _)| place.cursor());
    // An unreadable entry is skipped, so that it hides no other.
    let readable = |(_, entry): (AuditPosition, Result<AuditEntry, _>)| {
        entry
            .inspect_err(|error| tracing::warn!(%error, "an entry of the audit log cannot be read"))
            .ok()
    };
    Ok(AuditPage { entries: found.into_iter().filter_map(readable).collect(), next })
}

/// Deletes entries whose retention has ended.
pub(super) fn sweep(connection: &Connection, now: Timestamp, limit: usize) -> rusqlite::Result<()> {
    let kept_since = Timestamp::from_micros(now.as_micros().saturating_sub(micros(AUDIT_KEPT)));
    let kept_since = AuditPosition::before(kept_since);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(SWEEP)?;
    let swept = named_params! { ":kept_since": kept_since.as_bytes(), ":limit": limit };
    statement.execute(swept).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::audit::{AuditAction, AuditResult};
    use onetake_core::{AttemptId, SystemRng};

    #[test]
    fn one_that_cannot_be_read_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let (_, connection) = super::super::schema::open(
            &folder.path().join("db"),
            super::super::schema::Owner::Onetake,
        )
        .unwrap();
        let made: Vec<AuditEntry> = (0..6)
            .map(|second| AuditEntry {
                place: AuditPosition::new(Timestamp::from_micros(second * 1_000_000), &SystemRng),
                id: RecordId::from_bytes([1; 16]),
                attempt: AttemptId::from_bytes([2; 16]),
                action: AuditAction::Fail,
                ended: AuditResult::Done,
                before: "unknown".to_owned(),
                by: "ops".to_owned(),
                reason: String::new(),
            })
            .collect();
        for entry in &made {
            write(&connection, entry).unwrap();
        }
        let damaged = made[3].place;
        let damage = "UPDATE onetake_notes SET said = x'09' WHERE place = ?1";
        connection.execute(damage, [damaged.as_bytes()]).unwrap();
        let mut expected: Vec<AuditEntry> = made;
        expected.retain(|entry| entry.place != damaged);
        expected.reverse();
        for of in [None, Some(RecordId::from_bytes([1; 16]))] {
            let (mut all, mut from) = (Vec::new(), None);
            loop {
                let page = read(&connection, of, from, 2).unwrap();
                all.extend(page.entries);
                let Some(next) = page.next else { break };
                from = Some(AuditPosition::of(&next).unwrap());
            }
            assert_eq!(all, expected);
        }
    }
}
