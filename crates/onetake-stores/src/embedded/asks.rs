//! The index of unknown records that are to be reconciled. It is in the `meta` table, which has few
//! entries.
//!
//! | key | value |
//! | --- | --- |
//! | `ask:`, time of the reconciliation, record | nothing |
//!
//! An entry is written and removed in the same group as its record. Records that became unknown
//! before this index existed have no entry. They are left to operators, as before.

use onetake_core::{RecordId, Timestamp};

use super::tables::moment_key;

/// The prefix of all entries.
pub(super) const PREFIX: &[u8] = b"ask:";

/// The key of an entry.
pub(super) fn key(at: Timestamp, id: RecordId) -> Vec<u8> {
    [PREFIX, &moment_key(at, id)].concat()
}
