//! The index of unknown records that are to be reconciled. It is in the `meta` table, which has few
//! entries.
//!
//! | key | value |
//! | --- | --- |
//! | `ask:`, time of the reconciliation, record | nothing |
//!
//! An entry is written and removed in the same group as its record. Records that became unknown
//! before this index existed have no entry. They are left to operators, as before.

use onetake_core::{RecordId, StoreError, Timestamp};

use super::lsm_table::LsmTable;
use super::tables::{moment_entry, moment_key, unread};

const ALL: &[u8] = b"ask:";

/// The key of an entry.
pub(super) fn key(at: Timestamp, id: RecordId) -> Vec<u8> {
    [ALL, &moment_key(at, id)].concat()
}

/// Returns the entries that are due, the longest due first.
pub(super) fn due(
    table: &LsmTable,
    now: Timestamp,
) -> impl Iterator<Item = Result<(Timestamp, RecordId), StoreError>> {
    let end = key(now, RecordId::from_bytes([0xff; RecordId::BYTES]));
    let entry = |key: lsm_tree::Slice| moment_entry(key.strip_prefix(ALL).unwrap_or_default());
    table.keys(ALL.to_vec()..=end).map(move |key| key.map_err(unread).and_then(entry))
}
