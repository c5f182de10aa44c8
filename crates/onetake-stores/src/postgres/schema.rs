//! The schema. Every new connection checks it, and `onetake migrate` migrates it.
//!
//! Migrations expand first and contract later. A migration that old programs can work with leaves
//! `works_from` unchanged, so that nodes of both versions can run side by side during a deployment.

use onetake_core::clock::micros;
use onetake_core::origin::HISTORY_BYTES_MAX;
use onetake_core::record::KEPT_AFTER_SETTLING;
use onetake_core::{StoreError, StoreErrorKind};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use super::codes::{Code, PLACEHOLDERS};
use super::statement_error::{Effect, StatementError, missing, read_only};
use crate::outbox_codes::HELD_MAX;

/// The schema version that this program's statements are written for.
pub(super) const VERSION: i32 = 3;

/// The migrations from each version to the next one. The first one creates everything.
const MIGRATIONS: [&[&str]; VERSION as usize] = [
    &[
        include_str!("schema.sql"),
        include_str!("functions.sql"),
        include_str!("transactions.sql"),
        include_str!("outbox.sql"),
    ],
    &[include_str!("version_2.sql")],
    &[include_str!("version_3.sql")],
];

/// Returns a part of a migration with its placeholders replaced by Rust constants.
///
/// A migration that was released must not change by a byte. If a constant gets another value, its
/// functions need another version. A test checks the digests of all migrations.
fn render(part: &str) -> String {
    let part = part
        .replace("{{KEPT_AFTER_SETTLING}}", &micros(KEPT_AFTER_SETTLING).to_string())
        .replace("{{HISTORY_BYTES_MAX}}", &HISTORY_BYTES_MAX.to_string())
        .replace("{{HELD_MAX}}", &micros(HELD_MAX).to_string());
    PLACEHOLDERS.iter().fold(part, |part, (placeholder, code)| match code {
        Code::Number(number) => part.replace(placeholder, &number.to_string()),
        Code::Word(word) => part.replace(placeholder, word),
    })
}

/// One step of the schema, for tools that apply migrations from files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version of the schema after this step.
    pub version: u32,
    /// The statements.
    pub sql: String,
}

/// The steps from an empty database to the schema of this program, in their order.
///
/// A database to which all of them were applied is one that `onetake migrate` made. Each step also
/// writes its version into `onetake_schema`. A step never changes once it was released.
#[must_use]
pub fn migrations() -> Vec<Migration> {
    let step = |(version, parts): (u32, &&[&str])| {
        let head =
            format!("-- onetake, version {version} of the schema. Do not change this file.\n\n");
        let sql = parts.iter().fold(head, |sql, part| sql + &render(part) + "\n");
        Migration { version, sql }
    };
    (1..).zip(&MIGRATIONS).map(step).collect()
}

/// How often a migration that met another one is tried again.
const TRIES_MAX: usize = 5;

/// The result of `migrate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// The version that was found; `None` if there were no tables.
    pub from: Option<u32>,
    /// The version after the migration.
    pub to: u32,
}

/// Checks that a server and its schema can be used.
pub(super) async fn check(client: &Client, allow_lossy: bool) -> Result<(), StoreError> {
    let row = client
        .query_typed(
            "SELECT current_setting('fsync'), current_setting('full_page_writes'),
                    current_setting('synchronous_commit'), pg_is_in_recovery(),
                    to_regclass('onetake_schema') IS NOT NULL,
                    to_regclass('onetake_notes') IS NOT NULL AND 3 = (
                      SELECT count(*) FROM pg_attribute
                       WHERE attrelid = to_regclass('onetake_records') AND NOT attisdropped
                         AND attname IN ('origin', 'history', 'ask_at')), getdatabaseencoding()::text",
            &[],
        )
        .await
        .map_err(|error| StatementError::of_statement(error, Effect::Reads).for_one())?
        .pop()
        .ok_or_else(|| unavailable("PostgreSQL did not return its settings"))?;
    let setting = |at: usize| row.try_get::<_, String>(at).unwrap_or_default();
    let flag = |at: usize| row.try_get::<_, bool>(at).unwrap_or_default();
    if flag(3) {
        return Err(unavailable(&read_only("the server is a replica")));
    }
    encoded(&setting(6))?;
    if !allow_lossy {
        for (name, value) in [
            ("fsync", setting(0)),
            ("full_page_writes", setting(1)),
            ("synchronous_commit", setting(2)),
        ] {
            if value == "off" {
                return Err(invalid(format!(
                    "PostgreSQL runs with {name}=off: a crash loses acknowledged writes, and the \
                     operation of a lost claim runs twice. Set {name}=on, or accept the risk with \
                     `allow_lossy = true` below [store]"
                )));
            }
        }
    }
    if !flag(4) {
        return Err(invalid(missing("the table onetake_schema is missing")));
    }
    let found = version(client).await?;
    compatible(found)?;
    if !flag(5) {
        return Err(invalid(
            "the tables of onetake are incomplete: onetake_notes, or a column of onetake_records, \
             is missing. Restore them from a backup. If you do not need their contents, drop \
             everything named onetake_… and run `onetake migrate --store URL`"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Checks the database's encoding. Texts of other programs are stored too, so every character must
/// be representable.
fn encoded(encoding: &str) -> Result<(), StoreError> {
    if ["UTF8", "SQL_ASCII"].contains(&encoding) {
        return Ok(());
    }
    Err(invalid(format!(
        "the encoding of the database is {encoding}, which cannot store every text. Create a \
         database with `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
    )))
}

/// The version of the tables, and the oldest program version that works on them.
type SchemaVersion = (i32, i32);

async fn version(client: &Client) -> Result<SchemaVersion, StoreError> {
    let rows = client
        .query_typed("SELECT version, works_from FROM onetake_schema", &[])
        .await
        .map_err(|error| StatementError::of_statement(error, Effect::Reads).for_one())?;
    let row = rows.first().ok_or_else(|| invalid(missing("onetake_schema is empty")))?;
    match (row.try_get(0), row.try_get(1)) {
        (Ok(version), Ok(works_from)) => Ok((version, works_from)),
        _ => Err(invalid(missing("onetake_schema is not a table of onetake"))),
    }
}

fn compatible((version, works_from): SchemaVersion) -> Result<(), StoreError> {
    if version < VERSION {
        return Err(invalid(format!(
            "the tables have version {version}, and this onetake needs version {VERSION}: run \
             `onetake migrate --store URL`"
        )));
    }
    if works_from > VERSION {
        return Err(invalid(format!(
            "the tables have version {version}, which needs an onetake that supports version \
             {works_from} or later, and this one supports version {VERSION}: install a newer \
             onetake"
        )));
    }
    Ok(())
}

/// Migrates the schema to the current version.
pub(super) async fn migrate(client: &mut Client) -> Result<Migrated, StoreError> {
    for _ in 1..TRIES_MAX {
        match migrate_once(client).await {
            // Another process created the tables at the same time. Now they exist.
            Err(error) if is_race(&error) => {}
            answer => return answer.map_err(Stop::into_error),
        }
    }
    migrate_once(client).await.map_err(Stop::into_error)
}

/// The reason why a migration stopped.
enum Stop {
    Store(StoreError),
    Server(tokio_postgres::Error),
}

impl Stop {
    fn into_error(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Server(error) => StatementError::of_statement(error, Effect::Writes).for_one(),
        }
    }
}

fn is_race(stop: &Stop) -> bool {
    let Stop::Server(error) = stop else { return false };
    let races = [SqlState::DUPLICATE_TABLE, SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_OBJECT];
    error.code().is_some_and(|code| races.contains(code))
}

/// Runs all missing migrations in one transaction.
async fn migrate_once(client: &mut Client) -> Result<Migrated, Stop> {
    let transaction = client.transaction().await.map_err(Stop::Server)?;
    transaction.batch_execute("SET LOCAL lock_timeout = '30s'").await.map_err(Stop::Server)?;
    let from = found(&transaction).await.map_err(Stop::Store)?;
    if let Some(found @ (version, _)) = from
        && version > VERSION
    {
        compatible(found).map_err(Stop::Store)?;
    }
    let done = usize::try_from(from.map_or(0, |(version, _)| version)).unwrap_or_default();
    for part in MIGRATIONS.iter().skip(done).copied().flatten() {
        transaction.batch_execute(&render(part)).await.map_err(Stop::Server)?;
    }
    transaction.commit().await.map_err(Stop::Server)?;
    let number = |version: i32| u32::try_from(version).unwrap_or_default();
    let to = from.map_or(VERSION, |(version, _)| version.max(VERSION));
    Ok(Migrated { from: from.map(|(version, _)| number(version)), to: number(to) })
}

async fn found(transaction: &Transaction<'_>) -> Result<Option<SchemaVersion>, StoreError> {
    let failed = |error| StatementError::of_statement(error, Effect::Reads).for_one();
    let exists = "SELECT to_regclass('onetake_schema') IS NOT NULL, getdatabaseencoding()::text";
    let rows = transaction.query_typed(exists, &[]).await.map_err(failed)?;
    let encoding = rows.first().and_then(|row| row.try_get::<_, String>(1).ok());
    encoded(&encoding.unwrap_or_default())?;
    if !rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or(false) {
        return Ok(None);
    }
    // The row is locked, so that two migrations of an existing schema run one after the other.
    let current = "SELECT version, works_from FROM onetake_schema FOR UPDATE";
    let rows = transaction.query_typed(current, &[]).await.map_err(failed)?;
    let row = rows.first().ok_or_else(|| invalid(missing("onetake_schema is empty")))?;
    match (row.try_get(0), row.try_get(1)) {
        (Ok(version), Ok(works_from)) => Ok(Some((version, works_from))),
        _ => Err(invalid(missing("onetake_schema is not a table of onetake"))),
    }
}

/// Reads a secret, which all nodes share. It is created at first use.
pub(super) const SECRET: &str = "WITH made AS (
      INSERT INTO onetake_secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING value
    )
    SELECT value FROM made UNION ALL SELECT value FROM onetake_secrets WHERE name = $1 LIMIT 1";

/// The types of [`SECRET`]'s parameters.
pub(super) const SECRET_TYPES: [Type; 2] = [Type::TEXT, Type::BYTEA];

fn invalid(what: String) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, what)
}

fn unavailable(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::{Fingerprint, hex};

    #[test]
    fn released_migrations_do_not_change() {
        const RELEASED: [(u32, usize, &str); VERSION as usize] = [
            (1, 44_300, "a7404cda3ff999991722b29efeb948349bc6ad9df20f1bea5ac48a6b7ee11303"),
            (2, 10_613, "1f7aac71c29b58587f9cef78b1210aa5d167cb298babec83a24fa6f32f1029e7"),
            (3, 11_404, "ed6e651eb05f676ee947fd40bc1c01e6f8f728fc4a3436c53c36a5502e7c8431"),
        ];
        for (migration, (version, bytes, digest)) in migrations().iter().zip(RELEASED) {
            assert!(
                !migration.sql.contains("{{"),
                "a placeholder of version {version} has no value"
            );
            let found = hex::encode(Fingerprint::of(migration.sql.as_bytes()).digest());
            let found = (migration.version, migration.sql.len(), found.as_str());
            assert_eq!(found, (version, bytes, digest));
        }
        assert_eq!(migrations().len(), RELEASED.len());
    }

    #[test]
    fn versions() {
        assert!(compatible((VERSION, 1)).is_ok());
        assert!(compatible((VERSION + 3, VERSION)).is_ok(), "expanded, not yet contracted");
        let newer = compatible((VERSION + 3, VERSION + 1)).unwrap_err().to_string();
        assert!(newer.contains("install a newer onetake"), "{newer}");
        let older = compatible((VERSION - 1, 0)).unwrap_err().to_string();
        assert!(older.contains("onetake migrate"), "{older}");
    }
}
