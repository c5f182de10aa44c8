//! The tree and its tables.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `running` | fence, id | the record, while an attempt runs: small, and read whole when the folder is opened |
//! | `settled` | id | the record, once it is settled |
//! | `expiry` | moment of expiry, id | nothing: the index for the sweep; an entry may be out of date |
//! | `meta` | name | the store's own data, its secrets, the audit, and the reconcile index |
//!
//! A record that runs again keeps its older version in `settled` until it is settled again. The
//! entry in `running` takes precedence. Its key begins with the fence, which rises: so new entries
//! are close together, and are found faster than in the order of ids.

use std::collections::HashMap;
use std::ops::{Bound, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use onetake_core::audit::{AuditEntry, AuditPage, AuditPosition};
use onetake_core::{
    Fence, Record, RecordId, Rng, State, StoreError, StoreErrorKind, SystemRng, Timestamp, codec,
};

use super::asks;
use super::audit;
use super::files::is_too_many;
use super::folder::{Folder, OpenError};
use super::journal;
use super::manifest;
use super::unwritten::{EXPIRY, ITEM_BYTES, META, RUNNING, SETTLED, TABLES, Unwritten};
use super::witness::{Mark, Witness};

/// The largest number of journal bytes whose tables are not written yet. They are read again when
/// the folder is opened.
const JOURNAL_BYTES_MAX: u64 = 192 << 20;
/// The most files of tables that stay open.
const CACHED_FILES: usize = 128;
/// The size at which the tree itself writes a table in memory to disk.
const MEMTABLE_BYTES: u64 = 32 << 20;

const FENCE_CEILING: &[u8] = b"fence-ceiling";
/// The prefix of a secret's name.
const SECRET: &[u8] = b"secret:";
const COMPACTED: &[u8] = b"compacted";
/// The content of fjall 3's file `version`.
const TREE_VERSION: &[u8] = b"FJL\x03";
/// The name of the first item in every group.
pub(super) const MARK: &[u8] = b"mark";

pub(super) struct Tables {
    db: Database,
    mark: Mark,
    running: Keyspace,
    settled: Keyspace,
    expiry: Keyspace,
    meta: Keyspace,
    unwritten: Unwritten,
}

impl Tables {
    /// Checks the tree of a folder for damage, then opens it. `memory` is for blocks and for writes
    /// that are not in tables yet, in bytes.
    pub(super) fn open(folder: &Folder, memory: usize) -> Result<Self, OpenError> {
        let witness = if folder.is_new() {
            let mut witness = Witness::default();
            SystemRng.fill(&mut witness.mark);
            witness
        } else {
            let witness = folder.witness()?;
            check_files(folder, &witness)?;
            witness
        };
        // The tree panics on some kinds of damage.
        let tables =
            catch_unwind(AssertUnwindSafe(|| Self::open_tree(folder, witness.mark, memory)))
                .map_err(|_| OpenError::damaged(folder.path(), "the tables cannot be read"))?
                .map_err(|error| refused(folder, error))?;
        let ceiling = tables.fence_ceiling().map_err(|error| folder.unreadable(error))?;
        if ceiling < witness.ceiling {
            return Err(OpenError::damaged(
                folder.path(),
                "the tables are older than at the last use: an old copy was restored, or writes were lost",
            ));
        }
        folder.begin_use(&tables.witness(ceiling))?;
        Ok(tables)
    }

    /// Returns the least that the tree contains from now on.
    pub(super) fn witness(&self, ceiling: Fence) -> Witness {
        let folders = self.all().into_iter().filter_map(|table| table.path().file_name());
        let mut tables: Vec<String> =
            folders.map(|name| name.to_string_lossy().into_owned()).collect();
        // The tree's own list of tables.
        tables.push("0".to_owned());
        Witness { mark: self.mark, tables, ceiling, journals: None }
    }

    fn open_tree(folder: &Folder, mark: Mark, memory: usize) -> Result<Self, fjall::Error> {
        let half = memory as u64 / 2;
        let db = Database::builder(folder.database())
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .cache_size(half)
            .max_cached_files(Some(CACHED_FILES))
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let tables = Self {
            mark,
            running: db.keyspace("running", options)?,
            settled: db.keyspace("settled", options)?,
            expiry: db.keyspace("expiry", options)?,
            meta: db.keyspace("meta", options)?,
            unwritten: Unwritten::new(half),
            db,
        };
        // The journals of the last use are in memory now.
        if tables.db.write_buffer_size() > half / 2 {
            for table in tables.all() {
                table.rotate_memtable()?;
            }
        }
        Ok(tables)
    }

    fn all(&self) -> [&Keyspace; TABLES] {
        [&self.running, &self.settled, &self.expiry, &self.meta]
    }

    /// Returns a settled record by its id.
    pub(super) fn settled(&self, id: RecordId) -> Result<Option<Record>, StoreError> {
        match self.settled.get(id.as_bytes()) {
            Ok(None) => Ok(None),
            Ok(Some(value)) => decode(id, &value).map(Some),
            Err(error) if is_out_of_files(&error) => Err(broken(error)),
            Err(error) => Err(unreadable(id).with_source(error)),
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
        let entries = self.settled.range::<&[u8], _>((start, Bound::Unbounded)).take(limit);
        entries.map(|entry| entry.key().map_err(broken).and_then(|key| record_id(&key))).collect()
    }

    /// Returns the ids of settled records in this range, in order.
    pub(super) fn settled_within(
        &self,
        range: RangeInclusive<RecordId>,
        limit: usize,
    ) -> Result<Vec<RecordId>, StoreError> {
        let (first, last) = (*range.start().as_bytes(), *range.end().as_bytes());
        let entries = self.settled.range(first..=last).take(limit);
        entries.map(|entry| entry.key().map_err(broken).and_then(|key| record_id(&key))).collect()
    }

    /// Returns the records of all running attempts.
    pub(super) fn all_running(&self) -> Result<Vec<Record>, StoreError> {
        self.running
            .iter()
            .map(|entry| {
                let (key, value) = entry.into_inner().map_err(broken)?;
                let id = key.split_at_checked(8).map_or(&[][..], |(_fence, id)| id);
                decode(record_id(id)?, &value)
            })
            .collect()
    }

    /// Returns up to `limit` entries of the expiry index that are due, the oldest first.
    pub(super) fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RecordId)>, StoreError> {
        let end = moment_key(now, RecordId::from_bytes([0xff; RecordId::BYTES]));
        let entries = self.expiry.range(..=end.as_slice()).take(limit);
        entries
            .map(|entry| entry.key().map_err(broken).and_then(|key| moment_entry(&key)))
            .collect()
    }

    /// Returns the entries of the reconcile index that are due, the longest due first.
    pub(super) fn due_asks(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = Result<(Timestamp, RecordId), StoreError>> {
        asks::due(&self.meta, now)
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
        let found = self.meta.get(secret_key(name)).map_err(broken)?;
        let read = |value: fjall::Slice| value.as_ref().try_into();
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

    /// The approximate number of settled records.
    pub(super) fn settled_about(&self) -> usize {
        self.settled.approximate_len()
    }

    /// Begins a group of writes.
    pub(super) fn group(&self) -> Group<'_> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        batch.insert(&self.meta, MARK, self.mark);
        let mut added = [0; TABLES];
        added[META] = ITEM_BYTES;
        Group { tables: self, batch, added, made: HashMap::new() }
    }

    /// Returns a function that gives back the space of deleted records. It may take long; other
    /// threads go on meanwhile.
    pub(super) fn compactor(&self) -> impl FnOnce() -> Result<(), fjall::Error> + Send + use<> {
        let tables = [self.settled.clone(), self.expiry.clone()];
        move || {
            for table in tables {
                // Tables in memory are written first. Otherwise their deletions would have no
                // effect.
                table.rotate_memtable_and_wait()?;
                table.major_compact()?;
            }
            Ok(())
        }
    }

    /// Makes the tree delete replaced files. It does so when the next table in memory is written,
    /// whichever that is. A small table is used here, so that the deletion does not wait for
    /// traffic to fill a large one.
    pub(super) fn drop_replaced_files(&self) {
        if let Err(error) = self.meta.rotate_memtable() {
            tracing::warn!(%error, "the space of expired records could not be freed yet");
        }
    }

    /// Makes everything durable and closes the tree.
    pub(super) fn close(self) -> Result<(), StoreError> {
        self.db.persist(PersistMode::SyncAll).map_err(failed_write)
    }
}

/// The error for a tree that could not be opened. An error of the operating system is not damage.
fn refused(folder: &Folder, error: fjall::Error) -> OpenError {
    match error {
        fjall::Error::Locked => folder.in_use(),
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            OpenError::io(folder.path(), "open the tables", error)
        }
        error => OpenError::Damaged {
            path: folder.path().to_owned(),
            what: format!("the tables cannot be read ({error})"),
            source: Some(Box::new(error)),
        },
    }
}

/// Checks the files of a tree before it is opened, because opening changes them.
fn check_files(folder: &Folder, witness: &Witness) -> Result<(), OpenError> {
    let path = folder.database();
    let damaged = |what: String| OpenError::damaged(folder.path(), what);
    match std::fs::read(path.join("version")) {
        Ok(version) if version == TREE_VERSION => {}
        Ok(_) => return Err(damaged("the contents of db/version have changed".to_owned())),
        Err(_) => return Err(damaged("the db folder is missing".to_owned())),
    }
    let tables = path.join("keyspaces");
    for table in &witness.tables {
        // fjall assumes that a table without this file is half created, and deletes it.
        if !tables.join(table).join("current").is_file() {
            return Err(damaged(format!("the table {table} or its list of files is missing")));
        }
    }
    let io = |error| OpenError::io(folder.path(), "read the tables", error);
    for table in &witness.tables {
        if !manifest::is_whole(&tables.join(table)).map_err(io)? {
            return Err(damaged(format!("the list of files of the table {table} has changed")));
        }
    }
    for entry in std::fs::read_dir(&tables).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        if name.to_str().is_none_or(|name| !witness.tables.iter().any(|table| table == name)) {
            return Err(damaged(format!("db/keyspaces has an unknown entry: {}", name.display())));
        }
    }
    let io = |error| OpenError::io(folder.path(), "read the journal", error);
    let journals = journal::check(&path, &witness.mark).map_err(io)?.map_err(damaged)?;
    if witness.journals.as_ref().is_some_and(|closed| *closed != journals.lengths) {
        return Err(damaged("the journal has changed since the store was closed".to_owned()));
    }
    // From here on the folder is in use, so the journal lengths of the last close are dropped.
    // Opening the tree changes its journals, and may be interrupted.
    folder.begin_use(&Witness { journals: None, ..witness.clone() })?;
    let is_clean = witness.journals.is_some();
    let mended = journal::cut(&journals)
        .and_then(|()| if is_clean { Ok(()) } else { journal::write_last_again(&journals) });
    mended.map_err(|error| OpenError::io(folder.path(), "repair the journal", error))
}

/// Writes that become durable together.
pub(super) struct Group<'a> {
    tables: &'a Tables,
    batch: fjall::OwnedWriteBatch,
    /// The bytes that the group adds to each table in memory.
    added: [u64; TABLES],
    /// Secrets that this group creates. The tables do not show them yet.
    made: HashMap<&'static str, [u8; 32]>,
}

impl Group<'_> {
    /// Writes a record to its table. `ran` is its fence if it is in `running` until now. `before` is
    /// the time at which it was due for reconciliation until now.
    pub(super) fn write(&mut self, record: &Record, ran: Option<Fence>, before: Option<Timestamp>) {
        let Tables { running, settled, expiry, .. } = self.tables;
        let value = codec::encode(record);
        if record.ask_at() != before {
            before.into_iter().for_each(|at| self.remove_ask(at, record.id));
            record.ask_at().into_iter().for_each(|at| self.insert_ask(at, record.id));
        }
        let runs = matches!(record.state, State::Running { .. });
        if let Some(fence) = ran.filter(|fence| !runs || *fence != record.fence) {
            self.batch.remove(running, number_key(fence.get(), record.id));
            self.added[RUNNING] += ITEM_BYTES;
        }
        if runs {
            self.batch.insert(running, number_key(record.fence.get(), record.id), &*value);
            self.added[RUNNING] += ITEM_BYTES + value.len() as u64;
            return;
        }
        self.batch.insert(settled, record.id.as_bytes(), &*value);
        self.added[SETTLED] += ITEM_BYTES + value.len() as u64;
        if let Some(at) = record.expires_at() {
            self.batch.insert(expiry, moment_key(at, record.id), []);
            self.added[EXPIRY] += ITEM_BYTES;
        }
    }

    /// Adds an entry to `meta`, so that its table in memory is not empty.
    pub(super) fn note_compaction(&mut self) {
        self.batch.insert(&self.tables.meta, COMPACTED, []);
    }

    pub(super) fn raise_fence_ceiling(&mut self, to: Fence) {
        self.batch.insert(&self.tables.meta, FENCE_CEILING, to.get().to_be_bytes());
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
        self.batch.insert(&self.tables.meta, secret_key(name), fresh);
        self.made.insert(name, fresh);
        Ok(fresh)
    }

    pub(super) fn audit(&mut self, entry: &AuditEntry) {
        let [place, of] = audit::keys(&entry.place, entry.id);
        let entry = entry.encode();
        self.added[META] += 2 * ITEM_BYTES + entry.len() as u64;
        self.batch.insert(&self.tables.meta, place, &*entry);
        self.batch.insert(&self.tables.meta, of, []);
    }

    /// Deletes a few audit entries whose retention has ended.
    pub(super) fn remove_old_notes(
        &mut self,
        now: Timestamp,
        limit: usize,
    ) -> Result<(), StoreError> {
        for (place, id) in audit::old(&self.tables.meta, now, limit)? {
            for key in audit::keys(&place, id) {
                self.batch.remove(&self.tables.meta, key);
            }
        }
        Ok(())
    }

    pub(super) fn remove_settled(&mut self, id: RecordId) {
        self.batch.remove(&self.tables.settled, id.as_bytes());
        self.added[SETTLED] += ITEM_BYTES;
    }

    pub(super) fn remove_expiry(&mut self, at: Timestamp, id: RecordId) {
        self.batch.remove(&self.tables.expiry, moment_key(at, id));
        self.added[EXPIRY] += ITEM_BYTES;
    }

    fn insert_ask(&mut self, at: Timestamp, id: RecordId) {
        self.batch.insert(&self.tables.meta, asks::key(at, id), []);
    }

    pub(super) fn remove_ask(&mut self, at: Timestamp, id: RecordId) {
        self.batch.remove(&self.tables.meta, asks::key(at, id));
    }

    pub(super) fn is_empty(&self) -> bool {
        // The mark alone is no content.
        self.batch.len() <= 1
    }

    /// Waits until everything is on disk. After a failure the state on disk is unknown, so the
    /// store must not be used after this error.
    pub(super) fn commit(self) -> Result<(), StoreError> {
        let Self { tables, batch, added, .. } = self;
        batch.commit().map_err(failed_write)?;
        let Some(largest) = tables.unwritten.add(added) else { return Ok(()) };
        // The group is durable. A table that is not written now is written later.
        if let Some(table) = tables.all().get(largest)
            && let Err(error) = table.rotate_memtable()
        {
            tracing::warn!(%error, "a table of the store could not be written yet");
        }
        Ok(())
    }
}

fn secret_key(name: &str) -> Vec<u8> {
    [SECRET, name.as_bytes()].concat()
}

pub(super) fn moment_key(at: Timestamp, id: RecordId) -> [u8; 24] {
    number_key(at.as_micros(), id)
}

/// A key in the order of a number.
fn number_key(number: u64, id: RecordId) -> [u8; 24] {
    let mut key = [0; 24];
    let parts = number.to_be_bytes().into_iter().chain(*id.as_bytes());
    for (to, from) in key.iter_mut().zip(parts) {
        *to = from;
    }
    key
}

pub(super) fn moment_entry(key: &[u8]) -> Result<(Timestamp, RecordId), StoreError> {
    let bad =
        || StoreError::new(StoreErrorKind::Corrupt, "an entry of an index by time is damaged");
    let (at, id) = key.split_at_checked(8).ok_or_else(bad)?;
    let at = u64::from_be_bytes(at.try_into().map_err(|_| bad())?);
    Ok((Timestamp::from_micros(at), record_id(id)?))
}

fn record_id(key: &[u8]) -> Result<RecordId, StoreError> {
    let bytes = key
        .try_into()
        .map_err(|_| StoreError::new(StoreErrorKind::Corrupt, "a record's key is damaged"))?;
    Ok(RecordId::from_bytes(bytes))
}

fn decode(id: RecordId, value: &[u8]) -> Result<Record, StoreError> {
    codec::decode(id, Bytes::copy_from_slice(value))
        .map_err(|error| unreadable(id).with_source(error))
}

/// The error for one unreadable record. Its key is refused; all other keys still work.
fn unreadable(id: RecordId) -> StoreError {
    let message = format!("the record {} is damaged and cannot be read", id.reference());
    StoreError::new(StoreErrorKind::Invalid, message)
}

/// The error of a read. One without descriptors is over when there are some again.
pub(super) fn broken(error: fjall::Error) -> StoreError {
    if is_out_of_files(&error) {
        let what = "reading the data folder failed: the process has too many open files";
        return StoreError::new(StoreErrorKind::Unavailable, what).with_source(error);
    }
    failed_write(error)
}

fn is_out_of_files(error: &fjall::Error) -> bool {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            is_too_many(error)
        }
        _ => false,
    }
}

/// The error of a write: the state on disk is unknown.
fn failed_write(error: fjall::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("reading or writing the data folder failed: {error}"),
    )
    .with_source(error)
}
