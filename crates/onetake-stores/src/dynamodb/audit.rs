//! The audit log, as items beside the records. Each entry is stored once for the whole log, and
//! once for its record.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::try_join_all;

use onetake_core::audit::{AUDIT_KEPT, AuditEntry, AuditPage, AuditPosition};
use onetake_core::clock::micros;
use onetake_core::store::Cursor;
use onetake_core::{RecordId, StoreError};

use super::item::{self, Item};
use super::table::{FOUND, Intent, No, Table};

/// The prefix of an entry's key, before `h` and `o`. The key is longer than the id of a record, and
/// differs from the key of a secret, so that they are never confused.
const PREFIX: &[u8] = b"onetake's note ";
/// The largest number of entries that are read at once.
const NOTES_MAX: usize = 1_000;

/// Writes both items. Each replaces an existing one, so that another try completes a half-written
/// note.
pub(super) async fn write(table: &Table, entry: &AuditEntry) -> Result<(), StoreError> {
    let puts = [None, Some(entry.id)].map(|of| async move {
        let put = table.client.put_item().table_name(&table.place.table);
        let put = put.set_item(Some(encode(entry, of)));
        table.ask(Intent::Write, &[], || put.clone().send()).await.map_err(No::into_error)
    });
    try_join_all(puts).await.map(drop)
}

/// Reads entries before a cursor, the newest first: those of one record, or all.
pub(super) async fn read(
    table: &Table,
    of: Option<RecordId>,
    from: Option<Cursor>,
    limit: usize,
) -> Result<AuditPage, StoreError> {
    let query = table.client.query().table_name(&table.place.table).index_name(FOUND);
    let mut query = query
        .key_condition_expression("h = :h")
        .expression_attribute_values(":h", item::bytes(&group(of)))
        .scan_index_forward(false)
        .limit(i32::try_from(limit.clamp(1, NOTES_MAX)).unwrap_or(i32::MAX));
    if let Some(from) = &from {
        query = query
            .key_condition_expression("h = :h AND o < :o")
            .expression_attribute_values(":o", item::bytes(AuditPosition::of(from)?.as_bytes()));
    }
    let answer =
        table.ask(Intent::Read, &[], || query.clone().send()).await.map_err(No::into_error)?;
    let next = answer.last_evaluated_key().and_then(place).map(|place| place.cursor());
    Ok(AuditPage { entries: answer.items().iter().filter_map(decode).collect(), next })
}

/// Encodes an entry. Without `w` it is not in the index of running records. `ttl` is the time from
/// which the server may delete it.
fn encode(entry: &AuditEntry, of: Option<RecordId>) -> Item {
    let (group, place) = (group(of), entry.place.as_bytes());
    let until = entry.place.at().plus(AUDIT_KEPT).as_micros();
    let until = until.div_ceil(micros(Duration::from_secs(1)));
    HashMap::from([
        ("id".to_owned(), item::bytes(&[PREFIX, &group, place].concat())),
        ("h".to_owned(), item::bytes(&group)),
        ("o".to_owned(), item::bytes(place)),
        ("x".to_owned(), item::bytes(&entry.encode())),
        ("ttl".to_owned(), item::number(until)),
    ])
}

/// Decodes an entry. An unreadable entry is skipped, so that it hides no other.
fn decode(item: &Item) -> Option<AuditEntry> {
    let bytes = item.get("x")?.as_b().ok()?.clone().into_inner();
    match AuditEntry::decode(place(item)?, bytes.into()) {
        Ok(entry) => Some(entry),
        Err(error) => {
            tracing::warn!(%error, "an entry of the audit log cannot be read");
            None
        }
    }
}

fn place(item: &HashMap<String, AttributeValue>) -> Option<AuditPosition> {
    let bytes = item.get("o")?.as_b().ok()?.as_ref().try_into().ok()?;
    Some(AuditPosition::from_bytes(bytes))
}

/// Returns the attribute `h` of the entries that are read together. It never has the eight bytes of
/// a reference.
fn group(of: Option<RecordId>) -> Vec<u8> {
    of.map_or_else(|| b"notes".to_vec(), |id| [b"notes of ", id.as_bytes().as_slice()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::audit::{AuditAction, AuditResult};
    use onetake_core::{AttemptId, SystemRng, Timestamp};

    #[test]
    fn no_note_looks_like_a_record_and_each_ends_in_time() {
        let at = Timestamp::from_micros(1_893_456_000_000_001);
        let entry = AuditEntry {
            place: AuditPosition::new(at, &SystemRng),
            id: RecordId::from_bytes([1; 16]),
            attempt: AttemptId::from_bytes([2; 16]),
            action: AuditAction::Forget,
            ended: AuditResult::Done,
            before: "completed".to_owned(),
            by: "ops".to_owned(),
            reason: "asked for".to_owned(),
        };
        for of in [None, Some(entry.id)] {
            let item = encode(&entry, of);
            assert_eq!(item::id(&item), None);
            assert!(item::VersionedRecord::decode(&item).is_err());
            assert!(!item.contains_key("w"));
            assert_eq!(decode(&item).as_ref(), Some(&entry));
            let ttl: u64 = item["ttl"].as_n().unwrap().parse().unwrap();
            let due = at.plus(AUDIT_KEPT).as_micros();
            assert!(ttl * 1_000_000 >= due && ttl * 1_000_000 < due + 1_000_000);
        }
        assert_ne!(encode(&entry, None)["id"], encode(&entry, Some(entry.id))["id"]);
    }
}
