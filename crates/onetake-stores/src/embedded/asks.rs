//! What is unknown and to be asked for, in the table of the store's own: few entries, beside many records.
//!
//! | key | value |
//! | --- | --- |
//! | `ask:`, when to ask, record | nothing |
//!
//! An entry is written and removed in the groups that write its record. What became unknown before there were
//! entries has none: it is left to operators, as it was.

use std::ops::Bound;

use fjall::Keyspace;

use onetake_core::{RecordId, StoreError, Timestamp};

use super::tables::{broken, moment_entry, moment_key};

const ALL: &[u8] = b"ask:";

/// The key of an entry.
pub(super) fn key(at: Timestamp, id: RecordId) -> Vec<u8> {
    [ALL, &moment_key(at, id)].concat()
}

/// Up to `limit` entries that are due, behind this one, the longest due first.
pub(super) fn due(
    table: &Keyspace,
    behind: Option<(Timestamp, RecordId)>,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(Timestamp, RecordId)>, StoreError> {
    let start = behind
        .map_or_else(|| Bound::Included(ALL.to_vec()), |(at, id)| Bound::Excluded(key(at, id)));
    let end = Bound::Included(key(now, RecordId::from_bytes([0xff; RecordId::BYTES])));
    let entry = |key: fjall::Slice| moment_entry(key.strip_prefix(ALL).unwrap_or_default());
    let entries = table.range((start, end)).take(limit);
    entries.map(|found| found.key().map_err(broken).and_then(entry)).collect()
}
