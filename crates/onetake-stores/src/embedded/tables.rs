//! The tables.
//!
//! | table | prefix | key | value |
//! | --- | --- | --- | --- |
//! | `settled` | s | id | the record, once it is settled |
//! | `expiry` | e | moment of expiry, id | nothing: the index for the sweep; an entry may be out of date |
//! | `meta` | m | name | the store's own data, its secrets, the audit, and the reconcile index |
//!
//! The records of running attempts are in memory and in the log. A record that runs again keeps its
//! older version in `settled` until it is settled again. The running one takes precedence.

use std::collections::HashMap;
use std::ops::{Bound, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lsm_tree::Slice;

use onetake_core::audit::{AuditEntry, AuditPage, AuditPosition};
use onetake_core::{Fence, Record, RecordId, State, StoreError, StoreErrorKind, Timestamp, codec};

use super::asks;
use super::audit;
use super::folder::{Folder, OpenError};
use super::log::{FrameBuilder, Item, Table};
use super::lsm_table::{LsmTable, LsmTree};
use super::manifest;
use super::read_errors::{broken, damaged_entry, unread, unreadable};
use super::time_index::TimeIndex;
use super::unwritten::{ITEM_BYTES, Unwritten};

const FENCE_CEILING: &[u8] = b"fence-ceiling";
/// The prefix of a secret's name.
const SECRET: &[u8] = b"secret:";

pub(super) struct Tables {
    pub(super) tree: LsmTree,
    settled: LsmTable,
    /// The records by the time at which they expire.
    pub(super) expiry: TimeIndex,
    meta: LsmTable,
    /// The unknown records by the time at which they are to be reconciled.
    pub(super) asks: TimeIndex,
    /// The notes of the audit log by their time.
    notes: TimeIndex,
    pub(super) unwritten: Unwritten,
}

impl Tables {
    /// Opens the tables of a folder, or creates them. `cache` is the memory for blocks of them, in
    /// bytes.
    pub(super) fn open(folder: &Folder, cache: u64) -> Result<Self, OpenError> {
        // lsm-tree panics on some kinds of damage.
        let tree = catch_unwind(AssertUnwindSafe(|| LsmTree::open(&folder.tables(), cache)))
            .map_err(|_| OpenError::damaged(folder.path(), "the tables cannot be read"))?
            .map_err(|error| refused(folder, error))?;
        Ok(Self {
            settled: LsmTable::new(&tree, b's'),
            expiry: TimeIndex::new(LsmTable::new(&tree, b'e'), b""),
            meta: LsmTable::new(&tree, b'm'),
            asks: TimeIndex::new(LsmTable::new(&tree, b'm'), asks::PREFIX),
            notes: TimeIndex::new(LsmTable::new(&tree, b'm'), audit::ALL),
            tree,
            unwritten: Unwritten::new(),
        })
    }

    /// Returns a settled record by its id.
    pub(super) fn settled(&self, id: RecordId) -> Result<Option<Record>, StoreError> {
        match self.settled.get(id.as_bytes()) {
            Ok(None) => Ok(None),
            Ok(Some(value)) => decode(id, &value).map(Some),
            Err(error) => match unread(error) {
                damage if damage.kind() == StoreErrorKind::Invalid => {
                    Err(unreadable(id).with_source(damage))
                }
                error => Err(error),
            },
        }
    }

    /// Returns the ids of settled records after `from`, in order.
    pub(super) fn settled_ids(
        &self,
        from: Option<RecordId>,
        limit: usize,
    ) -> Result<Vec<RecordId>, StoreError> {
        let from = from.as_ref().map(|id| id.as_bytes().as_slice());
        let start = from.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.settled.keys::<&[u8]>((start, Bound::Unbounded)).take(limit);
        keys.map(|key| key.map_err(unread).and_then(|key| record_id(&key))).collect()
    }

    /// Returns the ids of settled records in this range, in order.
    pub(super) fn settled_within(
        &self,
        range: RangeInclusive<RecordId>,
        limit: usize,
    ) -> Result<Vec<RecordId>, StoreError> {
        let (first, last) = (*range.start().as_bytes(), *range.end().as_bytes());
        let keys = self.settled.keys(first..=last).take(limit);
        keys.map(|key| key.map_err(unread).and_then(|key| record_id(&key))).collect()
    }

    pub(super) fn fence_ceiling(&self) -> Result<Fence, StoreError> {
        let Some(value) = self.meta.get(FENCE_CEILING).map_err(broken)? else {
            return Ok(Fence::default());
        };
        let bytes = value.as_ref().try_into().map_err(|_| {
            StoreError::new(
                StoreErrorKind::Corrupt,
                "the highest fence of the store cannot be read",
            )
        })?;
        Ok(Fence::new(u64::from_be_bytes(bytes)))
    }

    fn secret(&self, name: &str) -> Result<Option<[u8; 32]>, StoreError> {
        let found = self.meta.get(&secret_key(name)).map_err(broken)?;
        let read = |value: Slice| value.as_ref().try_into();
        found.map(read).transpose().map_err(|_| StoreError::damaged_secret(name))
    }

    /// Reads audit entries before this place, the newest first.
    pub(super) fn audit_entries(
        &self,
        of: Option<RecordId>,
        from: Option<AuditPosition>,
        limit: usize,
    ) -> Result<AuditPage, StoreError> {
        audit::read(&self.meta, of, from, limit)
    }

    /// The approximate number of settled records: each has an entry of its own and one for its
    /// expiry.
    pub(super) fn settled_about(&self) -> usize {
        self.tree.len_about() / 2
    }

    /// Begins a group of writes.
    pub(super) fn group(&self) -> Group<'_> {
        Group {
            tables: self,
            frame: FrameBuilder::new(),
            changes: Changes::default(),
            made: HashMap::new(),
            encoded: BytesMut::new(),
        }
    }

    /// Applies durable changes.
    pub(super) fn apply(&self, changes: Changes) {
        let number = self.tree.next_write();
        for Change { table, key, value } in changes.changes {
            self.write(table, &key, value, number);
        }
        self.unwritten.add(changes.bytes);
    }

    /// Applies one item of the log.
    pub(super) fn replay(&self, item: &Item<'_>) {
        let (table, key, value) = match *item {
            Item::ClearRunning => return,
            Item::Insert(table, key, value) => (table, key, Some(Slice::from(value))),
            Item::Remove(table, key) => (table, key, None),
        };
        let bytes = value.as_ref().map_or(0, |value| value.len() as u64);
        self.write(table, key, value, self.tree.next_write());
        self.unwritten.add(ITEM_BYTES + bytes);
    }

    fn write(&self, table: Table, key: &[u8], value: Option<Slice>, number: u64) {
        match table {
            Table::Running => {}
            Table::Settled => self.settled.write(key, value, number),
            Table::Expiry => self.expiry.write(key, value, number),
            Table::Meta => {
                if value.is_some() {
                    self.asks.inserted(key);
                    self.notes.inserted(key);
                }
                self.meta.write(key, value, number);
            }
        }
    }

    /// Ends the entries in memory that the next flush writes to files.
    pub(super) fn seal(&self) {
        self.tree.seal();
        self.unwritten.seal();
    }
}

/// The error for tables that could not be opened. An error of the operating system is not damage.
fn refused(folder: &Folder, error: lsm_tree::Error) -> OpenError {
    match error {
        lsm_tree::Error::Io(error) => OpenError::io(folder.path(), "open the tables", error),
        error => OpenError::Damaged {
            path: folder.path().to_owned(),
            what: format!("the tables cannot be read ({error})"),
            source: Some(Box::new(error)),
        },
    }
}

/// Checks the list of the tables' files before they are opened, because opening changes them.
pub(super) fn check_files(folder: &Folder) -> Result<(), OpenError> {
    let damaged = |what: &str| Err(OpenError::damaged(folder.path(), what));
    // lsm-tree creates tables that lack this file.
    if !folder.tables().join(manifest::CURRENT).is_file() {
        return damaged("the tables or the list of their files is missing");
    }
    match manifest::is_whole(&folder.tables()) {
        Ok(true) => Ok(()),
        Ok(false) => damaged("the list of the tables' files has changed"),
        Err(error) => Err(OpenError::io(folder.path(), "read the tables", error)),
    }
}

/// Changes of the tables that are durable in the log.
#[derive(Default)]
pub(super) struct Changes {
    changes: Vec<Change>,
    /// The memory that they take in the tables, in bytes.
    bytes: u64,
}

struct Change {
    table: Table,
    key: Slice,
    /// `None` removes the entry.
    value: Option<Slice>,
}

/// Writes that become durable together.
pub(super) struct Group<'a> {
    tables: &'a Tables,
    frame: FrameBuilder,
    changes: Changes,
    /// Secrets that this group creates. The tables do not show them yet.
    made: HashMap<&'static str, [u8; 32]>,
    /// Memory for the bytes of one record.
    encoded: BytesMut,
}

impl Group<'_> {
    fn insert(&mut self, table: Table, key: &[u8], value: &[u8]) {
        self.frame.add(&Item::Insert(table, key, value));
        self.change(table, key, Some(value));
    }

    fn remove(&mut self, table: Table, key: &[u8]) {
        self.frame.add(&Item::Remove(table, key));
        self.change(table, key, None);
    }

    fn change(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        if table == Table::Running {
            return;
        }
        self.changes.bytes += ITEM_BYTES + value.map_or(0, |value| value.len() as u64);
        let (key, value) = (Slice::from(key), value.map(Slice::from));
        self.changes.changes.push(Change { table, key, value });
    }

    /// Begins the first group of a segment: `running` are the records of all running attempts.
    pub(super) fn add_running<'r>(&mut self, running: impl Iterator<Item = &'r Arc<Record>>) {
        self.frame.add(&Item::ClearRunning);
        for record in running {
            self.insert_record(Table::Running, record);
        }
    }

    /// Writes a record to its table. `ran` is true if it is in `running` until now. `before` is the
    /// time at which it was due for reconciliation until now.
    pub(super) fn write(&mut self, record: &Record, ran: bool, before: Option<Timestamp>) {
        if record.ask_at() != before {
            before.into_iter().for_each(|at| self.remove_ask(at, record.id));
            record.ask_at().into_iter().for_each(|at| self.insert_ask(at, record.id));
        }
        if matches!(record.state, State::Running { .. }) {
            self.insert_record(Table::Running, record);
            return;
        }
        if ran {
            self.remove(Table::Running, record.id.as_bytes());
        }
        self.insert_record(Table::Settled, record);
        if let Some(at) = record.expires_at() {
            self.insert(Table::Expiry, &moment_key(at, record.id), &[]);
        }
    }

    fn insert_record(&mut self, table: Table, record: &Record) {
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        codec::encode_into(record, &mut encoded);
        self.insert(table, record.id.as_bytes(), &encoded);
        self.encoded = encoded;
    }

    pub(super) fn raise_fence_ceiling(&mut self, to: Fence) {
        self.insert(Table::Meta, FENCE_CEILING, &to.get().to_be_bytes());
    }

    /// Returns the secret of this name, and creates it if it does not exist.
    pub(super) fn secret(
        &mut self,
        name: &'static str,
        fresh: [u8; 32],
    ) -> Result<[u8; 32], StoreError> {
        if let Some(made) = self.made.get(name) {
            return Ok(*made);
        }
        if let Some(found) = self.tables.secret(name)? {
            return Ok(found);
        }
        self.insert(Table::Meta, &secret_key(name), &fresh);
        self.made.insert(name, fresh);
        Ok(fresh)
    }

    pub(super) fn audit(&mut self, entry: &AuditEntry) {
        let [place, of] = audit::keys(&entry.place, entry.id);
        self.insert(Table::Meta, &place, &entry.encode());
        self.insert(Table::Meta, &of, &[]);
    }

    /// Deletes a few audit entries whose retention has ended.
    pub(super) fn remove_old_notes(
        &mut self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(), StoreError> {
        for (place, id) in audit::old(&self.tables.meta, &self.tables.notes, now, limit)? {
            for key in audit::keys(&place, id) {
                self.remove(Table::Meta, &key);
            }
        }
        Ok(())
    }

    pub(super) fn remove_settled(&mut self, id: RecordId) {
        self.remove(Table::Settled, id.as_bytes());
    }

    pub(super) fn remove_expiry(&mut self, at: Timestamp, id: RecordId) {
        self.remove(Table::Expiry, &moment_key(at, id));
    }

    /// Moves an entry of the expiry index to a later time. The record itself says when it expires.
    pub(super) fn postpone_expiry(&mut self, from: Timestamp, to: Timestamp, id: RecordId) {
        self.remove_expiry(from, id);
        self.insert(Table::Expiry, &moment_key(to, id), &[]);
    }

    fn insert_ask(&mut self, at: Timestamp, id: RecordId) {
        self.insert(Table::Meta, &asks::key(at, id), &[]);
    }

    pub(super) fn remove_ask(&mut self, at: Timestamp, id: RecordId) {
        self.remove(Table::Meta, &asks::key(at, id));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frame.is_empty()
    }

    /// The bytes of its frame.
    pub(super) fn bytes(&self) -> usize {
        self.frame.bytes()
    }

    /// Returns the frame that makes the group durable, and the changes to apply after that.
    pub(super) fn into_parts(self) -> (FrameBuilder, Changes) {
        (self.frame, self.changes)
    }
}

fn secret_key(name: &str) -> Vec<u8> {
    [SECRET, name.as_bytes()].concat()
}

/// A key in the order of a moment, and of an id.
pub(super) type MomentKey = [u8; 24];

pub(super) fn moment_key(at: Timestamp, id: RecordId) -> MomentKey {
    let mut key = [0; 24];
    let parts = at.as_micros().to_be_bytes().into_iter().chain(*id.as_bytes());
    for (to, from) in key.iter_mut().zip(parts) {
        *to = from;
    }
    key
}

pub(super) fn moment_entry(key: &MomentKey) -> (Timestamp, RecordId) {
    let at = key.first_chunk().copied().unwrap_or_default();
    let id = key.last_chunk().copied().unwrap_or_default();
    (Timestamp::from_micros(u64::from_be_bytes(at)), RecordId::from_bytes(id))
}

pub(super) fn record_id(key: &[u8]) -> Result<RecordId, StoreError> {
    let bytes = key.try_into().map_err(|_| damaged_entry("a record's key is damaged"))?;
    Ok(RecordId::from_bytes(bytes))
}

pub(super) fn decode(id: RecordId, value: &[u8]) -> Result<Record, StoreError> {
    codec::decode(id, Bytes::copy_from_slice(value))
        .map_err(|error| unreadable(id).with_source(error))
}
