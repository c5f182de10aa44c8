//! The configured store: opening, migration, diagnosis.
//!
//! Each of the three has one `match` on the URL. A store that is not compiled in gives an error
//! that says so.

mod folder;
mod recordings;

use std::error::Error;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onetake_core::engine::{Housekeeping, Journal};
use onetake_core::store::SharedSecrets;
use onetake_core::{
    Limits, MemoryStore, Outbox, Rng, SharedVelocity, Store, SystemClock, SystemRng,
};
#[cfg(feature = "sqlite")]
use onetake_stores::SqliteStore;
use onetake_stores::embedded::EmbeddedOptions;
use onetake_stores::{
    Diagnosis, EmbeddedStore, EncryptionKey, FileJournal, Finding, SealedJournal, SealedStore,
    Sealer,
};
#[cfg(feature = "dynamodb")]
use onetake_stores::{DynamoOptions, DynamoStore, dynamodb::TableChange};
#[cfg(feature = "filtered")]
use onetake_stores::{FilterOptions, FilteredStore};
#[cfg(feature = "postgres")]
use onetake_stores::{PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
use onetake_stores::{RedisOptions, RedisStore, RedisVelocity};

#[cfg(feature = "postgres")]
use crate::config::ServerUrl;
use crate::config::{Config, StoreConfig, StoreUrl};

/// Concurrent writes of one kind to a store behind a network: one is on its way while another is
/// being made durable.
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
const SHARED_WRITERS: usize = 2;
/// How often each node looks for abandoned attempts in a shared store.
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
const SHARED_REAP_INTERVAL: Duration = Duration::from_secs(5);
/// Name of the secret that authenticates the entries of the filter.
#[cfg(feature = "filtered")]
const FILTER_SECRET: &str = "filter";

/// An open store, with the engine settings that fit it.
#[derive(Debug)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Number of operations that were interrupted when the store was last used.
    pub interrupted: usize,
    /// The engine's limits for this store.
    pub limits: Limits,
    /// How often to look for abandoned attempts.
    pub reap_interval: Duration,
    /// Journal for outcomes that the store has not accepted at shutdown.
    pub journal: Option<Arc<dyn Journal>>,
}

impl OpenStore {
    /// A store that only this machine uses.
    fn local(store: impl Store, interrupted: usize) -> Self {
        Self {
            store: Arc::new(store),
            interrupted,
            limits: Limits::default(),
            reap_interval: Housekeeping::default().reap_interval,
            journal: None,
        }
    }

    /// A store behind a network, shared by several nodes.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
    fn shared(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            interrupted: 0,
            limits: Limits { writers_max: SHARED_WRITERS, ..Limits::default() },
            reap_interval: SHARED_REAP_INTERVAL,
            journal: None,
        }
    }
}

/// The error of a store that could not be used. It names the store, without its password.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the store {url}")]
pub struct StoreFailed {
    action: &'static str,
    url: String,
    source: Box<dyn Error + Send + Sync>,
}

/// Makes a [`StoreFailed`] from an error; for `map_err`.
pub(crate) fn failed<E>(
    action: &'static str,
    url: &dyn ToString,
) -> impl FnOnce(E) -> StoreFailed + use<E>
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let url = url.to_string();
    move |error| StoreFailed { action, url, source: error.into() }
}

/// The error for a store that is not compiled into this build.
fn left_out(action: &'static str, url: &StoreUrl) -> StoreFailed {
    let feature = match url {
        StoreUrl::Sqlite(_) => "sqlite",
        StoreUrl::Postgres(_) => "postgres",
        StoreUrl::Redis(_) => "redis",
        StoreUrl::DynamoDb(_) => "dynamodb",
        _ => "full",
    };
    let what = format!(
        "this build does not support this store; build onetake with `--features {feature}`"
    );
    failed(action, url)(what)
}

/// Opens the configured store. It compresses recordings, and encrypts them if encryption keys are
/// configured.
///
/// # Errors
/// If the store cannot be reached or used: the error names the store, the cause and the fix.
pub async fn open(config: &StoreConfig) -> Result<OpenStore, StoreFailed> {
    let mut opened = open_bare(config).await?;
    opened.limits.claim_patience = config.claim_timeout;
    opened.limits.settle_patience = config.settle_timeout;
    let configured = config.encryption.iter().map(|secret| secret.id.clone()).collect();
    tokio::spawn(recordings::miss_keys(Arc::clone(&opened.store), configured));
    let keys = config.encryption.iter();
    let keys = keys.map(|secret| EncryptionKey::new(&secret.id, &secret.secret)).collect();
    let store = Arc::new(SealedStore::around(opened.store, keys));
    let journal = match config.journal.clone() {
        None => None,
        Some(folder) => {
            let mut fresh = [0; 32];
            SystemRng.fill(&mut fresh);
            let of = store.secret(FileJournal::SECRET, fresh).await;
            let of = of.map_err(failed("open", &config.url))?;
            open_journal(folder, of, store.sealer()).await
        }
    };
    Ok(OpenStore { store, journal, ..opened })
}

/// Opens the journal, sealed like the store. If that fails, the gateway still works; only outcomes
/// that are unsaved at shutdown would become unknown.
async fn open_journal(folder: PathBuf, of: [u8; 32], sealer: Sealer) -> Option<Arc<dyn Journal>> {
    let shown = folder.display().to_string();
    match blocking(move || FileJournal::open(folder, &of)).await {
        Ok(journal) => Some(Arc::new(SealedJournal::around(Arc::new(journal), sealer))),
        Err(error) => {
            tracing::warn!(
                folder = shown, %error,
                "the journal folder cannot be used: outcomes that are unsaved at shutdown will be unknown. Name a writable folder below [store]: journal = \"FOLDER\""
            );
            None
        }
    }
}

/// Returns the number of cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

async fn open_bare(config: &StoreConfig) -> Result<OpenStore, StoreFailed> {
    const OPEN: &str = "open";
    match &config.url {
        StoreUrl::Memory => {
            tracing::warn!(
                "the memory store loses all keys when this process ends: use it for tests only"
            );
            Ok(OpenStore::local(MemoryStore::new(), 0))
        }
        StoreUrl::Embedded(folder) => {
            let (folder, clock) = (folder.clone(), Arc::new(SystemClock));
            let options = EmbeddedOptions { memory_bytes: config.memory_bytes };
            let opened = blocking(move || EmbeddedStore::open_as(folder, options, clock)).await;
            let store = opened.map_err(failed(OPEN, &config.url))?;
            let interrupted = store.interrupted();
            let mut open = OpenStore::local(store, interrupted);
            // The store's thread gathers the writes of all cores.
            open.limits.lanes = cores();
            Ok(open)
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(file) => {
            let store = open_sqlite(file.clone()).await.map_err(failed(OPEN, &config.url))?;
            Ok(OpenStore::local(store, 0))
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let store =
                PostgresStore::open(url.expose(), postgres_options(config.allow_lossy, config));
            let store = store.await.map_err(failed(OPEN, url))?;
            match &config.filter {
                None => Ok(OpenStore::shared(store)),
                Some(filter) => Ok(OpenStore::shared(open_filter(filter, url, store).await?)),
            }
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => {
            let store = RedisStore::open(url.expose(), redis_options(config)).await;
            Ok(OpenStore::shared(store.map_err(failed(OPEN, url))?))
        }
        #[cfg(feature = "dynamodb")]
        StoreUrl::DynamoDb(url) => {
            let store = DynamoStore::open(url.expose(), dynamo_options(config)).await;
            Ok(OpenStore::shared(store.map_err(failed(OPEN, url))?))
        }
        other => Err(left_out(OPEN, other)),
    }
}

/// Opens the outbox of the configured store, for relays.
///
/// # Errors
/// If the store cannot be reached or used, or has no outbox: the error names the store, the cause
/// and the fix.
pub async fn open_outbox(config: &StoreConfig) -> Result<Arc<dyn Outbox>, StoreFailed> {
    const OPEN: &str = "open the outbox of";
    match &config.url {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let store =
                PostgresStore::open(url.expose(), postgres_options(config.allow_lossy, config));
            Ok(Arc::new(store.await.map_err(failed(OPEN, url))?))
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(file) => {
            let file = file.clone();
            let opened = blocking(move || SqliteStore::open_outbox(&file)).await;
            Ok(Arc::new(opened.map_err(failed(OPEN, &config.url))?))
        }
        #[cfg(not(feature = "postgres"))]
        StoreUrl::Postgres(_) => Err(left_out(OPEN, &config.url)),
        #[cfg(not(feature = "sqlite"))]
        StoreUrl::Sqlite(_) => Err(left_out(OPEN, &config.url)),
        other => {
            let what = "only PostgreSQL and SQLite have an outbox: name such a store with --store \
                        URL";
            Err(failed(OPEN, other)(what))
        }
    }
}

/// Opens the shared counters for velocity limits: the configured Redis, if there is one and a route
/// has limits. While it is unreachable, each node counts alone.
///
/// # Errors
/// If its URL is wrong.
pub async fn open_velocity(
    config: &Config,
) -> Result<Option<Arc<dyn SharedVelocity>>, StoreFailed> {
    if config.settings().all(|settings| settings.policy.velocity.is_empty()) {
        return Ok(None);
    }
    match (&config.store.filter, &config.store.url) {
        #[cfg(feature = "redis")]
        (Some(url), _) | (None, StoreUrl::Redis(url)) => {
            let opened = RedisVelocity::open(url.expose(), redis_options(&config.store)).await;
            let place = opened.map_err(failed("count velocity in", url))?;
            Ok(Some(Arc::new(place)))
        }
        _ => Ok(None),
    }
}

/// Creates or updates what the store needs, and returns a line that describes the change.
///
/// # Errors
/// If it fails: the error names the store, the cause and the fix.
pub async fn migrate(config: &StoreConfig) -> Result<String, StoreFailed> {
    const MIGRATE: &str = "migrate";
    match &config.url {
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            // Migration is allowed on a database that can lose writes. Only serving from it is
            // refused.
            let migrated =
                PostgresStore::migrate(url.expose(), postgres_options(true, config)).await;
            let migrated = migrated.map_err(failed(MIGRATE, url))?;
            let to = migrated.to;
            Ok(match migrated.from {
                None => format!("the schema was created, version {to}"),
                Some(from) if from == to => format!("the schema already has version {to}"),
                Some(from) => format!("the schema was updated from version {from} to version {to}"),
            })
        }
        #[cfg(feature = "dynamodb")]
        StoreUrl::DynamoDb(url) => {
            let change = DynamoStore::migrate(url.expose(), dynamo_options(config)).await;
            let said = match change.map_err(failed(MIGRATE, url))? {
                TableChange::Created => "the table was created",
                TableChange::IndexAdded => "the missing index was added to the table",
                TableChange::Nothing => "the table already exists",
            };
            Ok(said.to_owned())
        }
        StoreUrl::Memory | StoreUrl::Embedded(_) | StoreUrl::Sqlite(_) | StoreUrl::Redis(_) => {
            Ok("nothing to do: this store creates what it needs when it is opened".to_owned())
        }
        other => Err(left_out(MIGRATE, other)),
    }
}

/// How migration tools name files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MigrationNaming {
    /// `0001_onetake.sql`, for sqlx.
    #[default]
    Sqlx,
    /// `V1__onetake.sql`, for Flyway.
    Flyway,
    /// `V1__onetake.sql`, for refinery.
    Refinery,
}

/// Writes the PostgreSQL schema as one file for each version, and returns the list of files for
/// people.
///
/// # Errors
/// If a file cannot be written, or is there already with another content.
#[cfg(feature = "postgres")]
pub fn write_migrations(folder: &Path, naming: MigrationNaming) -> Result<String, String> {
    let shown = |path: &Path| path.display().to_string();
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot create the folder {}: {error}", shown(folder)))?;
    let mut said = String::new();
    for migration in onetake_stores::postgres::migrations() {
        let version = migration.version;
        let path = folder.join(match naming {
            MigrationNaming::Sqlx => format!("{version:04}_onetake.sql"),
            MigrationNaming::Flyway | MigrationNaming::Refinery => {
                format!("V{version}__onetake.sql")
            }
        });
        match std::fs::read_to_string(&path) {
            Ok(found) if found == migration.sql => {
                said += &format!("{} already exists\n", shown(&path));
                continue;
            }
            Ok(_) => {
                return Err(format!(
                    "{} already exists with other contents: an applied migration must not change. \
                     Choose another folder, or move the file away",
                    shown(&path)
                ));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read {}: {error}", shown(&path))),
        }
        std::fs::write(&path, &migration.sql)
            .map_err(|error| format!("cannot write {}: {error}", shown(&path)))?;
        said += &format!("{} was written\n", shown(&path));
    }
    Ok(said)
}

/// Refuses: PostgreSQL was left out of this build.
///
/// # Errors
/// Always.
#[cfg(not(feature = "postgres"))]
pub fn write_migrations(_: &Path, _: MigrationNaming) -> Result<String, String> {
    Err("this build does not support PostgreSQL; build onetake with `--features postgres`"
        .to_owned())
}

/// The store that was checked, and the findings.
#[derive(Debug)]
pub struct Examined {
    /// `store` or `filter`.
    pub role: &'static str,
    /// Its URL, without a password.
    pub url: String,
    /// The findings.
    pub diagnosis: Diagnosis,
}

/// Checks the configured store, and the filter in front of it.
///
/// # Errors
/// If the store cannot be reached: the error names the store, the cause and the fix.
pub async fn examine(config: &StoreConfig) -> Result<Vec<Examined>, StoreFailed> {
    let mut all = examine_bare(config).await?;
    if let Some(store) = all.first_mut() {
        store.diagnosis.add(recordings::examine(config).await);
    }
    Ok(all)
}

async fn examine_bare(config: &StoreConfig) -> Result<Vec<Examined>, StoreFailed> {
    const REACH: &str = "reach";
    let diagnosis = match &config.url {
        StoreUrl::Memory => forgetful(),
        StoreUrl::Embedded(folder) => {
            let folder = folder.clone();
            let looked = blocking(move || folder::diagnose(&folder, &SystemClock)).await;
            looked.map_err(failed(REACH, &config.url))?
        }
        // Opening the file would create it.
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(file) if !file.exists() => {
            let file = file.clone();
            let looked = blocking(move || folder::diagnose(&file, &SystemClock)).await;
            looked.map_err(failed(REACH, &config.url))?
        }
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(file) => {
            let store = open_sqlite(file.clone()).await.map_err(failed(REACH, &config.url))?;
            looked_at(&store, store.diagnose()).await.map_err(failed(REACH, &config.url))?
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => {
            let looked =
                PostgresStore::diagnose(url.expose(), postgres_options(true, config)).await;
            let diagnosis = looked.map_err(failed(REACH, url))?;
            let mut all = vec![Examined { role: "store", url: url.to_string(), diagnosis }];
            if let Some(filter) = &config.filter {
                all.push(examine_filter(filter).await?);
            }
            return Ok(all);
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(url) => {
            let store = RedisStore::open(url.expose(), redis_options(config)).await;
            let store = store.map_err(failed(REACH, url))?;
            looked_at(&store, store.diagnose()).await.map_err(failed(REACH, url))?
        }
        #[cfg(feature = "dynamodb")]
        StoreUrl::DynamoDb(url) => {
            let store = DynamoStore::open(url.expose(), dynamo_options(config)).await;
            let store = store.map_err(failed(REACH, url))?;
            looked_at(&store, store.diagnose()).await.map_err(failed(REACH, url))?
        }
        other => return Err(left_out(REACH, other)),
    };
    Ok(vec![Examined { role: "store", url: config.url.to_string(), diagnosis }])
}

/// The diagnosis of the memory store.
fn forgetful() -> Diagnosis {
    let finding = Finding::broken(
        "the memory store loses all keys when the process ends: a retry after a restart runs again",
        "use it only for tests; \"embedded:./onetake-data\" needs no server either",
    );
    Diagnosis::new("the memory of this process", Duration::ZERO, None, vec![finding])
}

/// Awaits a diagnosis, then closes the store.
#[cfg(any(feature = "sqlite", feature = "redis", feature = "dynamodb"))]
async fn looked_at<E>(
    store: &impl Store,
    diagnosis: impl Future<Output = Result<Diagnosis, E>>,
) -> Result<Diagnosis, E> {
    let diagnosis = diagnosis.await;
    // The store was only read, so closing it cannot lose anything.
    drop(store.close().await);
    diagnosis
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(file: std::path::PathBuf) -> Result<SqliteStore, onetake_core::StoreError> {
    blocking(move || SqliteStore::open_with(&file, Arc::new(SystemClock))).await
}

#[cfg(feature = "postgres")]
fn postgres_options(allow_lossy: bool, config: &StoreConfig) -> PostgresOptions {
    PostgresOptions {
        allow_lossy,
        connect_timeout: config.connect_timeout,
        command_timeout: config.timeout,
        ..PostgresOptions::default()
    }
}

#[cfg(feature = "redis")]
fn redis_options(config: &StoreConfig) -> RedisOptions {
    let (connect_timeout, command_timeout) = (config.connect_timeout, config.timeout);
    RedisOptions { connect_timeout, command_timeout, ..RedisOptions::default() }
}

#[cfg(feature = "dynamodb")]
fn dynamo_options(config: &StoreConfig) -> DynamoOptions {
    let (connect_timeout, command_timeout) = (config.connect_timeout, config.timeout);
    DynamoOptions { connect_timeout, command_timeout, ..DynamoOptions::default() }
}

/// Opens the filter in front of its authority. The filter's secret is created at first use and kept
/// in the authority, so all nodes have the same one.
#[cfg(feature = "filtered")]
async fn open_filter(
    filter: &ServerUrl,
    url: &ServerUrl,
    authority: PostgresStore,
) -> Result<FilteredStore, StoreFailed> {
    let mut fresh = [0; 32];
    SystemRng.fill(&mut fresh);
    let secret = authority.secret(FILTER_SECRET, fresh).await.map_err(failed("open", url))?;
    let authority: Arc<dyn Store> = Arc::new(authority);
    let options = FilterOptions::default();
    let opened = FilteredStore::open(filter.expose(), &secret, authority, options).await;
    opened.map_err(failed("open", filter))
}

/// Checks the filter alone: with a dummy secret, in front of an empty store.
#[cfg(feature = "filtered")]
async fn examine_filter(filter: &ServerUrl) -> Result<Examined, StoreFailed> {
    let authority: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let options = FilterOptions::default();
    let store = FilteredStore::open(filter.expose(), &[0; 32], authority, options).await;
    let store = store.map_err(failed("reach", filter))?;
    let diagnosis = store.diagnose().await;
    drop(store.close().await);
    let diagnosis = diagnosis.unwrap_or_else(|error| {
        // A broken filter costs speed only, never safety (S11).
        let fix = "repair the Redis filter: until then, every request reads PostgreSQL";
        let finding = Finding::weak(format!("the Redis filter does not respond: {error}"), fix);
        Diagnosis::new("unknown", Duration::ZERO, None, vec![finding])
    });
    Ok(Examined { role: "filter", url: filter.to_string(), diagnosis })
}

#[cfg(all(feature = "postgres", not(feature = "filtered")))]
async fn open_filter(
    filter: &ServerUrl,
    _: &ServerUrl,
    _: PostgresStore,
) -> Result<PostgresStore, StoreFailed> {
    let what = "this build does not support filters; build onetake with `--features filtered`";
    Err(failed("open", filter)(what))
}

#[cfg(all(feature = "postgres", not(feature = "filtered")))]
async fn examine_filter(filter: &ServerUrl) -> Result<Examined, StoreFailed> {
    let what = "this build does not support filters; build onetake with `--features filtered`";
    Err(failed("reach", filter)(what))
}

/// Runs blocking disk work on a thread for blocking tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
