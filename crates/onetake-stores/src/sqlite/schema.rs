//! Opening of the file: its settings and its schema.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Row, TransactionBehavior};

use onetake_core::{StoreError, StoreErrorKind};

use super::error::{is_busy, unopened};
use super::recovery;

/// The pause between two tries to get the write lock.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// The number of tries to get the write lock: about two seconds.
const BUSY_TRIES_MAX: i32 = 2_000;
/// The size to which the write-ahead log is cut back after it has grown.
const WAL_BYTES_KEPT: i64 = 64 << 20;

/// The application id that marks a file of onetake: "onet".
const APPLICATION_ID: i64 = 0x6f6e_6574;

/// The migrations from each version of the schema to the next. A new file begins at 0.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE onetake_records (
        id           BLOB PRIMARY KEY NOT NULL,
        state        TEXT NOT NULL,
        attempt      BLOB NOT NULL,
        fence        INTEGER NOT NULL,
        fingerprint  BLOB NOT NULL,
        created_at   INTEGER NOT NULL,
        settled_at   INTEGER,
        expires_at   INTEGER,
        lease_until  INTEGER,
        abandoned_at INTEGER,
        record       BLOB NOT NULL
    ) STRICT;
    CREATE INDEX onetake_records_abandoned ON onetake_records (abandoned_at) WHERE abandoned_at IS NOT NULL;
    CREATE INDEX onetake_records_expiry ON onetake_records (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE onetake_meta (name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL) STRICT;
    ",
    "CREATE TABLE onetake_secrets (name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT;",
    "
    CREATE TABLE onetake_notes (
        place BLOB PRIMARY KEY NOT NULL,
        id    BLOB NOT NULL,
        said  BLOB NOT NULL
    ) STRICT;
    CREATE INDEX onetake_notes_id ON onetake_notes (id, place);
    ",
    // Byte 83 of a record is its policy for unknown outcomes: 1 is `reconcile`.
    "
    ALTER TABLE onetake_records ADD COLUMN ask_at INTEGER;
    UPDATE onetake_records SET ask_at = settled_at WHERE state = 'unknown' AND substr(record, 83, 1) = x'01';
    CREATE INDEX onetake_records_ask ON onetake_records (ask_at) WHERE ask_at IS NOT NULL;
    ",
    super::outbox::TABLES,
    // A process of an earlier version writes no checksum, so the triggers clear the checksum of a
    // row that it changes.
    "
    ALTER TABLE onetake_records ADD COLUMN checksum INTEGER;
    ALTER TABLE onetake_meta ADD COLUMN checksum INTEGER;
    ALTER TABLE onetake_secrets ADD COLUMN checksum INTEGER;
    ALTER TABLE onetake_notes ADD COLUMN checksum INTEGER;
    CREATE TRIGGER onetake_records_unchecked AFTER UPDATE OF record ON onetake_records
    WHEN NEW.checksum IS OLD.checksum AND NEW.record IS NOT OLD.record BEGIN
        UPDATE onetake_records SET checksum = NULL WHERE rowid = NEW.rowid;
    END;
    CREATE TRIGGER onetake_meta_unchecked AFTER UPDATE OF value ON onetake_meta
    WHEN NEW.checksum IS OLD.checksum AND NEW.value IS NOT OLD.value BEGIN
        UPDATE onetake_meta SET checksum = NULL WHERE rowid = NEW.rowid;
    END;
    ",
];

/// The owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Onetake alone. The version is in the file's header.
    Onetake,
    /// Another program. Onetake's tables are beside its own, and one of them contains the version.
    Another,
}

/// The schema version that this program writes.
pub(super) fn version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Opens the file, or creates it. Returns also its absolute path.
pub(super) fn open(file: &Path, owner: Owner) -> Result<(PathBuf, Connection), StoreError> {
    let file = place(file)?;
    recovery::check_log(&file)?;
    let connection = connect(&file).map_err(|error| unopened(&file, error))?;
    let connection = set_up(connection, &file, owner)?;
    Ok((file, connection))
}

/// Opens one more connection to a file that is open already.
pub(super) fn open_again(file: &Path) -> Result<Connection, StoreError> {
    let file = place(file)?;
    let connection = connect(&file).map_err(|error| unopened(&file, error))?;
    settle_settings(&connection).map_err(|error| unopened(&file, error))?;
    Ok(connection)
}

/// Returns the owner of a file that has an outbox. Nothing in the file is changed.
pub(super) fn owner_of_outbox(file: &Path) -> Result<Owner, StoreError> {
    const LOOK: &str = "
        SELECT application_id, (SELECT count(*) FROM sqlite_schema WHERE name = 'onetake_outbox')
          FROM pragma_application_id";
    let file = place(file)?;
    let connection = Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|error| unopened(&file, error))?;
    let found = connection
        .query_row(LOOK, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        .map_err(|error| unopened(&file, error))?;
    match found {
        (_, 0) => {
            let what =
                format!("{} has no outbox: name the SQLite file of the store", file.display());
            Err(StoreError::new(StoreErrorKind::Invalid, what))
        }
        (APPLICATION_ID, _) => Ok(Owner::Onetake),
        _ => Ok(Owner::Another),
    }
}

fn place(file: &Path) -> Result<PathBuf, StoreError> {
    // Absolute, so that no name has a special meaning for SQLite (`:memory:`, the empty name).
    let file = std::path::absolute(file).map_err(|error| {
        let what = format!("`{}` is not a path to a file", file.display());
        StoreError::new(StoreErrorKind::Invalid, what).with_source(error)
    })?;
    check_place(&file)?;
    Ok(file)
}

/// Checks the path. SQLite's own error would only be "unable to open database file".
fn check_place(file: &Path) -> Result<(), StoreError> {
    let invalid = |what| Err(StoreError::new(StoreErrorKind::Invalid, what));
    if file.is_dir() {
        let what = format!(
            "{} is a folder: name a file in it, such as {}",
            file.display(),
            file.join("onetake.db").display()
        );
        return invalid(what);
    }
    match file.parent() {
        Some(parent) if !parent.is_dir() => invalid(format!(
            "{} cannot be opened: the folder {} does not exist; create it first",
            file.display(),
            parent.display()
        )),
        _ => Ok(()),
    }
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let mut connection = Connection::open_with_flags(file, flags)?;
    // SQLite's own handler waits longer and longer between two tries. Beside a process that commits
    // without a pause it could wait for ever.
    connection.busy_handler(Some(wait_for_lock))?;
    Ok(connection)
}

/// Waits a little. Returns true if the caller should try once more.
pub(super) fn wait_for_lock(tries: i32) -> bool {
    #[expect(clippy::disallowed_methods, reason = "SQLite calls this, and waits in real time")]
    std::thread::sleep(BUSY_PAUSE);
    tries < BUSY_TRIES_MAX
}

/// Switches to WAL mode. If two processes create one file at the same moment, SQLite may return
/// "busy" without having waited.
fn to_wal(connection: &Connection) -> rusqlite::Result<String> {
    let mut tries = 0;
    loop {
        let set = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0));
        match set {
            Err(error) if is_busy(&error) && wait_for_lock(tries) => tries += 1,
            set => return set,
        }
    }
}

fn set_up(mut connection: Connection, file: &Path, owner: Owner) -> Result<Connection, StoreError> {
    let failed = |error| unopened(file, error);
    // Before anything is changed.
    check_owner(&connection, file, owner)?;
    let mode = to_wal(&connection).map_err(failed)?;
    if mode != "wal" {
        let what = format!(
            "{} cannot be switched to WAL mode (it is in `{mode}`): move it to a local filesystem",
            file.display()
        );
        return Err(StoreError::new(StoreErrorKind::Invalid, what));
    }
    settle_settings(&connection).map_err(failed)?;
    recovery::make_durable(&mut connection, file)?;
    migrate(&mut connection, file, owner)?;
    recovery::checkpoint(&connection, file)?;
    recovery::check_pages(&connection, file, owner)?;
    Ok(connection)
}

/// Applies the settings that make a connection's commits durable.
fn settle_settings(connection: &Connection) -> rusqlite::Result<()> {
    for (name, value) in [
        ("synchronous", 2),
        // For macOS, where a plain fsync does not reach the disk.
        ("fullfsync", 1),
        ("checkpoint_fullfsync", 1),
        ("journal_size_limit", WAL_BYTES_KEPT),
        // The functions that a file's schema names are not trusted.
        ("trusted_schema", 0),
    ] {
        // Some of these pragmas return a row, which `pragma_update` would treat as an error.
        let set = format!("PRAGMA {name} = {value}");
        connection.prepare(&set)?.query([])?.next().map(drop)?;
    }
    Ok(())
}

/// Reads the owner of the file in one statement. Between two statements another process could
/// create its tables.
const OWNER: &str = "
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema),
           (SELECT count(*) FROM sqlite_schema WHERE name = 'onetake_schema')
    FROM pragma_application_id, pragma_user_version";

/// The table of the schema version in a file of another program.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS onetake_schema (
        one     INTEGER PRIMARY KEY NOT NULL DEFAULT 1 CHECK (one = 1),
        version INTEGER NOT NULL
    ) STRICT";

const SET_VERSION: &str = "
    INSERT INTO onetake_schema (version) VALUES (?1) ON CONFLICT (one) DO UPDATE SET version = excluded.version";

/// Returns the current version of the tables.
pub(super) fn found_version(connection: &Connection, owner: Owner) -> rusqlite::Result<i64> {
    match owner {
        Owner::Onetake => connection.pragma_query_value(None, "user_version", |row| row.get(0)),
        Owner::Another => {
            connection.query_row("SELECT version FROM onetake_schema", [], |row| row.get(0))
        }
    }
}

/// Returns the version of the file. Refuses a file of another program or of a newer version.
fn check_owner(connection: &Connection, file: &Path, owner: Owner) -> Result<i64, StoreError> {
    let failed = |error| unopened(file, error);
    let row = |row: &Row<'_>| -> rusqlite::Result<[i64; 4]> {
        Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
    };
    let [application, user_version, things, shared] =
        connection.query_row(OWNER, [], row).map_err(failed)?;
    let invalid = |what: String| Err(StoreError::new(StoreErrorKind::Invalid, what));
    let found = match (owner, application) {
        (Owner::Onetake, APPLICATION_ID) => user_version,
        (Owner::Onetake, 0) if user_version == 0 && things == 0 => 0,
        (Owner::Onetake, _) => {
            return invalid(format!(
                "{} is a database of another program: use a separate file for onetake",
                file.display()
            ));
        }
        (Owner::Another, APPLICATION_ID) => {
            return invalid(format!(
                "{} is a file of onetake alone: name the database that the program and onetake share",
                file.display()
            ));
        }
        (Owner::Another, _) if shared > 0 => found_version(connection, owner).map_err(failed)?,
        (Owner::Another, _) => 0,
    };
    let ours = "SELECT count(*) FROM sqlite_schema WHERE name = 'onetake_records'";
    if found > 0 && connection.query_row(ours, [], |row| row.get::<_, i64>(0)).map_err(failed)? == 0
    {
        return invalid(format!(
            "{} was created by an earlier onetake with other table names: use a new file. The keys \
             in the old file are then lost",
            file.display()
        ));
    }
    if found > version() {
        return invalid(format!(
            "{} has schema version {found}, and this onetake supports versions up to {}: use a \
             newer onetake",
            file.display(),
            version()
        ));
    }
    Ok(found)
}

/// Migrates the schema in one transaction. The version is read again inside it, because another
/// process may have been faster.
fn migrate(connection: &mut Connection, file: &Path, owner: Owner) -> Result<(), StoreError> {
    if check_owner(connection, file, owner)? == version() {
        return Ok(());
    }
    let failed = |error| unopened(file, error);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let found = check_owner(&transaction, file, owner)?;
    let done = usize::try_from(found).unwrap_or_default();
    for step in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(step).map_err(failed)?;
    }
    let marked = match owner {
        Owner::Onetake => transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .and_then(|()| transaction.pragma_update(None, "user_version", version())),
        Owner::Another => transaction
            .execute_batch(SCHEMA)
            .and_then(|()| transaction.execute(SET_VERSION, [version()]).map(drop)),
    };
    marked.map_err(failed)?;
    transaction.commit().map_err(failed)?;
    if done > 0 {
        tracing::info!(from = found, to = version(), "the schema of the store was migrated");
    }
    Ok(())
}
